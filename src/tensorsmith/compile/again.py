"""Parts of a traced function that are run again in its backward (checkpoints), for values that are not kept.

What such a run computes is what the first run computed, and would be found as common values; so everything older that it reads
is seen through AGAIN. Its random numbers are the numbers that the first run drew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tensorsmith.ir.graph import Graph, Node, Primitive, base_of


class RunsAgain:
    """What a tracer knows of such parts."""

    def __init__(self) -> None:
        self._noting: list[list[Any]] = []
        self._repeated: Iterator[Any] | None = None  # what the part drew that is run again now
        self._start: int | None = None  # the number of nodes there were when it began

    @contextmanager
    def noting_draws(self, drawn: list[Any]) -> Iterator[None]:
        """A part that may be run again; `drawn` collects what it draws."""
        self._noting.append(drawn)
        try:
            yield
        finally:
            self._noting.pop()

    @contextmanager
    def computing_again(self, graph: Graph, drawn: Sequence[Any] | None) -> Iterator[None]:
        """A part is run again. drawn: what it drew before; None: it draws anew."""
        before = self._repeated, self._start
        self._repeated = None if drawn is None else iter(drawn)
        self._start = len(graph.nodes)
        try:
            yield
        finally:
            self._repeated, self._start = before

    def drawn_before(self) -> Any | None:
        """What the first run drew here."""
        return None if self._repeated is None else next(self._repeated, None)

    def note(self, drawn: Any) -> Any:
        """Note what is drawn for every part that goes on."""
        for noted in self._noting:
            noted.append(drawn)
        return drawn

    def operands(self, nodes: list[Node]) -> list[Node]:
        """The operands of an operator as the run that goes on sees them.

        Inputs, weights above all, stay as they are where another operand makes the operator a new one.
        """
        start = self._start
        if start is None:
            return nodes

        def seen(node: Node, inputs: bool) -> Node:
            base = base_of(node)
            given = base.op is Primitive.CONST or base.attrs.get("param")
            if given or node.index >= start or (base.op is Primitive.INPUT) is not inputs:
                return node
            return node.graph.add(Primitive.AGAIN, (node,), part=start)

        nodes = [seen(node, False) for node in nodes]
        return nodes if any(node.index >= start for node in nodes) else [seen(node, True) for node in nodes]

"""Which line of the user's program each value of a graph comes from, kept through passes that rewrite the graph."""

from __future__ import annotations

import difflib
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorsmith.autograd.anomaly import user_trace
from tensorsmith.ir.graph import Graph, Node, format_node


@dataclass(frozen=True)
class Line:
    """A line of a program. `str` is "file:number: text"."""

    file: str
    number: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number}" + (f": {text}" if text else "")


def users_line() -> Line | None:
    """The innermost line being executed that is not this package's."""
    trace = user_trace()
    return Line(trace[-1].filename, trace[-1].lineno or 0) if trace else None


def _signature(node: Node) -> tuple[Any, ...]:
    """What a pass that does not touch a node leaves as it is: everything but the numbers of its operands."""
    head, _, rest = format_node(node).partition("(")
    attributes = tuple(part for part in rest.split(", ") if not part.startswith("%"))
    return head, attributes, node.shape, node.dtype.name


def carried(lines: dict[Node, Line], traced: Graph, settled: Graph) -> dict[Node, Line]:
    """The lines of another graph's values, which passes made of `traced`: of equal values in the same order.

    A value that a pass made new has the line of what it is made of, or of what is made of it.
    """
    if traced is settled:
        return lines
    before, after = traced.live_nodes(), settled.live_nodes()
    match = difflib.SequenceMatcher(None, [_signature(n) for n in before], [_signature(n) for n in after], autojunk=False)
    found: dict[Node, Line] = {}
    for start, other, length in match.get_matching_blocks():
        for old, new in zip(before[start : start + length], after[other : other + length]):
            if old in lines:
                found[new] = lines[old]
    for node in after:
        known = [found[operand] for operand in node.inputs if operand in found]
        if node not in found and known:
            found[node] = known[-1]
    for node in reversed(after):
        if node in found:
            for operand in node.inputs:
                if operand.inputs:
                    found.setdefault(operand, found[node])
    return found

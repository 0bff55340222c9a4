"""An operation for many examples at once, derived from its graph by `ir/batching.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.eager.operator import Kind, Operation, Program
from tensorsmith.ir.batching import batch, batch_into
from tensorsmith.ir.build import reduce, reshape
from tensorsmith.ir.graph import Node, Primitive, copy_into


class BatchedOperation(Operation):
    """A program with a leading batch axis on the operands flagged in `batched` and on every result.

    Its gradient is the batched gradient where the operation has a rule of its own, else it is derived from the batched graph.
    """

    def __init__(self, single: Program, batched: tuple[bool, ...], extent: int) -> None:
        self.single = single
        self.batched = batched
        self.extent = extent
        self.name = single.operation.name
        self.node_name = single.name
        self.graph = batch(single.graph, batched, extent)
        ranks = {len(node.shape) for node, flag in zip(self.graph.inputs, batched) if not node.attrs["param"]}
        # Elementwise results take the operands' order of axes only where their axes stand under each other.
        self.pointwise = single.operation.pointwise and all(batched) and len(ranks) == 1
        self.fresh = single.operation.fresh or not all([_depends(node, batched) for node in single.graph.outputs])
        self.derived_tangent = single.operation.derived_tangent
        self.inplace: dict[tuple, Any] = {}  # by what is written: the operation that writes over operands
        self._program = Program(self, self.graph, {}, single.name)

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        return self._program

    def build(self, *nodes: Node) -> tuple[Node, ...]:
        """The batched graph on other nodes."""
        mapping = copy_into(nodes[0].graph, self.graph, nodes)
        return tuple([mapping[node] for node in self.graph.outputs])

    def override(self, attrs: dict[str, Any]) -> Any:
        single = self.single
        if single.operation.override(single.attrs) is None:
            return None

        def rule(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node | None]:
            needs = tuple([node.dtype.kind in "fc" and not node.attrs["param"] for node in single.graph.inputs])
            backward = single.backward(needs, tuple([node.dtype.kind in "fc" for node in single.graph.outputs])).backward
            given = {"input": (inputs, self.batched), "output": (outputs, (True,) * len(outputs))}
            arguments = [given[which.kind][0][which.number] for which in backward.saved]
            flags = [given[which.kind][1][which.number] for which in backward.saved]
            arguments += [grads[i] for i in backward.grad_outputs]
            flags += [True] * len(backward.grad_outputs)
            found = batch_into(inputs[0].graph, backward.graph, arguments, flags, self.extent)
            results: list[Node | None] = []
            for number, flag in zip(backward.results, self.batched):
                part = None if number is None else found[number]
                if part is not None and not flag:  # one value for all examples: their gradients add up
                    part = reshape(reduce(part, "sum", (0,)), part.shape[1:])
                results.append(part)
            return results

        return rule


def batched_operation(single: Program, batched: tuple[bool, ...], extent: int) -> BatchedOperation:
    """The batched operation of a program; made once."""
    found = single.batches.get((batched, extent))
    if found is None:
        found = single.batches[batched, extent] = BatchedOperation(single, batched, extent)
    return found


def _depends(node: Node, batched: Sequence[bool]) -> bool:
    """Whether a value depends on a batched input."""
    seen: set[Node] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op is Primitive.INPUT and batched[node.attrs["number"]]:
            return True
        for operand in node.inputs:
            if operand not in seen:
                seen.add(operand)
                waiting.append(operand)
    return False


__all__ = ["BatchedOperation", "batched_operation"]

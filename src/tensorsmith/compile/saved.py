"""What a compiled function's forward run saves for its backward, and the autograd node that keeps it.

A value that is dear, or that the forward run writes to memory anyway, is saved; what is cheap is computed again from such, on
the way to the gradients that need it, so that the backward reads less and holds less. Second derivatives start from the
inputs again: what is saved would count as constant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tensorsmith.eager.operator import Program
from tensorsmith.eager.record import OperatorNode, attach, saved_table
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of
from tensorsmith.ir.vjp import Saved
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

_MADE_AGAIN = VIEWS | {
    Primitive.MAP, Primitive.CAST, Primitive.RANDOM, Primitive.CONST, Primitive.IOTA, Primitive.AS_REAL, Primitive.AS_COMPLEX,
    Primitive.PAIR,
}  # fmt: skip
SMALL = 8  # a value at most 1/SMALL of the size of its reader may be read again by it


def values_to_save(graph: Graph, count: int, gradients: Sequence[Node], replaced: Collection[Node]) -> tuple[Node, ...]:
    """The values among the first `count` nodes that the gradients, made by the nodes after those, are computed from.

    A product, a reduction, anything that is no pointwise value or view is saved; so is a pointwise value that one of these
    reads, for it is memory in the forward run, and one that is the only reader of such, as `+ bias` behind a product. An
    input in `replaced` is written over in the run, and its old value saved; what the run makes of it is computed again.
    """
    readers: dict[Node, list[Node]] = {}
    for node in graph.live_nodes():
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    results = set(graph.outputs)
    lost = set(replaced)

    def is_memory(node: Node) -> bool:
        """Whether the forward run writes the value, seen through views of it."""
        for reader in readers.get(node, ()):
            if reader.op in VIEWS:
                if is_memory(reader):
                    return True
            elif reader.op not in _MADE_AGAIN:
                return True
        return False

    def is_epilogue(node: Node) -> bool:
        """Whether the value is what a dear one becomes before anybody else reads it; everything else it is made of is small."""
        bases = [base_of(operand) for operand in node.inputs]
        large = [base for base in bases if base.numel * SMALL > node.numel]
        return len(large) == 1 and large[0].op not in _MADE_AGAIN and large[0].op is not Primitive.INPUT and (
            len(readers.get(large[0], ())) == 1
        )  # fmt: skip

    found: dict[Node, None] = {}
    seen: set[Node] = set()
    waiting = list(gradients)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.index >= count:  # of the gradients
            waiting += node.inputs
        elif node in lost:
            found[node] = None
        elif node.op is Primitive.INPUT or node in results:
            continue
        elif node.op in _MADE_AGAIN and (node.op in VIEWS or not (node.inputs and (is_memory(node) or is_epilogue(node)))):
            waiting += node.inputs
        else:
            found[node] = None
    return tuple(sorted(found, key=lambda node: node.index))


class CompiledNode(OperatorNode):
    """The recorded call of a compiled function.

    lean:  the function with what it saves as further outputs, by which gradients are computed
    plain: the function without, by which they are computed where they are to be differentiated again
    """

    __slots__ = ("lean", "plain", "differentiable")

    lean: Program
    plain: Program
    differentiable: tuple[bool, ...]

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        self.program = self.plain if modes.grad else self.lean
        self.backward = self.program.backward(self.needs, self.differentiable)
        return super().apply(grads)


def table_of(lean: Program, plain: Program, needs: tuple[bool, ...], differentiable: tuple[bool, ...]) -> tuple[Saved, ...]:
    """What a node of these programs keeps: what first derivatives need, and second ones where there are any."""
    table = saved_table(lean, needs, differentiable)
    if plain.operation.rule.replaced:
        return table
    return (*table, *(which for which in saved_table(plain, needs, differentiable) if which not in table))


def record(
    lean: Program, plain: Program, needs: tuple[bool, ...], differentiable: tuple[bool, ...], table: tuple[Saved, ...],
    operands: Sequence[Any], results: Sequence[Tensor],
) -> None:  # fmt: skip
    """Record the run of a compiled function on its results, of which the last are what it saved.

    differentiable: which of the results before those have a gradient
    """
    node = CompiledNode(lean, needs, lean.backward(needs, differentiable), table, operands)
    node.lean, node.plain, node.differentiable = lean, plain, differentiable
    node.output_count = len(differentiable)
    attach(node, table, differentiable, operands, results)

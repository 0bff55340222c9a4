"""Which pointwise values a product stores in place of its own: its epilogue.

A product's results are in registers before they are stored, so that what is computed of them point by point costs next to
nothing there: a bias, the scale and shift of a channel, an activation, the sum with a residual. `absorbed` follows the
readers of a product for as long as everything that is read of it comes together in one value again; that value is stored
instead. What it reads besides lies in memory in one of three ways: an element a column, an element a result, or one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorsmith.core import views
from tensorsmith.core.dtypes import float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided, same_strides
from tensorsmith.ir import build
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of, rewritten
from tensorsmith.passes.walk import Chain, NeedsBuffer, apply_chain, of_numbers
from tensorsmith.scalar.table import Fn

if TYPE_CHECKING:
    from tensorsmith.passes.fusion import Fusion

COLUMN, WHOLE, ONE = "column", "whole", "one"  # an operand with an element a column; with one a result; with a single one
MOST_OPERANDS = 6
MOST_VALUES = 24  # computed of a result


@dataclass(frozen=True)
class Absorbed:
    """Values that a product computes of its results: `nodes`, of which it stores `root`; `small` are materialised for it."""

    root: Node
    nodes: frozenset[Node]
    small: tuple[Node, ...]


def columns_of(product: Node) -> int:
    """How many results lie side by side with an element each of a COLUMN: the columns of a product, channels that lie last."""
    return product.shape[1] if product.op is Primitive.CONV else product.shape[-1]


def kind_of(seen: Strided, place: Strided, columns: int) -> str | None:
    """How an operand lies beside results that lie at `place`; None for any other way."""
    if not any(s for n, s in zip(seen.shape, seen.strides) if n > 1):
        return ONE
    if same_strides(seen.shape, seen.strides, place.strides):
        return WHOLE
    axis = len(seen.shape)
    while axis and math.prod(seen.shape[axis:]) < columns:
        axis -= 1
    inner = seen.shape[axis:]
    if math.prod(inner) != columns or not same_strides(inner, seen.strides[axis:], contiguous_strides(inner)):
        return None
    return COLUMN if not any(s for n, s in zip(seen.shape[:axis], seen.strides) if n > 1) else None


def results_place(fusion: Fusion, product: Node, root: Node) -> Strided | None:
    """Where a product writes its results for `root` to lie where it does; None where strides cannot say, or it cannot."""
    chain: list[Node] = []
    for node in _views_above(fusion, product):
        chain.append(node)
    place: Strided | None = fusion.place(root)
    for view in reversed(chain):
        assert place is not None
        if view.op is Primitive.RESHAPE:
            place = views.reshape(place, view.inputs[0].shape)
        else:
            axes = view.attrs["axes"]
            place = views.permute(place, [axes.index(i) for i in range(len(axes))])
        if place is None:
            return None
    if product.op is Primitive.MATMUL and place is not None:  # which stores rows side by side
        rows, columns = product.shape[-2:]
        flat = views.reshape(place, (math.prod(product.shape[:-2]), rows, columns))
        if flat is None or (flat.strides[2] != 1 and columns > 1):
            return None
    return place


def _views_above(fusion: Fusion, product: Node) -> list[Node]:
    """The views through which alone a product is read, innermost first."""
    found: list[Node] = []
    node = product
    while (reader := fusion.only_consumer(node)) is not None and reader.op in (Primitive.RESHAPE, Primitive.PERMUTE):
        found.append(reader)
        node = reader
    return found


def absorbed(fusion: Fusion, product: Node) -> Absorbed | None:
    """What a product computes of its results, as much as comes together in one value; None where that is nothing."""
    if not fusion.takes_epilogue(product) or not product.numel:
        return None
    top = (_views_above(fusion, product) or [product])[-1]
    inside: set[Node] = {top}
    waiting = set(fusion.consumers.get(top, ()))
    operands: dict[Node, None] = {}
    found: Absorbed | None = None
    if top in fusion.results:
        return None
    while waiting and len(inside) <= MOST_VALUES:
        node = min(waiting, key=lambda each: each.index)
        widens = node.op is Primitive.CAST and product.dtype.is_half and node.dtype in (product.dtype, float32)
        if not (node.op is Primitive.MAP or widens) or fusion.is_anchor(node):
            break
        outside = [each for each in node.inputs if each not in inside]
        others = [each for each in outside if not of_numbers(base_of(each))]
        if any(of_numbers(base_of(each)) and _reads_numbers_of_the_run(each) for each in outside):
            break
        if not all(_is_operand(fusion, each, product) for each in others):
            break
        operands.update(dict.fromkeys(others))
        inside.add(node)
        waiting.discard(node)
        waiting |= {reader for reader in fusion.consumers.get(node, ()) if reader not in inside}
        if node.dtype is product.dtype and _is_only_open(fusion, node, inside, waiting):
            if not _lie_beside(fusion, product, node, operands):
                break
            small = tuple(base_of(each) for each in operands if base_of(each).op is not Primitive.INPUT)
            found = Absorbed(node, frozenset(inside - {top}), small)
    return found


def _reads_numbers_of_the_run(node: Node) -> bool:
    """Whether a value made of numbers is not constant: a product is launched without run-time scalars."""
    return node.op is Primitive.INPUT or any(map(_reads_numbers_of_the_run, node.inputs))


def _lie_beside(fusion: Fusion, product: Node, root: Node, operands: Iterable[Node]) -> bool:
    """Whether strides say where the product's results go, and its operands can be read beside them."""
    if results_place(fusion, product, root) is None:
        return False
    place, columns = fusion.place(root), columns_of(product)
    places = {each: _seen(fusion, each) for each in operands}
    reads = {(base_of(each), at.strides, at.offset) for each, at in places.items()}
    return len(reads) <= MOST_OPERANDS and all(kind_of(at, place, columns) for at in places.values())


def _is_only_open(fusion: Fusion, node: Node, inside: set[Node], waiting: set[Node]) -> bool:
    """Whether a value is all that is needed of those inside."""
    readers = set(fusion.consumers.get(node, ()))
    if node in fusion.results:
        return not waiting and not any(each in fusion.results for each in inside if each is not node)
    return waiting <= readers and not any(
        reader not in inside for each in inside if each is not node for reader in fusion.consumers.get(each, ())
    ) and not any(each in fusion.results for each in inside)  # fmt: skip


def _seen(fusion: Fusion, operand: Node) -> Strided:
    """How an operand's memory is seen, given that its base has some; NeedsBuffer where strides cannot say."""
    chain: list[Node] = []
    while operand.op in VIEWS and operand not in fusion.materialised:
        chain.append(operand)
        operand = operand.inputs[0]
    views_of_it: Chain = tuple(reversed(chain))
    return apply_chain(fusion.place(operand), views_of_it)


def _is_operand(fusion: Fusion, operand: Node, product: Node) -> bool:
    """Whether a value can be read beside results: it is in memory, or so small that it is put there."""
    base = base_of(operand)
    if operand.dtype is not product.dtype or base.attrs.get("param") or base.op is Primitive.IOTA:
        return False
    if base.op is not Primitive.INPUT and base not in fusion.materialised and base.numel > columns_of(product):
        return False
    try:
        _seen(fusion, operand)
    except NeedsBuffer:
        return False
    return True


def reshape_before_bias(graph: Graph) -> Graph:
    """The same graph, in which the bias of a product that is then reshaped, as `linear` of more than two axes does, comes
    after the reshape where more is computed point by point: all of it is read of one value then, and can be absorbed.
    """
    nodes, results = graph.live_nodes(), set(graph.outputs)
    if not any(node.op is Primitive.MATMUL for node in nodes):
        return graph
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    found = {node for node in nodes if node not in results and _reshaped_sum(node, readers, results)}
    if not found:
        return graph

    def rewrite(node: Node, operands: list[Node]) -> Node | None:
        if node not in found:
            return None
        moved = []
        for term in operands[0].inputs:
            if term.op is Primitive.MATMUL:
                moved.append(build.reshape(term, node.shape))
            else:
                row = build.reshape(term.inputs[0], (1,) * (node.ndim - 1) + node.shape[-1:])
                moved.append(build.broadcast_to(row, node.shape))
        return moved[0].graph.add(Primitive.MAP, moved, fn=Fn.ADD)

    return rewritten(graph, rewrite)


def _reshaped_sum(node: Node, readers: Mapping[Node, Sequence[Node]], results: Collection[Node]) -> bool:
    """Whether a node is a reshape, along the rows alone, of a product and a row that nobody else reads."""
    if node.op is not Primitive.RESHAPE:
        return False
    total = node.inputs[0]
    if total.op is not Primitive.MAP or total.attrs["fn"] is not Fn.ADD or node.shape[-1:] != total.shape[-1:]:
        return False
    if len(readers[total]) > 1 or total in results:
        return False
    if {term.op for term in total.inputs} != {Primitive.MATMUL, Primitive.EXPAND}:
        return False
    product, row = sorted(total.inputs, key=lambda term: term.op is Primitive.EXPAND)
    along = row.inputs[0].shape
    return (
        along[-1] == math.prod(along) == total.shape[-1] and len(readers[product]) == 1 and product not in results
        and any(reader.op is Primitive.MAP for reader in readers[node])
    )  # fmt: skip

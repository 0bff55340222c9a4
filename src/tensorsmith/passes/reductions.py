"""Reductions made fit for kernels: empty ones become constants, long ones fall into parts, half-precision ones are widened.

A kernel walks at least one point, so a reduction over nothing is its neutral element; one over a single element is that
element. A row of many elements in few rows is
split, so that several threads can work on it and the error of a long sum stays small: n = parts * part (+ a tail), and the
partial results are reduced again. The partition depends on the shape alone.

A long axis outside a narrow one, the sum over the rows of (N, 3), would leave most lanes of a vector empty: it is folded,
(N, 3) -> (N / 32, 32, 3), and the sum over the first axis leaves 32 partial sums of each column.

So is a sum over the rows of a tall matrix, (N, C) -> (N / 128, 128, C): each part is memory that lies together, where columns
would be read piece by piece. But not where what follows needs the sum at every point again, which one kernel does.

Partial results, and additions to one place of a buffer, are float32 where the result is float16 or bfloat16: a bfloat16 to
which ones are added stands still at 256.
"""

from __future__ import annotations

import math
from collections.abc import Container

from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive, rewritten
from tensorsmith.scalar.table import Fn

LONG = 1 << 16  # elements of a row from which it is split
FEW_ROWS = 16  # ... if there are at most so many rows
PART = 1 << 13  # elements of one part

NARROW = 24  # elements inside the reduced axis up to which it is folded
FOLDED = 64  # elements side by side that a fold makes
LEAST_FOLDED = 1 << 14  # elements worth a second reduction

TALL = 1 << 10  # rows from which they fall into parts
TALL_PART = 1 << 7  # rows of one part
LEAST_TALL = 1 << 18  # elements worth it

_COMBINE = {"sum": Fn.ADD, "prod": Fn.MUL, "max": Fn.MAXIMUM, "min": Fn.MINIMUM}
_NEUTRAL = {"sum": 0, "prod": 1}


def reduced(node: Node, materialised: Container[Node] = ()) -> tuple[Node, tuple[int, ...]]:
    """What a reduction reduces, and over which axes: two where it reduces another one of its kind (a sum of sums).

    Not where there are few rows of many elements, which several kernels divide better.
    """
    inner, axis = node.inputs[0], node.attrs["axis"]
    if (
        inner.op is Primitive.REDUCE
        and inner not in materialised
        and inner.attrs["kind"] == node.attrs["kind"]
        and inner.attrs["kind"] in _COMBINE
        and inner.attrs["axis"] != axis
        and inner.dtype is node.dtype
        and not node.dtype.is_half
        and (node.numel > FEW_ROWS or inner.inputs[0].numel < LONG * node.numel)
    ):
        return inner.inputs[0], tuple(sorted((inner.attrs["axis"], axis)))
    return inner, (axis,)


def _is_empty(node: Node) -> bool:
    return node.op is Primitive.REDUCE and node.inputs[0].shape[node.attrs["axis"]] == 0


def _is_single(node: Node) -> bool:
    if node.op is not Primitive.REDUCE or node.attrs["kind"] not in _COMBINE:
        return False
    return node.inputs[0].shape[node.attrs["axis"]] == 1 and node.inputs[0].dtype is node.dtype


def _is_narrow(node: Node) -> bool:
    if node.op is not Primitive.REDUCE or node.attrs["kind"] not in _COMBINE:
        return False
    x, axis = node.inputs[0], node.attrs["axis"]
    inside = math.prod(x.shape[axis + 1 :])
    if not 1 < inside <= NARROW or x.op is Primitive.PERMUTE or len(reduced(node)[1]) > 1:
        return False
    return x.shape[axis] >= 4 * FOLDED and math.prod(x.shape) >= LEAST_FOLDED


def _is_long(node: Node) -> bool:
    if node.op is not Primitive.REDUCE or node.attrs["kind"] not in _COMBINE:
        return False
    extent = node.inputs[0].shape[node.attrs["axis"]]
    return extent >= LONG and math.prod(node.shape) <= FEW_ROWS and len(reduced(node)[1]) == 1


def _is_tall(node: Node) -> bool:
    if node.op is not Primitive.REDUCE or node.attrs["kind"] not in _COMBINE or node.dtype.itemsize > 8:
        return False
    x, axis = node.inputs[0], node.attrs["axis"]
    outside, inside = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if not (inside > NARROW and x.shape[axis] >= TALL and outside <= FEW_ROWS and x.numel >= LEAST_TALL):
        return False
    return x.op is not Primitive.PERMUTE and len(reduced(node)[1]) == 1


def _spread(graph: Graph) -> set[Node]:
    """Reductions whose value is needed again at more points than it has."""
    found: set[Node] = set()
    above: dict[Node, set[Node]] = {}
    for node in graph.live_nodes():
        below = {r for operand in node.inputs for r in above.get(operand, ())}
        found |= {r for r in below if node.numel > r.numel}
        above[node] = {r for r in below if r not in found} | ({node} if node.op is Primitive.REDUCE else set())
    return found


def _adds_halves(node: Node) -> bool:
    return node.op in (Primitive.PUT, Primitive.SCATTER) and node.attrs["reduce"] == "add" and node.dtype.is_half


def prepare_reductions(graph: Graph, splitting: bool = True) -> Graph:
    """The same graph with empty reductions replaced and long ones split; the graph itself where there are none.

    splitting: off for a target whose kernels divide long reductions themselves
    """
    kinds = (_is_empty, _is_single, _adds_halves, *((_is_narrow, _is_long, _is_tall) if splitting else ()))
    if not any(applies(node) for node in graph.live_nodes() for applies in kinds):
        return graph
    spread = _spread(graph)
    return rewritten(graph, lambda node, operands: _prepared(node, operands, node in spread, splitting))


def _prepared(node: Node, operands: list[Node], spread: bool, splitting: bool) -> Node | None:
    if _is_empty(node):
        return _neutral(operands[0].graph, node)
    if _is_single(node):
        return operands[0].graph.add(Primitive.CAST, operands, dtype=node.dtype)  # a value of its own, not a view
    if splitting and _is_narrow(node):
        return build.cast(_fold(build.wide(operands[0]), node.attrs["kind"], node.attrs["axis"]), node.dtype)
    if splitting and _is_long(node):
        return build.cast(_split(build.wide(operands[0]), node.attrs["kind"], node.attrs["axis"], PART), node.dtype)
    if splitting and _is_tall(node) and not spread:
        return build.cast(_split(build.wide(operands[0]), node.attrs["kind"], node.attrs["axis"], TALL_PART), node.dtype)
    if _adds_halves(node):
        base, index, source = operands
        sums = base.graph.add(node.op, (build.wide(base), index, build.wide(source)), **node.attrs)
        return build.cast(sums, node.dtype)
    return None


def _neutral(graph: Graph, node: Node) -> Node:
    kind = node.attrs["kind"]
    if kind not in _NEUTRAL:
        raise RuntimeError(f"{kind}: a reduction over no elements has no value (shape {node.inputs[0].shape})")
    return build.full(graph, node.shape, _NEUTRAL[kind], node.dtype)


def _split(x: Node, kind: str, axis: int, part: int) -> Node:
    extent = x.shape[axis]
    parts = extent // part
    main = build.slice_(x, axis, 0, parts * part)
    main = build.reshape(main, (*x.shape[:axis], parts, part, *x.shape[axis + 1 :]))
    graph = x.graph
    partial = graph.add(Primitive.REDUCE, (main,), kind=kind, axis=axis + 1)
    partial = build.reshape(partial, (*x.shape[:axis], parts, *x.shape[axis + 1 :]))
    total = graph.add(Primitive.REDUCE, (partial,), kind=kind, axis=axis)
    return _with_tail(x, kind, axis, parts * part, total)


def _fold(x: Node, kind: str, axis: int) -> Node:
    extent, inside = x.shape[axis], x.shape[axis + 1 :]
    fold = 1
    while fold * math.prod(inside) < FOLDED:
        fold *= 2
    parts = max(1, extent // PART)
    steps = extent // (parts * fold)
    main = build.slice_(x, axis, 0, parts * steps * fold)
    main = build.reshape(main, (*x.shape[:axis], parts, steps, fold, *inside))
    partial = x.graph.add(Primitive.REDUCE, (main,), kind=kind, axis=axis + 1)
    partial = build.reshape(partial, (*x.shape[:axis], parts * fold, *inside))
    total = x.graph.add(Primitive.REDUCE, (partial,), kind=kind, axis=axis)
    return _with_tail(x, kind, axis, parts * steps * fold, total)


def _with_tail(x: Node, kind: str, axis: int, start: int, total: Node) -> Node:
    """`total` of what lies before `start`, combined with the rest."""
    rest = x.shape[axis] - start
    if rest:
        tail = x.graph.add(Primitive.REDUCE, (build.slice_(x, axis, start, rest),), kind=kind, axis=axis)
        total = x.graph.add(Primitive.MAP, (total, tail), fn=_COMBINE[kind])
    return total

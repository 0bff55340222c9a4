"""The gradient rule of every primitive: `RULES[op](node, output, grad)` gives one gradient per input, None for none.

A rule builds nodes in the graph of `grad`. `node` is the forward node in that same graph, and its inputs may be
referred to freely: `ir/vjp.py` saves or recomputes what the result depends on. `output` is the node's result: a rule
refers to it, rather than to `node`, where the result is what should be kept for the backward pass. Rules know nothing
of accumulation and of un-broadcasting; the driver does both, once. Every rule is made of primitives that have rules
themselves, so that it can be differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.ir import attention, recurrent
from tensorsmith.ir.build import (
    as_complex,
    as_real,
    as_value,
    broadcast_to,
    cast,
    concat,
    conj,
    flip,
    full,
    map_,
    pad,
    permute,
    reduce,
    reshape,
    slice_,
    sum_to,
    transpose,
    where,
    wide,
)  # fmt: skip
from tensorsmith.ir.convolution import of_input, of_weight
from tensorsmith.ir.graph import Graph, Node, Primitive, touches_complex
from tensorsmith.ir.library_gradients import LIBRARY_RULES
from tensorsmith.scalar.table import TABLE, Fn

Rule = Callable[[Node, Node, Node], Sequence[Node | None]]


# ---------------------------------------------------------------------------------------------------------- pointwise


def _map(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    """The chain rule: the gradient times each partial derivative of the scalar table."""
    operands = [as_value(operand) for operand in node.inputs]
    conjugate = conj if touches_complex(node) else None
    return TABLE[node.attrs["fn"]].products(operands, output, [grad] * len(operands), conjugate)


def _as_real(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [as_complex(grad)]


def _as_complex(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [as_real(grad)]


def _cast(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [cast(grad, node.inputs[0].dtype)]


# -------------------------------------------------------------------------------------------------------------- views


def _reshape(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [reshape(grad, node.inputs[0].shape)]


def _permute(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    axes = node.attrs["axes"]
    return [permute(grad, sorted(range(len(axes)), key=lambda i: axes[i]))]


def _expand(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [sum_to(grad, node.inputs[0].shape)]


def _slice(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    axis, start, length, step = (node.attrs[key] for key in ("axis", "start", "length", "step"))
    covered = start + (length - 1) * step + 1 if length else start
    low, high, steps = [0] * node.ndim, [0] * node.ndim, [1] * node.ndim
    low[axis], high[axis], steps[axis] = start, node.inputs[0].shape[axis] - covered, step
    return [pad(grad, low, high, steps)]


def _flip(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return [flip(grad, node.attrs["axes"])]


def _diagonal(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, offset, a, b = node.inputs[0], node.attrs["offset"], node.attrs["axis1"], node.attrs["axis2"]
    rows, columns = x.shape[a], x.shape[b]
    order = [i for i in range(x.ndim) if i not in (a, b)] + [a, b]
    positions = x.graph.iota(node.shape[-1]) * (columns + 1) + (max(-offset, 0) * columns + max(offset, 0))
    base = zeros(grad, (*node.shape[:-1], rows * columns))
    placed = put(base, positions, grad, node.ndim - 1, "set")
    placed = reshape(placed, (*node.shape[:-1], rows, columns))
    return [permute(placed, sorted(range(x.ndim), key=lambda i: order[i]))]


def _unfold(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, axis, size, step = node.inputs[0], node.attrs["axis"], node.attrs["size"], node.attrs["step"]
    windows = node.shape[axis]
    # Each window next to the axis it came from, then both as one axis whose positions are added up.
    last = node.ndim - 1
    beside = permute(grad, [*range(axis + 1), last, *range(axis + 1, last)])
    flat = reshape(beside, (*x.shape[:axis], windows * size, *x.shape[axis + 1 :]))
    positions = strided_positions(x.graph, (windows, size), (step, 1), 0)
    return [put(zeros(grad, x.shape), positions, flat, axis, "add")]


def _as_strided(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x = node.inputs[0]
    positions = strided_positions(x.graph, node.shape, node.attrs["strides"], node.attrs["offset"])
    flat = put(zeros(grad, (x.numel,)), positions, reshape(grad, (grad.numel,)), 0, "add")
    return [reshape(flat, x.shape)]


# -------------------------------------------------------------------------------------------- composition of buffers


def _pad(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    for axis, (low, extent, step) in enumerate(zip(node.attrs["low"], node.inputs[0].shape, node.attrs["step"])):
        grad = slice_(grad, axis, low, extent, step)
    return [grad]


def _concat(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    axis, start = node.attrs["axis"], 0
    parts: list[Node | None] = []
    for operand in node.inputs:
        parts.append(slice_(grad, axis, start, operand.shape[axis]))
        start += operand.shape[axis]
    return parts


def _pair(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    shape = node.inputs[0].shape
    return [reshape(slice_(grad, node.ndim - 1, part, 1), shape) for part in (0, 1)]


# --------------------------------------------------------------------------------------------------------- reductions


def _reduce(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, kind, axis = node.inputs[0], node.attrs["kind"], node.attrs["axis"]
    if kind == "sum" or x.shape[axis] == 0:
        return [broadcast_to(grad, x.shape)]
    if kind == "prod":
        return [broadcast_to(grad, x.shape) * conj(products_of_others(x, axis))]
    if kind in ("max", "min"):  # ties share equally
        chosen = map_(Fn.EQ, x, broadcast_to(output, x.shape))
        count = reduce(cast(chosen, compute_dtype(x.dtype)), "sum", (axis,), keepdim=True)
        share = cast(wide(grad) / count, x.dtype)
        return [where(chosen, broadcast_to(share, x.shape), 0)]
    raise NotImplementedError(f"reduce: the gradient of kind {kind!r}")


def _scan(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, kind, axis = node.inputs[0], node.attrs["kind"], node.attrs["axis"]
    extent = x.shape[axis]
    if extent == 0:
        return [grad]
    if kind == "sum":
        return [flip(scan(flip(grad, (axis,)), "sum", axis), (axis,))]
    if kind in ("max", "min"):
        return [scatter(zeros(grad, x.shape), record_holder(x, output, axis), grad, axis, "add")]
    one = full(x.graph, _with_extent(x, axis, 1), 1, x.dtype)
    if kind == "prod":
        # d/dx[j] = before[j] (grad[j] + x[j+1] (grad[j+1] + x[j+2] (...))), without a division.
        before = concat([one, slice_(output, axis, 0, extent - 1)], axis)
        following = concat([slice_(x, axis, 1, extent - 1), one], axis)
        return [conj(before) * recurrence_from_end(conj(following), grad, axis)]
    if kind == "logsumexp":
        # d/dx[j] = exp(x[j] - y[j]) (grad[j] + exp(y[j] - y[j+1]) (grad[j+1] + ...)): every factor is at most 1.
        out = where(map_(Fn.EQ, output, -math.inf), 0, output)
        this, following = slice_(output, axis, 0, extent - 1), slice_(output, axis, 1, extent - 1)
        level = map_(Fn.EQ, this, following)  # also where both are infinite and their difference is NaN
        fall = where(level, 0, this) - where(level, 0, following)
        decay = concat([map_(Fn.EXP, fall), one], axis)
        return [conj(map_(Fn.EXP, x - out)) * recurrence_from_end(conj(decay), grad, axis)]
    raise NotImplementedError(f"scan: the gradient of kind {kind!r}")


# ------------------------------------------------------------------------------------------- contraction and indexing


def _matmul(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    a, b = node.inputs
    rows, columns = node.ndim - 2, node.ndim - 1
    add = grad.graph.add
    return [
        add(Primitive.MATMUL, (grad, conj(transpose(b, rows, columns)))),
        add(Primitive.MATMUL, (conj(transpose(a, rows, columns)), grad)),
    ]


def _conv(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, w = node.inputs
    return [of_input(x.shape[2:], grad, w, node.attrs), of_weight(w.shape[2:], grad, x, node.attrs)]


def _attention(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return attention.pulled(node, output, grad)


def _attention_gradient(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return attention.pulled_gradient(node, grad)


def _recurrent(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return recurrent.pulled(node, output, grad)


def _recurrent_gradient(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return recurrent.pulled_gradient(node, grad)


def _take(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, index = node.inputs
    return [put(zeros(grad, x.shape), index, grad, node.attrs["axis"], "add"), None]


def _put(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return _overwritten(node, grad, Primitive.TAKE, put)


def _gather(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    x, index = node.inputs
    return [scatter(zeros(grad, x.shape), index, grad, node.attrs["axis"], "add"), None]


def _scatter(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    return _overwritten(node, grad, Primitive.GATHER, scatter)


def _overwritten(node: Node, grad: Node, read: Primitive, write: Callable[..., Node]) -> Sequence[Node | None]:
    """The values written get what is read at their places; what they replaced gets nothing."""
    _, index, src = node.inputs
    axis = node.attrs["axis"]
    written = grad.graph.add(read, (grad, index), axis=axis)
    if node.attrs["reduce"] == "add":
        return [grad, None, written]
    return [write(grad, index, zeros(grad, src.shape), axis, "set"), None, written]


def _library(node: Node, output: Node, grad: Node) -> Sequence[Node | None]:
    name = node.attrs["name"]
    rule = LIBRARY_RULES.get(name)
    if rule is None:
        raise NotImplementedError(f"library routine {name!r} has no gradient rule")
    return rule(node, output, grad)


RULES: dict[Primitive, Rule] = {
    Primitive.MAP: _map,
    Primitive.CAST: _cast,
    Primitive.AS_REAL: _as_real,
    Primitive.AS_COMPLEX: _as_complex,
    Primitive.RESHAPE: _reshape,
    Primitive.PERMUTE: _permute,
    Primitive.EXPAND: _expand,
    Primitive.SLICE: _slice,
    Primitive.FLIP: _flip,
    Primitive.DIAGONAL: _diagonal,
    Primitive.UNFOLD: _unfold,
    Primitive.AS_STRIDED: _as_strided,
    Primitive.AGAIN: lambda node, output, grad: (grad,),
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.PAIR: _pair,
    Primitive.REDUCE: _reduce,
    Primitive.SCAN: _scan,
    Primitive.MATMUL: _matmul,
    Primitive.ATTENTION: _attention,
    Primitive.ATTENTION_GRADIENT: _attention_gradient,
    Primitive.RECURRENT: _recurrent,
    Primitive.RECURRENT_GRADIENT: _recurrent_gradient,
    Primitive.CONV: _conv,
    Primitive.TAKE: _take,
    Primitive.PUT: _put,
    Primitive.GATHER: _gather,
    Primitive.SCATTER: _scatter,
    Primitive.LIBRARY: _library,
}

# Primitives without a rule: they have no differentiable input.
SOURCES = frozenset({Primitive.INPUT, Primitive.CONST, Primitive.IOTA, Primitive.RANDOM})


# ---------------------------------------------------------------------------------------- what several rules build on


def zeros(like: Node, shape: Sequence[int]) -> Node:
    """Zeros in the dtype of `like`."""
    return full(like.graph, shape, 0, like.dtype)


def put(base: Node, index: Node, src: Node, axis: int, reduce: str) -> Node:
    """base with slices src at a 1-D index along axis: reduce set or add."""
    return base.graph.add(Primitive.PUT, (base, index, src), axis=axis, reduce=reduce)


def scatter(base: Node, index: Node, src: Node, axis: int, reduce: str) -> Node:
    """base with elements src at index along axis: reduce set or add."""
    return base.graph.add(Primitive.SCATTER, (base, index, src), axis=axis, reduce=reduce)


def scan(x: Node, kind: str, axis: int) -> Node:
    """Inclusive running sum, prod, max, min or logsumexp along axis."""
    return x.graph.add(Primitive.SCAN, (x,), kind=kind, axis=axis)


def strided_positions(graph: Graph, shape: Sequence[int], strides: Sequence[int], offset: int) -> Node:
    """int64 vector: offset + sum of index times stride, for every index of `shape` in row-major order."""
    shape = tuple(shape)
    total = full(graph, shape, offset, graph.iota(1).dtype)
    for axis, (extent, stride) in enumerate(zip(shape, strides)):
        if extent > 1 and stride:
            total = total + reshape(graph.iota(extent) * stride, (extent,) + (1,) * (len(shape) - axis - 1))
    return reshape(total, (math.prod(shape),))


def recurrence_from_end(factor: Node, term: Node, axis: int) -> Node:
    """y[j] = term[j] + factor[j] y[j+1] along axis, with y = 0 beyond the end; factor's last entry is not used.

    By doubling: after the step of stride d each entry holds the sum of its next 2 d terms. n log n multiplications, no
    division, and the gradients of all orders are right whatever zeros the factors have.
    """
    extent, stride = term.shape[axis], 1
    while stride < extent:
        kept = extent - stride
        head, tail = slice_(factor, axis, 0, kept), slice_(factor, axis, stride, kept)
        near, far = slice_(term, axis, 0, kept), slice_(term, axis, stride, kept)
        term = concat([near + head * far, slice_(term, axis, kept, stride)], axis)
        factor = concat([head * tail, slice_(factor, axis, kept, stride)], axis)
        stride *= 2
    return term


def prefix_recurrence(factor: Node, term: Node, axis: int) -> Node:
    """y[j] = term[j] + factor[j] y[j-1] along axis, with y = 0 before the start; factor's first entry is not used."""
    return flip(recurrence_from_end(flip(factor, (axis,)), flip(term, (axis,)), axis), (axis,))


def record_holder(x: Node, output: Node, axis: int) -> Node:
    """At each position of a running maximum or minimum the last one that set or equalled the record, as in PyTorch."""
    extent = x.shape[axis]
    record = map_(Fn.LOGICAL_OR, map_(Fn.EQ, x, output), map_(Fn.ISNAN, x))
    place = broadcast_to(reshape(x.graph.iota(extent), (extent,) + (1,) * (x.ndim - axis - 1)), x.shape)
    return scan(where(record, place, 0), "max", axis)


def products_of_others(x: Node, axis: int) -> Node:
    """At each position the product of all others along axis, from both sides.

    Right with any number of zeros, and so are its own gradients.
    """
    before = _shifted_products(x, axis)
    after = flip(_shifted_products(flip(x, (axis,)), axis), (axis,))
    return before * after


def _with_extent(x: Node, axis: int, extent: int) -> tuple[int, ...]:
    return (*x.shape[:axis], extent, *x.shape[axis + 1 :])


def _shifted_products(x: Node, axis: int) -> Node:
    """At each position the product of all positions before it along axis."""
    one = full(x.graph, _with_extent(x, axis, 1), 1, x.dtype)
    if x.shape[axis] == 1:
        return one
    return concat([one, scan(slice_(x, axis, 0, x.shape[axis] - 1), "prod", axis)], axis)

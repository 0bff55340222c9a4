"""Attention as two primitives: what they mean, and what follows from it.

    ATTENTION(q, k, v [, mask] [, streams]):
        s = q k^T scale + mask;  out = (z softmax(s)) v;  lse = log sum exp s
    ATTENTION_GRADIENT(q, k, v, g, lse, delta [, mask] [, streams]):
        p = exp(s - lse);  ds = p (z g v^T - delta);  dq = ds k scale;  dk = ds^T q scale;  dv = (z p)^T g

q (..., L, E), k (..., S, E), v (..., S, F), g (..., L, F), lse and delta (..., L), mask (..., L, S) of bool (true: takes
part) or of numbers; attributes: causal (query i sees keys 0 to i), scale, beside, dropout. z is 1 without dropout; with it,
operand streams (..., 2) of int64 says which weights are dropped (`ir/dropout.py`): there z is 0, elsewhere 1 / (1 - dropout).
With delta = sum of g * out along a row, the second is the gradient of the first. The value of either is one flat vector, its
results one after the other: (out, lse), (dq, dk, dv), row-major. With the attribute `beside`, for two leading axes (batch,
heads), the matrices among them lie as (batch, L, heads, F): the heads of a token are side by side, as they are where operands
come from, and results go to, one linear layer. A row of which everything is hidden has out = 0 and, by definition, lse = 0.

For targets that multiply halves, q, k, v and g may be of one half type (lse, delta and masks of numbers then are float32);
so are the results, lse as PARTS vectors whose sum, each times its number in `part_weights`, it is.

Kernels never hold s. Gradients of the second, and tangents, are compositions of other primitives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.core.dtypes import DType, bool_, float16, float32, int64
from tensorsmith.ir import build
from tensorsmith.ir.dropout import factors
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.scalar import functions as f

PARTS = 3  # halves that a float32 is


def part_weights(dtype: DType) -> tuple[float, ...]:
    """What the parts of lse are multiplied by: parts of float16, which holds less than float32, each have a range of theirs."""
    return (1024.0, 2.0**-1, 2.0**-12) if dtype is float16 else (1.0, 1.0, 1.0)


def check(inputs: Sequence[Node], count: int, dropout: float) -> DType:
    """The dtype; ValueError or TypeError where operands do not fit. `count`: of operands without mask and streams."""
    q, k, v = inputs[:3]
    if dropout:
        *inputs, streams = inputs
        if not 0.0 < dropout < 1.0 or streams.shape != (*q.shape[:-2], 2) or streams.dtype is not int64:
            raise ValueError(f"attention: streams {streams.shape} of {streams.dtype.name} do not fit dropout {dropout}")
    *lead, length, width = q.shape
    keys, values = k.shape[-2], v.shape[-1]
    shapes = [(length, width), (keys, width), (keys, values), (length, values), (length,), (length,)][:count]
    expected = [(*lead, *shape) for shape in shapes] + [(*lead, length, keys)] * (len(inputs) - count)
    if [node.shape for node in inputs] != expected:
        raise ValueError(f"attention: operands have shapes {[node.shape for node in inputs]}, expected {expected}")
    numbers = float32 if q.dtype.is_half else q.dtype
    if any(node.dtype is not (numbers if place in (4, 5) else q.dtype) for place, node in enumerate(inputs[:count])) or any(
        node.dtype is not bool_ and node.dtype is not numbers for node in inputs[count:]
    ):
        raise TypeError(f"attention: operands have dtypes {[node.dtype.name for node in inputs]}; cast them first")
    if not q.dtype.is_floating_point or not (length and keys and width and values and math.prod(lead)):
        raise ValueError(f"attention: shapes {q.shape}, {k.shape}, {v.shape} of {q.dtype.name} have no kernel")
    return q.dtype


def attention(
    q: Node, k: Node, v: Node, mask: Sequence[Node], causal: bool, scale: float, beside: bool, dropout: float = 0.0,
) -> tuple[Node, Node]:  # fmt: skip
    """out (..., L, F) and lse (..., L); with dropout the last of `mask` are the streams."""
    flat = q.graph.add(Primitive.ATTENTION, (q, k, v, *mask), causal=causal, scale=scale, beside=beside, dropout=dropout)
    out, lse = _parts(flat, _shapes(flat), beside)
    return out, lse


def gradient(
    operands: Sequence[Node], out: Node, lse: Node, grads: tuple[Node, Node | None], causal: bool, scale: float,
    beside: bool, dropout: float = 0.0,
) -> list[Node | None]:  # fmt: skip
    """Gradients of q, k, v and the mask, from those of out and lse; None for the streams."""
    q, k, v, *rest = operands
    grad, grad_lse = grads
    delta = _row_sums(grad * out)
    delta = delta if grad_lse is None else delta - grad_lse
    inputs = (q, k, v, grad, lse, delta, *rest)
    attrs = {"causal": causal, "scale": scale, "beside": beside, "dropout": dropout}
    flat = q.graph.add(Primitive.ATTENTION_GRADIENT, inputs, **attrs)
    parts: list[Node | None] = [*_parts(flat, _shapes(flat), beside)]
    mask = rest[: len(rest) - bool(dropout)]
    for each in mask:
        part = None
        if each.dtype is not bool_:
            weights = _weights(q, k, lse, mask, causal, scale)
            part = weights * _difference(v, grad, delta, _factors(flat))
        parts.append(part)
    return parts + [None] * bool(dropout)


def composed(node: Node, operands: Sequence[Node]) -> Node:
    """The value of either primitive, of other primitives."""
    q, k, v, *rest = operands
    causal, scale, beside = node.attrs["causal"], node.attrs["scale"], node.attrs["beside"]
    kept = _factors(node, operands)
    if node.op is Primitive.ATTENTION_GRADIENT:
        grad, lse, delta, *mask = rest
        weights = _weights(q, k, lse, mask[: len(mask) - (kept is not None)], causal, scale)
        change = weights * _difference(v, grad, delta, kept) * scale
        parts = [build.matmul(change, k), build.matmul(_turned(change), q), build.matmul(_turned(_times(weights, kept)), grad)]
        return _joined(parts, beside)
    scores = _scores(q, k, rest[: len(rest) - (kept is not None)], causal, scale)
    largest = build.reduce(scores, "max", (scores.ndim - 1,), keepdim=True)
    largest = build.where(f.eq(largest, -math.inf), 0.0, largest)
    weights = f.exp(scores - largest)
    total = build.reduce(weights, "sum", (scores.ndim - 1,), keepdim=True)
    total = build.where(f.eq(total, 0.0), 1.0, total)
    lse = build.reshape(largest + f.log(total), q.shape[:-1])
    return _joined([build.matmul(_times(weights / total, kept), v), lse], beside)


def pulled(node: Node, output: Node, grad: Node) -> list[Node | None]:
    """The gradient rule of ATTENTION."""
    beside = node.attrs["beside"]
    out, lse = _parts(output, _shapes(node), beside)
    g, g_lse = _parts(grad, _shapes(node), beside)
    return gradient(node.inputs, out, lse, (g, g_lse), **node.attrs)


def pulled_gradient(node: Node, grad: Node) -> list[Node | None]:
    """The gradient rule of ATTENTION_GRADIENT."""
    q, k, v, g, lse, delta, *rest = node.inputs
    causal, scale = node.attrs["causal"], node.attrs["scale"]
    kept = _factors(node)
    mask = rest[: len(rest) - (kept is not None)]
    a, b, c = _parts(grad, _shapes(node), node.attrs["beside"])
    weights, difference = _weights(q, k, lse, mask, causal, scale), _difference(v, g, delta, kept)
    change = weights * difference
    to_change = (build.matmul(a, _turned(k)) + build.matmul(q, _turned(b))) * scale
    to_difference = to_change * weights
    to_scores = (_times(build.matmul(g, _turned(c)), kept) + to_change * difference) * weights
    to_product = _times(to_difference, kept)
    return [
        (build.matmul(change, b) + build.matmul(to_scores, k)) * scale,
        (build.matmul(_turned(change), a) + build.matmul(_turned(to_scores), q)) * scale,
        build.matmul(_turned(to_product), g),
        build.matmul(_times(weights, kept), c) + build.matmul(to_product, v),
        f.neg(_row_sums(to_scores)),
        f.neg(_row_sums(to_difference)),
        *(None if each.dtype is bool_ else to_scores for each in mask),
        *[None] * (kept is not None),
    ]


def batched(node: Node, operands: Sequence[Node], extent: int) -> Node:
    """Either primitive for `extent` examples: the batch is one more leading axis, and each has its results together."""
    flat = operands[0].graph.add(node.op, operands, **{**node.attrs, "beside": False})
    parts = _parts(flat, [(extent, *shape) for shape in _shapes(node)], False)
    parts = [_turned(part, 3, 2) if node.attrs["beside"] and part.ndim == 5 else part for part in parts]
    return build.concat([build.reshape(part, (extent, part.numel // extent)) for part in parts], 1)


def _shapes(node: Node) -> list[tuple[int, ...]]:
    """The shapes of the results of either primitive."""
    q, k, v = node.inputs[:3]
    if node.op is Primitive.ATTENTION_GRADIENT:
        return [q.shape, k.shape, v.shape]
    return [(*q.shape[:-1], v.shape[-1]), q.shape[:-1]]


def _parts(flat: Node, shapes: Sequence[tuple[int, ...]], beside: bool) -> list[Node]:
    """The results in a flat vector."""
    found, start = [], 0
    for shape in shapes:
        part = build.slice_(flat, 0, start, math.prod(shape))
        if beside and len(shape) == 4:
            batch, heads, length, width = shape
            found.append(_turned(build.reshape(part, (batch, length, heads, width)), 3, 2))
        else:
            found.append(build.reshape(part, shape))
        start += math.prod(shape)
    return found


def _joined(parts: Sequence[Node], beside: bool) -> Node:
    """The flat vector of results."""
    parts = [_turned(part, 3, 2) if beside and part.ndim == 4 else part for part in parts]
    return build.concat([build.reshape(part, (part.numel,)) for part in parts], 0)


def _turned(x: Node, first: int = 2, second: int = 1) -> Node:
    """x with two axes exchanged, counted from the last one."""
    return build.transpose(x, x.ndim - first, x.ndim - second)


def _row_sums(x: Node) -> Node:
    return build.reduce(x, "sum", (x.ndim - 1,))


def _scores(q: Node, k: Node, mask: Sequence[Node], causal: bool, scale: float) -> Node:
    scores = build.matmul(q, _turned(k)) * scale
    for each in mask:
        scores = build.where(each, scores, -math.inf) if each.dtype is bool_ else scores + each
    if causal:
        rows, columns = scores.shape[-2:]
        row, column = build.reshape(q.graph.iota(rows), (rows, 1)), build.reshape(q.graph.iota(columns), (1, columns))
        scores = build.where(f.ge(row, column), scores, -math.inf)
    return scores


def _weights(q: Node, k: Node, lse: Node, mask: Sequence[Node], causal: bool, scale: float) -> Node:
    """p, from the saved lse."""
    return f.exp(_scores(q, k, mask, causal, scale) - build.reshape(lse, (*lse.shape, 1)))


def _difference(v: Node, grad: Node, delta: Node, kept: Node | None) -> Node:
    """z g v^T - delta."""
    return _times(build.matmul(grad, _turned(v)), kept) - build.reshape(delta, (*delta.shape, 1))


def _factors(node: Node, operands: Sequence[Node] | None = None) -> Node | None:
    """z of either primitive; None without dropout."""
    if not node.attrs["dropout"]:
        return None
    q, k = node.inputs[:2]
    return factors((operands or node.inputs)[-1], q.shape[-2], k.shape[-2], node.attrs["dropout"], q.dtype)


def _times(x: Node, kept: Node | None) -> Node:
    return x if kept is None else x * kept

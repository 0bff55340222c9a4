"""Distances between vectors, and vectors of unit length: one row kernel each way for the Euclidean norm.

    normalize(x)            = x / max(|x|, eps)
    cosine_similarity(x, y) = sum u v      with u = x / max(|x|, eps), v = y / max(|y|, eps)
    pairwise_distance(x, y) = |x - y + eps|

A norm of 0 has gradient 0. Norms other than the Euclidean one are composed of `linalg.vector_norm`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import axis_of, need_floating, need_tensors
from tensorsmith.ops.creation import from_numpy
from tensorsmith.ops.moments import vector_norm_of
from tensorsmith.ops.raw_keys import as_bool
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor

_distance = public("distances", namespace="nn.functional", method=False)


def _sum(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def _length(x: Node, axis: int) -> Node:
    """The Euclidean norm along an axis, which stays; its derivative is 0 where it is 0."""
    square = _sum(x * x, axis)
    none = f.eq(square, 0.0)
    return build.where(none, 0.0, f.sqrt(build.where(none, 1.0, square)))


def _over_length(x: Node, length: Node) -> Node:
    """x / length, 0 where the length is 0."""
    none = f.eq(length, 0.0)
    return build.where(none, 0.0, x / build.where(none, 1.0, length))


# --- normalize --------------------------------------------------------------------------------------------------------


def _normalize(x: Node, axis: int, eps: float) -> Node:
    rows = build.wide(x)
    return build.cast(rows / f.maximum(_length(rows, axis), eps), x.dtype)


def _normalize_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], axis: int, eps: float
) -> list[Node]:
    x, grad = build.wide(inputs[0]), build.wide(grads[0])
    length = _length(x, axis)
    bounded = f.maximum(length, eps)
    along = _sum(grad * x, axis) / (bounded * bounded)
    turned = build.where(f.ge(length, eps), along, 0.0)
    return [build.cast(grad / bounded - _over_length(x, length) * turned, inputs[0].dtype)]


_normalize_operator = Operator("normalize", _normalize, _normalize_gradient)


@_distance
def normalize(
    input: Tensor,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: Tensor | None = None,  # noqa: A002
) -> Tensor:
    """x / max(p-norm of x along dim, eps).

    Raises RuntimeError for a dtype that is not floating point, IndexError for a dim out of range.
    """
    need_tensors("normalize", input=input)
    if p == 2 and input.dtype.is_floating_point and isinstance(dim, int) and input.ndim:
        axis = axis_of(dim, input.ndim)
        result = call(_normalize_operator, (input,), {"axis": axis, "eps": float(eps)})
    else:
        result = input / vector_norm_of(input, float(p), dim, True, None).clamp_min(eps)
    if out is None:
        return result
    from tensorsmith.ops.out import write_out

    return write_out("normalize", result, out)


# --- cosine similarity ------------------------------------------------------------------------------------------------


def _operands(x: Node, y: Node) -> tuple[Node, Node]:
    dtype = build.promote([x, y])
    if not dtype.is_floating_point:
        raise RuntimeError(f"expected common dtype to be floating point, yet common dtype is {type_name(dtype)}")
    shape = broadcast_shapes(x.shape, y.shape)
    return tuple(build.broadcast_to(build.wide(build.cast(n, dtype)), shape) for n in (x, y))  # type: ignore[return-value]


def _cosine(x: Node, y: Node, dim: int, eps: float) -> Node:
    a, b = _operands(x, y)
    axis = axis_of(dim, a.ndim)
    if not a.ndim:
        a, b = build.reshape(a, (1,)), build.reshape(b, (1,))
    unit = a / f.maximum(_length(a, axis), eps) * (b / f.maximum(_length(b, axis), eps))
    return build.cast(build.reduce(unit, "sum", (axis,)), build.promote([x, y]))


def _cosine_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], dim: int, eps: float
) -> list[Node]:
    a, b = _operands(*inputs)
    axis = axis_of(dim, a.ndim)
    if not a.ndim:
        a, b = build.reshape(a, (1,)), build.reshape(b, (1,))
    kept = tuple(1 if i == axis else n for i, n in enumerate(a.shape))
    grad = build.reshape(build.wide(grads[0]), kept)
    lengths = [_length(n, axis) for n in (a, b)]
    bounds = [f.maximum(n, eps) for n in lengths]
    cosine = _sum(a / bounds[0] * (b / bounds[1]), axis)
    parts = []
    for own, other, length, bound, other_bound in (
        (a, b, lengths[0], bounds[0], bounds[1]),
        (b, a, lengths[1], bounds[1], bounds[0]),
    ):
        # As in PyTorch the bound changes the value of a norm but not its derivative.
        parts.append(grad * (other / other_bound - _over_length(own, length) * cosine) / bound)
    return [build.cast(build.sum_to(p, n.shape), n.dtype) for p, n in zip(parts, inputs)]


_cosine_operator = Operator("cosine_similarity", _cosine, _cosine_gradient)


@public("distances", method=False)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along dim; the operands broadcast.

    Raises RuntimeError for dtypes that are not floating point.
    """
    need_tensors("cosine_similarity", x1=x1, x2=x2)
    return call(_cosine_operator, (x1, x2), {"dim": dim, "eps": float(eps)})


_distance(cosine_similarity)

# --- pairwise distance ------------------------------------------------------------------------------------------------


def _euclidean(x: Node, y: Node, eps: float, keepdim: bool) -> Node:
    a, b = _operands(x, y)
    length = _length(a - b + eps, a.ndim - 1)
    return build.cast(length if keepdim else build.reshape(length, a.shape[:-1]), build.promote([x, y]))


def _euclidean_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], eps: float, keepdim: bool
) -> list[Node]:
    a, b = _operands(*inputs)
    difference = a - b + eps
    kept = (*a.shape[:-1], 1)
    grad = build.reshape(build.wide(grads[0]), kept)
    part = _over_length(difference, _length(difference, a.ndim - 1)) * grad
    first, second = inputs
    return [
        build.cast(build.sum_to(part, first.shape), first.dtype),
        build.cast(build.sum_to(-part, second.shape), second.dtype),
    ]


_euclidean_operator = Operator("pairwise_distance", _euclidean, _euclidean_gradient)


@public("distances", method=False)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis; the operands broadcast."""
    need_tensors("pairwise_distance", x1=x1, x2=x2)
    floats = x1.is_floating_point() or x2.is_floating_point()
    if p == 2 and max(x1.ndim, x2.ndim) and floats and not (x1.is_complex() or x2.is_complex()):
        return call(_euclidean_operator, (x1, x2), {"eps": float(eps), "keepdim": as_bool("pairwise_distance", keepdim)})
    return vector_norm_of(x1 - x2 + eps, float(p), -1, keepdim, None)


_distance(pairwise_distance)


@public("distances", method=False)
def pdist(input: Tensor, p: float = 2.0) -> Tensor:  # noqa: A002
    """The p-norms of the differences of all pairs of rows i < j of a matrix (n, m), as a vector (n (n - 1) / 2).

    Raises RuntimeError for another number of axes or a negative p.
    """
    need_tensors("pdist", input=input)
    if input.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    need_floating("pdist", input.dtype)
    if p < 0:
        raise RuntimeError("pdist only supports non-negative p values")
    first, second = (from_numpy(i).to(input.layout.device) for i in np.triu_indices(input.layout.shape[0], 1))
    return vector_norm_of(input[first] - input[second], float(p), -1, False, None)


_distance(pdist)

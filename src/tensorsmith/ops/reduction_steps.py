"""What reductions share: axes, kept and dropped ones, the row form of a graph, result tuples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tensorsmith.core.dtypes import DType, get_default_dtype, real_dtype, type_name
from tensorsmith.core.shapes import normalise_axes
from tensorsmith.ir import build
from tensorsmith.ir.gradients import scatter, zeros
from tensorsmith.ir.graph import Node
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.tensor.tensor import Tensor

Dim = int | Sequence[int] | None
Axes = tuple[int, ...]


class ValuesIndices(NamedTuple):
    """A reduction to values that also says where they were."""

    values: Tensor
    indices: Tensor


class MinMax(NamedTuple):
    """Both extremes."""

    min: Tensor
    max: Tensor


def result_shape(shape: tuple[int, ...], axes: Axes, keepdim: bool) -> tuple[int, ...]:
    """The shape after reducing `axes`."""
    if keepdim:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def kept(x: Node, shape: tuple[int, ...], axes: Axes) -> Node:
    """A result without its reduced axes, given them back with extent 1."""
    return build.reshape(x, result_shape(shape, axes, True))


def one_axis(x: Node, axes: Axes) -> tuple[Node, int]:
    """The values with all reduced axes merged into one, and which one that is: the form of a row kernel."""
    if not axes:
        return build.reshape(x, (*x.shape, 1)), x.ndim
    first, last = axes[0], axes[-1]
    if axes != tuple(range(first, last + 1)):
        x = build.permute(x, [*(i for i in range(x.ndim) if i not in axes), *axes])
        first, last = x.ndim - len(axes), x.ndim - 1
    extent = math.prod(x.shape[first : last + 1])
    return build.reshape(x, (*x.shape[:first], extent, *x.shape[last + 1 :])), first


def row_sum(x: Node, axis: int) -> Node:
    """Sum over one axis, which stays."""
    return build.reduce(x, "sum", (axis,), keepdim=True)


def count_of(shape: tuple[int, ...], axes: Axes) -> int:
    """How many elements one result is made of."""
    return math.prod(shape[i] for i in axes)


def normalised(x: Tensor, dim: Dim) -> Axes:
    """Distinct axes counted from 0."""
    if x.ndim > 64:
        raise RuntimeError(f"only tensors with up to 64 dims are supported, got {x.ndim}")
    if dim is None or (dim.__class__ is tuple and not dim):
        return tuple(range(x.ndim))
    return normalise_axes(as_ints("reduction", dim, "dim"), x.ndim)


def floating_only(name: str, x: Tensor, dtype: DType | None) -> None:
    """Refuse a reduction of integers that has no dtype to be in."""
    got = dtype or x.dtype
    if got.kind not in "fc":
        what = "input dtype must be" if dtype is None else "optional dtype must be"
        raise RuntimeError(
            f"{name}(): {'could not infer output dtype. ' if dtype is None else ''}{what.capitalize()} either a floating point "
            f"or complex dtype. Got: {type_name(got)}"
        )


def shaped(x: Node, like: Node, axes: Axes, keepdim: bool) -> Node:
    """A result with reduced axes kept, in its final shape and in the dtype of `like`; a real one stays real."""
    dtype = like.dtype if x.dtype.is_complex else real_dtype(like.dtype)
    return build.cast(build.reshape(x, result_shape(like.shape, axes, keepdim)), dtype)


def squared_size(x: Node) -> Node:
    """x * x of real values, |x|**2 of complex ones."""
    if not x.dtype.is_complex:
        return x * x
    parts = build.as_real(x)
    return build.reduce(parts * parts, "sum", (x.ndim,))


def at_index(x: Node, index: Node, grad: Node, axis: int) -> Node:
    """Zeros like x with the gradient at one index along an axis."""
    if not x.ndim:
        return grad
    spread = zeros(grad, x.shape)
    return scatter(spread, kept(index, x.shape, (axis,)), kept(grad, x.shape, (axis,)), axis, "add")


def as_floating(x: Tensor) -> Tensor:
    """The tensor itself, or an integer or bool tensor in the default dtype."""
    return x if x.dtype.kind in "fc" else x.to(get_default_dtype())

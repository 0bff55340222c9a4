"""Resizing of the axes of space: each in turn, by the elements that every place of the result is made of and their weights.

With s the scale (input size over output size, or 1 over the factor given), place i of the result lies on the input at

    s i where align_corners (s = (input - 1) / (output - 1) then), else s (i + 1/2) - 1/2

nearest takes element floor(s i), nearest-exact the one that holds the point, linear weighs the two neighbours, bicubic four by
Keys' cubic (a = -3/4), area the mean of what the place covers. With antialias a shrinking linear or cubic filter is as wide as
what it shrinks (a = -1/2).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType, compute_dtype, float32, float64, int64, uint8
from tensorsmith.core.memory_format import format_of_first
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.adaptive_pooling import adaptive_average
from tensorsmith.ops.checks import need_tensors, type_name
from tensorsmith.ops.registry import public
from tensorsmith.ops.resizing_bytes import in_fixed_point
from tensorsmith.ops.resizing_weights import TAPS, reach
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor

Factors = tuple[float | None, ...]
_public = public("resizing", namespace="nn.functional", method=False)


def _take(x: Node, index: Node, axis: int) -> Node:
    return x.graph.add(Primitive.TAKE, (x, index), axis=axis)


def _within(index: Node, extent: int) -> Node:
    """int64 places on the axis from places that may lie outside."""
    return build.cast(build.where(index < 0, 0, build.where(index > extent - 1, extent - 1, index)), int64)


def _vector(values: Node, axis: int, ndim: int) -> Node:
    return build.reshape(values, [values.shape[0] if i == axis else 1 for i in range(ndim)])


# --- nearest -----------------------------------------------------------------------------------------------------------


def _nearest_scale(extent: int, count: int, factor: float | None, dtype: DType) -> float:
    kind = np.float64 if dtype is float64 else np.float32
    return float(kind(1.0 / factor) if factor else kind(extent) / kind(count))


def nearest_places(extent: int, count: int, factor: float | None, exact: bool, dtype: DType) -> np.ndarray:
    """Which element each place of the result takes, rounded as PyTorch rounds it.

    The scale and the point are in float64 for float64 and in float32 for everything else (the exact point by one fused
    operation), and what is cut off is in float32.
    """
    scale, places = np.float64(_nearest_scale(extent, count, factor, dtype)), np.arange(count)
    kind = np.float64 if dtype is float64 else np.float32
    if exact:
        points = np.maximum(((places + 0.5) * scale - 0.5).astype(kind), 0).astype(np.float64) + 0.5
    else:
        points = (places * scale).astype(kind)
    return np.minimum(np.floor(points.astype(np.float32)).astype(np.int64), extent - 1)


def _nearest_axis(x: Node, axis: int, count: int, factor: float | None, exact: bool) -> Node:
    extent = x.shape[axis]
    places = nearest_places(extent, count, factor, exact, x.dtype)
    steps = set(np.diff(places).tolist())
    if len(steps) <= 1 and min(steps, default=1) > 0:
        return build.slice_(x, axis, int(places[0]), count, min(steps, default=1))
    # The same as a graph; products of float32 values are exact in float64.
    kind = float64 if x.dtype is float64 else float32
    scale = x.graph.constant(_nearest_scale(extent, count, factor, x.dtype), float64)
    points = build.cast(x.graph.iota(count), float64)
    if exact:
        points = build.cast((points + 0.5) * scale - 0.5, kind)
        points = build.cast(build.where(points < 0, 0, points), float64) + 0.5
    else:
        points = build.cast(points * scale, kind)
    return _take(x, _within(f.floor(build.cast(points, float32)), extent), axis)


def _nearest(x: Node, output: tuple[int, ...], factors: Factors, exact: bool) -> Node:
    if x.dtype.kind != "f" and x.dtype.name != "uint8":
        raise NotImplementedError(f"\"upsample_nearest{len(output)}d\" not implemented for '{type_name(x.dtype)}'")
    times = [_times(n, count, factor, exact, x.dtype) for n, count, factor in zip(x.shape[2:], output, factors)]
    if times[-1] > 1:  # taken one by one, since kernels run along the last axis; rows are repeated
        times[-1] = 0
    for axis, (count, factor) in reversed(list(enumerate(zip(output, factors), 2))):
        if not times[axis - 2]:
            x = _nearest_axis(x, axis, count, factor, exact)
    if not any(n > 1 for n in times):
        return x
    thin, wide = list(x.shape[:2]), list(x.shape[:2])
    for n, each in zip(x.shape[2:], times):
        thin += [n, 1]
        wide += [n, max(each, 1)]
    return build.reshape(build.broadcast_to(build.reshape(x, thin), wide), (*x.shape[:2], *output))


def _times(extent: int, count: int, factor: float | None, exact: bool, dtype: DType) -> int:
    """How often each element is taken in turn; 0 where that is not the same for all."""
    each = count // extent
    places = nearest_places(extent, count, factor, exact, dtype)
    return each if count == each * extent and np.array_equal(places, np.arange(count) // each) else 0


NEAREST = Operator("upsample_nearest", _nearest, keeps_format=format_of_first)


# --- weighed -----------------------------------------------------------------------------------------------------------


def _blend(x: Node, axis: int, taps: Sequence[tuple[Node, Node]]) -> Node:
    """The sum of elements, one for every place, times their weights."""
    parts = [_take(x, index, axis) * _vector(weight, axis, x.ndim) for index, weight in taps]
    return sum(parts[1:], start=parts[0])


def _axis(x: Node, axis: int, count: int, factor: float | None, align_corners: bool, kind: str) -> Node:
    extent = x.shape[axis]
    if extent == count and kind == "linear":
        return x
    taps = TAPS[kind](x.graph, extent, count, factor, align_corners, x.dtype)
    return _blend(x, axis, [(_within(index, extent), weight) for index, weight in taps])


def _antialiased_axis(x: Node, axis: int, count: int, factor: float | None, align_corners: bool, cubic: bool) -> Node:
    extent = x.shape[axis]
    place, weight, inside = reach(x.graph, extent, count, factor, align_corners, cubic, x.dtype)
    size = place.shape[1]
    taken = _take(x, build.reshape(_within(place, extent), (count * size,)), axis)
    parts = build.reshape(taken, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    table = [n if i in (axis, axis + 1) else 1 for i, n in enumerate(parts.shape)]
    kept = build.where(build.reshape(inside, table), parts, 0) * build.reshape(weight, table)
    return build.reduce(kept, "sum", (axis + 1,))


def _weighed(x: Node, kind: str, output: tuple[int, ...], factors: Factors, align_corners: bool, antialias: bool) -> Node:
    if x.dtype is uint8 and len(output) == 2:
        return in_fixed_point(x, kind, output, factors, align_corners, antialias)
    if x.dtype.kind != "f":
        raise NotImplementedError(f"\"upsample_{kind}{len(output)}d\" not implemented for '{type_name(x.dtype)}'")
    value = build.cast(x, compute_dtype(x.dtype))
    for axis, (count, factor) in reversed(list(enumerate(zip(output, factors), 2))):
        if antialias:
            value = _antialiased_axis(value, axis, count, factor, align_corners, kind == "cubic")
        else:
            value = _axis(value, axis, count, factor, align_corners, kind)
    return build.cast(value, x.dtype)


WEIGHED = Operator("upsample_weighed", _weighed, keeps_format=format_of_first)


# --- the functions users call -----------------------------------------------------------------------------------------


_NEEDS = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}
_MODES = "nearest | linear | bilinear | bicubic | trilinear | lanczos | area | nearest-exact"


def _sizes(shape: Sequence[int], size: Any, scale_factor: Any, recompute: bool, dim: int) -> tuple[tuple[int, ...], Factors]:
    """The sizes of the result, and the factors where the scale follows from them."""
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is None and scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    given, name = (size, "output size") if size is not None else (scale_factor, "scale_factor")
    values = list(given) if isinstance(given, list | tuple) else [given] * dim
    if len(values) != dim:
        raise ValueError(
            f"Input and {name} must have the same number of spatial dimensions, but got input with spatial dimensions of "
            f"{list(shape[2:])} and {name} of {given}. Please provide input tensor in (N, C, d1, d2, ...,dK) format and one "
            "number for each of d1, ..., dK."
        )
    if size is not None:
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in values):
            raise TypeError(
                "expected size to be one of int or Tuple[int] or Tuple[int, int] or Tuple[int, int, int], but got size with "
                f"types {[type(n) for n in values]}"
            )
        return tuple(map(int, values)), (None,) * dim
    factors = [float(v) for v in values]
    if not all(math.isfinite(factor) for factor in factors):
        raise RuntimeError(f"interpolate: expected finite factors of size, but got scale_factor={scale_factor}")
    output = tuple([int(n * factor) for n, factor in zip(shape[2:], factors)])
    return output, (None,) * dim if recompute else tuple(factors)


def _check(input: Tensor, output: tuple[int, ...]) -> None:  # noqa: A002
    shape = input.layout.shape
    sides = {1: "W", 2: "HW", 3: "DHW"}[len(output)]
    if min(*shape[2:], *output) < 1:
        given, wanted = (", ".join(f"{s}: {n}" for s, n in zip(sides, each)) for each in (shape[2:], output))
        raise RuntimeError(f"Input and output sizes should be greater than 0, but got input ({given}) output ({wanted})")
    if not shape[1]:
        raise RuntimeError(f"Non-empty {len(shape)}D data tensor expected but got a tensor with sizes {list(shape)}")


@_public
def interpolate(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,  # noqa: A002
    mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """The axes of space resized to `size`, or by scale_factor (rounded down).

    input (N, C, L), (N, C, H, W) or (N, C, D, H, W). mode: "nearest" (the default), "nearest-exact", "area"; "linear" for 3D,
    "bilinear" and "bicubic" for 4D, "trilinear" for 5D input. align_corners: whether the centres of the corner elements, rather
    than their edges, are at the corners of the result. recompute_scale_factor: whether the scale follows from the sizes rather
    than from scale_factor. antialias: with "bilinear" and "bicubic", filters as wide as what they shrink.
    dtypes: floating point ("nearest" also uint8). Raises ValueError for arguments that contradict each other, RuntimeError for
    empty sizes, NotImplementedError for a mode of another rank and for "lanczos".

    >>> ts.nn.functional.interpolate(ts.tensor([[[0.0, 10.0]]]), scale_factor=2, mode="linear")
    tensor([[[ 0.0000,  2.5000,  7.5000, 10.0000]]])
    """
    need_tensors("interpolate", input=input)
    shape = input.layout.shape
    if mode in ("nearest", "area", "nearest-exact"):
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
            )
    dim = len(shape) - 2
    recompute = bool(recompute_scale_factor) or (mode == "area" and size is None)
    output, factors = _sizes(shape, size, scale_factor, recompute, dim)
    if antialias and not (mode in ("bilinear", "bicubic", "lanczos") and len(shape) == 4):
        raise ValueError(
            "Anti-alias option is restricted to bilinear, bicubic, and lanczos modes and requires a 4-D tensor as input"
        )
    if mode == "lanczos":
        raise NotImplementedError("interpolate: mode 'lanczos' is not there; use 'bicubic' with antialias=True")
    if dim not in (1, 2, 3) or (mode not in _NEEDS and mode not in ("nearest", "nearest-exact", "area")):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {len(shape)}D) for the modes: {_MODES} (got {mode})"
        )
    if mode in _NEEDS and _NEEDS[mode] != len(shape):
        raise NotImplementedError(f"Got {len(shape)}D input, but {mode} mode needs {_NEEDS[mode]}D input")
    if mode == "area":
        return adaptive_average(f"adaptive_avg_pool{dim}d", dim, input, output)
    _check(input, output)
    if mode in ("nearest", "nearest-exact"):
        return call(NEAREST, (input,), {"output": output, "factors": factors, "exact": mode == "nearest-exact"})
    attrs = {"kind": "cubic" if mode == "bicubic" else "linear", "output": output, "factors": factors}
    return call(WEIGHED, (input,), {**attrs, "align_corners": bool(align_corners), "antialias": bool(antialias)})


def _deprecated(name: str) -> None:
    warnings.warn(f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=3)


@_public
def upsample(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,  # noqa: A002
    mode: str = "nearest", align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The former name of `interpolate`; warns."""
    _deprecated("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


@_public
def upsample_nearest(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,  # noqa: A002
) -> Tensor:  # fmt: skip
    """`interpolate` with mode="nearest"; warns."""
    _deprecated("upsample_nearest")
    return interpolate(input, size, scale_factor, "nearest")


@_public
def upsample_bilinear(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,  # noqa: A002
) -> Tensor:  # fmt: skip
    """`interpolate` with mode="bilinear" and align_corners=True; warns."""
    _deprecated("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)

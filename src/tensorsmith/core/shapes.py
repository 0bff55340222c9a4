"""Shapes: broadcasting, axis numbers, sizes with -1. Pure functions; errors carry PyTorch's classes and words."""

from __future__ import annotations

import math
from collections.abc import Sequence

_MISMATCH = "The size of tensor a"


def is_broadcast_error(error: Exception) -> bool:
    """Whether an error came from `broadcast_shapes` and names no operator yet."""
    return str(error).startswith(_MISMATCH)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape, axes matched from the right; RuntimeError where they do not match."""
    result: list[int] = []
    for shape in shapes:
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        for i in range(1, len(shape) + 1):
            extent, so_far = shape[-i], result[-i]
            if so_far == 1:
                result[-i] = extent
            elif extent not in (1, so_far):
                raise RuntimeError(
                    f"{_MISMATCH} ({so_far}) must match the size of tensor b ({extent}) at non-singleton dimension "
                    f"{len(result) - i}; shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast"
                )
    return tuple(result)


def normalise_axis(axis: int, ndim: int) -> int:
    """The axis counted from 0; IndexError outside [-ndim, ndim) (a zero-dim tensor counts as one axis)."""
    bound = max(ndim, 1)
    if not -bound <= axis < bound:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {axis})")
    return axis % bound


def normalise_axes(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Sorted distinct axes counted from 0; all of them for None or (); RuntimeError where one appears twice."""
    if axes is None:
        return tuple(range(ndim))
    if isinstance(axes, int):
        axes = (axes,)
    if len(axes) == 0:
        return tuple(range(ndim))
    found = [normalise_axis(a, ndim) for a in axes]
    if len(set(found)) != len(found):
        twice = next(a for a in found if found.count(a) > 1)
        raise RuntimeError(f"dim {twice} appears multiple times in the list of dims {list(axes)}")
    return tuple(sorted(a for a in found if a < ndim))


def infer_size(shape: Sequence[int], numel: int) -> tuple[int, ...]:
    """A shape with at most one -1 resolved for `numel` elements; RuntimeError where it cannot be."""
    shape = tuple(shape)
    unknown = [i for i, n in enumerate(shape) if n == -1]
    if len(unknown) > 1:
        raise RuntimeError("only one dimension can be inferred")
    if any(n < -1 for n in shape):
        raise RuntimeError(f"invalid shape dimension {min(shape)} in {list(shape)}")
    if unknown:
        known = math.prod(n for n in shape if n != -1)
        if known == 0:
            raise RuntimeError(
                f"cannot reshape tensor of {numel} elements into shape {list(shape)} because the unspecified dimension "
                "size -1 can be any value and is ambiguous"
            )
        if numel % known == 0:
            return tuple(numel // known if n == -1 else n for n in shape)
    elif math.prod(shape) == numel:
        return shape
    raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")

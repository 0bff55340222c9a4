"""Views on strides: what each view primitive does to (shape, strides, offset). Pure functions, no data.

Every function takes a `Strided` and returns one, or None where no strides can express the result (`reshape` of a
non-contiguous tensor). Strides and offset are in elements; negative strides appear only through `flip`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tensorsmith.core.layout import contiguous_strides


class Strided(NamedTuple):
    """Where the elements of a tensor lie, relative to some base address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def reshape(x: Strided, shape: Sequence[int]) -> Strided | None:
    """The same elements in row-major order under another shape, or None (PyTorch's computeStride)."""
    shape = tuple(shape)
    if 0 in shape:
        return x if shape == x.shape else Strided(shape, contiguous_strides(shape), x.offset)
    if not x.shape:
        return Strided(shape, (1,) * len(shape), x.offset)
    strides = [0] * len(shape)
    view = len(shape) - 1
    chunk_stride = x.strides[-1]  # stride of the innermost axis of the current contiguous run of the old shape
    chunk, view_chunk = 1, 1
    for axis in range(len(x.shape) - 1, -1, -1):
        chunk *= x.shape[axis]
        ends = axis == 0 or (x.shape[axis - 1] != 1 and x.strides[axis - 1] != chunk * chunk_stride)
        if not ends:
            continue
        while view >= 0 and (view_chunk < chunk or shape[view] == 1):
            strides[view] = view_chunk * chunk_stride
            view_chunk *= shape[view]
            view -= 1
        if view_chunk != chunk:
            return None
        if axis > 0:
            chunk_stride = x.strides[axis - 1]
            chunk, view_chunk = 1, 1
    return Strided(shape, tuple(strides), x.offset) if view == -1 else None


def permute(x: Strided, axes: Sequence[int]) -> Strided:
    """Axis i of the result is axis axes[i]."""
    return Strided(tuple(x.shape[a] for a in axes), tuple(x.strides[a] for a in axes), x.offset)


def expand(x: Strided, shape: Sequence[int]) -> Strided:
    """Extent-1 axes repeated by stride 0."""
    strides = tuple(0 if n == 1 and m != 1 else s for n, m, s in zip(x.shape, shape, x.strides))
    return Strided(tuple(shape), strides, x.offset)


def slice_(x: Strided, axis: int, start: int, length: int, step: int) -> Strided:
    """`length` positions of one axis from `start` in steps."""
    shape = x.shape[:axis] + (length,) + x.shape[axis + 1 :]
    strides = x.strides[:axis] + (x.strides[axis] * step,) + x.strides[axis + 1 :]
    return Strided(shape, strides, x.offset + start * x.strides[axis])


def flip(x: Strided, axes: Sequence[int]) -> Strided:
    """Axes walked backwards: negative strides, which exist in graphs only."""
    strides = list(x.strides)
    offset = x.offset
    for axis in axes:
        offset += max(x.shape[axis] - 1, 0) * strides[axis]
        strides[axis] = -strides[axis]
    return Strided(x.shape, tuple(strides), offset)


def diagonal(x: Strided, offset: int, axis1: int, axis2: int) -> Strided:
    """The diagonal of two axes as a new last axis."""
    rows, columns = x.shape[axis1], x.shape[axis2]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    keep = [i for i in range(len(x.shape)) if i not in (axis1, axis2)]
    start = x.offset
    if length:
        start += offset * x.strides[axis2] if offset >= 0 else -offset * x.strides[axis1]
    return Strided(
        (*(x.shape[i] for i in keep), length),
        (*(x.strides[i] for i in keep), x.strides[axis1] + x.strides[axis2]),
        start,
    )


def unfold(x: Strided, axis: int, size: int, step: int) -> Strided:
    """Windows of `size` every `step` positions of one axis; the window becomes a new last axis."""
    if not x.shape:
        return Strided((size,), (1,), x.offset)
    windows = (x.shape[axis] - size) // step + 1
    return Strided(
        x.shape[:axis] + (windows,) + x.shape[axis + 1 :] + (size,),
        x.strides[:axis] + (x.strides[axis] * step,) + x.strides[axis + 1 :] + (x.strides[axis],),
        x.offset,
    )


def as_strided(x: Strided, shape: Sequence[int], strides: Sequence[int], offset: int) -> Strided | None:
    """Any geometry over a contiguous value."""
    if x.strides != contiguous_strides(x.shape):
        return None
    return Strided(tuple(shape), tuple(strides), x.offset + offset)


def as_real(x: Strided) -> Strided:
    """Complex elements as pairs of real ones along a new last axis; strides and offset are in real elements then."""
    return Strided((*x.shape, 2), (*(2 * s for s in x.strides), 1), 2 * x.offset)


def as_complex(x: Strided) -> Strided | None:
    """Pairs of real elements along the last axis as complex ones; None where they do not lie as such."""
    if x.strides[-1] != 1 or x.offset % 2 or any(s % 2 for n, s in zip(x.shape[:-1], x.strides[:-1]) if n != 1):
        return None
    return Strided(x.shape[:-1], tuple(s // 2 for s in x.strides[:-1]), x.offset // 2)


def extent(x: Strided) -> int:
    """Elements of memory from the first position to one past the last; 0 where there is no element."""
    if 0 in x.shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides))


def same_strides(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Equal where it matters: axes of extent 1 have no stride."""
    return all(n == 1 or s == t for n, s, t in zip(shape, a, b))


def covers_once(x: Strided) -> bool:
    """Whether no two positions share an element and none lies in a gap (non-overlapping and dense)."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(x.shape, x.strides) if n != 1):
        if stride != step:
            return False
        step *= extent
    return True


def may_overlap_itself(x: Strided) -> bool:
    """Whether two positions may share an element (sufficient test by nesting of strides, as PyTorch's)."""
    if 0 in x.shape:
        return False
    reach = 0
    for stride, extent in sorted((s, n) for n, s in zip(x.shape, x.strides) if n != 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


# How a view primitive of the graph acts on strides, by the primitive's value; attributes are the node's.
RULES: dict[str, Callable[[Strided, Mapping[str, Any]], Strided | None]] = {
    "reshape": lambda x, a: reshape(x, a["shape"]),
    "permute": lambda x, a: permute(x, a["axes"]),
    "expand": lambda x, a: expand(x, a["shape"]),
    "slice": lambda x, a: slice_(x, a["axis"], a["start"], a["length"], a["step"]),
    "flip": lambda x, a: flip(x, a["axes"]),
    "diagonal": lambda x, a: diagonal(x, a["offset"], a["axis1"], a["axis2"]),
    "unfold": lambda x, a: unfold(x, a["axis"], a["size"], a["step"]),
    "as_real": lambda x, a: as_real(x),
    "as_complex": lambda x, a: as_complex(x),
    "as_strided": lambda x, a: as_strided(x, a["shape"], a["strides"], a["offset"]),
    "again": lambda x, a: x,
}

"""How tensor maps bring the operands of an implicit product: boxes of channels and positions, out of images as they lie.

A box is 64 elements of what is contiguous in memory, the channels, by some positions along the axes of space, by some images.
What of it is outside of an image reads as zeros, which is the padding. Two ways to lay a convolution on boxes:

by positions: rows are positions; a tile of A is a box of up to 128 positions, of B 64 channels of a tap for some columns
    (forward, and gradients of inputs). The depth is walked tap by tap, 64 channels at a time.
by taps: rows are taps and images, the latter contiguous (the gradient of a weight, whose images are the channels of x);
    tiles of A and B are boxes of up to 64 positions of the kernel, along which the depth is walked.

Positions that lie `stride` apart are side by side in one of several maps of x, one a remainder.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorsmith.kernels.spec_conv import ConvSpec, Extents
from tensorsmith.targets.cuda.kernel import TensorMap

BLOCK = 64  # elements of a line of 128 bytes
MOST_MAPS = 4  # of x
VECTOR = 8  # elements of 16 bytes


@dataclass(frozen=True)
class Box:
    """Positions along the axes of space and images that a tile of a map has, and how many tiles there are along each."""

    space: Extents
    images: int
    tiles: Extents  # along the axes of space, then images

    @property
    def lines(self) -> int:
        """Positions of a box."""
        return math.prod(self.space) * self.images

    @property
    def count(self) -> int:
        """Boxes."""
        return math.prod(self.tiles)


@functools.lru_cache(maxsize=4096)
def box_of(space: Extents, images: int, most: int, dividing: bool) -> Box:
    """The box of at most `most` positions of which the fewest cover everything; dividing: none leaves an image.

    Of equal ones that with the longest rows.
    """
    best: tuple[tuple[int, ...], Box] | None = None
    for extents in itertools.product(*(_extents(n, most, dividing) for n in space)):
        inside = math.prod(extents)
        if inside > most:
            continue
        several = min(images, most // inside, 256)
        tiles = (*(-(-n // extent) for n, extent in zip(space, extents)), -(-images // several))
        box = Box(extents, several, tiles)
        key = (-box.count, *reversed(extents))
        if best is None or key > best[0]:
            best = key, box
    assert best is not None
    return best[1]


def _extents(n: int, most: int, dividing: bool) -> Iterable[int]:
    return [extent for extent in range(1, min(n, most) + 1) if not dividing or n % extent == 0]


def by_taps(spec: ConvSpec) -> bool:
    """Whether rows are taps and images: images are contiguous in x, or nothing is and kernels are larger than results."""
    contiguous = [axis for axis in (0, 1) if spec.x_strides[axis] == 1 and spec.x[axis] > 1]
    return contiguous == [0] if contiguous else spec.taps > spec.positions


def fits_boxes(spec: ConvSpec) -> bool:
    """Whether boxes can be cut out of the operands, if they lie so: halves, few remainders, groups of whole boxes."""
    if not spec.dtype.is_half or set(spec.step) != {1} or 0 in (*spec.x, *spec.w, *spec.y) or max(spec.x + spec.w) >= 1 << 30:
        return False
    if by_taps(spec):
        return spec.groups == 1 and math.prod(spec.dilation) <= MOST_MAPS
    whole = spec.groups == 1 or (spec.w[1] % BLOCK == 0 and spec.w[0] // spec.groups % BLOCK == 0)
    return whole and math.prod(spec.stride) <= MOST_MAPS


def maps_take_x(spec: ConvSpec) -> bool:
    """Whether x lies as maps take it: what boxes run along is contiguous, other strides are multiples of 16 bytes."""
    return spec.starts[0] % VECTOR == 0 and _maps(spec.x, spec.x_strides, 0 if by_taps(spec) else 1)


def maps_take_w(spec: ConvSpec) -> bool:
    """Whether w lies so; by positions, columns may be contiguous too, and kernels be walked backwards."""
    if spec.starts[1] % VECTOR:
        return False
    if by_taps(spec):
        return _maps(spec.w, spec.w_strides, 0)
    strides = (*spec.w_strides[:2], *map(abs, spec.w_strides[2:]))
    return any(_maps(spec.w, strides, axis) for axis in (0, 1))


def _maps(shape: Sequence[int], strides: Sequence[int], contiguous: int) -> bool:
    """Whether a map takes memory that is contiguous along an axis."""
    others = [s for axis, (n, s) in enumerate(zip(shape, strides)) if axis != contiguous and n > 1]
    return strides[contiguous] == 1 and all(s > 0 and s % VECTOR == 0 and s < 1 << 38 for s in others)


def maps_of_x(spec: ConvSpec, box: Box, word: int) -> list[TensorMap]:
    """A map for every remainder of coordinates modulo the steps between positions of a box, the last axis fastest."""
    steps = spec.dilation if by_taps(spec) else spec.stride
    contiguous, other = (0, 1) if by_taps(spec) else (1, 0)
    found = []
    for remainders in itertools.product(*map(range, steps)):
        space = [max(-(-(n - r) // step), 1) for n, r, step in zip(spec.x[2:], remainders, steps)]
        strides = [s * step for s, step in zip(spec.x_strides[2:], steps)]
        offset = spec.starts[0] + sum(r * s for n, r, s in zip(spec.x[2:], remainders, spec.x_strides[2:]) if r < n)
        shape = (spec.x[contiguous], *reversed(space), spec.x[other])
        along = (*reversed(strides), spec.x_strides[other])
        found.append(_tensor_map(spec, word, shape, along, (BLOCK, *reversed(box.space), box.images), offset))
    return found


def map_of_x(spec: ConvSpec, box: Box) -> TensorMap:
    """The map of x, word 0, for boxes of pixels as they lie."""
    shape = (spec.x[1], *reversed(spec.x[2:]), spec.x[0])
    along = (*reversed(spec.x_strides[2:]), spec.x_strides[0])
    return _tensor_map(spec, 0, shape, along, (BLOCK, *reversed(box.space), box.images), spec.starts[0])


def b_across(spec: ConvSpec) -> bool:
    """Whether the columns of the right operand lie side by side."""
    return by_taps(spec) or spec.w_strides[1] != 1 or (spec.w[1] == 1 and spec.w_strides[0] == 1)


def map_of_w(spec: ConvSpec, box: Box, columns: int, word: int) -> TensorMap:
    """The map of the right operand; an axis that is walked backwards is walked forwards from its other end."""
    contiguous = 0 if b_across(spec) else 1
    other = 1 - contiguous
    offset = spec.starts[1] + sum((n - 1) * min(s, 0) for n, s in zip(spec.w[2:], spec.w_strides[2:]))
    shape = (spec.w[contiguous], *reversed(spec.w[2:]), spec.w[other])
    strides = (*(abs(s) for s in reversed(spec.w_strides[2:])), spec.w_strides[other])
    if by_taps(spec):
        extents = (BLOCK, *reversed(box.space), box.images)
    else:
        extents = (BLOCK, *(1,) * spec.rank, columns if contiguous else BLOCK)
    return _tensor_map(spec, word, shape, strides, extents, offset)


def _tensor_map(
    spec: ConvSpec, word: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], offset: int
) -> TensorMap:  # fmt: skip
    """A map; the stride of an axis of one element is any that maps accept."""
    size = spec.dtype.itemsize
    steps = [s * size if n > 1 else 16 for n, s in zip(shape[1:], strides)]
    return TensorMap(word, spec.dtype.name.upper(), tuple(shape), tuple(steps), tuple(box), offset=offset * size, tested=True)

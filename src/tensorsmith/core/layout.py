"""Layout: everything about a tensor but its data, as one interned object.

Two tensors with the same dtype, shape, strides and tracking share one Layout, so that "have I seen this call before?" is
one dictionary look-up on object identities. Strides are in elements and never negative; the offset is not part of it.
"""

from __future__ import annotations

import math
import weakref
from operator import index
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements, as PyTorch counts them (a zero extent counts as one)."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        if extent > 1:
            step *= extent
    strides.reverse()
    return tuple(strides)


class Layout:
    """dtype, shape, strides (elements), device, and whether autograd tracks the tensor. Make one with `layout_of`."""

    __slots__ = (
        "dtype", "shape", "strides", "tracked", "device", "ndim", "numel", "nbytes", "contiguous", "twin", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], tracked: bool, device: Device = CPU
    ) -> None:
        self.dtype = dtype
        self.device = device
        # 2.0 and True equal 2 and 1, so that what is kept here would be found for every tensor of that shape.
        self.shape = shape = tuple([index(n) for n in shape])
        self.strides = strides = tuple([index(n) for n in strides])
        self.tracked = tracked
        self.ndim = len(shape)
        self.numel = math.prod(shape)
        self.nbytes = self.numel * dtype.itemsize
        self.contiguous = is_contiguous(shape, strides)
        self.twin: Layout | None = None  # the same layout with the other `tracked`, made on demand

    level: Any = None  # the level of a function transform whose wrapper has this layout (`LevelLayout`)

    def with_tracking(self, tracked: bool) -> Layout:
        """This layout with `tracked` as given."""
        if self.tracked == tracked:
            return self
        if self.twin is None:
            self.twin = self._tracking(tracked)
        return self.twin

    def _tracking(self, tracked: bool) -> Layout:
        return layout_of(self.dtype, self.shape, self.strides, tracked, self.device)

    def on(self, device: Device) -> Layout:
        """The same layout on another device."""
        if device is self.device:
            return self
        return layout_of(self.dtype, self.shape, self.strides, self.tracked, device)

    @property
    def extent(self) -> int:
        """Number of elements from the first to one past the last in memory (0 for an empty tensor)."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))

    def __repr__(self) -> str:
        where = "" if self.device is CPU else f", {self.device}"
        return f"Layout({self.dtype.name}, {self.shape}, {self.strides}{', tracked' if self.tracked else ''}{where})"


class LevelLayout(Layout):
    """The layout of a tensor that stands for another one while a function is transformed (`func/levels.py`).

    It is another object than the plain layout of the same shape, so that no entry kept for plain tensors is found under it:
    the operators of such tensors always reach `modes.tracer`.
    """

    __slots__ = ("level",)

    def __init__(self, plain: Layout, tracked: bool, level: Any) -> None:
        self.dtype, self.shape, self.strides, self.device = plain.dtype, plain.shape, plain.strides, plain.device
        self.ndim, self.numel, self.nbytes, self.contiguous = plain.ndim, plain.numel, plain.nbytes, plain.contiguous
        self.tracked = tracked
        self.twin = None
        self.level = level

    def _tracking(self, tracked: bool) -> Layout:
        return self.level.layout_of(self.dtype, self.shape, self.strides, tracked, self.device)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Row-major without gaps; strides of extent-1 axes do not matter; an empty tensor is contiguous."""
    if 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


_interned: weakref.WeakValueDictionary[tuple, Layout] = weakref.WeakValueDictionary()


def layout_of(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, tracked: bool = False,
    device: Device = CPU,
) -> Layout:  # fmt: skip
    """The one Layout of these properties; contiguous where `strides` is not given."""
    if strides is None:
        strides = contiguous_strides(shape)
    key = (dtype, shape, strides, tracked, device)
    found = _interned.get(key)
    if found is None:
        found = _interned.setdefault(key, Layout(dtype, shape, strides, tracked, device))
    return found

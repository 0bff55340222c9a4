"""What all pooling shares: where windows lie, and the largest value of every window with its place.

A window is a box of taps, one `Windows` an axis. With few taps each is a strided view of the (padded) input, and the taps are
combined pointwise, in one kernel and in the order of memory; with many, one axis after the other is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType, int32, int64
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.scalar.table import Fn

MOST_TAPS = 36  # of one kernel that combines values
MOST_TAPS_WITH_PLACES = 16


@dataclass(frozen=True)
class Windows:
    """Windows along one axis of `extent` elements: `count` of them, each of `size` taps.

    Window i has its taps at i stride - padding + j dilation, j < size.
    """

    extent: int
    count: int
    size: int
    stride: int
    padding: int
    dilation: int

    @property
    def margins(self) -> tuple[int, int]:
        """How much has to stand before and after the axis for every tap to be there."""
        reach = (self.count - 1) * self.stride + (self.size - 1) * self.dilation + 1
        return self.padding, max(reach - self.extent - self.padding, 0)

    def tap(self, padded: Node, axis: int, j: int) -> Node:
        """Tap j of every window."""
        return build.slice_(padded, axis, j * self.dilation, self.count, self.stride)

    def stacked(self, padded: Node, axis: int) -> Node:
        """The windows in place of the axis, their taps along a new last axis."""
        reach = (self.size - 1) * self.dilation + 1
        windows = padded.graph.add(Primitive.UNFOLD, (padded,), axis=axis, size=reach, step=self.stride)
        windows = build.slice_(windows, axis, 0, self.count)
        return build.slice_(windows, windows.ndim - 1, 0, self.size, self.dilation)

    def starts(self, graph: Graph) -> Node:
        """Where each window starts, on the axis itself (negative inside the padding)."""
        return graph.iota(self.count) * self.stride - self.padding

    def first_inside(self, graph: Graph) -> Node:
        """The first tap of each window that is no padding, as a distance from its start."""
        start = self.starts(graph)
        missing = build.where(start < 0, -start, 0)
        taps = build.map_(Fn.FLOOR_DIVIDE, missing + (self.dilation - 1), self.dilation)
        return taps * self.dilation


def windows_of(
    shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Windows, ...]:  # fmt: skip
    """The windows of the last len(kernel) axes."""
    counts = pooled_shape(shape, kernel, stride, padding, dilation, ceil_mode)
    return tuple(map(Windows, shape[len(shape) - len(kernel) :], counts, kernel, stride, padding, dilation))


def pooled_shape(
    shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[int, ...]:  # fmt: skip
    """How many windows there are: with ceil_mode also one that ends beyond the padding, unless it starts there."""
    counts = []
    for n, k, s, p, d in zip(shape[len(shape) - len(kernel) :], kernel, stride, padding, dilation):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        counts.append(count)
    return tuple(counts)


def numbers(name: str, argument: str, value: Any, rank: int) -> tuple[int, ...]:
    """An int or a sequence of one or `rank` ints as `rank` ints; RuntimeError for another number of them."""
    found = as_ints(name, value, argument)
    if len(found) not in (1, rank):
        words = {1: "one int", 2: "two ints", 3: "three ints"}[rank]
        raise RuntimeError(f"{name}: {argument} must either be a single int, or a tuple of {words}, but got {list(found)}")
    return found * rank if len(found) == 1 else found


def padded(x: Node, windows: Sequence[Windows], value: float) -> Node:
    """x with what the windows need around it."""
    lead = [0] * (x.ndim - len(windows))
    low, high = zip(*(w.margins for w in windows))
    return build.pad(x, (*lead, *low), (*lead, *high), value=value)


def taps_of(x: Node, windows: Sequence[Windows]) -> list[tuple[tuple[int, ...], Node]]:
    """Every tap of a padded value, in the order of memory, with its number on every axis."""
    first = x.ndim - len(windows)
    found: list[tuple[tuple[int, ...], Node]] = [((), x)]
    for axis, w in enumerate(windows, first):
        found = [((*number, j), w.tap(value, axis, j)) for number, value in found for j in range(w.size)]
    return found


def lowest(x: Node) -> float:
    """What no value of this dtype is below."""
    return -math.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype.numpy).min)


def count_of_taps(windows: Sequence[Windows]) -> int:
    """Taps of one window."""
    return math.prod(w.size for w in windows)


def largest(x: Node, windows: Sequence[Windows]) -> Node:
    """The largest value of every window; NaN where there is one."""
    value = padded(x, windows, lowest(x))
    if count_of_taps(windows) <= MOST_TAPS:
        _, (_, result), *rest = [None, *taps_of(value, windows)]
        for _, tap in rest:
            result = build.map_(Fn.MAXIMUM, result, tap)
        return result
    for axis, w in enumerate(windows, x.ndim - len(windows)):
        stacked = w.stacked(value, axis)
        value = build.reduce(stacked, "max", (stacked.ndim - 1,))
    return value


def along(vector: Node, axis: int, ndim: int) -> Node:
    """A vector in a shape that broadcasts along one axis of ndim."""
    return build.reshape(vector, [vector.shape[0] if i == axis else 1 for i in range(ndim)])


def pitches(windows: Sequence[Windows]) -> list[int]:
    """How far apart neighbours along each axis lie in the flat order of the axes of the windows."""
    return [math.prod(w.extent for w in windows[i + 1 :]) for i in range(len(windows))]


def largest_and_place(x: Node, windows: Sequence[Windows]) -> tuple[Node, Node]:
    """The largest value of every window, and its place in the flat order of the axes of the windows (int64).

    The first of equals is met, and the last NaN, as in PyTorch.
    """
    result = _unrolled if count_of_taps(windows) <= MOST_TAPS_WITH_PLACES else _reduced
    value, offset = result(padded(x, windows, lowest(x)), windows)
    first = x.ndim - len(windows)
    place = offset
    for axis, (w, pitch) in enumerate(zip(windows, pitches(windows)), first):
        place = place + along(w.starts(x.graph) * pitch, axis, x.ndim)
    if any(w.padding and w.dilation > 1 for w in windows):  # a window may lie around the whole axis and have no tap on it
        last = math.prod(w.extent for w in windows) - 1
        place = build.where(place < 0, 0, build.where(place > last, last, place))
    return value, build.cast(build.broadcast_to(place, value.shape), int64)


def _offset_dtype(windows: Sequence[Windows]) -> DType:
    """int32, whose vectors are as wide as float32's, unless there are too many elements."""
    padded_elements = math.prod(w.extent + sum(w.margins) for w in windows)
    return int32 if padded_elements < 2**31 else int64


def _beats(tap: Node, best: Node) -> Node:
    larger = tap > best
    return build.map_(Fn.LOGICAL_OR, larger, build.map_(Fn.ISNAN, tap)) if tap.dtype.kind == "f" else larger


def _unrolled(x: Node, windows: Sequence[Windows]) -> tuple[Node, Node]:
    """Values and offsets from the start of the window, tap by tap."""
    first = x.ndim - len(windows)
    taps = taps_of(x, windows)
    best = taps[0][1]
    dtype = _offset_dtype(windows)
    offset = build.full(x.graph, best.shape, 0, dtype)
    for axis, (w, pitch) in enumerate(zip(windows, pitches(windows)), first):
        if w.padding:  # a window of -inf alone is at its first tap that is no padding
            offset = offset + build.cast(along(w.first_inside(x.graph) * pitch, axis, x.ndim), dtype)
    for number, tap in taps[1:]:
        better = _beats(tap, best)
        distance = sum(j * w.dilation * pitch for j, w, pitch in zip(number, windows, pitches(windows)))
        offset = build.where(better, distance, offset)
        best = build.where(better, tap, best)
    return best, offset


def _reduced(x: Node, windows: Sequence[Windows]) -> tuple[Node, Node]:
    """The same by reductions along one axis after the other, the last first."""
    value, offset = x, None
    dtype = _offset_dtype(windows)
    none = int(np.iinfo(dtype.numpy).max)
    for axis in range(x.ndim - 1, x.ndim - 1 - len(windows), -1):
        number = axis - (x.ndim - len(windows))
        w, pitch = windows[number], pitches(windows)[number]
        stacked = w.stacked(value, axis)
        last = stacked.ndim - 1
        top = build.reduce(stacked, "max", (last,), keepdim=True)
        distance = x.graph.iota(w.size) * w.dilation
        inside = along(w.starts(x.graph), axis, stacked.ndim) + distance
        hit = build.map_(Fn.EQ, stacked, top)
        if x.dtype.kind == "f":
            hit = build.map_(Fn.LOGICAL_OR, hit, build.map_(Fn.ISNAN, stacked))
        hit = hit & (inside >= 0) & (inside < w.extent)
        place = build.cast(distance * pitch, dtype)
        if offset is not None:
            place = w.stacked(offset, axis) + place
        place = build.broadcast_to(place, stacked.shape)
        found = build.reduce(build.where(hit, place, none), "min", (last,))
        value = build.reshape(top, top.shape[:-1])
        if x.dtype.kind == "f":
            latest = build.reduce(build.where(hit, place, -1), "max", (last,))
            found = build.where(build.map_(Fn.ISNAN, value), latest, found)
        offset = build.where(build.map_(Fn.EQ, found, none), 0, found)
    assert offset is not None
    return value, offset


def scattered(grad: Node, place: Node, space: Sequence[int]) -> Node:
    """Each gradient added to the element of the axes `space` at its place."""
    rank = len(space)
    lead, taken = grad.shape[: grad.ndim - rank], math.prod(grad.shape[grad.ndim - rank :])
    rows = math.prod(lead)
    base = build.full(grad.graph, (rows, math.prod(space)), 0, grad.dtype)
    index, source = build.reshape(place, (rows, taken)), build.reshape(grad, (rows, taken))
    result = grad.graph.add(Primitive.SCATTER, (base, index, source), axis=1, reduce="add")
    return build.reshape(result, (*lead, *space))

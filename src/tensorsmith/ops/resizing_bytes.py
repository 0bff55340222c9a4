"""Bilinear and bicubic resizing of uint8 images in fixed point, as PyTorch rounds it.

Along each axis, the last one first, with weights w (float64) as integers W = round(2^p w), ties away from zero:

    y = clamp((sum of W x + 2^(p - 1)) >> p, 0, 255)

p is the largest number of bits below 23 for which every W fits 16 bits. Weights of elements beyond the border are added to
those of the border before they are rounded.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import float64, int32, int64
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.resizing_weights import TAPS, reach
from tensorsmith.scalar import functions as f

_MOST_BITS = 22


def _clamped(x: Node, low: int, high: int) -> Node:
    return build.where(x < low, low, build.where(x > high, high, x))


def _bits(largest: Node) -> Node:
    """How many bits of a fraction weights may have, from the largest of them."""
    powers = build.cast(f.bitwise_left_shift(largest.graph.constant(2, int64), largest.graph.iota(_MOST_BITS)), float64)
    fits = f.lt(f.floor(powers * build.broadcast_to(largest, powers.shape) + 0.5), 1 << 15)
    return build.reduce(build.cast(fits, int64), "sum", (0,))


def _neighbours(x: Node, axis: int, count: int, factor: float | None, align: bool, kind: str) -> tuple[Node, Node, Node]:
    """(count, size) of places and weights, and the largest sum of weights that was met while they were added up."""
    extent = x.shape[axis]
    taps = TAPS[kind](x.graph, extent, count, factor, align, float64)
    places = [_clamped(build.cast(index, int64), 0, extent - 1) for index, _ in taps]
    first = places[0]
    sums = [build.full(x.graph, (count,), 0.0, float64) for _ in taps]
    largest = sums[0]
    for place, (_, weight) in zip(places, taps):
        for slot, so_far in enumerate(sums):
            own = f.eq(place - first, slot)
            sums[slot] = build.where(own, so_far + weight, so_far)
            largest = f.maximum(largest, sums[slot])
    column = (count, 1)
    table = build.concat([build.reshape(each, column) for each in sums], 1)
    slots = build.reshape(first, column) + build.reshape(x.graph.iota(len(taps)), (1, len(taps)))
    return _clamped(slots, 0, extent - 1), table, build.reduce(largest, "max", (0,))


def _along(x: Node, axis: int, count: int, factor: float | None, align: bool, kind: str, antialias: bool) -> Node:
    """One axis of int32 values from 0 to 255."""
    graph = x.graph
    if antialias:
        place, weight, _ = reach(graph, x.shape[axis], count, factor, align, kind == "cubic", float64)
        place, largest = _clamped(place, 0, x.shape[axis] - 1), build.reduce(weight, "max", (0, 1))
    else:
        place, weight, largest = _neighbours(x, axis, count, factor, align, kind)
    bits, size = _bits(largest), place.shape[1]
    one = f.bitwise_left_shift(graph.constant(1, int64), bits)
    scaled = weight * build.broadcast_to(build.cast(one, float64), weight.shape)
    whole = build.cast(f.trunc(scaled + build.where(scaled < 0, -0.5, 0.5)), int32)
    taken = x.graph.add(Primitive.TAKE, (x, build.reshape(place, (count * size,))), axis=axis)
    parts = build.reshape(taken, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    products = parts * build.reshape(whole, [n if i in (axis, axis + 1) else 1 for i, n in enumerate(parts.shape)])
    total = build.cast(build.reduce(products, "sum", (axis + 1,)), int64)
    half = f.bitwise_right_shift(one, 1)
    rounded = f.bitwise_right_shift(total + build.broadcast_to(half, total.shape), build.broadcast_to(bits, total.shape))
    return build.cast(_clamped(rounded, 0, 255), int32)


def in_fixed_point(
    x: Node, kind: str, output: tuple[int, ...], factors: tuple[float | None, ...], align_corners: bool, antialias: bool
) -> Node:
    """The uint8 image (N, C, H, W) resized to `output`."""
    value = build.cast(x, int32)
    for axis, (count, factor) in reversed(list(enumerate(zip(output, factors), 2))):
        if count != x.shape[axis]:
            value = _along(value, axis, count, factor, align_corners, kind, antialias)
    return build.cast(value, x.dtype)

"""Which elements every place of a resized axis is made of, and their weights (`resizing.py` says where places lie)."""

from __future__ import annotations

import math

from tensorsmith.core.dtypes import DType, int64
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.scalar import functions as f


def _scale(extent: int, count: int, factor: float | None, align_corners: bool) -> float:
    if align_corners:
        return (extent - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / factor if factor else extent / count


def _points(graph: Graph, extent: int, count: int, factor: float | None, align_corners: bool, dtype: DType) -> Node:
    """Where the places of the result lie on the input's axis."""
    scale = graph.constant(_scale(extent, count, factor, align_corners), dtype)
    places = build.cast(graph.iota(count), dtype)
    if align_corners:
        return places * scale
    return (places + 0.5) * scale - 0.5


Taps = list[tuple[Node, Node]]  # elements, which may lie outside, and their weights


def linear_taps(graph: Graph, extent: int, count: int, factor: float | None, align_corners: bool, dtype: DType) -> Taps:
    """The two neighbours of every place."""
    point = _points(graph, extent, count, factor, align_corners, dtype)
    point = build.where(point < 0, 0, point)
    floor = f.floor(point)
    floor = build.where(floor > extent - 1, extent - 1, floor)
    upper = point - floor
    upper = build.where(upper > 1, 1, upper)
    return [(floor, 1 - upper), (floor + 1, upper)]


def _cubic(distance: Node, a: float) -> tuple[Node, Node]:
    """Keys' kernel at distances below 1, and the same plus 1."""
    t, far = distance, distance + 1
    return ((a + 2) * t - (a + 3)) * t * t + 1, ((a * far - 5 * a) * far + 8 * a) * far - 4 * a


def cubic_taps(graph: Graph, extent: int, count: int, factor: float | None, align_corners: bool, dtype: DType) -> Taps:
    """The four neighbours of every place."""
    point = _points(graph, extent, count, factor, align_corners, dtype)
    floor = f.floor(point)
    floor = build.where(floor > extent - 1, extent - 1, floor)
    t = point - floor
    t = build.where(t > 1, 1, t)
    (near, before), (following, beyond) = _cubic(t, -0.75), _cubic(1 - t, -0.75)
    return [(floor + (j - 1), weight) for j, weight in enumerate((before, near, following, beyond))]


TAPS = {"linear": linear_taps, "cubic": cubic_taps}


def reach(
    graph: Graph, extent: int, count: int, factor: float | None, align_corners: bool, cubic: bool, dtype: DType
) -> tuple[Node, Node, Node]:
    """(count, size) of all elements within an antialiasing filter's reach: places, weights that sum to 1, and which exist."""
    scale = _scale(extent, count, factor, align_corners)
    stretch = max(scale, 1.0)
    support = (2.0 if cubic else 1.0) * stretch
    size = math.ceil(support) * 2 + 1
    centre = (build.cast(graph.iota(count), dtype) + 0.5) * graph.constant(scale, dtype)
    low = build.cast(f.trunc(centre - support + 0.5), int64)
    low = build.where(low < 0, 0, low)
    high = build.cast(f.trunc(centre + support + 0.5), int64)
    high = build.where(high > extent, extent, high)
    column = (count, 1)
    place = build.reshape(low, column) + graph.iota(size)
    inside = place < build.broadcast_to(build.reshape(high, column), place.shape)
    away = f.abs((build.cast(place, dtype) - build.reshape(centre, column) + 0.5) * (1.0 / stretch))
    if cubic:
        near, far = _cubic(away, -0.5)[0], _cubic(away - 1, -0.5)[1]
        weight = build.where(away < 1, near, build.where(away < 2, far, 0))
    else:
        weight = build.where(away < 1, 1 - away, 0)
    weight = build.where(inside, weight, 0)
    return place, weight / build.reduce(weight, "sum", (1,), keepdim=True), inside

"""Values of an image between its elements: at the points of a grid, and the grids of affine maps.

Points are in [-1, 1], the extent of the image: with align_corners from the centre of its first element to that of its last,
else from edge to edge. A point outside is zero ("zeros"), moved to the border ("border") or reflected at it ("reflection").
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence

from tensorsmith.core.dtypes import DType, int64
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ops.checks import c_name, need_floating, need_floating_node, need_tensors
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

_public = public("resizing", namespace="nn.functional", method=False)


def _unnormalised(point: Node, extent: int, align_corners: bool) -> Node:
    if align_corners:
        return (point + 1) * ((extent - 1) / 2)
    return ((point + 1) * float(extent) - 1) * 0.5


def _clipped(point: Node, extent: int) -> Node:
    """On the axis; what lies outside, or at the end, has no gradient, as in PyTorch. NaN is at 0."""
    return build.where(point > 0, build.where(point < extent - 1, point, float(extent - 1)), 0.0)


def _reflected(point: Node, extent: int, align_corners: bool) -> Node:
    low, span = (0.0, float(extent - 1)) if align_corners else (-0.5, float(extent))
    if not span:
        return point * 0
    away = f.abs(point - low)
    extra = f.fmod(away, span)
    flips = f.floor(away / span)
    odd = f.fmod(flips, 2.0) > 0
    return build.where(odd, span - extra + low, extra + low)


def _moved(point: Node, extent: int, padding_mode: str, align_corners: bool) -> Node:
    """A point in elements, moved onto the image where the mode says so."""
    if padding_mode == "zeros":
        return point
    if padding_mode == "reflection":
        point = _reflected(point, extent, align_corners)
    return _clipped(point, extent)


class _Image:
    """The elements of (N, C, *space) at integral places, zero outside."""

    def __init__(self, x: Node) -> None:
        self.x, self.space = x, x.shape[2:]
        self.flat = build.reshape(x, (*x.shape[:2], math.prod(self.space)))

    def at(self, places: Sequence[Node]) -> Node:
        """(N, C, P) elements from (N, P) places on each axis, floating-point but integral."""
        n, c, _ = self.flat.shape
        index = None
        inside = None
        for place, extent in zip(places, self.space):
            here = (place >= 0) & (place <= extent - 1)
            inside = here if inside is None else inside & here
            bounded = build.cast(build.where(here, place, 0), int64)
            index = bounded if index is None else index * extent + bounded
        assert index is not None and inside is not None
        points = index.shape[1]
        index = build.broadcast_to(build.reshape(index, (n, 1, points)), (n, c, points))
        taken = self.x.graph.add(Primitive.GATHER, (self.flat, index), axis=2)
        return build.where(build.reshape(inside, (n, 1, points)), taken, 0)


def _linear(image: _Image, points: Sequence[Node]) -> Node:
    """The corners around each point, each weighed by the box opposite to it."""
    floors = [f.floor(p) for p in points]
    upper = [p - low for p, low in zip(points, floors)]
    total: Node | None = None
    for corner in itertools.product((0, 1), repeat=len(points)):
        places = [low + side for low, side in zip(floors, corner)]
        factors = [u if side else 1 - u for u, side in zip(upper, corner)]
        weight = math.prod(factors[1:], start=factors[0])
        part = image.at(places) * build.reshape(weight, (weight.shape[0], 1, weight.shape[1]))
        total = part if total is None else total + part
    assert total is not None
    return total


def _keys(t: Node) -> list[Node]:
    """The weights of the four elements around a point, t behind the second."""
    a = -0.75

    def near(u: Node) -> Node:
        return ((a + 2) * u - (a + 3)) * u * u + 1

    def far(u: Node) -> Node:
        return ((a * u - 5 * a) * u + 8 * a) * u - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(image: _Image, points: Sequence[Node], padding_mode: str, align_corners: bool) -> Node:
    """Four by four elements around each point; each is moved onto the image by itself."""
    (y, x), (high, wide) = points, image.space
    top, left = f.floor(y), f.floor(x)
    by_row, by_column = _keys(y - top), _keys(x - left)
    total: Node | None = None
    for j, down in enumerate(by_row):
        row: Node | None = None
        for i, across in enumerate(by_column):
            places = [
                _moved(top + (j - 1), high, padding_mode, align_corners),
                _moved(left + (i - 1), wide, padding_mode, align_corners),
            ]
            part = image.at([f.trunc(p) for p in places]) * _over_channels(across)
            row = part if row is None else row + part
        assert row is not None
        total = row * _over_channels(down) if total is None else total + row * _over_channels(down)
    assert total is not None
    return total


def _over_channels(weight: Node) -> Node:
    return build.reshape(weight, (weight.shape[0], 1, weight.shape[1]))


def _grid_sample(x: Node, grid: Node, mode: str, padding_mode: str, align_corners: bool) -> Node:
    need_floating_node("grid_sampler_2d_cpu_kernel_impl", x)
    space, output = x.shape[2:], grid.shape[1:-1]
    image = _Image(build.wide(x))
    places = build.wide(grid)
    points = []
    for axis, extent in enumerate(space):
        part = build.slice_(places, grid.ndim - 1, len(space) - 1 - axis, 1)  # the last axis comes first in a point
        point = _unnormalised(build.reshape(part, (grid.shape[0], math.prod(output))), extent, align_corners)
        points.append(point if mode == "bicubic" else _moved(point, extent, padding_mode, align_corners))
    if mode == "bilinear":
        result = _linear(image, points)
    elif mode == "nearest":
        result = image.at([f.round(p) for p in points])
    else:
        result = _cubic(image, points, padding_mode, align_corners)
    return build.cast(build.reshape(result, (*x.shape[:2], *output)), x.dtype)


GRID_SAMPLE = Operator("grid_sample", _grid_sample)


def _check(input: Tensor, grid: Tensor, mode: str) -> None:  # noqa: A002
    given, points = input.layout.shape, grid.layout.shape
    sizes = f"but got input with sizes {list(given)} and grid with sizes {list(points)}"
    if given[:1] != points[:1]:
        raise RuntimeError(f"grid_sampler(): expected grid and input to have same batch size, {sizes}")
    if len(given) not in (4, 5) or len(points) != len(given):
        raise RuntimeError(f"grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, {sizes}")
    if points[-1] != len(given) - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {len(given) - 2} in last dimension, but got grid with sizes "
            f"{list(points)}"
        )
    for axis in range(2, len(given)):
        if not given[axis]:
            raise RuntimeError(
                f"grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes {list(given)} with "
                f"dimension {axis} being empty"
            )
    if mode == "bicubic" and len(given) == 5:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    need_floating("grid_sampler_2d_cpu_kernel_impl", input.dtype)
    if input.dtype is not grid.dtype:
        raise RuntimeError(f"grid_sampler(): expected scalar type {c_name(input.dtype)} but found {c_name(grid.dtype)}")


def _corners(align_corners: bool | None) -> bool:
    if align_corners is None:
        warnings.warn(
            "Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please specify "
            "align_corners=True if the old behavior is desired. See the documentation of grid_sample for details.",
            stacklevel=3,
        )
    return bool(align_corners)


@_public
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",  # noqa: A002
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The input at the points of a grid, which lie in [-1, 1] along every axis (Jaderberg et al., 2015).

    input (N, C, H, W), grid (N, H', W', 2) of points (x, y) -> (N, C, H', W'); or input (N, C, D, H, W), grid
    (N, D', H', W', 3) of points (x, y, z). mode: "bilinear" (trilinear in 5D), "nearest" or "bicubic" (4D only).
    padding_mode: "zeros", "border" or "reflection" for points outside. align_corners: whether -1 and 1 are the centres of the
    corner elements, rather than their edges. dtypes: floating point, the same for both. Raises ValueError for unknown modes,
    RuntimeError for sizes that do not fit.

    >>> ts.nn.functional.grid_sample(ts.tensor([[[[0.0, 4.0]]]]), ts.zeros(1, 1, 1, 2), align_corners=False)
    tensor([[[[2.]]]])
    """
    need_tensors("grid_sample", input=input, grid=grid)
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"'{padding_mode}'"
        )
    corners = _corners(align_corners)
    if modes.autocast is not None:
        input, grid = modes.autocast.operands("grid_sample", input, grid)
    _check(input, grid, mode)
    return call(GRID_SAMPLE, (input, grid), {"mode": mode, "padding_mode": padding_mode, "align_corners": corners})


# --- affine maps ------------------------------------------------------------------------------------------------------


def _centres(graph: Graph, count: int, dtype: DType, align_corners: bool) -> Node:
    """The elements of an axis in [-1, 1]."""
    places = build.cast(graph.iota(count), dtype)
    if count == 1:
        return places * 0
    line = places * (2.0 / (count - 1)) - 1.0
    return line if align_corners else line * ((count - 1) / count)


def _affine_grid(theta: Node, space: tuple[int, ...], align_corners: bool) -> Node:
    matrices = build.wide(need_floating_node("affine_grid", theta))
    rank, points = len(space), math.prod(space)
    columns = []
    for axis in reversed(range(rank)):
        line = _centres(theta.graph, space[axis], matrices.dtype, align_corners)
        along = build.reshape(line, [space[axis] if i == axis else 1 for i in range(rank)])
        columns.append(build.reshape(build.broadcast_to(along, space), (points, 1)))
    columns.append(build.full(theta.graph, (points, 1), 1.0, matrices.dtype))
    base = build.concat(columns, 1)
    product = build.matmul(build.reshape(base, (1, points, rank + 1)), build.transpose(matrices, 1, 2))
    return build.cast(build.reshape(product, (theta.shape[0], *space, rank)), theta.dtype)


AFFINE_GRID = Operator("affine_grid", _affine_grid)


@_public
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The points that affine maps lead to from the elements of an image of the given size: a grid for `grid_sample`.

    theta (N, 2, 3) for size (N, C, H, W) -> (N, H, W, 2); theta (N, 3, 4) for (N, C, D, H, W) -> (N, D, H, W, 3).
    Raises ValueError for theta of another shape or integers, NotImplementedError for other sizes.

    >>> ts.nn.functional.affine_grid(ts.tensor([[[1.0, 0, 0], [0, 1, 0]]]), (1, 1, 1, 2), align_corners=True)
    tensor([[[[-1.,  0.],
              [ 1.,  0.]]]])
    """
    need_tensors("affine_grid", theta=theta)
    corners = _corners(align_corners)
    if not theta.dtype.is_floating_point:
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    sizes = tuple(int(n) for n in size)
    if len(sizes) not in (4, 5):
        raise NotImplementedError(
            f"affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got size {list(sizes)}."
        )
    rank = len(sizes) - 2
    if theta.ndim != 3 or theta.layout.shape[1:] != (rank, rank + 1):
        raise ValueError(
            f"Expected a batch of {rank}D affine matrices of shape Nx{rank}x{rank + 1} for size {list(sizes)}. Got "
            f"{theta.shape}."
        )
    if min(sizes) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {list(sizes)}")
    if theta.layout.shape[0] != sizes[0]:
        raise RuntimeError(f"affine_grid: expected theta of batch size {sizes[0]}, but got {theta.layout.shape[0]}")
    return call(AFFINE_GRID, (theta,), {"space": sizes[2:], "align_corners": corners})

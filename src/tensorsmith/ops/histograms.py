"""Histograms of one and of several dimensions, with the edges of their bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorsmith.core.dtypes import type_name
from tensorsmith.ops.creation import copy_array
from tensorsmith.ops.device_copies import beside_input
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.tensor import Tensor


class Histogram(NamedTuple):
    """Counts, and the edges of the bins."""

    hist: Tensor
    bin_edges: Tensor


class HistogramDD(NamedTuple):
    """Counts, and the edges of the bins of every dimension."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def _given_edges(x: Tensor, bins: Tensor, dimension: int) -> np.ndarray:
    if bins.dtype is not x.dtype:
        raise RuntimeError(
            "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype "
            f"{x.dtype.name} and bins for dimension {dimension} with dtype {bins.dtype.name}"
        )
    if bins.ndim != 1:
        raise RuntimeError(
            f"torch.histogramdd: bins tensor should have one dimension, but got {bins.ndim} dimensions in the bins tensor for "
            f"dimension {dimension}"
        )
    if not bins.layout.numel:
        raise RuntimeError(
            "torch.histogramdd: bins tensor should have at least 1 element, but got 0 elements in the bins tensor for "
            f"dimension {dimension}"
        )
    _positive(bins.layout.numel - 1, dimension)
    return host(bins, "histogram").copy()


def _positive(count: int, dimension: int) -> None:
    if count <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {count} for dimension {dimension}")


def _even_edges(values: np.ndarray, count: int, limits: Sequence[float] | None, dimension: int) -> np.ndarray:
    """count + 1 edges from the least to the largest value, or between given limits."""
    _positive(count, dimension)
    if limits is not None:
        low, high = float(limits[0]), float(limits[1])
    elif values.size:
        low, high = float(values.min()), float(values.max())
    else:
        low, high = 0.0, 1.0
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RuntimeError(f"torch.histogramdd: dimension {dimension}'s range [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(
            f"torch.histogramdd: min should not exceed max, but got min {low:g} max {high:g} for dimension {dimension}"
        )
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, count + 1).astype(values.dtype)


@beside_input
def _counted(
    x: Tensor, bins: Sequence[Tensor | int], limits: Sequence[float] | None, weight: Tensor | None, density: bool
) -> tuple[Tensor, list[Tensor]]:
    """The histogram of the rows of a matrix."""
    points = host(x, "histogram")
    rows = points.reshape(-1, points.shape[-1])
    if x.dtype.kind != "f" or x.dtype.is_half:
        raise NotImplementedError(f'"histogramdd" not implemented for \'{type_name(x.dtype)}\'')
    weights = _weights(x, weight)
    if limits is not None and len(limits) != 2 * len(bins):
        raise RuntimeError(
            f"torch.histogramdd: for a {len(bins)}-dimensional histogram range should have {2 * len(bins)} elements, but got "
            f"{len(limits)}"
        )
    edges: list[np.ndarray] = []
    for k, each in enumerate(bins):
        if isinstance(each, Tensor):
            edges.append(_given_edges(x, each, k))
        else:
            edges.append(_even_edges(rows[:, k], int(each), limits[2 * k : 2 * k + 2] if limits else None, k))
    shape = tuple(len(e) - 1 for e in edges)
    inside = np.ones(len(rows), bool)
    places = []
    for k, edge in enumerate(edges):
        column = rows[:, k]
        inside &= (column >= edge[0]) & (column <= edge[-1])
        place = np.searchsorted(edge, column, "right") - 1
        places.append(np.minimum(place, shape[k] - 1))  # the last bin holds its upper edge
    flat = np.ravel_multi_index([p[inside] for p in places], shape)
    found = np.bincount(flat, None if weights is None else weights[inside], int(np.prod(shape))).reshape(shape)
    hist = found.astype(x.dtype.numpy)
    if density:
        with np.errstate(all="ignore"):
            hist = hist / hist.sum(dtype=hist.dtype)
            for k, edge in enumerate(edges):
                hist = hist / np.diff(edge).reshape([-1 if i == k else 1 for i in range(len(edges))])
    return copy_array(np.ascontiguousarray(hist)), [copy_array(edge) for edge in edges]


def _weights(x: Tensor, weight: Tensor | None) -> np.ndarray | None:
    if weight is None:
        return None
    if weight.dtype is not x.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same dtype, but "
            f"got input({x.dtype.name}), and weight({weight.dtype.name})"
        )
    if weight.layout.shape != x.layout.shape[:-1]:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor excluding its "
            f"innermost dimension, but got input with shape {list(x.layout.shape)} and weight with shape "
            f"{list(weight.layout.shape)}"
        )
    return host(weight, "histogram").reshape(-1).astype(np.float64)


@public("statistics", kind="library", differentiable=False, out=True)
def histogram(
    input: Tensor, bins: Tensor | int = 100, *, range: Sequence[float] | None = None,  # noqa: A002
    weight: Tensor | None = None, density: bool = False,
) -> Histogram:  # fmt: skip
    """How many elements (or how much weight) each bin holds, and the edges of the bins.

    bins: how many equal ones between the least and the largest element (or over `range`), or a tensor of rising edges
    density: divided by the sum and by the width of each bin
    A bin holds its lower edge, the last one both. float32 and float64; RuntimeError for bins that make no sense.

    >>> ts.histogram(ts.tensor([1.0, 2, 1]), bins=4, range=(0.0, 3.0)).hist
    tensor([0., 2., 1., 0.])
    """
    x = need_tensor("histogram", input).reshape((-1, 1))
    hist, edges = _counted(x, [bins], range, weight if weight is None else weight.reshape(-1), density)
    return Histogram(hist, edges[0])


@public("statistics", method=False, kind="library", differentiable=False)
def histogramdd(
    input: Tensor, bins: Any, range: Sequence[float] | None = None,  # noqa: A002
    weight: Tensor | None = None, density: bool = False,
) -> HistogramDD:  # fmt: skip
    """The histogram of points: the last axis holds their coordinates.

    bins: a number of bins for all coordinates, or one number or one tensor of edges each; range: limits of each, in a row
    Otherwise as `histogram`. RuntimeError for input of fewer than two axes.

    >>> ts.histogramdd(ts.tensor([[0.0, 1], [1, 0], [2, 0]]), [2, 2]).hist
    tensor([[0., 1.],
            [2., 0.]])
    """
    if need_tensor("histogramdd", input).ndim < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    coordinates = input.layout.shape[-1]
    each = [bins] * coordinates if isinstance(bins, int) else list(bins)
    if len(each) != coordinates:
        raise RuntimeError("histogramdd: The size of bins must be equal to the innermost dimension of the input.")
    hist, edges = _counted(input, each, range, weight, density)
    return HistogramDD(hist, tuple(edges))

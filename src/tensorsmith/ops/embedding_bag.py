"""embedding_bag: sums, means or maxima of rows of a table, a bag at a time.

out[b, :] = sum, mean or max over the positions i of bag b of s_i weight[index[i], :]

Positions with `padding_idx` take no part. The rows are taken and added to their bags; a maximum's gradient goes to the first
row that has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import compute_dtype, int32, int64, type_name
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_floating, need_tensors
from tensorsmith.ops.creation import arange
from tensorsmith.ops.embedding import renormalise
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class _Bags:
    """Which position is in which bag, and which positions count."""

    def __init__(self, index: Node, offsets: Node, padding: int) -> None:
        self.graph = index.graph
        self.size = index.shape[0]
        self.count = offsets.shape[0]
        self.index = build.cast(index, int64)
        found = self.graph.add(
            Primitive.LIBRARY, (build.cast(offsets, int64), self.graph.iota(self.size)), name="searchsorted", right=True,
            shape=(self.size,), dtype=int64,
        )  # fmt: skip
        self.places = found - 1
        self.kept = f.ne(self.index, padding) if padding >= 0 else None

    def masked(self, rows: Node) -> Node:
        """Rows of positions, 0 where the position does not count."""
        return rows if self.kept is None else build.where(build.reshape(self.kept, (self.size, 1)), rows, 0)

    def added(self, rows: Node) -> Node:
        """The sums of rows a bag."""
        start = build.full(self.graph, (self.count, rows.shape[1]), 0, rows.dtype)
        return self.graph.add(Primitive.PUT, (start, self.places, rows), axis=0, reduce="add")

    def spread(self, values: Node) -> Node:
        """The row of its bag for every position."""
        return self.graph.add(Primitive.TAKE, (values, self.places), axis=0)

    def sizes(self, like: Node) -> Node:
        """How many positions of every bag count: (bags, 1)."""
        return self.added(self.masked(build.full(self.graph, (self.size, 1), 1, like.dtype)))

    def of_rows(self, weight: Node, rows: Node) -> Node:
        """The gradient of the table from those of the rows taken."""
        zeros = build.full(self.graph, weight.shape, 0, rows.dtype)
        return build.cast(self.graph.add(Primitive.PUT, (zeros, self.index, rows), axis=0, reduce="add"), weight.dtype)


def _taken(weight: Node, bags: _Bags) -> Node:
    return build.wide(weight.graph.add(Primitive.TAKE, (weight, bags.index), axis=0))


def _bag(
    index: Node, offsets: Node, weight: Node, *samples: Node, mean: bool, padding: int, by_frequency: bool
) -> Node:
    need_floating("embedding_bag", weight.dtype)
    bags = _Bags(index, offsets, padding)
    rows = bags.masked(_taken(weight, bags))
    for factor in samples:
        rows = rows * build.reshape(build.wide(factor), (bags.size, 1))
    total = bags.added(rows)
    if mean:
        total = total / f.maximum(bags.sizes(total), 1)
    return build.cast(total, weight.dtype)


def _bag_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mean: bool, padding: int, by_frequency: bool
) -> list[Node | None]:
    index, offsets, weight, *samples = inputs
    bags = _Bags(index, offsets, padding)
    grad = build.wide(grads[0])
    if mean:
        grad = grad / f.maximum(bags.sizes(grad), 1)
    own = bags.masked(bags.spread(grad))
    parts = [build.cast(build.reduce(own * _taken(weight, bags), "sum", (1,)), factor.dtype) for factor in samples]
    for factor in samples:
        own = own * build.reshape(build.wide(factor), (bags.size, 1))
    if by_frequency:
        none = build.full(weight.graph, (weight.shape[0],), 0, compute_dtype(weight.dtype))
        ones = build.full(weight.graph, (bags.size,), 1, none.dtype)
        counts = weight.graph.add(Primitive.PUT, (none, bags.index, ones), axis=0, reduce="add")
        times = weight.graph.add(Primitive.TAKE, (counts, bags.index), axis=0)
        own = own / build.reshape(times, (bags.size, 1))
    return [None, None, bags.of_rows(weight, own), *parts]


# Gradients divided by frequency are no derivative; tangents are.
EMBEDDING_BAG = Operator("embedding_bag", _bag, _bag_gradient, derived_tangent=True)


def _extreme(start: Node, bags: _Bags, rows: Node, reduce: str) -> Node:
    places = build.broadcast_to(build.reshape(bags.places, (bags.size, 1)), rows.shape)
    return start.graph.add(
        Primitive.LIBRARY, (start, places, rows), name="scatter_reduce", axis=0, reduce=reduce, include_self=True,
        shape=start.shape, dtype=start.dtype,
    )  # fmt: skip


def _bag_max(index: Node, offsets: Node, weight: Node, padding: int) -> Node:
    need_floating("embedding_bag", weight.dtype)
    bags = _Bags(index, offsets, padding)
    rows = _taken(weight, bags)
    lowest = float("-inf")
    if bags.kept is not None:
        rows = build.where(build.reshape(bags.kept, (bags.size, 1)), rows, lowest)
    found = _extreme(build.full(rows.graph, (bags.count, rows.shape[1]), lowest, rows.dtype), bags, rows, "amax")
    return build.cast(build.where(f.eq(bags.sizes(rows), 0), 0, found), weight.dtype)


def _bag_max_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], padding: int
) -> list[Node | None]:
    index, offsets, weight = inputs
    bags = _Bags(index, offsets, padding)
    rows, graph = _taken(weight, bags), weight.graph
    hit = f.logical_or(f.eq(rows, bags.spread(build.wide(outputs[0]))), f.isnan(rows))
    if bags.kept is not None:
        hit = f.logical_and(hit, build.broadcast_to(build.reshape(bags.kept, (bags.size, 1)), hit.shape))
    number = build.broadcast_to(build.reshape(graph.iota(bags.size), (bags.size, 1)), hit.shape)
    nobody = build.full(graph, (bags.count, rows.shape[1]), bags.size, int64)
    first = _extreme(nobody, bags, build.where(hit, number, bags.size), "amin")
    chosen = build.where(f.eq(bags.spread(first), number), bags.spread(build.wide(grads[0])), 0)
    return [None, None, bags.of_rows(weight, chosen)]


EMBEDDING_BAG_MAX = Operator("embedding_bag_max", _bag_max, _bag_max_gradient)


def _check_kind(name: str, position: int, value: Tensor) -> None:
    if value.dtype not in (int64, int32):
        raise RuntimeError(
            f"Expected tensor for argument #{position} '{name}' to have one of the following scalar types: Long, Int; but "
            f"got tensorsmith.{type_name(value.dtype)}Tensor instead (while checking arguments for embedding_bag)"
        )


def _in_rows(
    input: Tensor, offsets: Tensor | None, samples: Tensor | None, last: bool  # noqa: A002 - PyTorch's name
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Positions, where the bags start, and factors: all with one axis."""
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences. "
                f"However, found offsets of type {type(offsets)}"
            )
        bags, size = input.layout.shape
        starts = arange(bags, device=input.device) * size
        return input.reshape(-1), starts, None if samples is None else samples.reshape(-1)
    if input.ndim != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    if offsets.ndim != 1:
        raise ValueError("offsets has to be a 1D Tensor")
    _check_kind("offsets", 1, offsets)
    if last and not offsets.layout.numel:
        raise RuntimeError("include_last_offset: number of offsets should be at least 1")
    if modes.tracer is None and offsets.layout.numel:
        values = host(offsets, "embedding_bag").astype(np.int64)
        if values[0] != 0:
            raise RuntimeError(
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, "
                f"got {values[0]}"
            )
        if values[-1] > input.layout.numel:
            raise RuntimeError(
                f"offsets[-1] can not be greater than input's length({input.layout.numel}) but got offsets[-1] of {values[-1]}"
            )
    return input, offsets[:-1] if last else offsets, samples


@public("linear", namespace="nn.functional", method=False, kind="library")
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,  # noqa: A002
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Sums, means or maxima of the rows of `weight` (number, size) that are in a bag: (bags, size).

    input:    positions, (bags, length), or (n) with offsets (bags), where each bag starts; an empty bag gives 0
    mode:     "sum", "mean" or "max"; per_sample_weights: factors of the rows in the shape of the input, for "sum"
    include_last_offset: offsets has the end of the last bag too
    The two may come in the other order, as in PyTorch's first version, with a warning.
    padding_idx: a row that takes no part; max_norm: rows used are first scaled, in place, to at most this norm
    scale_grad_by_freq: gradients are divided by how often their row was used
    Raises ValueError for shapes that do not fit, RuntimeError for a position out of range or another dtype,
    NotImplementedError for factors in another mode and for sparse=True where a gradient is recorded.

    >>> table = ts.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> ts.nn.functional.embedding_bag(ts.tensor([0, 2, 1]), table, ts.tensor([0, 2]))
    tensor([[3., 4.],
            [3., 4.]])
    """
    need_tensors("embedding_bag", input=input, weight=weight)
    if weight.dtype is int64 and input.dtype.is_floating_point:
        warnings.warn(
            "Argument order of nn.functional.embedding_bag was changed. Usage `embedding_bag(weight, input, ...)` is "
            "deprecated, and should now be `embedding_bag(input, weight, ...)`.",
            stacklevel=2,
        )
        input, weight = weight, input  # noqa: A001
    if per_sample_weights is not None and per_sample_weights.layout.shape != input.layout.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({per_sample_weights.shape}) is not None, then it must have the same "
            f"shape as the input ({input.shape})"
        )
    if weight.ndim != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim}")
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    if sparse and modes.grad and weight.layout.tracked:
        raise NotImplementedError("embedding_bag: a sparse gradient (sparse=True); gradients are dense")
    _check_kind("indices", 1, input)
    index, starts, samples = _in_rows(input, offsets, per_sample_weights, include_last_offset)
    if max_norm is not None:
        renormalise(input, weight, max_norm, norm_type)
    if samples is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
            f"(got mode='{mode}')."
        )
    if samples is not None and samples.dtype is not weight.dtype:
        raise RuntimeError(
            f"expected scalar type {type_name(weight.dtype)} but found {type_name(samples.dtype)} (per_sample_weights)"
        )
    padding, rows = -1, weight.layout.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise RuntimeError("padding_idx must be within the number of embeddings, " f"got {padding_idx} for {rows} rows")
        padding = padding_idx % rows
    attrs: dict[str, Any] = {"padding": padding}
    operands = (index, starts, weight) if samples is None else (index, starts, weight, samples)
    if mode != "max":
        attrs = {"mean": mode == "mean", **attrs, "by_frequency": bool(scale_grad_by_freq)}
    try:
        return call(EMBEDDING_BAG_MAX if mode == "max" else EMBEDDING_BAG, operands, attrs)
    except IndexError as error:
        raise RuntimeError(f"embedding_bag: Expected idx >= 0 && idx < num_embeddings; {error}") from None

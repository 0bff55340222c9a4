"""Adaptive pooling: windows chosen so that a given number of them covers each of the last axes.

Window i of n on an axis of L elements is floor(i L / n) to ceil((i + 1) L / n). Where n divides L these are windows of ordinary
pooling; otherwise the elements of every window are taken side by side, one axis after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import int64
from tensorsmith.core.memory_format import format_of_first, format_of_image
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.average_pooling import AVG_POOL
from tensorsmith.ops.checks import need_floating, need_floating_node, need_tensors
from tensorsmith.ops.max_pooling import MAX_POOL, MAX_POOL_WITH_INDICES
from tensorsmith.ops.pooling_checks import sizes
from tensorsmith.ops.pooling_windows import lowest, scattered
from tensorsmith.ops.registry import public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


class _Taken:
    """The windows of one axis: their elements along a new last axis, where the shorter ones have some too many."""

    def __init__(self, x: Node, axis: int, count: int) -> None:
        self.axis, self.count, self.extent = axis, count, x.shape[axis]
        spans = [-((-(i + 1) * self.extent) // count) - i * self.extent // count for i in range(count)]
        self.size = max(spans)
        number, tap = x.graph.iota(count), x.graph.iota(self.size)
        self.start = build.map_(Fn.FLOOR_DIVIDE, number * self.extent, count)
        end = build.map_(Fn.FLOOR_DIVIDE, (number + 1) * self.extent + (count - 1), count)
        self.length = end - self.start
        place = build.reshape(self.start, (count, 1)) + build.reshape(tap, (1, self.size))
        last = build.broadcast_to(build.reshape(end - 1, (count, 1)), place.shape)
        self.inside = place <= last
        self.place = build.where(self.inside, place, last)

    def of(self, x: Node) -> Node:
        """x with the elements of each window along a new last axis."""
        index = build.reshape(self.place, (self.count * self.size,))
        taken = x.graph.add(Primitive.TAKE, (x, index), axis=self.axis)
        parts = build.reshape(taken, (*x.shape[: self.axis], self.count, self.size, *x.shape[self.axis + 1 :]))
        return build.permute(parts, [i for i in range(parts.ndim) if i != self.axis + 1] + [self.axis + 1])

    def table(self, values: Node, ndim: int) -> Node:
        """A value for every element of every window (or every window) in a shape that broadcasts to that of `of`."""
        shape = [1] * (ndim + 1)
        shape[self.axis] = self.count
        if values.ndim == 2:
            shape[-1] = self.size
        return build.reshape(values, shape)


def _empty(x: Node, output: Sequence[int]) -> tuple[int, ...] | None:
    return (*x.shape[: x.ndim - len(output)], *output) if 0 in output else None


def _adaptive_avg_pool(x: Node, output: tuple[int, ...]) -> Node:
    need_floating_node(f"adaptive_avg_pool{len(output)}d", x)
    if (shape := _empty(x, output)) is not None:
        return build.full(x.graph, shape, 0, x.dtype)
    value = build.wide(x)
    for axis in range(x.ndim - 1, x.ndim - 1 - len(output), -1):
        windows = _Taken(value, axis, output[axis - x.ndim])
        elements = windows.of(value)
        kept = build.where(windows.table(windows.inside, x.ndim), elements, 0)
        total = build.reduce(kept, "sum", (x.ndim,))
        length = build.reshape(
            windows.table(windows.length, x.ndim), [windows.count if i == axis else 1 for i in range(x.ndim)]
        )
        value = total / build.cast(length, total.dtype)
    return build.cast(value, x.dtype)


def _adaptive_max_pool(x: Node, output: tuple[int, ...]) -> tuple[Node, Node]:
    need_floating_node(f"adaptive_max_pool{len(output)}d", x)
    if (shape := _empty(x, output)) is not None:
        return build.full(x.graph, shape, 0, x.dtype), build.full(x.graph, shape, 0, int64)
    value, place, pitch = x, None, 1
    none = int(np.iinfo(np.int64).max)
    for axis in range(x.ndim - 1, x.ndim - 1 - len(output), -1):
        windows = _Taken(value, axis, output[axis - x.ndim])
        inside = windows.table(windows.inside, x.ndim)
        elements = build.where(inside, windows.of(value), lowest(x))
        top = build.reduce(elements, "max", (x.ndim,), keepdim=True)
        hit = build.map_(Fn.LOGICAL_OR, build.map_(Fn.EQ, elements, top), build.map_(Fn.ISNAN, elements)) & inside
        own = windows.table(windows.place * pitch, x.ndim)
        here = build.broadcast_to(own if place is None else windows.of(place) + own, elements.shape)
        value = build.reshape(top, top.shape[:-1])
        earliest = build.reduce(build.where(hit, here, none), "min", (x.ndim,))
        latest = build.reduce(build.where(hit, here, -1), "max", (x.ndim,))
        place = build.where(build.map_(Fn.ISNAN, value), latest, earliest)
        pitch *= windows.extent
    assert place is not None
    return value, place


def _adaptive_max_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], output: tuple[int, ...]
) -> list[Node]:
    x = inputs[0]
    return [scattered(grads[0], outputs[1], x.shape[x.ndim - len(output) :])]


ADAPTIVE_AVG_POOL = Operator("adaptive_avg_pool", _adaptive_avg_pool, keeps_format=format_of_image)
ADAPTIVE_MAX_POOL = Operator("adaptive_max_pool", _adaptive_max_pool, _adaptive_max_gradient, keeps_format=format_of_first)


def _check(name: str, input: Tensor, output_size: Any, rank: int) -> tuple[int, ...]:  # noqa: A002
    need_tensors(name, input=input)
    shape = input.layout.shape
    if rank > 1 and len(shape) <= rank and isinstance(output_size, Sequence):
        raise ValueError(f"{name}(): Input dimension should be at least {rank + 1}, got {list(shape)}")
    if len(shape) not in (rank + 1, rank + 2):
        raise RuntimeError(f"{name}(): Expected {rank + 1}D or {rank + 2}D tensor, but got: {list(shape)}")
    for axis in range(len(shape) - rank, len(shape)):
        if not shape[axis]:
            raise RuntimeError(
                f"{name}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes {list(shape)} "
                f"with dimension {axis} being empty"
            )
    need_floating(name, input.dtype)
    return sizes(name, output_size, shape, rank)


def _as_ordinary(input: Tensor, output: tuple[int, ...]) -> dict[str, Any] | None:  # noqa: A002
    """The attributes of ordinary pooling with the same windows, where there are such."""
    extents = input.layout.shape[input.ndim - len(output) :]
    if 0 in output or any(n % m for n, m in zip(extents, output)):
        return None
    kernel = tuple(n // m for n, m in zip(extents, output))
    plain = {"padding": (0,) * len(output), "dilation": (1,) * len(output), "ceil_mode": False}
    return {"kernel": kernel, "stride": kernel, **plain}


def adaptive_average(name: str, rank: int, input: Tensor, output_size: Any) -> Tensor:  # noqa: A002
    """Adaptive average pooling of the last `rank` axes, arguments checked."""
    output = _check(name, input, output_size, rank)
    ordinary = _as_ordinary(input, output)
    if ordinary is not None:
        return call(AVG_POOL, (input,), ordinary | {"count_include_pad": True, "divisor": None})
    return call(ADAPTIVE_AVG_POOL, (input,), {"output": output})


_SHAPES = """input (N, C, {space}) or (C, {space}) -> the same with sizes output_size: an int, or one for each axis, where None
    keeps the input's. dtypes: floating point. Raises RuntimeError for negative sizes and inputs empty beyond the batch.

    >>> ts.nn.functional.{name}(ts.ones(1, {five}), 2).shape
    Size([1, {two}])
    """


def _enter(rank: int) -> None:
    average_name, name = f"adaptive_avg_pool{rank}d", f"adaptive_max_pool{rank}d"

    def adaptive_avg_pool(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:  # noqa: A002
        return adaptive_average(average_name, rank, input, output_size)

    def with_indices(
        input: Tensor, output_size: int | None | Sequence[int | None], return_indices: bool = False  # noqa: A002
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        output = _check(name, input, output_size, rank)
        ordinary = _as_ordinary(input, output)
        if ordinary is not None:
            values, places = call(MAX_POOL_WITH_INDICES, (input,), ordinary)
        else:
            values, places = call(ADAPTIVE_MAX_POOL, (input,), {"output": output})
        return values, places

    def adaptive_max_pool(
        input: Tensor, output_size: int | None | Sequence[int | None], return_indices: bool = False  # noqa: A002
    ) -> Any:  # fmt: skip
        if not return_indices:
            ordinary = _as_ordinary(input, _check(name, input, output_size, rank))
            if ordinary is not None:
                return call(MAX_POOL, (input,), ordinary)
        found = with_indices(input, output_size)
        return found if return_indices else found[0]

    words = {
        "space": ", ".join("DHW"[3 - rank :]) if rank > 1 else "L", "five": ", ".join(["5"] * rank),
        "two": ", ".join(["2"] * rank),
    }  # fmt: skip
    adaptive_avg_pool.__name__ = adaptive_avg_pool.__qualname__ = average_name
    adaptive_avg_pool.__doc__ = (
        f"The mean of each of `output_size` windows that cover the last {rank} axes: floor(i L / n) to "
        "ceil((i + 1) L / n).\n\n    " + _SHAPES.format(name=average_name, **words)
    )
    adaptive_max_pool.__name__ = adaptive_max_pool.__qualname__ = name
    adaptive_max_pool.__doc__ = (
        f"The largest value of each of `output_size` windows that cover the last {rank} axes: floor(i L / n) to "
        f"ceil((i + 1) L / n).\n\n    return_indices: also int64 places in the flat order of the last {rank} axes.\n    "
        + _SHAPES.format(name=name, **words)
    )
    with_indices.__name__ = with_indices.__qualname__ = name + "_with_indices"
    with_indices.__doc__ = f"(values, indices) of `{name}`."
    for function in (adaptive_avg_pool, adaptive_max_pool, with_indices):
        public("pooling", namespace="nn.functional", method=False)(function)
    if rank == 1:
        public("pooling", method=False)(adaptive_avg_pool)


for _rank in (1, 2, 3):
    _enter(_rank)

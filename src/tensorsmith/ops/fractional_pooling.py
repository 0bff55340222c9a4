"""Fractional max pooling (Graham, 2014): windows of one size at places that a random number in [0, 1) decides.

On an axis of L elements n windows of k taps start at floor((i + u) a) - floor(u a), a = (L - k) / (n - 1), and the last at
L - k; u is drawn for every axis of every channel of every sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import int64
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_floating, need_floating_node, need_tensors
from tensorsmith.ops.pooling_windows import numbers, scattered
from tensorsmith.ops.registry import TABLE, public
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


def _starts(sample: Node, extent: int, size: int, count: int) -> Node:
    """(rows, count) places of the windows' first taps from (rows,) numbers in [0, 1)."""
    number = sample.graph.iota(count)
    rows = sample.shape[0]
    if count == 1:
        return build.full(sample.graph, (rows, 1), extent - size, int64)
    step = sample.graph.constant((extent - size) / (count - 1), sample.dtype)
    u = build.reshape(sample, (rows, 1))
    places = build.cast((build.cast(number, sample.dtype) + u) * step, int64) - build.cast(u * step, int64)
    last = build.broadcast_to(build.reshape(number, (1, count)), places.shape) >= count - 1
    return build.where(last, extent - size, places)


def _fractional(x: Node, samples: Node, kernel: tuple[int, ...], output: tuple[int, ...]) -> tuple[Node, Node]:
    rank = len(kernel)
    need_floating_node(f"fractional_max_pool{rank}d", x)
    lead, extents = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    rows = math.prod(lead)
    u = build.reshape(build.wide(samples), (rows, rank))
    index = build.full(x.graph, (rows, *[1] * (2 * rank)), 0, int64)
    for axis, (n, k, m) in enumerate(zip(extents, kernel, output)):
        which = rank - 1 - axis if rank == 2 else axis  # PyTorch's order of the numbers
        start = _starts(build.reshape(build.slice_(u, 1, which, 1), (rows,)), n, k, m)
        pitch = math.prod(extents[axis + 1 :])
        shape, taps = [rows, *[1] * (2 * rank)], [1] * (2 * rank + 1)
        shape[1 + axis], taps[1 + rank + axis] = m, k
        index = index + build.reshape(start * pitch, shape) + build.reshape(x.graph.iota(k) * pitch, taps)
    windows, size = math.prod(output), math.prod(kernel)
    index = build.reshape(index, (rows, windows * size))
    taken = x.graph.add(Primitive.GATHER, (build.reshape(x, (rows, math.prod(extents))), index), axis=1)
    elements, place = (build.reshape(n, (rows, windows, size)) for n in (taken, index))
    top = build.reduce(elements, "max", (2,), keepdim=True)
    hit = build.map_(Fn.LOGICAL_OR, build.map_(Fn.EQ, elements, top), f.isnan(elements))
    earliest = build.reduce(build.where(hit, place, int(np.iinfo(np.int64).max)), "min", (2,), keepdim=True)
    latest = build.reduce(build.where(hit, place, -1), "max", (2,), keepdim=True)
    found = build.where(f.isnan(top), latest, earliest)
    return build.reshape(top, (*lead, *output)), build.reshape(found, (*lead, *output))


def _gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], kernel: tuple[int, ...], output: tuple[int, ...]
) -> list[Node | None]:
    x = inputs[0]
    return [scattered(grads[0], outputs[1], x.shape[x.ndim - len(kernel) :]), None]


FRACTIONAL = Operator("fractional_max_pool", _fractional, _gradient)


def _check(name: str, input: Tensor, kernel: Sequence[int], output: Sequence[int], samples: Tensor) -> None:  # noqa: A002
    rank = len(kernel)
    shape = input.layout.shape
    if len(shape) not in (rank + 1, rank + 2) or 0 in shape[len(shape) - rank - 1 :]:
        raise RuntimeError(f"{name}: Expected {rank + 1}D or {rank + 2}D tensor, but got: {list(shape)}")
    sides = ("height", "width") if rank == 2 else ("time", "height", "width")
    for side, n, k, m in zip(sides, shape[len(shape) - rank :], kernel, output):
        if m < 1 or k < 1:
            raise RuntimeError(f"{name}(): output size and kernel size should be greater than zero, but got {m} and {k}")
        if m + k - 1 > n:
            raise RuntimeError(f"{name}(): pool {side} {k} too large relative to input {side} {n} for {m} windows")
    need_tensors(name, _random_samples=samples)
    batch, channels = shape[0] if len(shape) == rank + 2 else 1, shape[len(shape) - rank - 1]
    wanted = (batch, channels, rank)
    if samples.ndim != 3 or samples.layout.shape[0] < batch or samples.layout.shape[1:] != wanted[1:]:
        raise RuntimeError(
            f"{name}: Expect _random_samples of size {list(wanted)} (batch, input channels, {rank}), but got "
            f"{list(samples.layout.shape)}"
        )
    if samples.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}: Expect _random_samples to have the same dtype as input, {input.dtype}, but got {samples.dtype}"
        )


def _enter(rank: int) -> None:
    name = f"fractional_max_pool{rank}d"

    def with_indices(
        input: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None,  # noqa: A002
        output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        need_tensors(name, input=input)
        kernel = numbers(name, "kernel_size", kernel_size, rank)
        if output_size is None:
            if output_ratio is None:
                raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
            given: Any = output_ratio
            ratios = list(given) if isinstance(given, list | tuple) else [given] * rank
            if len(ratios) != rank:
                raise ValueError(f"{name} requires output_ratio to be a number or {rank} numbers, but got {ratios}")
            output_size = [int(n * r) for n, r in zip(input.layout.shape[input.ndim - rank :], ratios)]
        output = numbers(name, "output_size", output_size, rank)
        need_floating(name, input.dtype)
        batch = 1 if input.ndim == rank + 1 else input.layout.shape[0]
        if _random_samples is None:
            rand: Any = TABLE["rand"].function
            _random_samples = rand(batch, input.shape[-rank - 1], rank, dtype=input.dtype, device=input.device)
        assert _random_samples is not None
        _check(name, input, kernel, output, _random_samples)
        values, places = call(FRACTIONAL, (input, _random_samples[:batch]), {"kernel": kernel, "output": output})
        return values, places

    def fractional_max_pool(
        input: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None,  # noqa: A002
        output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> Any:  # fmt: skip
        found = with_indices(input, kernel_size, output_size, output_ratio, False, _random_samples)
        return found if return_indices else found[0]

    space = ", ".join("DHW"[3 - rank :])
    fractional_max_pool.__name__ = fractional_max_pool.__qualname__ = name
    fractional_max_pool.__doc__ = f"""The largest value of windows at random places in the last {rank} axes (Graham, 2014).

    input (N, C, {space}) or (C, {space}) -> the same with sizes output_size, or output_ratio times the input's.
    return_indices: also int64 places in the flat order of the last {rank} axes. _random_samples: the numbers in [0, 1) that
    place the windows, (N, C, {rank}). dtypes: floating point. Raises RuntimeError for windows that do not fit.

    >>> ts.nn.functional.{name}(ts.ones(1, {", ".join(["5"] * rank)}), 2, output_size=3).shape
    Size([1, {", ".join(["3"] * rank)}])
    """
    with_indices.__name__ = with_indices.__qualname__ = name + "_with_indices"
    with_indices.__doc__ = f"(values, indices) of `{name}`."
    for function in (fractional_max_pool, with_indices):
        public("pooling", namespace="nn.functional", method=False)(function)


_enter(2)
_enter(3)

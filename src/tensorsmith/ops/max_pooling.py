"""Max pooling: the largest value of every window of the last axes.

    y[i, j] = max over a, b of x[i stride - padding + a dilation, j stride - padding + b dilation]

Padding is -inf. The gradient goes to the element that was taken: the first of equals, the last NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.memory_format import format_of_first
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import need_floating, type_name
from tensorsmith.ops.pooling_checks import pooling_numbers
from tensorsmith.ops.pooling_windows import (
    Windows,
    largest,
    largest_and_place,
    scattered,
    windows_of,
)
from tensorsmith.ops.registry import public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _need_ordered(x: Node, rank: int) -> None:
    if x.dtype.kind not in "fiu":
        raise NotImplementedError(f"\"max_pool{rank}d\" not implemented for '{type_name(x.dtype)}'")


def _windows(x: Node, **attrs: Any) -> tuple[Windows, ...]:
    return windows_of(x.shape, **attrs)


def _max_pool(x: Node, **attrs: Any) -> Node:
    _need_ordered(x, len(attrs["kernel"]))
    return largest(x, _windows(x, **attrs))


def _with_places(x: Node, **attrs: Any) -> tuple[Node, Node]:
    _need_ordered(x, len(attrs["kernel"]))
    return largest_and_place(x, _windows(x, **attrs))


def _max_pool_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], **attrs: Any) -> list[Node]:
    windows = _windows(inputs[0], **attrs)
    return [scattered(grads[0], largest_and_place(inputs[0], windows)[1], [w.extent for w in windows])]


def _with_places_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], **attrs: Any) -> list[Node]:
    return [scattered(grads[0], outputs[1], inputs[0].shape[inputs[0].ndim - len(attrs["kernel"]) :])]


MAX_POOL = Operator("max_pool", _max_pool, _max_pool_gradient, keeps_format=format_of_first)
MAX_POOL_WITH_INDICES = Operator("max_pool_with_indices", _with_places, _with_places_gradient, keeps_format=format_of_first)


def _enter(rank: int) -> None:
    name = f"max_pool{rank}d"

    def with_indices(
        input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,  # noqa: A002
        padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        attrs = pooling_numbers(name, input, rank, kernel_size, stride, padding, dilation, ceil_mode)
        values, places = call(MAX_POOL_WITH_INDICES, (input,), attrs)
        return values, places

    def max_pool(
        input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,  # noqa: A002
        padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        if return_indices:
            return with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
        attrs = pooling_numbers(name, input, rank, kernel_size, stride, padding, dilation, ceil_mode)
        if rank == 1:
            need_floating("max_pool1d_impl", input.dtype)
        if modes.grad and input.layout.tracked:  # the gradient asks where the values were: noted now, not searched again
            values, _ = call(MAX_POOL_WITH_INDICES, (input,), attrs)
            return values
        return call(MAX_POOL, (input,), attrs)

    integers = " (with return_indices integers too)" if rank == 1 else " and integers"
    space = ", ".join("DHW"[3 - rank :]) if rank > 1 else "L"
    example = ", ".join(["2"] * rank)
    max_pool.__name__ = max_pool.__qualname__ = name
    max_pool.__doc__ = f"""The largest value of every window of the last {rank} axes (padding is -inf; NaN is passed on).

    input (N, C, {space}) or (C, {space}); every size L becomes floor((L + 2 padding - dilation (kernel_size - 1) - 1) / stride)
    + 1, with ceil_mode rounded up, without windows that start in the padding on the right. stride: kernel_size where None.
    return_indices: also int64 places in the flat order of the last {rank} axes, for `max_unpool{rank}d`.
    dtypes: floating point{integers}. Raises RuntimeError for windows that do not fit or padding above half a window.

    >>> ts.nn.functional.{name}(ts.arange({4**rank}.0).reshape(1, {", ".join(["4"] * rank)}), 2).shape
    Size([1, {example}])
    """
    with_indices.__name__ = with_indices.__qualname__ = name + "_with_indices"
    with_indices.__doc__ = f"(values, indices) of `{name}`."
    for function in (max_pool, with_indices):
        public("pooling", namespace="nn.functional", method=False)(function)
    public("pooling", method=False)(max_pool)
    if rank == 1:
        public("pooling", method=False)(with_indices)


for _rank in (1, 2, 3):
    _enter(_rank)

__all__ = ["MAX_POOL", "MAX_POOL_WITH_INDICES"]

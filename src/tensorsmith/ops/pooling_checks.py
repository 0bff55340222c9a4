"""What pooling refuses, in PyTorch's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.ops.checks import need_tensors
from tensorsmith.ops.pooling_windows import numbers, pooled_shape
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.tensor.tensor import Tensor

_SIDES = {1: "W", 2: "HW", 3: "THW"}


def need_rank(name: str, input: Tensor, rank: int) -> None:  # noqa: A002
    """`rank` axes of space after the channels and, maybe, the batch; only the batch may be empty."""
    need_tensors(name, input=input)
    shape = input.layout.shape
    if len(shape) not in (rank + 1, rank + 2) or 0 in shape[len(shape) - rank - 1 :]:
        raise RuntimeError(
            f"{name}: Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with optional 0 dim batch size for input, "
            f"but got:{list(shape)}"
        )


def pooling_numbers(
    name: str, input: Tensor, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any,  # noqa: A002
    ceil_mode: bool,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of a pooling as attributes of its operator; RuntimeError for those that have no meaning."""
    kernel = numbers(name, "kernel_size", kernel_size, rank)
    strides = kernel if stride is None or stride == [] or stride == () else numbers(name, "stride", stride, rank)
    paddings = numbers(name, "padding", padding, rank)
    dilations = numbers(name, "dilation", dilation, rank)
    for what, values in (("kernel size", kernel), ("stride", strides), ("dilation", dilations)):
        if min(values) <= 0:
            if what == "stride" and 0 in values:
                raise RuntimeError(f"{name}: stride should not be zero, but got {list(values)}")
            sides = " ".join(f"{side}: {n}" for side, n in zip(_SIDES[rank], values))
            raise RuntimeError(f"{name}: {what} should be greater than zero, but got {sides}")
    need_padding(name, kernel, paddings, dilations)
    need_rank(name, input, rank)
    attrs = {"kernel": kernel, "stride": strides, "padding": paddings, "dilation": dilations, "ceil_mode": bool(ceil_mode)}
    need_windows(name, input, attrs)
    return attrs


def need_padding(name: str, kernel: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    """No negative padding, and none that a window could lie in."""
    for k, p, d in zip(kernel, padding, dilation):
        if p < 0:
            raise RuntimeError(f"{name}: pad must be non-negative, but got pad: {p}")
        if p > ((k - 1) * d + 1) // 2:
            raise RuntimeError(
                f"{name}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and "
                f"dilation={d}"
            )
        if p > k // 2:
            raise RuntimeError(
                f"{name}: pad should be smaller than or equal to half of kernel size, but got pad={p} and kernel_size={k}"
            )


def need_windows(name: str, input: Tensor, attrs: dict[str, Any]) -> None:  # noqa: A002
    """At least one window on every axis."""
    shape = input.layout.shape
    counts = pooled_shape(shape, **attrs)
    if min(counts) < 1:
        rank = len(counts)
        given = "x".join(map(str, shape[len(shape) - rank - 1 :]))
        found = "x".join(map(str, (shape[len(shape) - rank - 1], *(max(n, 0) for n in counts))))
        raise RuntimeError(
            f"{name}: Given input size: ({given}). Calculated output size: ({found}). Output size is too small for kernel "
            f"{list(attrs['kernel'])} with padding {list(attrs['padding'])}"
        )


def sizes(name: str, value: Any, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """The output size of an adaptive pooling: None keeps the input's extent."""
    given = list(value) if isinstance(value, list | tuple) else [value] * rank
    if len(given) != rank:
        if rank == 1:
            raise RuntimeError(f"{name}() argument 'output_size' should contain one int (got {len(given)})")
        raise RuntimeError(f"{name}: output_size must be {rank} ints, but got {given}")
    wanted = [n if each is None else each for n, each in zip(shape[len(shape) - rank :], given)]
    found = as_ints(name, wanted, "output_size")
    if min(found) < 0:
        raise RuntimeError(
            f"{name}: elements of output_size must be greater than or equal to 0 but received {{{', '.join(map(str, found))}}}"
        )
    return found

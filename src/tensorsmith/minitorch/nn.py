"""Module 4: pooling over tiles, softmax, dropout, written with the tensors of module 2."""

from __future__ import annotations

from typing import Any

from tensorsmith.minitorch import operators
from tensorsmith.minitorch.autodiff import Context
from tensorsmith.minitorch.fast_ops import FastOps
from tensorsmith.minitorch.tensor import Tensor
from tensorsmith.minitorch.tensor_data import IndexingError
from tensorsmith.minitorch.tensor_functions import Function, rand

max_reduce = FastOps.reduce(operators.max, -1e9)


def tile(input: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, int, int]:
    """Cut images into tiles.

    input: (batch, channel, height, width); kernel: (kh, kw), which divide height and width
    Returns (batch, channel, height / kh, width / kw, kh * kw), height / kh, width / kw.
    """
    if input.dims != 4 or input.shape[2] % kernel[0] or input.shape[3] % kernel[1]:
        raise IndexingError(
            f"tile: needs (batch, channel, height, width) with height and width divisible by the kernel {kernel}, "
            f"got {input.shape}"
        )
    batch, channel, height, width = input.shape
    kh, kw = kernel
    new_height, new_width = height // kh, width // kw
    cut = input._in_order().view(batch, channel, new_height, kh, new_width, kw).permute(0, 1, 2, 4, 3, 5)
    return cut.contiguous().view(batch, channel, new_height, new_width, kh * kw), new_height, new_width


def avgpool2d(input: Tensor, kernel: tuple[int, int]) -> Tensor:
    """The mean of every tile: (batch, channel, height, width) -> (batch, channel, height / kh, width / kw)."""
    tiles, height, width = tile(input, kernel)
    return tiles.mean(4).view(*input.shape[:2], height, width)


def maxpool2d(input: Tensor, kernel: tuple[int, int]) -> Tensor:
    """The maximum of every tile: (batch, channel, height, width) -> (batch, channel, height / kh, width / kw)."""
    tiles, height, width = tile(input, kernel)
    return max(tiles, 4).view(*input.shape[:2], height, width)


def argmax(input: Tensor, dim: int) -> Tensor:
    """1.0 where an element is the largest along a dimension, else 0.0; where several are, each is 1.0 (MiniTorch's rule)."""
    return max_reduce(input, dim) == input


class Max(Function):
    """The maximum along a dimension, which stays; the gradient goes to every element that is the maximum."""

    _ours = True

    @staticmethod
    def forward(ctx: Context, input: Tensor, dim: Any) -> Tensor:
        along = int(dim.item()) if isinstance(dim, Tensor) else int(dim)
        out = max_reduce(input, along)
        ctx.save_for_backward(input, out.detach())
        return out

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Tensor, float]:
        input, out = ctx.saved_values
        f = grad_output.backend
        return f.mul_zip(f.eq_zip(out, input), grad_output), 0.0


def max(input: Tensor, dim: int) -> Tensor:
    """The maximum along a dimension, which stays with extent 1."""
    return Max.apply(input, dim)


def softmax(input: Tensor, dim: int) -> Tensor:
    """exp(x) / sum exp(x) along a dimension, with the maximum taken off first."""
    e = (input - max_reduce(input.detach(), dim)).exp()
    return e / e.sum(dim)


def logsoftmax(input: Tensor, dim: int) -> Tensor:
    """x - log sum exp(x) along a dimension, with the maximum taken off first."""
    x = input - max_reduce(input.detach(), dim)
    return x - x.exp().sum(dim).log()


def dropout(input: Tensor, rate: float, ignore: bool = False) -> Tensor:
    """Zero every element with probability `rate`; nothing is scaled. With `ignore` the input as it is."""
    if ignore:
        return input
    return input * (rand(input.shape, backend=input.backend) > rate)

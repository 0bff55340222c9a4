"""Module 4: convolution in one and two dimensions, on the engine's convolution.

The output is as large as the input; the kernel is anchored at its first element, and the input is zero beyond its end:

    out[b, o, x] = sum over c, k of input[b, c, x + k] * weight[o, c, k]

With `reverse` the kernel is anchored at its last element and read backwards: input[b, c, x - k].
"""

from __future__ import annotations

from typing import Any

from tensorsmith.autograd.backward import grad
from tensorsmith.minitorch.autodiff import Context
from tensorsmith.minitorch.tensor import Tensor, make
from tensorsmith.minitorch.tensor_data import IndexingError, TensorData
from tensorsmith.minitorch.tensor_functions import Function
from tensorsmith.ops.convolution import conv1d as conv1d_of_engine, conv2d as conv2d_of_engine
from tensorsmith.ops.padding import pad
from tensorsmith.tensor.modes import enable_grad
from tensorsmith.tensor.tensor import Tensor as EngineTensor


def _convolve(x: EngineTensor, weight: EngineTensor, reverse: bool = False) -> EngineTensor:
    extents = weight.shape[2:]
    padding: list[int] = []
    for extent in reversed(extents):
        padding += [extent - 1, 0] if reverse else [0, extent - 1]
    if reverse:
        weight = weight.flip(list(range(2, weight.dim())))
    convolution = conv1d_of_engine if len(extents) == 1 else conv2d_of_engine
    return convolution(pad(x, padding), weight)


def _check(name: str, x: tuple[int, ...], weight: tuple[int, ...], dims: int) -> None:
    if len(x) != dims + 2 or len(weight) != dims + 2 or x[1] != weight[1]:
        letters = "w" if dims == 1 else "h, w"
        raise IndexingError(
            f"{name}: needs input (batch, in_channels, {letters}) and weight (out_channels, in_channels, "
            f"k{letters.replace(' ', ' k')}) with the same in_channels, got {x} and {weight}"
        )


class _Convolution(Function):
    """The engine records its own convolution in forward; backward asks it for the two gradients."""

    _ours = True
    _dims = 0

    @classmethod
    def forward(cls, ctx: Context, input: Tensor, weight: Tensor) -> Tensor:
        _check(cls.__name__, input.shape, weight.shape, cls._dims)
        if ctx.no_grad:
            return make(_convolve(input.value, weight.value), input.backend)
        operands = [t.value.detach().requires_grad_(t.history is not None) for t in (input, weight)]
        with enable_grad():
            out = _convolve(operands[0], operands[1])
        ctx.save_for_backward(operands, out)
        return make(out.detach(), input.backend)

    @staticmethod
    def backward(ctx: Context, grad_output: Tensor) -> tuple[Any, ...]:
        operands, out = ctx.saved_values
        asked = [x for x in operands if x.requires_grad]
        found: Any = iter(grad(out, asked, grad_output.value, retain_graph=True))
        return tuple(make(next(found), grad_output.backend) if x.requires_grad else 0.0 for x in operands)


class Conv1dFun(_Convolution):
    """input (batch, in_channels, w), weight (out_channels, in_channels, kw) -> (batch, out_channels, w)"""

    _dims = 1


class Conv2dFun(_Convolution):
    """input (batch, in_channels, h, w), weight (out_channels, in_channels, kh, kw) -> (batch, out_channels, h, w)"""

    _dims = 2


conv1d = Conv1dFun.apply
conv2d = Conv2dFun.apply


def _on_storage(name: str, dims: int, arguments: tuple[Any, ...]) -> None:
    out, _, x, weight = arguments[:3], arguments[3], arguments[4:7], arguments[7:10]
    data = [TensorData.over(*each) for each in (out, x, weight)]
    _check(name, data[1].shape, data[2].shape, dims)
    result = _convolve(data[1].value, data[2].value, bool(arguments[10]))
    for dim, extent in enumerate(data[0].shape[2:], 2):
        if extent < result.shape[dim]:  # the gradient of a weight is asked for at the places of the weight only
            result = result.narrow(dim, 0, extent)
    data[0].value.copy_(result)


def tensor_conv1d(*arguments: Any) -> None:
    """(out, shape, strides, size, input, shape, strides, weight, shape, strides, reverse): a convolution on storages."""
    _on_storage("tensor_conv1d", 1, arguments)


def tensor_conv2d(*arguments: Any) -> None:
    """(out, shape, strides, size, input, shape, strides, weight, shape, strides, reverse): a convolution on storages."""
    _on_storage("tensor_conv2d", 2, arguments)

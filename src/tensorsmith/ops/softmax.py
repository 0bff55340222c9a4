"""softmax, log_softmax and softmin: one kernel a row, forward and backward.

With m the maximum of a row,

    softmax(x)_i     = e**(x_i - m) / sum_j e**(x_j - m)         dx = y (g - sum_j g_j y_j)
    log_softmax(x)_i = x_i - m - log sum_j e**(x_j - m)          dx = g - e**y sum_j g_j

Half-precision rows are computed in float32 and rounded once. A row of -inf alone gives NaN, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core.dtypes import DType
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import axis_of, need_floating
from tensorsmith.ops.pointwise import check_dtypes
from tensorsmith.ops.raw_keys import as_int
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


def _prepared(name: str, x: Node, dim: int, dtype: DType | None) -> tuple[Node, int]:
    """The input in the dtype asked for, with at least one axis, and the axis."""
    if dtype is not None:
        x = build.cast(x, dtype)
    need_floating(f"{name}_lastdim_kernel_impl" if dim in (-1, x.ndim - 1) else f"{name}_kernel_impl", x.dtype)
    axis = axis_of(dim, x.ndim)
    return (x, axis) if x.ndim else (build.reshape(x, (1,)), axis)


def softmax_node(x: Node, axis: int) -> Node:
    """Softmax along an axis."""
    row = build.wide(x)  # the sum of many exponentials would be infinite in float16
    exponentials = f.exp(row - build.reduce(row, "max", (axis,), keepdim=True))
    return build.cast(exponentials / build.reduce(exponentials, "sum", (axis,), keepdim=True), x.dtype)


def log_softmax_node(x: Node, axis: int) -> Node:
    """The logarithm of softmax along an axis."""
    row = build.wide(x)
    shifted = row - build.reduce(row, "max", (axis,), keepdim=True)
    return build.cast(shifted - f.log(build.reduce(f.exp(shifted), "sum", (axis,), keepdim=True)), x.dtype)


def _softmax(x: Node, dim: int, dtype: DType | None) -> Node:
    row, axis = _prepared("softmax", x, dim, dtype)
    return build.reshape(softmax_node(row, axis) if row.numel else row, x.shape)


def _log_softmax(x: Node, dim: int, dtype: DType | None) -> Node:
    row, axis = _prepared("log_softmax", x, dim, dtype)
    return build.reshape(log_softmax_node(row, axis) if row.numel else row, x.shape)


def _rows(y: Node, grad: Node, dim: int) -> tuple[Node, Node, int]:
    """Result and gradient, no narrower than float32, with at least one axis, and the axis."""
    y, grad = build.wide(y), build.wide(grad)
    return (y, grad, dim % y.ndim) if y.ndim else (build.reshape(y, (1,)), build.reshape(grad, (1,)), 0)


def _softmax_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], dim: int, dtype: DType | None
) -> list[Node]:
    y, g, axis = _rows(outputs[0], grads[0], dim)
    return [build.reshape(y * (g - build.reduce(g * y, "sum", (axis,), keepdim=True)), grads[0].shape)]


def _log_softmax_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], dim: int, dtype: DType | None
) -> list[Node]:
    y, g, axis = _rows(outputs[0], grads[0], dim)
    return [build.reshape(g - f.exp(y) * build.reduce(g, "sum", (axis,), keepdim=True), grads[0].shape)]


def _softmin(x: Node, dim: int, dtype: DType | None) -> Node:
    check_dtypes(Fn.NEG, (x,))
    row, axis = _prepared("softmax", x, dim, dtype)
    return build.reshape(softmax_node(-row, axis) if row.numel else row, x.shape)


def _softmin_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], dim: int, dtype: DType | None
) -> list[Node]:
    return [-part for part in _softmax_gradient(inputs, outputs, grads, dim, dtype)]


def _pulled(grad: Node, y: Node, dim: int, dtype: DType | None) -> Node:
    wide, g, axis = _rows(y, grad, dim)
    found = wide * (g - build.reduce(g * wide, "sum", (axis,), keepdim=True))
    return build.cast(build.reshape(found, y.shape), dtype or y.dtype)


SOFTMAX = Operator("softmax", _softmax, _softmax_gradient)
LOG_SOFTMAX = Operator("log_softmax", _log_softmax, _log_softmax_gradient)
SOFTMIN = Operator("softmin", _softmin, _softmin_gradient)
SOFTMAX_PULLED = Operator("softmax_backward_data", _pulled)


def _implicit_dim(ndim: int) -> int:
    """The axis PyTorch chooses where none is given."""
    return 0 if ndim in (0, 1, 3) else 1


def _run(operator: Operator, input: Tensor, dim: int | None, dtype: DType | None) -> Tensor:  # noqa: A002
    try:
        entry = FAST.get((operator, input.layout, ("dim", dim), ("dtype", dtype)))
    except AttributeError:
        need_tensor(operator.name, input)
        raise
    if entry is not None and dim.__class__ is int:
        return entry(input)
    dim = _implicit_dim(input.ndim) if dim is None else as_int(operator.name, dim, "dim")
    axis_of(dim, input.ndim)
    return call(operator, (input,), {"dim": dim, "dtype": dtype})


@public("softmax", out=True)
def softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:  # noqa: A002 - PyTorch's name
    """e**x along dim, divided by its sum.

    Any shape; the result has it too, in `dtype` where given (the input is converted first).
    Raises IndexError for a dim out of range, NotImplementedError for dtypes that are not floating point.
    """
    return _run(SOFTMAX, input, dim, dtype)


@public("softmax", out=True)
def log_softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """log(softmax(x)) along dim, without underflow. Shapes, dtype and errors as `softmax`."""
    return _run(LOG_SOFTMAX, input, dim, dtype)


@public("softmax", name="_softmax_backward_data", method=False)
def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType) -> Tensor:
    """The gradient of softmax's input, y (g - sum of g y along dim), from that of its result y; in `input_dtype`.

    >>> ts._softmax_backward_data(ts.tensor([1.0, 0.0]), ts.tensor([0.5, 0.5]), 0, ts.float32)
    tensor([ 0.2500, -0.2500])
    """
    need_tensor("_softmax_backward_data", grad_output, "grad_output")
    axis_of(dim, need_tensor("_softmax_backward_data", output, "output", 2).ndim)
    return call(SOFTMAX_PULLED, (grad_output, output), {"dim": dim, "dtype": input_dtype})


def _functional(name: str, operator: Operator) -> None:
    def function(
        input: Tensor,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DType | None = None,  # noqa: A002
    ) -> Tensor:
        return _run(operator, input, dim, dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = {
        "softmax": "e**x along dim, divided by its sum; without dim along axis 0 of 1 or 3 axes, else along axis 1.",
        "log_softmax": "log(softmax(x)) along dim; without dim along axis 0 of 1 or 3 axes, else along axis 1.",
        "softmin": "softmax(-x) along dim.",
    }[name]
    public("softmax", namespace="nn.functional", method=False)(function)


_functional("softmax", SOFTMAX)
_functional("log_softmax", LOG_SOFTMAX)
_functional("softmin", SOFTMIN)

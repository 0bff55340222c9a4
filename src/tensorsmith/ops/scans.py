"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType, int64
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import scan, scatter, zeros
from tensorsmith.ir.graph import Node
from tensorsmith.ir.rules import float_result
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.raw_keys import as_int, find, run
from tensorsmith.ops.reduction_steps import ValuesIndices
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _running(kind: str) -> Any:
    def graph(x: Node, axis: int, dtype: DType | None) -> Node:
        result = dtype or (int64 if x.dtype.kind in "biu" else x.dtype)
        refuse(f"cum{kind}_out_cpu", result, "b")
        x = build.cast(x, result)
        return scan(x, kind, axis) if x.ndim else x

    return graph


def _record(kind: str) -> Any:
    """The extreme so far, and where it was met last."""

    def graph(x: Node, axis: int) -> tuple[Node, Node]:
        if not x.ndim:
            return x, build.full(x.graph, (), 0, int64)
        return scan(x, kind, axis), scan(x, "arg" + kind, axis)

    return graph


def _record_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], axis: int) -> list[Node]:
    x, grad = inputs[0], grads[0]
    return [scatter(zeros(grad, x.shape), outputs[1], grad, axis, "add") if x.ndim else grad]


def _logcumsumexp(x: Node, axis: int) -> Node:
    x = build.cast(x, float_result(x.dtype))
    # Summed, and differentiated, in float32 for the half types: the gradient takes differences of large logarithms.
    return build.cast(scan(build.wide(x), "logsumexp", axis), x.dtype) if x.ndim else x


cumsum_operator = Operator("cumsum", _running("sum"))
cumprod_operator = Operator("cumprod", _running("prod"))
logcumsumexp_operator = Operator("logcumsumexp", _logcumsumexp)
cummax_operator = Operator("cummax", _record("max"), vjp=_record_vjp)
cummin_operator = Operator("cummin", _record("min"), vjp=_record_vjp)


def _sums(name: str, operator: Operator, what: str) -> None:
    inplace = InplaceOperation(operator)

    def function(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
        entry = find((operator, need_tensor(name, input).layout, dim, dtype))
        if entry is not None:
            return entry(input)
        axis = normalise_axis(as_int(name, dim, "dim"), input.ndim)
        return run(operator, input, (dim, dtype), {"axis": axis, "dtype": dtype})

    def function_(self: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
        return inplace(self, axis=normalise_axis(as_int(name, dim, "dim"), self.ndim), dtype=dtype or self.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The running {what} along an axis. Integers and bool accumulate in int64."
    public("reductions", out=True)(function)
    inplace_method(name, function_)


_sums("cumsum", cumsum_operator, "sum")
_sums("cumprod", cumprod_operator, "product")


def _records(name: str, operator: Operator, what: str) -> None:
    def function(input: Tensor, dim: int) -> ValuesIndices:  # noqa: A002
        entry = find((operator, need_tensor(name, input).layout, dim))
        if entry is not None:
            return ValuesIndices(*entry(input))
        axis = normalise_axis(as_int(name, dim, "dim"), input.ndim)
        return ValuesIndices(*run(operator, input, (dim,), {"axis": axis}))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {what} so far along an axis, and where it was met last."
    public("reductions", out=True)(function)


_records("cummax", cummax_operator, "largest element")
_records("cummin", cummin_operator, "smallest element")


@public("reductions", out=True)
def logcumsumexp(input: Tensor, dim: int) -> Tensor:  # noqa: A002
    """log of the running sum of exp(x), without overflow."""
    entry = find((logcumsumexp_operator, need_tensor("logcumsumexp", input).layout, dim))
    if entry is not None:
        return entry(input)
    axis = normalise_axis(as_int("logcumsumexp", dim, "dim"), input.ndim)
    return run(logcumsumexp_operator, input, (dim,), {"axis": axis})

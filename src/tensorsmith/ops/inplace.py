"""Copying and filling in place: `copy_`, `fill_`, `zero_`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import layout_of
from tensorsmith.eager.dispatch import FAST
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.device_copies import copied_over, to_device
from tensorsmith.ops.host_data import check_fits
from tensorsmith.ops.pointwise import as_operand
from tensorsmith.ops.registry import inplace_method, method
from tensorsmith.tensor.tensor import Tensor, make_view, need_memory


def _copy(target: Node, source: Any) -> Node:
    source = build.cast(source, target.dtype)
    lead = target.ndim - source.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(source.shape, target.shape[lead:])):
        raise RuntimeError(
            f"The size of tensor a ({list(target.shape)}) must match the size of tensor b ({list(source.shape)}): a tensor of "
            f"shape {list(source.shape)} cannot be written over one of shape {list(target.shape)}"
        )
    return build.broadcast_to(source.graph.add(Primitive.CAST, (source,), dtype=target.dtype), target.shape)


def _copy_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node | None]:
    """Nothing of what was there before matters: its gradient is zero, not missing, as PyTorch's."""
    target, source = inputs
    if source.dtype.kind not in "fc":
        return [build.full(target.graph, target.shape, 0, target.dtype), None]
    return [build.full(target.graph, target.shape, 0, target.dtype), build.sum_to(grads[0], source.shape)]


copy_operation = InplaceOperation(Operator("copy", _copy, _copy_gradient, pointwise=True, node_name="Copy"))


@method()
def copy_(self: Tensor, other: Any, non_blocking: bool = False) -> Tensor:
    """Write `other` (a tensor, broadcast and converted, or a number) over this tensor."""
    operand = as_operand(other)
    if operand is None:
        raise TypeError(f"copy_(): argument 'other' (position 1) must be Tensor, not {type(other).__name__}")
    if isinstance(operand, Tensor) and operand.layout.device is not self.layout.device:
        if copied_over(self, operand, non_blocking):
            return self
        operand = to_device(operand, self.layout.device, non_blocking)
    return copy_operation(self, operand)


@method()
def fill_(self: Tensor, value: Any) -> Tensor:
    """Write one value everywhere."""
    operand = as_operand(value)
    if operand is None:
        raise TypeError(f"fill_(): argument 'value' must be Number or zero-dim Tensor, not {type(value).__name__}")
    if isinstance(operand, Tensor) and operand.ndim:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {operand.ndim} dimensions.")
    if not isinstance(operand, Tensor):
        operand = number_for("fill_", operand, self.layout.dtype)
    copy_operation(_written_once(self), operand)
    return self


@method()
def zero_(self: Tensor) -> Tensor:
    """Write zeros everywhere."""
    entry = FAST.get((copy_operation, self.layout, int))  # there is none where an element would be written twice
    if entry is not None:
        return entry(self, 0)
    copy_operation(_written_once(self), 0)
    return self


def _written_once(target: Tensor) -> Tensor:
    """The tensor, or a view of it without the repetitions of an expanded axis: one value may be written over them."""
    layout = target.layout
    if all(s or n <= 1 for n, s in zip(layout.shape, layout.strides)):
        return target
    shape = tuple(n if s else min(n, 1) for n, s in zip(layout.shape, layout.strides))
    view = make_view(target, layout_of(layout.dtype, shape, layout.strides, layout.tracked, layout.device), 0)
    view.stamp = -1  # its node is derived when it is asked for
    return view


def number_for(name: str, value: bool | int | float | complex, dtype: DType) -> bool | int | float | complex:
    """A Python number as it is handed over to be written in `dtype`; a negative int wraps around in an unsigned dtype.

    Raises RuntimeError for what an integer dtype cannot hold, OverflowError for an int of more than 64 bits.
    """
    check_fits(name, value, dtype)
    if not isinstance(value, int) or value < 1 << 63:
        return value
    return float(value) if dtype.kind in "fbc" else value - (1 << 64)


@method()
def set_to(self: Tensor, other: Tensor) -> Tensor:
    """Take over the memory of another tensor."""
    need_memory("set_", self, other)
    self.storage, self.ptr, self.layout = other.storage, other.ptr, other.layout.with_tracking(self.layout.tracked)
    return self


inplace_method("fill", fill_)

"""Copying and filling in place: `copy_`, `fill_`, `zero_`, and how `out=` is written."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.layout import layout_of
from tensorsmith.eager.inplace import InplaceOperation, check_result
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.pointwise import as_operand
from tensorsmith.ops.registry import inplace_method, method
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor


def _copy(target: Node, source: Any) -> Node:
    source = build.cast(source, target.dtype)
    lead = target.ndim - source.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(source.shape, target.shape[lead:])):
        raise RuntimeError(
            f"The size of tensor a ({list(target.shape)}) must match the size of tensor b ({list(source.shape)}): a tensor of "
            f"shape {list(source.shape)} cannot be written over one of shape {list(target.shape)}"
        )
    return build.broadcast_to(source.graph.add(Primitive.CAST, (source,), dtype=target.dtype), target.shape)


copy_operation = InplaceOperation(Operator("copy", _copy, pointwise=True, node_name="Copy"))


@method()
def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Write `source` (broadcast, converted) over this tensor."""
    operand = as_operand(source)
    if not isinstance(operand, Tensor):
        raise TypeError(f"copy_(): argument 'other' (position 1) must be Tensor, not {type(source).__name__}")
    if operand is self:
        return self
    return copy_operation(self, operand)


@method()
def fill_(self: Tensor, value: Any) -> Tensor:
    """Write one value everywhere."""
    operand = as_operand(value)
    if operand is None:
        raise TypeError(f"fill_(): argument 'value' must be Number or zero-dim Tensor, not {type(value).__name__}")
    if isinstance(operand, Tensor) and operand.ndim:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {operand.ndim} dimensions.")
    return copy_operation(self, operand)


@method()
def zero_(self: Tensor) -> Tensor:
    """Write zeros everywhere."""
    return copy_operation(self, 0)


@method()
def set_to(self: Tensor, other: Tensor) -> Tensor:
    """Take over the memory of another tensor."""
    self.storage, self.ptr, self.layout = other.storage, other.ptr, other.layout.with_tracking(self.layout.tracked)
    return self


def copy_result(name: str, out: Any, result: Tensor) -> None:
    """Write a result over `out`, which is resized where its shape differs."""
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if out.layout.tracked or result.layout.tracked:
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
            "requires grad."
        )
    if out.layout.shape != result.layout.shape:
        layout = layout_of(out.layout.dtype, result.layout.shape)
        if layout.nbytes > out.storage.nbytes - (out.ptr - out.storage.ptr):
            out.storage = Storage(layout.nbytes)
            out.ptr = out.storage.ptr
        out.layout = layout
    check_result(name, result.layout.dtype, result.layout.shape, out.layout)
    copy_operation(out, result)


inplace_method("fill", fill_)

"""Copies of tensors that lie in memory as is asked for."""

from __future__ import annotations

from tensorsmith.core.dtypes import DType
from tensorsmith.core.memory_format import MemoryFormat, format_strides
from tensorsmith.ops.creation import blank_tensor
from tensorsmith.tensor.tensor import Tensor


def copied_with(x: Tensor, strides: tuple[int, ...], dtype: DType | None = None) -> Tensor:
    """A copy that lies with these strides; gradients flow through."""
    made = blank_tensor(dtype or x.layout.dtype, x.layout.shape, strides, x, x.layout.device)
    made.copy_(x)  # type: ignore[attr-defined]
    made.storage.version = 0  # its first values are no write
    return made


def copied_in(form: MemoryFormat, x: Tensor, dtype: DType | None = None) -> Tensor:
    """A copy that lies in a format other than preserve_format; gradients flow through."""
    return copied_with(x, format_strides(form, x.layout.shape), dtype)


__all__ = ["copied_in", "copied_with"]

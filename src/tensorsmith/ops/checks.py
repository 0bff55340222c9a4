"""What operators of networks refuse, in PyTorch's words."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType, bfloat16, float16, type_name
from tensorsmith.ir.graph import Node
from tensorsmith.tensor.tensor import Tensor

_C_NAMES = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "int64": "long int",
    "int32": "int", "int16": "short int", "int8": "signed char", "uint8": "unsigned char", "bool": "bool",
}  # fmt: skip


def c_name(dtype: DType) -> str:
    """PyTorch's C++ name of an element type, which some of its messages use."""
    return _C_NAMES.get(dtype.name, dtype.name)


def need_floating(kernel: str, dtype: DType) -> None:
    """Refuse a dtype that is not floating point."""
    if not dtype.is_floating_point:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{type_name(dtype)}'")


def refuse(kernel: str, dtype: DType, kinds: str, also: tuple[DType, ...] = ()) -> None:
    """Refuse dtypes of some kinds, and some dtypes besides."""
    if dtype.kind in kinds or dtype in also:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{type_name(dtype)}'; convert the operands first")


HALF = (float16, bfloat16)


def need_floating_node(kernel: str, x: Node) -> Node:
    """The node, if it is floating point."""
    need_floating(kernel, x.dtype)
    return x


def refuse_complex(name: str, x: Tensor) -> None:
    """Refuse a complex tensor where only real ones have a meaning."""
    if x.is_complex():
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{type_name(x.dtype)}': apply it to abs(), real or imag"
        )


def axis_of(dim: Any, ndim: int) -> int:
    """An axis from 0; IndexError where there is none of that number. A zero-dim tensor has axis 0 and -1."""
    most = max(ndim, 1)
    if not -most <= dim < most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})")
    return dim % most


def need_tensors(operator: str, **operands: Any) -> None:
    """PyTorch's TypeError for the first operand that is no tensor."""
    for position, (name, value) in enumerate(operands.items(), 1):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{operator}(): argument '{name}' (position {position}) must be Tensor, not {type(value).__name__}"
            )


__all__ = [
    "HALF", "axis_of", "c_name", "need_floating", "need_floating_node", "need_tensors", "refuse", "refuse_complex", "type_name",
]  # fmt: skip

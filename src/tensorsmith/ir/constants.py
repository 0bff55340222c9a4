"""Constants as numbers: a scalar constant seen through its broadcast, rounding to a dtype, and casts between dtypes."""

from __future__ import annotations

import math

import numpy as np

from tensorsmith.core.dtypes import DType, compute_dtype, finfo, iinfo
from tensorsmith.ir.graph import Node, Primitive

Number = bool | int | float


def constant_of(node: Node) -> Node | None:
    """The CONST node whose value every element of the node has; None where the node is no (broadcast) constant."""
    while node.op in (Primitive.RESHAPE, Primitive.EXPAND):
        node = node.inputs[0]
    return node if node.op is Primitive.CONST and not node.dtype.is_complex else None


def constant_value(node: Node) -> Number | None:
    """The number every element of the node has, as kernels see it; None where the node is no (broadcast) constant."""
    constant = constant_of(node)
    return None if constant is None else in_dtype(constant.attrs["value"], constant.dtype)


def in_dtype(value: Number, dtype: DType) -> Number:
    """The number rounded to the dtype in which kernels compute (float32 for the half types); integers wrap around."""
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "iu":
        bits, value = 8 * dtype.itemsize, int(value)
        value &= (1 << bits) - 1
        return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value
    with np.errstate(over="ignore"):
        return float(np.float64(value).astype(compute_dtype(dtype).numpy))


def cast_value(value: Number, source: DType, target: DType) -> Number:
    """What CAST does to a number: integers wrap around; float to integer truncates and saturates, NaN gives 0."""
    value = in_dtype(value, source)
    if isinstance(value, float) and target.kind in "iu":
        limits = iinfo(target)
        if math.isnan(value):
            return 0
        return limits.min if value <= limits.min else limits.max if value >= limits.max else int(value)
    return value != 0 if target.kind == "b" else in_dtype(value, target)


def holds(target: DType, source: DType) -> bool:
    """Whether every value of `source` is a value of `target`."""
    if source is target or source.kind == "b":
        return True
    if target.kind == "b" or "c" in (source.kind, target.kind):
        return False
    if target.kind == "f":
        if source.kind == "f":
            wider_range = finfo(target).max >= finfo(source).max and finfo(target).tiny <= finfo(source).tiny
            return wider_range and target.digits >= source.digits
        return 8 * source.itemsize - source.is_signed <= target.digits
    return source.kind != "f" and iinfo(target).min <= iinfo(source).min and iinfo(target).max >= iinfo(source).max

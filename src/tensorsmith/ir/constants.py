"""Constants as numbers: a scalar constant seen through its broadcast, rounding to a dtype, and casts between dtypes."""

from __future__ import annotations

import math

import numpy as np

from tensorsmith.core.dtypes import DType, compute_dtype, iinfo
from tensorsmith.ir.graph import Node, Primitive

Number = bool | int | float


def constant_value(node: Node) -> Number | None:
    """The number every element of the node has, as kernels see it; None where the node is no (broadcast) constant."""
    while node.op in (Primitive.RESHAPE, Primitive.EXPAND):
        node = node.inputs[0]
    if node.op is not Primitive.CONST or node.dtype.is_complex:
        return None
    return in_dtype(node.attrs["value"], node.dtype)


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

"""How the reference holds values, and how it rounds them.

Floating-point values of every dtype are float64 (complex ones complex128) from input to output; integers and bool are
exact in their own dtype and wrap around.
"""

from __future__ import annotations

import numpy as np

from tensorsmith.core.dtypes import DType, bfloat16, compute_dtype


def wide(dtype: DType) -> np.dtype:
    """The NumPy dtype in which the reference holds values of `dtype`."""
    if dtype.kind == "f":
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if dtype.kind == "c" else dtype.numpy


def widen(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Values of `dtype` as the reference holds them."""
    return np.asarray(array).astype(wide(dtype), copy=False)


def rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Held values rounded once, half to even, to the NumPy array of `dtype`."""
    array = np.asarray(array)
    with np.errstate(all="ignore"):
        if dtype is bfloat16 and array.dtype == np.float64:
            # NumPy's conversion goes through float32. Rounding to odd there makes the second rounding the only one.
            return _float32_to_odd(array).astype(dtype.numpy)
        return array.astype(dtype.numpy, copy=False)


def scalar(value: bool | int | float | complex, dtype: DType) -> np.ndarray:
    """A constant or run-time scalar: rounded to the dtype in which kernels compute, then held wide."""
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(value).astype(compute_dtype(dtype).numpy)).astype(wide(dtype))


def converted(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A cast of held values. Float to float does not round; float to integer truncates and saturates, NaN gives 0."""
    if dtype.kind == "b":
        return array != 0
    if dtype.kind in "iu" and array.dtype.kind == "c":
        array = array.real
    if dtype.kind in "iu" and array.dtype.kind == "f":
        return _saturated(array, dtype.numpy)
    if dtype.kind == "f" and array.dtype.kind == "c":
        array = array.real
    return array.astype(wide(dtype))


def _saturated(array: np.ndarray, target: np.dtype) -> np.ndarray:
    limits = np.iinfo(target)
    whole = np.trunc(array)
    # The limits themselves may not be float64 numbers (2**63 - 1), so the comparison is with the power of two above.
    too_high, too_low = whole >= float(limits.max) + 1.0, whole < float(limits.min)
    if target.itemsize == 8:
        too_high = whole >= float(limits.max)
    inside = np.where(too_high | too_low | np.isnan(whole), 0.0, whole).astype(target)
    return np.where(too_high, limits.max, np.where(too_low, limits.min, inside)).astype(target)


def _float32_to_odd(array: np.ndarray) -> np.ndarray:
    """float32 towards zero, with the last bit set where that was not exact."""
    near = np.asarray(array.astype(np.float32))
    inexact = np.isfinite(array) & (near.astype(np.float64) != array)
    over = inexact & (np.abs(near).astype(np.float64) > np.abs(array))
    bits = near.view(np.uint32) - over.astype(np.uint32)  # the neighbour towards zero, from infinity too
    return (bits | inexact.astype(np.uint32)).view(np.float32)

"""The scalar functions on complex NumPy arrays, where they differ from those on real ones.

Branch cuts and values at infinities are those of C99, which NumPy follows. Functions that are not here are the same ufunc
for both (np.sin, np.add); those that have no meaning for complex numbers are refused before a graph is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.scalar.table import Fn

Array = Any


def _joined(real: Array, imaginary: Array) -> Array:
    """Complex numbers from their parts, whose signs of zero an addition would lose."""
    result = np.empty(np.shape(real), np.complex128)
    result.real, result.imag = real, imaginary
    return result


def _scaled(x: Array, factor: float) -> Array:
    """Both parts times a real number; as a complex product an infinite part would make the other NaN."""
    return _joined(x.real * factor, x.imag * factor)


def _sgn(x: Array) -> Array:
    size = np.abs(x)
    size = np.where(size == 0, 1, size)
    return np.where(x == 0, 0, _joined(x.real / size, x.imag / size))


def _log1p(x: Array) -> Array:
    """log(1 + x); where x is small, log |1 + x| from |1 + x|**2 - 1, which keeps its digits."""
    real, imaginary = x.real, x.imag
    near = np.abs(x) < 0.5
    small = np.where(near, real * (2 + real) + imaginary * imaginary, 0)
    return np.where(near, _joined(0.5 * np.log1p(small), np.arctan2(imaginary, 1 + real)), np.log(_joined(1 + real, imaginary)))


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), from the side on which exp does not overflow."""
    negative = x.real < 0
    small = np.exp(np.where(negative, x, -x))
    return np.where(negative, small, 1.0) / (1.0 + small)


def logaddexp(x: Array, y: Array) -> Array:
    """log(exp(x) + exp(y)), from the operand with the larger real part; the same infinity twice stays it."""
    smaller = x.real < y.real
    high: Array = np.where(smaller, y, x)
    low: Array = np.where(smaller, x, y)
    same = ~np.isfinite(high.real) & (high.real == low.real)
    total = np.where(same & (high.real < 0), high, high + _log1p(np.exp(np.where(same, 0, low - high))))
    at_infinity = np.log(np.exp(low) + np.exp(high))
    return np.where(same & (high.real > 0), at_infinity, total)


COMPLEX_SCALARS: dict[Fn, Callable[..., Array]] = {
    Fn.SGN: _sgn,
    Fn.CONJ: np.conjugate,
    Fn.ANGLE: np.angle,
    Fn.EXP2: lambda x: np.exp(_scaled(x, np.log(2.0))),
    Fn.LOG1P: _log1p,
    Fn.RSQRT: lambda x: 1.0 / np.sqrt(x),
    Fn.RECIPROCAL: lambda x: 1.0 / x,
    Fn.SIGMOID: _sigmoid,
    Fn.LOGADDEXP: logaddexp,
}

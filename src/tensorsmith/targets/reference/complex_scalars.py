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


def _sgn(x: Array) -> Array:
    size = np.abs(x)
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size))


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
    total = np.where(same & (high.real < 0), high, high + np.log1p(np.exp(np.where(same, 0, low - high))))
    at_infinity = np.log(np.exp(low) + np.exp(high))
    return np.where(same & (high.real > 0), at_infinity, total)


def _reciprocal(x: Array) -> Array:
    return _divide(np.ones_like(x), x)


def _divide(x: Array, y: Array) -> Array:
    return np.divide(x, y)


def _power(x: Array, y: Array) -> Array:
    return np.power(x, y)


COMPLEX_SCALARS: dict[Fn, Callable[..., Array]] = {
    Fn.POW: _power,
    Fn.DIV: _divide,
    Fn.SGN: _sgn,
    Fn.CONJ: np.conjugate,
    Fn.ANGLE: np.angle,
    Fn.EXP2: lambda x: np.exp(x * np.log(2.0)),
    Fn.RSQRT: lambda x: _reciprocal(np.sqrt(x)),
    Fn.RECIPROCAL: _reciprocal,
    Fn.SIGMOID: _sigmoid,
    Fn.LOGADDEXP: logaddexp,
}

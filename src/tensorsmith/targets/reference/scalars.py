"""The scalar functions on NumPy arrays: float64 for floating-point values, the dtype itself for integers and bool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.scalar.table import TABLE, Fn

Array = Any


def _is_float(x: Array) -> bool:
    return x.dtype.kind in "fc"


def _refuse_zero_divisor(y: Array) -> None:
    if not _is_float(y) and not np.all(y):
        raise ZeroDivisionError("integer division by zero; make one side a float to get inf or nan")


def _floor_divide(x: Array, y: Array) -> Array:
    _refuse_zero_divisor(y)
    return np.floor_divide(x, y)


def _fmod(x: Array, y: Array) -> Array:
    _refuse_zero_divisor(y)
    return np.fmod(x, y)


def _remainder(x: Array, y: Array) -> Array:
    remainder = _fmod(x, y)
    return np.where((remainder != 0) & ((y < 0) != (remainder < 0)), remainder + y, remainder)


def _pow(x: Array, y: Array) -> Array:
    if _is_float(x):
        return np.power(x, y)
    power = np.power(x, np.maximum(y, 0))
    odd = np.where(y % 2 == 1, x, x * x)
    return np.where(y < 0, np.where(np.abs(x) == 1, odd, 0), power)


def _sign(x: Array) -> Array:
    if x.dtype.kind == "b":
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)  # 0 for NaN


def _of_floats(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A rounding function: integers are whole already."""
    return lambda x: function(x) if _is_float(x) else x


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _relu(x: Array) -> Array:
    return np.where(x < 0, np.zeros_like(x), x)


def _counted(y: Array, width: int) -> tuple[Array, Array]:
    inside = (y >= 0) & (y < width)
    return inside, np.where(inside, y, 0).astype(y.dtype)


def _left_shift(x: Array, y: Array) -> Array:
    inside, count = _counted(y, 8 * x.dtype.itemsize)
    return np.where(inside, np.left_shift(x, count), 0)


def _right_shift(x: Array, y: Array) -> Array:
    inside, count = _counted(y, 8 * x.dtype.itemsize)
    return np.where(inside, np.right_shift(x, count), np.where(x < 0, -1, 0))


def _each(fn: Fn) -> Callable[..., Array]:
    """The Python function of the scalar table, element by element."""
    function = np.frompyfunc(TABLE[fn].value, TABLE[fn].arity, 1)

    def apply(*args: Array) -> Array:
        return np.asarray(function(*args), dtype=np.float64)

    return apply


SCALARS: dict[Fn, Callable[..., Array]] = {
    Fn.ADD: np.add,
    Fn.SUB: np.subtract,
    Fn.MUL: np.multiply,
    Fn.DIV: np.divide,
    Fn.FLOOR_DIVIDE: _floor_divide,
    Fn.REMAINDER: _remainder,
    Fn.FMOD: _fmod,
    Fn.POW: _pow,
    Fn.MINIMUM: np.minimum,
    Fn.MAXIMUM: np.maximum,
    Fn.NEG: np.negative,
    Fn.ABS: np.abs,
    Fn.SIGN: _sign,
    Fn.SGN: _sign,
    Fn.CONJ: lambda x: x,
    Fn.ANGLE: lambda x: np.where(np.isnan(x), x, np.where(x < 0, np.pi, 0.0)),
    Fn.FLOOR: _of_floats(np.floor),
    Fn.CEIL: _of_floats(np.ceil),
    Fn.TRUNC: _of_floats(np.trunc),
    Fn.ROUND: _of_floats(np.rint),
    Fn.EXP: np.exp,
    Fn.EXP2: np.exp2,
    Fn.EXPM1: np.expm1,
    Fn.LOG: np.log,
    Fn.LOG1P: np.log1p,
    Fn.LOG2: np.log2,
    Fn.LOG10: np.log10,
    Fn.SQRT: np.sqrt,
    Fn.RSQRT: lambda x: 1.0 / np.sqrt(x),
    Fn.RECIPROCAL: lambda x: 1.0 / x,
    Fn.SIN: np.sin,
    Fn.COS: np.cos,
    Fn.TAN: np.tan,
    Fn.ASIN: np.arcsin,
    Fn.ACOS: np.arccos,
    Fn.ATAN: np.arctan,
    Fn.ATAN2: np.arctan2,
    Fn.SINH: np.sinh,
    Fn.COSH: np.cosh,
    Fn.TANH: np.tanh,
    Fn.ASINH: np.arcsinh,
    Fn.ACOSH: np.arccosh,
    Fn.ATANH: np.arctanh,
    Fn.SIGMOID: _sigmoid,
    Fn.SOFTPLUS: _softplus,
    Fn.ERF: _each(Fn.ERF),
    Fn.ERFC: _each(Fn.ERFC),
    Fn.ERFINV: _each(Fn.ERFINV),
    Fn.LGAMMA: _each(Fn.LGAMMA),
    Fn.DIGAMMA: _each(Fn.DIGAMMA),
    Fn.EQ: np.equal,
    Fn.NE: np.not_equal,
    Fn.LT: np.less,
    Fn.LE: np.less_equal,
    Fn.GT: np.greater,
    Fn.GE: np.greater_equal,
    Fn.WHERE: np.where,
    Fn.LOGICAL_AND: np.logical_and,
    Fn.LOGICAL_OR: np.logical_or,
    Fn.LOGICAL_XOR: np.logical_xor,
    Fn.LOGICAL_NOT: np.logical_not,
    Fn.BITWISE_AND: np.bitwise_and,
    Fn.BITWISE_OR: np.bitwise_or,
    Fn.BITWISE_XOR: np.bitwise_xor,
    Fn.BITWISE_NOT: np.invert,
    Fn.LEFT_SHIFT: _left_shift,
    Fn.RIGHT_SHIFT: _right_shift,
    Fn.ISNAN: np.isnan,
    Fn.ISINF: np.isinf,
    Fn.ISFINITE: np.isfinite,
    Fn.RELU: _relu,
    Fn.NEXTAFTER: np.nextafter,  # the one function whose value depends on the dtype: `primitives.py` rounds its inputs
    Fn.COPYSIGN: np.copysign,
    Fn.HYPOT: np.hypot,
    Fn.LOGADDEXP: np.logaddexp,
}

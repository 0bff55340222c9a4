"""What each scalar function computes on Python numbers, by PyTorch's conventions.

bool stands for bool, int for int64 (results wrap), float for float64; complex numbers are in `complex_values.py`. No
function raises on a float: overflow gives inf, a pole a signed inf, an argument outside the domain NaN. As in
PyTorch, an integer divided by the integer zero (floor_divide, remainder, fmod) is the one error, a ZeroDivisionError.
"""

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.scalar.fn import Fn
from tensorsmith.scalar.special import digamma, erfinv, lgamma

Number = bool | int | float

_INF = math.inf
_NAN = math.nan


def _wrap(value: int) -> int:
    """The int64 that an integer result wraps to."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _integral(*values: Number) -> bool:
    return all(isinstance(value, int) for value in values)


def _both_bool(x: Number, y: Number) -> bool:
    return isinstance(x, bool) and isinstance(y, bool)


# ------------------------------------------------------------------------------------------------------- arithmetic


def _add(x: Number, y: Number) -> Number:
    if _both_bool(x, y):
        return bool(x or y)
    return _wrap(int(x) + int(y)) if _integral(x, y) else x + y


def _sub(x: Number, y: Number) -> Number:
    return _wrap(int(x) - int(y)) if _integral(x, y) else x - y


def _mul(x: Number, y: Number) -> Number:
    if _both_bool(x, y):
        return bool(x and y)
    return _wrap(int(x) * int(y)) if _integral(x, y) else x * y


def _div(x: Number, y: Number) -> float:
    x, y = float(x), float(y)
    if y == 0.0:
        if x == 0.0 or x != x:
            return _NAN
        return math.copysign(_INF, x) * math.copysign(1.0, y)
    return x / y


def _fmod_float(x: float, y: float) -> float:
    if y == 0.0 or math.isinf(x):
        return _NAN
    return math.fmod(x, y)


def _zero_divisor() -> ZeroDivisionError:
    return ZeroDivisionError("integer division by zero; make one side a float to get inf or nan")


def _fmod(x: Number, y: Number) -> Number:
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            raise _zero_divisor()
        magnitude = abs(x) % abs(y)
        return -magnitude if x < 0 else magnitude
    return _fmod_float(float(x), float(y))


def _remainder(x: Number, y: Number) -> Number:
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            raise _zero_divisor()
        return x % y
    x, y = float(x), float(y)
    remainder = _fmod_float(x, y)
    if remainder != 0.0 and (y < 0.0) != (remainder < 0.0):
        remainder += y
    return remainder


def _floor_divide(x: Number, y: Number) -> Number:
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            raise _zero_divisor()
        return _wrap(x // y)
    x, y = float(x), float(y)
    if y == 0.0:
        return _div(x, y)
    remainder = _fmod_float(x, y)
    quotient = (x - remainder) / y
    if remainder != 0.0 and (y < 0.0) != (remainder < 0.0):
        quotient -= 1.0
    if quotient == 0.0:
        return math.copysign(0.0, x / y)
    if math.isnan(quotient) or math.isinf(quotient):
        return quotient
    floor = float(math.floor(quotient))
    # (x - remainder) / y is whole up to rounding; take the nearer of the two neighbours.
    return floor + 1.0 if quotient - floor > 0.5 else floor


def _pow(x: Number, y: Number) -> Number:
    if isinstance(x, int) and isinstance(y, int):
        if y >= 0:
            return _wrap(pow(int(x), int(y), 1 << 64))
        if x == 1:
            return 1
        if x == -1:
            return -1 if y % 2 else 1
        return 0
    x, y = float(x), float(y)
    try:
        return math.pow(x, y)
    except OverflowError:
        return -_INF if x < 0.0 and y % 2.0 == 1.0 else _INF
    except ValueError:
        if x == 0.0:  # and y < 0: the pole
            return math.copysign(_INF, x) if y % 2.0 == 1.0 else _INF
        return _NAN


def _minimum(x: Number, y: Number) -> Number:
    if x != x or y != y:
        return _NAN
    return _promoted(x if x <= y else y, x, y)


def _maximum(x: Number, y: Number) -> Number:
    if x != x or y != y:
        return _NAN
    return _promoted(x if x >= y else y, x, y)


def _promoted(chosen: Number, *among: Number) -> Number:
    """The chosen value, in the widest of the types among which it was chosen."""
    if type(chosen) is float or any(type(value) is float for value in among):
        return float(chosen)
    return chosen if all(type(value) is bool for value in among) else int(chosen)


def _neg(x: Number) -> Number:
    return _wrap(-int(x)) if isinstance(x, int) else -x


def _abs(x: Number) -> Number:
    if isinstance(x, bool):
        return x
    return _wrap(abs(x)) if isinstance(x, int) else abs(x)


def _sign(x: Number) -> Number:
    if isinstance(x, bool):
        return x
    sign = (x > 0) - (x < 0)  # 0 for NaN too, as in PyTorch
    return sign if isinstance(x, int) else float(sign)


def _angle(x: Number) -> float:
    x = float(x)
    return x if x != x else math.pi if x < 0.0 else 0.0


def _rounding(function: Callable[[float], int]) -> Callable[[Number], Number]:
    def value(x: Number) -> Number:
        if isinstance(x, int):
            return x
        if math.isinf(x) or math.isnan(x):
            return x
        return math.copysign(float(function(x)), x)  # keeps -0.0, and trunc(-0.5) = -0.0

    return value


def _relu(x: Number) -> Number:
    if isinstance(x, int):
        return max(x, 0)
    return 0.0 if x < 0.0 else x


# ------------------------------------------------------------------------------------------ elementary functions


def _guarded(function: Callable[[float], float], overflow: float = _INF) -> Callable[[Number], float]:
    """A function of `math` with inf (of the argument's sign for -inf bounds) and NaN in place of its exceptions."""

    def value(x: Number) -> float:
        try:
            return function(float(x))
        except OverflowError:
            return overflow
        except ValueError:
            return _NAN

    return value


def _odd_overflow(function: Callable[[float], float]) -> Callable[[Number], float]:
    def value(x: Number) -> float:
        try:
            return function(float(x))
        except OverflowError:
            return math.copysign(_INF, x)

    return value


def _logarithm(function: Callable[[float], float], pole: float) -> Callable[[Number], float]:
    def value(x: Number) -> float:
        x = float(x)
        if x == pole:
            return -_INF
        return function(x) if x > pole else _NAN

    return value


def _exp2(x: Number) -> float:
    try:
        return math.pow(2.0, float(x))
    except OverflowError:
        return _INF


def _sqrt(x: Number) -> float:
    x = float(x)
    return math.sqrt(x) if x >= 0.0 else _NAN


def _rsqrt(x: Number) -> float:
    return _div(1.0, _sqrt(x))


def _reciprocal(x: Number) -> float:
    return _div(1.0, x)


def _atanh(x: Number) -> float:
    x = float(x)
    if abs(x) == 1.0:
        return math.copysign(_INF, x)
    return math.atanh(x) if abs(x) < 1.0 else _NAN


def _sigmoid(x: Number) -> float:
    x = float(x)
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    small = math.exp(x)
    return small / (1.0 + small)


def _softplus(x: Number) -> float:
    x = float(x)
    if x != x:
        return x
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _logaddexp(x: Number, y: Number) -> float:
    x, y = float(x), float(y)
    if x != x or y != y:
        return _NAN
    if x == y and math.isinf(x):
        return x
    return max(x, y) + math.log1p(math.exp(-abs(x - y)))


def _hypot(x: Number, y: Number) -> float:
    return math.hypot(float(x), float(y))


# ------------------------------------------------------------------------------------- choices, bits and predicates


def _where(condition: Number, chosen: Number, other: Number) -> Number:
    return _promoted(chosen if condition else other, chosen, other)


def _left_shift(x: int, y: int) -> int:
    return _wrap(int(x) << y) if 0 <= y < 64 else 0


def _right_shift(x: int, y: int) -> int:
    return int(x) >> y if 0 <= y < 64 else -(x < 0)


def _isnan(x: Number) -> bool:
    return x != x


def _isinf(x: Number) -> bool:
    return x in (_INF, -_INF)


def _isfinite(x: Number) -> bool:
    return isinstance(x, int) or math.isfinite(x)


VALUES: dict[Fn, Callable[..., Any]] = {
    Fn.ADD: _add,
    Fn.SUB: _sub,
    Fn.MUL: _mul,
    Fn.DIV: _div,
    Fn.FLOOR_DIVIDE: _floor_divide,
    Fn.REMAINDER: _remainder,
    Fn.FMOD: _fmod,
    Fn.POW: _pow,
    Fn.MINIMUM: _minimum,
    Fn.MAXIMUM: _maximum,
    Fn.NEG: _neg,
    Fn.ABS: _abs,
    Fn.SIGN: _sign,
    Fn.SGN: _sign,
    Fn.CONJ: lambda x: x,
    Fn.ANGLE: _angle,
    Fn.FLOOR: _rounding(math.floor),
    Fn.CEIL: _rounding(math.ceil),
    Fn.TRUNC: _rounding(math.trunc),
    Fn.ROUND: _rounding(round),
    Fn.EXP: _guarded(math.exp),
    Fn.EXP2: _exp2,
    Fn.EXPM1: _guarded(math.expm1),
    Fn.LOG: _logarithm(math.log, 0.0),
    Fn.LOG1P: _logarithm(math.log1p, -1.0),
    Fn.LOG2: _logarithm(math.log2, 0.0),
    Fn.LOG10: _logarithm(math.log10, 0.0),
    Fn.SQRT: _sqrt,
    Fn.RSQRT: _rsqrt,
    Fn.RECIPROCAL: _reciprocal,
    Fn.SIN: _guarded(math.sin),
    Fn.COS: _guarded(math.cos),
    Fn.TAN: _guarded(math.tan),
    Fn.ASIN: _guarded(math.asin),
    Fn.ACOS: _guarded(math.acos),
    Fn.ATAN: _guarded(math.atan),
    Fn.ATAN2: lambda y, x: math.atan2(float(y), float(x)),
    Fn.SINH: _odd_overflow(math.sinh),
    Fn.COSH: _guarded(math.cosh),
    Fn.TANH: _guarded(math.tanh),
    Fn.ASINH: _guarded(math.asinh),
    Fn.ACOSH: _guarded(math.acosh),
    Fn.ATANH: _atanh,
    Fn.SIGMOID: _sigmoid,
    Fn.SOFTPLUS: _softplus,
    Fn.ERF: _guarded(math.erf),
    Fn.ERFC: _guarded(math.erfc),
    Fn.ERFINV: erfinv,
    Fn.LGAMMA: lgamma,
    Fn.DIGAMMA: digamma,
    Fn.EQ: lambda x, y: x == y,
    Fn.NE: lambda x, y: x != y,
    Fn.LT: lambda x, y: x < y,
    Fn.LE: lambda x, y: x <= y,
    Fn.GT: lambda x, y: x > y,
    Fn.GE: lambda x, y: x >= y,
    Fn.WHERE: _where,
    Fn.LOGICAL_AND: lambda x, y: bool(x) and bool(y),
    Fn.LOGICAL_OR: lambda x, y: bool(x) or bool(y),
    Fn.LOGICAL_XOR: lambda x, y: bool(x) != bool(y),
    Fn.LOGICAL_NOT: lambda x: not x,
    Fn.BITWISE_AND: lambda x, y: x & y,
    Fn.BITWISE_OR: lambda x, y: x | y,
    Fn.BITWISE_XOR: lambda x, y: x ^ y,
    Fn.BITWISE_NOT: lambda x: (not x) if isinstance(x, bool) else ~x,
    Fn.LEFT_SHIFT: _left_shift,
    Fn.RIGHT_SHIFT: _right_shift,
    Fn.ISNAN: _isnan,
    Fn.ISINF: _isinf,
    Fn.ISFINITE: _isfinite,
    Fn.RELU: _relu,
    Fn.NEXTAFTER: lambda x, y: math.nextafter(float(x), float(y)),
    Fn.COPYSIGN: lambda x, y: math.copysign(float(x), float(y)),
    Fn.HYPOT: _hypot,
    Fn.LOGADDEXP: _logaddexp,
}

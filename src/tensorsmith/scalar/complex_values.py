"""What the scalar functions compute on Python's complex numbers: `COMPLEX_VALUES[fn]`.

Branch cuts and the values at infinities, NaN and signed zeros are those of C99 (Annex G), which `cmath` follows; where
`cmath` raises, the result is the limit: an infinity, or NaN. Functions without an entry have no meaning for complex numbers.
"""

import cmath
import math
from collections.abc import Callable
from typing import Any

from tensorsmith.scalar.fn import Fn

_INF, _NAN = math.inf, math.nan


class _ComplexValues(dict):
    """A table whose missing entries are errors in the user's words."""

    def __missing__(self, fn: Fn) -> Any:
        raise TypeError(f"{fn.value}: not defined for complex numbers")


def _guarded(function: Callable[[complex], complex], beyond: complex = complex(_NAN, _NAN)) -> Callable[..., complex]:
    """A function of `cmath`; `beyond` stands where it raises ValueError, the product with infinity where it overflows."""

    def value(x: complex) -> complex:
        try:
            return function(complex(x))
        except OverflowError:
            return complex(_INF, _NAN)
        except ValueError:
            return beyond

    return value


def _exp(x: complex) -> complex:
    x = complex(x)
    try:
        return cmath.exp(x)
    except OverflowError:
        return complex(math.copysign(_INF, math.cos(x.imag)), math.copysign(_INF, math.sin(x.imag)))
    except ValueError:
        return complex(_INF, _NAN)


def _log(x: complex) -> complex:
    x = complex(x)
    return cmath.log(x) if x != 0 else complex(-_INF, cmath.phase(x))


def _div(x: complex, y: complex) -> complex:
    x, y = complex(x), complex(y)
    try:
        return x / y
    except ZeroDivisionError:
        if x == 0 or x != x:
            return complex(_NAN, _NAN)
        zero = math.copysign(1.0, y.real)
        return complex(_times_infinity(x.real, zero), _times_infinity(x.imag, zero))


def _times_infinity(x: float, sign: float) -> float:
    return x * math.copysign(_INF, sign) if x != 0 else _NAN


def _mul(x: complex, y: complex) -> complex:
    return complex(x) * complex(y)


def _pow(x: complex, y: complex) -> complex:
    try:
        return complex(x) ** complex(y)
    except ZeroDivisionError:
        return complex(_INF, _NAN) if complex(y).imag == 0 else complex(_NAN, _NAN)
    except OverflowError:
        return complex(_INF, _NAN)


def _abs(x: complex) -> float:
    return math.hypot(x.real, x.imag)


def _sgn(x: complex) -> complex:
    x = complex(x)
    size = _abs(x)
    return x / size if size else 0j


def _sigmoid(x: complex) -> complex:
    x = complex(x)
    if x.real < 0:
        small = _exp(x)
        return _div(small, 1 + small)
    return _div(1, 1 + _exp(-x))


def _sqrt(x: complex) -> complex:
    return cmath.sqrt(x)


def _expm1(x: complex) -> complex:
    """exp(a) cos(b) - 1 without its cancellation: expm1(a) cos(b) - 2 sin(b / 2)**2."""
    x = complex(x)
    if abs(x.real) > 1 or not cmath.isfinite(x):
        return _exp(x) - 1
    half = math.sin(0.5 * x.imag)
    real = math.expm1(x.real) * math.cos(x.imag) - 2 * half * half
    return complex(real, math.exp(x.real) * math.sin(x.imag))


def _log1p(x: complex) -> complex:
    """log |1 + x| from log1p of |1 + x|**2 - 1 where x is small."""
    x = complex(x)
    if not cmath.isfinite(x) or abs(x) > 0.5:
        return _log(1 + x)
    return complex(0.5 * math.log1p(x.real * (2 + x.real) + x.imag * x.imag), math.atan2(x.imag, 1 + x.real))


def _logaddexp(x: complex, y: complex) -> complex:
    x, y = complex(x), complex(y)
    high, low = (x, y) if x.real >= y.real else (y, x)
    if math.isinf(high.real) and high.real == low.real:
        return high if high.real < 0 else _log(_exp(x) + _exp(y))
    return high + _log1p(_exp(low - high))


COMPLEX_VALUES: dict[Fn, Callable[..., Any]] = _ComplexValues(
    {
        Fn.ADD: lambda x, y: x + y,
        Fn.SUB: lambda x, y: x - y,
        Fn.MUL: _mul,
        Fn.DIV: _div,
        Fn.POW: _pow,
        Fn.NEG: lambda x: -x,
        Fn.ABS: _abs,
        Fn.SGN: _sgn,
        Fn.CONJ: lambda x: x.conjugate(),
        Fn.ANGLE: cmath.phase,
        Fn.EXP: _exp,
        Fn.EXP2: lambda x: _exp(x * math.log(2.0)),
        Fn.EXPM1: _expm1,
        Fn.LOG: _log,
        Fn.LOG1P: _log1p,
        Fn.LOG2: lambda x: _log(x) / math.log(2.0),
        Fn.LOG10: lambda x: _log(x) / math.log(10.0),
        Fn.SQRT: _sqrt,
        Fn.RSQRT: lambda x: _div(1, _sqrt(x)),
        Fn.RECIPROCAL: lambda x: _div(1, x),
        Fn.SIN: _guarded(cmath.sin),
        Fn.COS: _guarded(cmath.cos),
        Fn.TAN: _guarded(cmath.tan),
        Fn.ASIN: _guarded(cmath.asin),
        Fn.ACOS: _guarded(cmath.acos),
        Fn.ATAN: _guarded(cmath.atan, complex(0.0, _INF)),
        Fn.SINH: _guarded(cmath.sinh),
        Fn.COSH: _guarded(cmath.cosh),
        Fn.TANH: _guarded(cmath.tanh),
        Fn.ASINH: _guarded(cmath.asinh),
        Fn.ACOSH: _guarded(cmath.acosh),
        Fn.ATANH: _guarded(cmath.atanh, complex(_INF, 0.0)),
        Fn.SIGMOID: _sigmoid,
        Fn.EQ: lambda x, y: x == y,
        Fn.NE: lambda x, y: x != y,
        Fn.WHERE: lambda condition, x, y: complex(x if condition else y),
        Fn.LOGICAL_AND: lambda x, y: bool(x) and bool(y),
        Fn.LOGICAL_OR: lambda x, y: bool(x) or bool(y),
        Fn.LOGICAL_XOR: lambda x, y: bool(x) != bool(y),
        Fn.LOGICAL_NOT: lambda x: not x,
        Fn.ISNAN: cmath.isnan,
        Fn.ISINF: cmath.isinf,
        Fn.ISFINITE: cmath.isfinite,
        Fn.LOGADDEXP: _logaddexp,
    }
)

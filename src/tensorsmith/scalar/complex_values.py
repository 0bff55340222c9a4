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


def _cos(x: float) -> float:
    return math.cos(x) if math.isfinite(x) else _NAN


def _sin(x: float) -> float:
    return math.sin(x) if math.isfinite(x) else _NAN


def _times(size: float, direction: float) -> float:
    """The product, in which an infinite size leaves a zero direction (sin 0) what it is."""
    return direction if direction == 0.0 and math.isinf(size) else size * direction


def _grown(function: Callable[[float], float], x: float) -> float:
    """exp, sinh or cosh of a real number, infinite beyond the range."""
    try:
        return function(x)
    except OverflowError:
        return -_INF if function is math.sinh and x < 0 else _INF


def _exp(x: complex) -> complex:
    real, imaginary = complex(x).real, complex(x).imag
    if real == -_INF and not math.isfinite(imaginary):
        return complex(0.0, math.copysign(0.0, imaginary))
    if imaginary == 0.0:
        return complex(_grown(math.exp, real), imaginary)
    if real == _INF and not math.isfinite(imaginary):
        return complex(_INF, _NAN)
    size = _grown(math.exp, real)
    return complex(_times(size, _cos(imaginary)), _times(size, _sin(imaginary)))


def _sinh(x: complex) -> complex:
    real, imaginary = complex(x).real, complex(x).imag
    if imaginary == 0.0:
        return complex(_grown(math.sinh, real), imaginary)
    if not math.isfinite(imaginary) and (real == 0.0 or math.isinf(real)):
        return complex(real, _NAN)
    return complex(
        _times(_grown(math.sinh, real), _cos(imaginary)), _times(_grown(math.cosh, real), _sin(imaginary))
    )


def _cosh(x: complex) -> complex:
    real, imaginary = complex(x).real, complex(x).imag
    if imaginary == 0.0:
        tail = imaginary if real != real else math.copysign(1.0, real) * imaginary
        return complex(_grown(math.cosh, real), tail)
    if not math.isfinite(imaginary) and (real == 0.0 or math.isinf(real)):
        return complex(_NAN, 0.0) if real == 0.0 else complex(_INF, _NAN)
    if real == 0.0:
        return complex(math.cos(imaginary), real * math.sin(imaginary))
    return complex(
        _times(_grown(math.cosh, real), _cos(imaginary)), _times(_grown(math.sinh, real), _sin(imaginary))
    )


def _sin_of(x: complex) -> complex:
    turned = _sinh(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def _tanh(x: complex) -> complex:
    x = complex(x)
    if x.real == 0.0 and not math.isfinite(x.imag):
        return complex(x.real, _NAN)
    try:
        return cmath.tanh(x)
    except ValueError:  # an infinite imaginary part
        return complex(_NAN, _NAN)


def _tan(x: complex) -> complex:
    turned = _tanh(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def _log(x: complex) -> complex:
    x = complex(x)
    return cmath.log(x) if x != 0 else complex(-_INF, math.atan2(x.imag, x.real))


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
    size = _abs(x)
    return complex(x.real / size, x.imag / size) if size else 0j


def _sigmoid(x: complex) -> complex:
    x = complex(x)
    if x.real < 0:
        small = _exp(x)
        return _div(small, 1 + small)
    return _div(1, 1 + _exp(-x))


def _sqrt(x: complex) -> complex:
    return cmath.sqrt(x)


def _atanh(x: complex) -> complex:
    x = complex(x)
    return complex(math.copysign(_INF, x.real), x.imag) if abs(x.real) == 1 and x.imag == 0 else cmath.atanh(x)


def _atan(x: complex) -> complex:
    turned = _atanh(complex(-x.imag, x.real))
    return complex(turned.imag, -turned.real)


def _expm1(x: complex) -> complex:
    """exp(a) cos(b) - 1 without its cancellation: expm1(a) cos(b) - 2 sin(b / 2)**2."""
    x = complex(x)
    half = _sin(0.5 * x.imag)
    real = _grown(math.expm1, x.real) * _cos(x.imag) - 2 * half * half
    return complex(real, _grown(math.exp, x.real) * _sin(x.imag))


def _log1p(x: complex) -> complex:
    """log(1 + x); where x is small, log |1 + x| from |1 + x|**2 - 1, which keeps its digits."""
    x = complex(x)
    if not cmath.isfinite(x) or abs(x) >= 0.5:
        return _log(complex(1 + x.real, x.imag))
    return complex(0.5 * math.log1p(x.real * (2 + x.real) + x.imag * x.imag), math.atan2(x.imag, 1 + x.real))


def _scaled(x: complex, factor: float) -> complex:
    """Both parts times a real number; as a complex product an infinite part would make the other NaN."""
    return complex(x.real * factor, x.imag * factor)


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
        Fn.ANGLE: lambda x: math.atan2(x.imag, x.real),
        Fn.EXP: _exp,
        Fn.EXP2: lambda x: _exp(_scaled(x, math.log(2.0))),
        Fn.EXPM1: _expm1,
        Fn.LOG: _log,
        Fn.LOG1P: _log1p,
        Fn.LOG2: lambda x: _scaled(_log(x), 1 / math.log(2.0)),
        Fn.LOG10: lambda x: _scaled(_log(x), 1 / math.log(10.0)),
        Fn.SQRT: _sqrt,
        Fn.RSQRT: lambda x: _div(1, _sqrt(x)),
        Fn.RECIPROCAL: lambda x: _div(1, x),
        Fn.SIN: _sin_of,
        Fn.COS: lambda x: _cosh(complex(-x.imag, x.real)),
        Fn.TAN: _tan,
        Fn.ASIN: cmath.asin,
        Fn.ACOS: cmath.acos,
        Fn.ATAN: _atan,
        Fn.SINH: _sinh,
        Fn.COSH: _cosh,
        Fn.TANH: _tanh,
        Fn.ASINH: cmath.asinh,
        Fn.ACOSH: cmath.acosh,
        Fn.ATANH: _atanh,
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

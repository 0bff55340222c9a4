"""Vector code of erfinv and digamma, computed in float64 for every dtype, by the formulas of `scalar/special.py`."""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorsmith.scalar.special import DIGAMMA_SERIES, ERFINV_CENTRE, ERFINV_TAIL
from tensorsmith.targets.cpu import circular64, elementary64
from tensorsmith.targets.cpu.vector import Lanes

_D = "double"
_LEAST_OF_SERIES = 10  # from here on digamma's series is exact


def in_double(
    function: Callable[[Lanes, str], str], of_float32: Callable[[Lanes, str], str] | None = None
) -> Callable[[Lanes, str, str], str]:
    """The function of float64 on float32 too, rounded once; there by `of_float32`, where fewer digits need less."""
    narrow = of_float32 or function

    def render(lanes: Lanes, element: str, x: str) -> str:
        if element == _D:
            return function(lanes, x)
        return lanes.convert("fptrunc", _D, element, narrow(lanes, lanes.convert("fpext", element, _D, x)))

    return render


def _ratio(lanes: Lanes, polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: str) -> str:
    above, below = (lanes.polynomial(_D, x, polynomial[::-1]) for polynomial in polynomials)
    return lanes.op("fdiv", _D, above, below)


def erfinv(lanes: Lanes, x: str, steps: int = 2) -> str:
    """A rational start, right to 8e-6, and steps towards erf(root) = x; infinite at -1 and 1, NaN outside.

    One step is Halley's, which trebles the digits: enough for float32. Two are Newton's, which bear far tails better.
    """
    one = lanes.constant(_D, 1.0)
    size = lanes.intrinsic("fabs", _D, x)
    centre = lanes.op("fmul", _D, x, _ratio(lanes, ERFINV_CENTRE, lanes.op("fmul", _D, x, x)))
    half = lanes.op("fmul", _D, lanes.op("fsub", _D, one, size), lanes.constant(_D, 0.5))
    tail = lanes.intrinsic("sqrt", _D, lanes.negate(_D, elementary64.log(lanes, half)))
    outer = lanes.intrinsic("copysign", _D, _ratio(lanes, ERFINV_TAIL, tail), x)
    root = lanes.select(lanes.compare("ole", _D, size, lanes.constant(_D, 0.7)), _D, centre, outer)
    for _ in range(steps):
        error = lanes.op("fsub", _D, elementary64.erf(lanes, root), x)
        decay = elementary64.exp(lanes, lanes.negate(_D, lanes.op("fmul", _D, root, root)))
        slope = lanes.op("fmul", _D, decay, lanes.constant(_D, 2.0 / math.sqrt(math.pi)))
        change = lanes.op("fdiv", _D, error, slope)
        if steps == 1:
            bent = lanes.op("fadd", _D, lanes.op("fmul", _D, root, change), one)
            change = lanes.op("fdiv", _D, change, bent)
        root = lanes.op("fsub", _D, root, change)
    end = lanes.intrinsic("copysign", _D, lanes.constant(_D, math.inf), x)
    end = lanes.select(lanes.compare("oeq", _D, size, one), _D, end, lanes.constant(_D, math.nan))
    return lanes.select(lanes.compare("olt", _D, size, one), _D, root, end)


def digamma(lanes: Lanes, x: str) -> str:
    """The recurrence up to 10, the asymptotic series, the reflection below 0; NaN at -1, -2, ..."""
    zero, one = lanes.constant(_D, 0.0), lanes.constant(_D, 1.0)
    negative = lanes.compare("olt", _D, x, zero)
    fraction = lanes.op("fsub", _D, x, lanes.intrinsic("trunc", _D, x))
    angle = circular64.tan(lanes, lanes.op("fmul", _D, fraction, lanes.constant(_D, math.pi)))
    result = lanes.select(negative, _D, lanes.op("fdiv", _D, lanes.constant(_D, -math.pi), angle), zero)
    y = lanes.select(negative, _D, lanes.op("fsub", _D, one, x), x)
    for _ in range(_LEAST_OF_SERIES):
        below = lanes.compare("olt", _D, y, lanes.constant(_D, float(_LEAST_OF_SERIES)))
        result = lanes.select(below, _D, lanes.op("fsub", _D, result, lanes.op("fdiv", _D, one, y)), result)
        y = lanes.select(below, _D, lanes.op("fadd", _D, y, one), y)
    inverse = lanes.op("fdiv", _D, one, y)
    square = lanes.op("fmul", _D, inverse, inverse)
    series = lanes.op("fmul", _D, square, lanes.polynomial(_D, square, DIGAMMA_SERIES[::-1]))
    rest = lanes.op("fsub", _D, elementary64.log(lanes, y), lanes.op("fmul", _D, inverse, lanes.constant(_D, 0.5)))
    result = lanes.op("fadd", _D, result, lanes.op("fsub", _D, rest, series))
    whole = lanes.compare("oeq", _D, x, lanes.intrinsic("floor", _D, x))
    pole = lanes.op("and", "i1", negative, whole)
    result = lanes.select(pole, _D, lanes.constant(_D, math.nan), result)
    end = lanes.intrinsic("copysign", _D, lanes.constant(_D, math.inf), lanes.negate(_D, x))
    return lanes.select(lanes.compare("oeq", _D, x, zero), _D, end, result)

"""Vector code of erfinv, lgamma (float32) and digamma."""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorsmith.scalar.normal_series import QUANTILE_CENTRE, QUANTILE_FAR, QUANTILE_NEAR
from tensorsmith.scalar.special import DIGAMMA_SERIES
from tensorsmith.targets.cpu import circular64, elementary, elementary64
from tensorsmith.targets.cpu.vector import Lanes

_F, _D = "float", "double"
_LEAST_OF_SERIES = 10  # from here on digamma's series is exact
_SHIFT = 8  # lgamma's series is taken from here on
# Stirling's series: log gamma(y) - (y - 1/2) log y + y - log(2 pi) / 2 = S(1 / y**2) / y.
_STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_SINE = tuple((-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11, -1, -1))  # sin(pi r) / r
# erfinv(x) / x in w = -log(1 - x**2) up to 6.5, beyond in sqrt(w) - 3.
_ERFINV_CENTRE = (6.397097428e-10, -2.462198956e-08, 3.871330343e-07, -2.938665173e-06, 7.34109465e-06, 3.733710277e-05,
                  -0.0001180414868, -0.002341357586, 0.01155133347, 0.232013422, 0.8862269304)  # fmt: skip
_ERFINV_TAIL = (-0.0002630345992, 0.00140670274, -0.003492515054, 0.005687006653, -0.007652640226, 0.009445897081,
                1.001675584, 2.832976794)  # fmt: skip


def in_double(function: Callable[[Lanes, str], str]) -> Callable[[Lanes, str, str], str]:
    """The function of float64 on float32 too, rounded once."""

    def render(lanes: Lanes, element: str, x: str) -> str:
        if element == _D:
            return function(lanes, x)
        return lanes.convert("fptrunc", _D, element, function(lanes, lanes.convert("fpext", element, _D, x)))

    return render


def _ends_of_erfinv(lanes: Lanes, element: str, x: str, root: str) -> str:
    """The root inside (-1, 1), infinite at its ends, NaN outside."""
    size, one = lanes.intrinsic("fabs", element, x), lanes.constant(element, 1.0)
    end = lanes.intrinsic("copysign", element, lanes.constant(element, math.inf), x)
    end = lanes.select(lanes.compare("oeq", element, size, one), element, end, lanes.constant(element, math.nan))
    return lanes.select(lanes.compare("olt", element, size, one), element, root, end)


def erfinv(lanes: Lanes, element: str, x: str) -> str:
    """float32: x P(w), w = -log((1 - x) (1 + x)). float64: the normal quantile of (1 + x) / 2, divided by sqrt 2."""
    return _erfinv64(lanes, x) if element == _D else _erfinv32(lanes, x)


def _erfinv32(lanes: Lanes, x: str) -> str:
    one = lanes.constant(_F, 1.0)
    product = lanes.op("fmul", _F, lanes.op("fsub", _F, one, x), lanes.op("fadd", _F, one, x))
    w = lanes.negate(_F, elementary.log(lanes, product))
    root = lanes.op("fsub", _F, lanes.intrinsic("sqrt", _F, w), lanes.constant(_F, 3.0))
    centre, tail = lanes.polynomial(_F, w, _ERFINV_CENTRE), lanes.polynomial(_F, root, _ERFINV_TAIL)
    ratio = lanes.select(lanes.compare("ole", _F, w, lanes.constant(_F, 6.5)), _F, centre, tail)
    return _ends_of_erfinv(lanes, _F, x, lanes.op("fmul", _F, x, ratio))


def _erfinv64(lanes: Lanes, x: str) -> str:
    def c(value: float) -> str:
        return lanes.constant(_D, value)

    size = lanes.intrinsic("fabs", _D, x)
    half = lanes.op("fmul", _D, x, c(0.5))
    inside = lanes.multiply_add(_D, lanes.negate(_D, half), half, c(0.180625))
    tail = lanes.op("fmul", _D, lanes.op("fsub", _D, c(1.0), size), c(0.5))
    r = lanes.intrinsic("sqrt", _D, lanes.negate(_D, elementary64.log(lanes, tail)))
    middle, near = lanes.compare("ole", _D, size, c(0.85)), lanes.compare("ole", _D, r, c(5.0))
    parts = []
    for centre, beside, far in zip(QUANTILE_CENTRE, QUANTILE_NEAR, QUANTILE_FAR):
        outer = lanes.select(
            near, _D, lanes.polynomial(_D, lanes.op("fsub", _D, r, c(1.6)), beside),
            lanes.polynomial(_D, lanes.op("fsub", _D, r, c(5.0)), far),
        )  # fmt: skip
        parts.append(lanes.select(middle, _D, lanes.polynomial(_D, inside, centre), outer))
    ratio = lanes.op("fmul", _D, lanes.op("fdiv", _D, *parts), c(math.sqrt(0.5)))
    outer = lanes.intrinsic("copysign", _D, ratio, x)
    return _ends_of_erfinv(lanes, _D, x, lanes.select(middle, _D, lanes.op("fmul", _D, half, ratio), outer))


def lgamma32(lanes: Lanes, x: str) -> str:
    """log |gamma(x)| of float32, in float64 and rounded once; inf at 0, -1, -2, ... and where |x| is infinite.

    Stirling's series at y = x + 8 (at x itself from 8 on) less log(x (x + 1) ... (x + 7)). Where a lane is below 0, the
    reflection log pi - log |sin(pi x)| - log gamma(1 - x), its two logarithms taken as one.
    """
    wide, vector = lanes.convert("fpext", _F, _D, x), lanes.type(_D)
    zero, one = lanes.constant(_D, 0.0), lanes.constant(_D, 1.0)
    negative = lanes.compare("olt", _D, wide, zero)

    def reflected() -> list[str]:
        start = lanes.select(negative, _D, lanes.op("fsub", _D, one, wide), wide)
        turn = lanes.op("fsub", _D, wide, lanes.intrinsic("roundeven", _D, wide))
        sine = lanes.op("fmul", _D, turn, lanes.polynomial(_D, lanes.op("fmul", _D, turn, turn), _SINE))
        total = _lgamma_above(lanes, start, lanes.select(negative, _D, lanes.intrinsic("fabs", _D, sine), one))
        other = lanes.op("fsub", _D, lanes.constant(_D, math.log(math.pi)), total)
        return [lanes.select(negative, _D, other, total)]

    (total,) = lanes.function.choose(lanes.any(negative), [vector], reflected, lambda: [_lgamma_above(lanes, wide, None)])
    root = lanes.op("or", "i1", lanes.compare("oeq", _D, wide, one), lanes.compare("oeq", _D, wide, lanes.constant(_D, 2.0)))
    result = lanes.convert("fptrunc", _D, _F, lanes.select(root, _D, zero, total))
    infinity = lanes.constant(_F, math.inf)
    infinite = lanes.compare("oeq", _F, lanes.intrinsic("fabs", _F, x), infinity)
    return lanes.select(infinite, _F, infinity, result)


def _lgamma_above(lanes: Lanes, x: str, divisor: str | None) -> str:
    """log(gamma(x) * divisor) for float64 x >= 0, its error some 1e-15 of the larger of 1 and the value."""

    def c(value: float) -> str:
        return lanes.constant(_D, value)

    small = lanes.compare("olt", _D, x, c(float(_SHIFT)))
    product = x
    for k in range(1, _SHIFT):
        product = lanes.op("fmul", _D, product, lanes.op("fadd", _D, x, c(float(k))))
    product = lanes.select(small, _D, product, c(1.0))
    y = lanes.select(small, _D, lanes.op("fadd", _D, x, c(float(_SHIFT))), x)
    if divisor is not None:
        product = lanes.op("fdiv", _D, product, divisor)
    inverse = lanes.op("fdiv", _D, c(1.0), y)
    series = lanes.polynomial(_D, lanes.op("fmul", _D, inverse, inverse), _STIRLING)
    series = lanes.multiply_add(_D, inverse, series, c(math.log(2 * math.pi) / 2))
    leading = lanes.op("fmul", _D, lanes.op("fsub", _D, y, c(0.5)), elementary64.log(lanes, y))
    total = lanes.op("fadd", _D, lanes.op("fsub", _D, leading, y), series)
    return lanes.op("fsub", _D, total, elementary64.log(lanes, product))


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

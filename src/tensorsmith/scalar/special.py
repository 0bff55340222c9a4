"""Special functions on Python numbers that the standard library lacks, or has with exceptions for poles."""

import math

from tensorsmith.scalar.normal_series import QUANTILE_CENTRE, QUANTILE_FAR, QUANTILE_NEAR, Ratio

DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _polynomial(coefficients: tuple[float, ...], x: float) -> float:
    total = 0.0
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _ratio(polynomials: Ratio, x: float) -> float:
    above, below = (_polynomial(polynomial[::-1], x) for polynomial in polynomials)
    return above / below


def erfinv(x: float) -> float:
    """The y with erf(y) = x: inf at 1, -inf at -1, NaN outside [-1, 1]. The normal quantile of (1 + x) / 2 over sqrt 2."""
    x = float(x)
    size = abs(x)
    if not size < 1.0:
        return math.copysign(math.inf, x) if size == 1.0 else math.nan
    if size <= 0.85:
        return x / 2.0 * (_ratio(QUANTILE_CENTRE, 0.180625 - x * x / 4.0) * math.sqrt(0.5))
    r = math.sqrt(-math.log((1.0 - size) / 2.0))
    quantile = _ratio(QUANTILE_NEAR, r - 1.6) if r <= 5.0 else _ratio(QUANTILE_FAR, r - 5.0)
    return math.copysign(quantile * math.sqrt(0.5), x)


def lgamma(x: float) -> float:
    """log |gamma(x)|, inf at 0, -1, -2, ..."""
    try:
        return math.lgamma(float(x))
    except (ValueError, OverflowError):  # the poles at 0, -1, -2, ...
        return math.inf


def digamma(x: float) -> float:
    """The derivative of lgamma: inf of the other sign at a zero, NaN at -1, -2, ... (Abramowitz & Stegun 6.3)."""
    x = float(x)
    if x == 0.0:
        return math.copysign(math.inf, -x)
    if x == -math.inf or (x < 0.0 and x == math.floor(x)):
        return math.nan
    result = 0.0
    if x < 0.0:
        fraction = x - math.trunc(x)  # tan has period 1 in x: reduce first, for accuracy
        result = -math.pi / math.tan(math.pi * fraction)
        x = 1.0 - x
    while x < 10.0:
        result -= 1.0 / x
        x += 1.0
    if x > 1e17:
        return result + math.log(x)
    square = 1.0 / (x * x)
    series = square * _polynomial(DIGAMMA_SERIES, square)
    return result + (math.log(x) - 0.5 / x - series)

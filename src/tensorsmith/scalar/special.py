"""Special functions on Python numbers that the standard library lacks, or has with exceptions for poles."""

import math

# Rational starting values of erfinv (central and tail), the ones PyTorch uses; two Newton steps on erf follow.
# Each is a numerator and a denominator, from the constant upwards.
ERFINV_CENTRE = (
    (0.886226899, -1.645349621, 0.914624893, -0.140543331), (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801),
)  # fmt: skip
ERFINV_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))
DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _polynomial(coefficients: tuple[float, ...], x: float) -> float:
    total = 0.0
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def erfinv(x: float) -> float:
    """The y with erf(y) = x: inf at 1, -inf at -1, NaN outside [-1, 1]."""
    x = float(x)
    size = abs(x)
    if not size < 1.0:
        return math.copysign(math.inf, x) if size == 1.0 else math.nan
    if size <= 0.7:
        root = x * _polynomial(ERFINV_CENTRE[0], x * x) / _polynomial(ERFINV_CENTRE[1], x * x)
    else:
        tail = math.sqrt(-math.log((1.0 - size) / 2.0))
        root = math.copysign(_polynomial(ERFINV_TAIL[0], tail) / _polynomial(ERFINV_TAIL[1], tail), x)
    for _ in range(2):
        root -= (math.erf(root) - x) / (2.0 / math.sqrt(math.pi) * math.exp(-root * root))
    return root


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

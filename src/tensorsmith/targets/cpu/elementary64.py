"""float64 vector code of exponentials, logarithms, hyperbolic and error functions.

Range reductions are stated by every function; polynomials are given from the highest power down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.targets.cpu.elementary import at_least, at_most
from tensorsmith.targets.cpu.vector import Lanes

_D = "double"
_ROUNDER = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to a whole number, which then sits in the low bits
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # n * high is exact
_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))  # of e**r: 4e-18 off for |r| <= ln 2 / 2
# log(1 + f) = f - (f**2 / 2 - s * (f**2 / 2 + R(s**2))), s = f / (2 + f); R's coefficients are those of fdlibm's log.
_LOG = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
    2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01,
)  # fmt: skip
_EXPM1 = _TAYLOR[:-2]  # (e**r - 1 - r) / r**2
_LOG10_HIGH, _LOG10_LOW = 3.01029995663611771306e-01, 3.69423907715893078616e-13  # log10(2): n * high is exact
_ERF = (
    5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08, -1.6350312701054695e-07,
    1.6461000484121368e-06, -1.4925595266831182e-05, 0.0001205533111164271, -0.000854832698083379,
    0.0052239776248180145, -0.026866170645076792, 0.11283791670954879, -0.3761263890318375, 0.1283791670955126,
)  # fmt: skip  # erf(x) / x - 1 in x**2, |x| <= 1
_ERF_ROOT = (
    8.11232189560458e-14, -3.863235740801053e-12, 8.656145000452501e-11, -1.2161907450788266e-09,
    1.2013854168998236e-08, -8.803822229144894e-08, 4.867728411083598e-07, -2.0084769451168978e-06,
    6.025163993394625e-06, -1.2841667230324307e-05, 1.4401131311116841e-05, 6.89538930672049e-05,
    -0.000499234286537138, 0.0001819672147702969, 0.006587803283474944, -0.002086602503622891, -0.0696315376712077,
    -0.14104712020031973, 0.9999999719480304,
)  # fmt: skip  # erfc(t)**(1/8), 1 <= t <= 5.95
_ERFC = (
    -8.925700081542903e-09, 7.422135778590554e-08, 5.801008901772645e-08, -7.82001236380755e-07,
    3.100017785526853e-07, 5.679322162134814e-06, -1.1231411529540219e-05, -2.438596247598846e-05,
    0.0001506250677066684, -0.00019926037230007335, -0.0007577740594864028, 0.005031970621362113,
    -0.016197733950390605, 0.037167515469531696, -0.06633036582082828, 0.09373283500230917, -0.1010390660359544,
    0.06809705425458651, 0.015379652102614251, -0.13962111684056167, 1.2329951186255526,
)  # fmt: skip  # (1 + 2 a) * e**(a**2) * erfc(a) in (a - 4) / (a + 4), 0.5 <= a <= 27.4


def _c(lanes: Lanes, value: float) -> str:
    return lanes.constant(_D, value)


def _power_of_two(lanes: Lanes, n: str) -> str:
    biased = lanes.op("add", "i64", n, lanes.constant("i64", 1023))
    return lanes.from_bits(_D, lanes.op("shl", "i64", biased, lanes.constant("i64", 52)))


def _rounded(lanes: Lanes, x: str, factor: float) -> tuple[str, str]:
    """(n, its bits as i64) with n = x * factor rounded to a whole number."""
    shifted = lanes.multiply_add(_D, x, _c(lanes, factor), _c(lanes, _ROUNDER))
    bits = lanes.op("sub", "i64", lanes.bits(_D, shifted), lanes.bits(_D, _c(lanes, _ROUNDER)))
    return lanes.op("fsub", _D, shifted, _c(lanes, _ROUNDER)), bits


def _scaled(lanes: Lanes, y: str, n: str) -> str:
    """y * 2**n for |n| <= 2044, correctly rounded into denormals."""
    half = lanes.op("ashr", "i64", n, lanes.constant("i64", 1))
    for part in (half, lanes.op("sub", "i64", n, half)):
        y = lanes.op("fmul", _D, y, _power_of_two(lanes, part))
    return y


def _reduced(lanes: Lanes, x: str) -> tuple[str, str]:
    """(r, the bits of n) with x = n * ln 2 + r, |r| <= ln 2 / 2."""
    n, bits = _rounded(lanes, x, math.log2(math.e))
    r = lanes.multiply_add(_D, n, _c(lanes, -_LN2_HIGH), x)
    return lanes.multiply_add(_D, n, _c(lanes, -_LN2_LOW), r), bits


def exp_core(lanes: Lanes, x: str, less: int = 0, correction: str | None = None) -> str:
    """exp(x + correction) / 2**less for x within [-746, 711] or NaN."""
    r, bits = _reduced(lanes, x)
    if correction is not None:
        r = lanes.op("fadd", _D, r, correction)
    if less:
        bits = lanes.op("sub", "i64", bits, lanes.constant("i64", less))
    return _scaled(lanes, lanes.polynomial(_D, r, _TAYLOR), bits)


def exp(lanes: Lanes, x: str) -> str:
    """e**x = 2**n * e**r, n = round(x / ln 2)."""
    return exp_core(lanes, at_least(lanes, at_most(lanes, x, 710.0, _D), -746.0, _D))


def exp_short(lanes: Lanes, x: str, coefficients: Sequence[float]) -> str:
    """exp(x) for |x| < 700, e**r by the polynomial given."""
    n, bits = _rounded(lanes, x, math.log2(math.e))
    r = lanes.multiply_add(_D, n, _c(lanes, -math.log(2.0)), x)
    return lanes.op("fmul", _D, lanes.polynomial(_D, r, coefficients), _power_of_two(lanes, bits))


def exp2(lanes: Lanes, x: str) -> str:
    """2**x = 2**n * e**(r * ln 2), n = round(x)."""
    x = at_least(lanes, at_most(lanes, x, 1025.0, _D), -1076.0, _D)
    n, bits = _rounded(lanes, x, 1.0)
    r = lanes.op("fmul", _D, lanes.op("fsub", _D, x, n), _c(lanes, math.log(2.0)))
    return _scaled(lanes, lanes.polynomial(_D, r, _TAYLOR), bits)


def _expm1_core(lanes: Lanes, x: str, less: int) -> str:
    """(e**x - 1) / 2**less for x within [-38, 710.6]: s * (e**r - 1) + (s - 2**-less), s = 2**(n - less)."""
    r, bits = _reduced(lanes, x)
    p = lanes.multiply_add(_D, lanes.op("fmul", _D, r, r), lanes.polynomial(_D, r, _EXPM1), r)
    scale = _power_of_two(lanes, lanes.op("sub", "i64", bits, lanes.constant("i64", less)))
    return lanes.multiply_add(_D, scale, p, lanes.op("fsub", _D, scale, _c(lanes, 0.5**less)))


def _or_itself_at_zero(lanes: Lanes, x: str, y: str) -> str:
    return lanes.select(lanes.compare("oeq", _D, x, _c(lanes, 0.0)), _D, x, y)


def expm1(lanes: Lanes, x: str) -> str:
    """e**x - 1 without cancellation near 0; zeros keep their sign."""
    y = _expm1_core(lanes, at_least(lanes, at_most(lanes, x, 710.0, _D), -38.0, _D), 1)
    return _or_itself_at_zero(lanes, x, lanes.op("fadd", _D, y, y))


def tanh(lanes: Lanes, x: str) -> str:
    """t / (t + 2) with t = e**(2|x|) - 1; 1 from |x| = 22 on."""
    size = at_most(lanes, lanes.intrinsic("fabs", _D, x), 22.0, _D)
    half = _expm1_core(lanes, lanes.op("fadd", _D, size, size), 1)
    y = lanes.op("fdiv", _D, half, lanes.op("fadd", _D, half, _c(lanes, 1.0)))
    return lanes.intrinsic("copysign", _D, y, x)


def sinh(lanes: Lanes, x: str) -> str:
    """(t + t / (t + 1)) / 2 with t = e**|x| - 1, by quarters of t: nothing overflows before the result does."""
    size = at_most(lanes, lanes.intrinsic("fabs", _D, x), 710.6, _D)
    quarter = _expm1_core(lanes, size, 2)
    grown = lanes.multiply_add(_D, quarter, _c(lanes, 4.0), _c(lanes, 1.0))
    y = lanes.op("fadd", _D, quarter, lanes.op("fdiv", _D, quarter, grown))
    return lanes.intrinsic("copysign", _D, lanes.op("fadd", _D, y, y), x)


def cosh(lanes: Lanes, x: str) -> str:
    """2 * (q + 1 / (16 q)) with q = e**|x| / 4."""
    quarter = exp_core(lanes, at_most(lanes, lanes.intrinsic("fabs", _D, x), 710.6, _D), 2)
    y = lanes.op("fadd", _D, quarter, lanes.op("fdiv", _D, _c(lanes, 0.0625), quarter))
    return lanes.op("fadd", _D, y, y)


def _split(lanes: Lanes, x: str) -> tuple[str, str, str]:
    """(e, m, e as i64 but for the shift of a denormal) with x = 2**e * m and sqrt(1/2) <= m < sqrt(2)."""
    denormal = lanes.compare("olt", _D, x, _c(lanes, 2.0**-1022))
    scaled = lanes.select(denormal, _D, lanes.op("fmul", _D, x, _c(lanes, 2.0**54)), x)
    shift = lanes.select(denormal, _D, _c(lanes, -54.0), _c(lanes, 0.0))
    root_half = lanes.constant("i64", 0x3FE6A09E667F3BCD)
    offset = lanes.op("sub", "i64", lanes.bits(_D, scaled), root_half)
    exponent = lanes.op("ashr", "i64", offset, lanes.constant("i64", 52))
    mantissa = lanes.op("and", "i64", offset, lanes.constant("i64", (1 << 52) - 1))
    m = lanes.from_bits(_D, lanes.op("add", "i64", mantissa, root_half))
    return lanes.op("fadd", _D, lanes.convert("sitofp", "i64", _D, exponent), shift), m, exponent


def exponent_and_mantissa(lanes: Lanes, x: str) -> tuple[str, str]:
    """(e, m) with x = 2**e * m and sqrt(1/2) <= m < sqrt(2), for positive finite x."""
    return _split(lanes, x)[:2]


def _log_parts(lanes: Lanes, x: str, low_part: str | None = None) -> tuple[str, str, str]:
    """(e, f, correction) with x + low_part = 2**e * (1 + f) and log(1 + f) = f - correction."""
    e, m, exponent = _split(lanes, x)
    f = lanes.op("fsub", _D, m, _c(lanes, 1.0))
    if low_part is not None:
        negated = lanes.op("sub", "i64", lanes.constant("i64", 0), exponent)
        inverse = _power_of_two(lanes, lanes.intrinsic("smax", "i64", negated, lanes.constant("i64", -1022)))
        f = lanes.multiply_add(_D, low_part, inverse, f)
    s = lanes.op("fdiv", _D, f, lanes.op("fadd", _D, f, _c(lanes, 2.0)))
    z = lanes.op("fmul", _D, s, s)
    r = lanes.op("fmul", _D, z, lanes.polynomial(_D, z, _LOG))
    half_square = lanes.op("fmul", _D, lanes.op("fmul", _D, f, f), _c(lanes, 0.5))
    product = lanes.op("fmul", _D, s, lanes.op("fadd", _D, half_square, r))
    return e, f, lanes.op("fsub", _D, half_square, product)


def _edges(lanes: Lanes, x: str, y: str) -> str:
    zero, infinity = _c(lanes, 0.0), _c(lanes, math.inf)
    y = lanes.select(lanes.compare("oge", _D, x, zero), _D, y, _c(lanes, math.nan))
    y = lanes.select(lanes.compare("oeq", _D, x, zero), _D, _c(lanes, -math.inf), y)
    return lanes.select(lanes.compare("oeq", _D, x, infinity), _D, x, y)


def _log_core(lanes: Lanes, x: str, low_part: str | None = None) -> str:
    e, f, correction = _log_parts(lanes, x, low_part)
    low = lanes.multiply_add(_D, e, _c(lanes, -_LN2_LOW), correction)
    y = lanes.op("fsub", _D, f, low)
    return lanes.multiply_add(_D, e, _c(lanes, _LN2_HIGH), y)


def log(lanes: Lanes, x: str) -> str:
    """log(x) = e * ln 2 + log(1 + f), the mantissa taken between sqrt(1/2) and sqrt(2)."""
    return _edges(lanes, x, _log_core(lanes, x))


def log1p(lanes: Lanes, x: str) -> str:
    """log(1 + x): the logarithm of u = 1 + x, with what u rounds away added to the mantissa."""
    one = _c(lanes, 1.0)
    u = lanes.op("fadd", _D, x, one)
    # The low part is x - (u - 1) for |x| < 1, else 1 - (u - x); both are exact.
    small = lanes.op("fsub", _D, x, lanes.op("fsub", _D, u, one))
    large = lanes.op("fsub", _D, one, lanes.op("fsub", _D, u, x))
    low = lanes.select(lanes.compare("ogt", _D, x, one), _D, large, small)
    huge = lanes.compare("ogt", _D, x, _c(lanes, 2.0**60))  # also keeps inf - inf out
    low = lanes.select(huge, _D, _c(lanes, 0.0), low)
    return _or_itself_at_zero(lanes, x, _edges(lanes, u, _log_core(lanes, u, low)))


def log2(lanes: Lanes, x: str) -> str:
    """log2(x) = e + log(1 + f) / ln 2, the factor in two parts."""
    e, f, correction = _log_parts(lanes, x)
    y = lanes.op("fsub", _D, f, correction)
    high = 1.44269502162933349609e00  # 24 bits
    low = lanes.op("fmul", _D, y, _c(lanes, 1.92596299112661746887e-08))
    rest = lanes.multiply_add(_D, y, _c(lanes, high), low)
    return _edges(lanes, x, lanes.op("fadd", _D, e, rest))


def log10(lanes: Lanes, x: str) -> str:
    """log10(x) = e * log10(2) + log(1 + f) / ln 10."""
    e, f, correction = _log_parts(lanes, x)
    y = lanes.op("fmul", _D, lanes.op("fsub", _D, f, correction), _c(lanes, math.log10(math.e)))
    y = lanes.multiply_add(_D, e, _c(lanes, _LOG10_LOW), y)
    return _edges(lanes, x, lanes.multiply_add(_D, e, _c(lanes, _LOG10_HIGH), y))


def atanh(lanes: Lanes, x: str) -> str:
    """log1p(2|x| / (1 - |x|)) / 2."""
    size = lanes.intrinsic("fabs", _D, x)
    twice = lanes.op("fadd", _D, size, size)
    y = log1p(lanes, lanes.op("fdiv", _D, twice, lanes.op("fsub", _D, _c(lanes, 1.0), size)))
    y = lanes.op("fmul", _D, y, _c(lanes, 0.5))
    outside = lanes.compare("ogt", _D, size, _c(lanes, 1.0))
    return lanes.select(outside, _D, _c(lanes, math.nan), lanes.intrinsic("copysign", _D, y, x))


def _erfc_core(lanes: Lanes, size: str) -> str:
    """erfc(a) for a >= 1/2: P((a - 4) / (a + 4)) * e**(-a**2) / (1 + 2 a), the square in two parts."""
    a = at_most(lanes, size, 27.4, _D)
    t = lanes.op(
        "fdiv", _D, lanes.op("fsub", _D, a, _c(lanes, 4.0)), lanes.op("fadd", _D, a, _c(lanes, 4.0))
    )
    p = lanes.polynomial(_D, t, _ERFC)
    # a = h + l with a short h, so that h * h is exact: a**2 = h * h + l * (a + h).
    mask = lanes.constant("i64", -(1 << 28))
    h = lanes.from_bits(_D, lanes.op("and", "i64", lanes.bits(_D, a), mask))
    rest = lanes.op("fmul", _D, lanes.op("fsub", _D, h, a), lanes.op("fadd", _D, a, h))
    decay = exp_core(lanes, lanes.negate(_D, lanes.op("fmul", _D, h, h)), 0, rest)
    denominator = lanes.op("fadd", _D, lanes.op("fadd", _D, a, a), _c(lanes, 1.0))
    return lanes.op("fmul", _D, lanes.op("fdiv", _D, p, denominator), decay)


def _erf_near(lanes: Lanes, x: str) -> str:
    return lanes.multiply_add(_D, x, lanes.polynomial(_D, lanes.op("fmul", _D, x, x), _ERF), x)


def erf(lanes: Lanes, x: str) -> str:
    """x + x * P(x**2) for |x| <= 1, else 1 - Q(|x|)**8."""
    size = at_most(lanes, lanes.intrinsic("fabs", _D, x), 5.95, _D)
    power = lanes.polynomial(_D, size, _ERF_ROOT)
    for _ in range(2):
        power = lanes.op("fmul", _D, power, power)
    rest = lanes.multiply_add(_D, lanes.negate(_D, power), power, _c(lanes, 1.0))
    far = lanes.intrinsic("copysign", _D, rest, x)
    return lanes.select(lanes.compare("ole", _D, size, _c(lanes, 1.0)), _D, _erf_near(lanes, x), far)


def erfc(lanes: Lanes, x: str) -> str:
    """1 - erf(x) for |x| <= 1/2, else erfc(|x|) or, for negative x, 2 - erfc(|x|)."""
    size = lanes.intrinsic("fabs", _D, x)
    far = _erfc_core(lanes, size)
    negative = lanes.compare("olt", _D, x, _c(lanes, 0.0))
    far = lanes.select(negative, _D, lanes.op("fsub", _D, _c(lanes, 2.0), far), far)
    near = lanes.op("fsub", _D, _c(lanes, 1.0), _erf_near(lanes, x))
    return lanes.select(lanes.compare("ole", _D, size, _c(lanes, 0.5)), _D, near, far)


def sigmoid(lanes: Lanes, x: str) -> str:
    """1 / (1 + z) for x >= 0, else z / (1 + z), with z = e**-|x|."""
    z = exp(lanes, lanes.negate(_D, lanes.intrinsic("fabs", _D, x)))
    one = _c(lanes, 1.0)
    top = lanes.select(lanes.compare("oge", _D, x, _c(lanes, 0.0)), _D, one, z)
    return lanes.op("fdiv", _D, top, lanes.op("fadd", _D, z, one))

"""float64 vector code of the exponential and the logarithm, and of what follows from them; float32 `pow` in float64."""

from __future__ import annotations

import math

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


def exp(lanes: Lanes, x: str) -> str:
    """e**x = 2**n * e**r, n = round(x / ln 2)."""
    x = at_least(lanes, at_most(lanes, x, 710.0, _D), -746.0, _D)
    n, bits = _rounded(lanes, x, math.log2(math.e))
    r = lanes.multiply_add(_D, n, _c(lanes, -_LN2_HIGH), x)
    r = lanes.multiply_add(_D, n, _c(lanes, -_LN2_LOW), r)
    return _scaled(lanes, lanes.polynomial(_D, r, _TAYLOR), bits)


def _log_parts(lanes: Lanes, x: str) -> tuple[str, str, str]:
    """(e, f, correction) with x = 2**e * (1 + f) and log(1 + f) = f - correction."""
    denormal = lanes.compare("olt", _D, x, _c(lanes, 2.0**-1022))
    scaled = lanes.select(denormal, _D, lanes.op("fmul", _D, x, _c(lanes, 2.0**54)), x)
    shift = lanes.select(denormal, _D, _c(lanes, -54.0), _c(lanes, 0.0))
    root_half = lanes.constant("i64", 0x3FE6A09E667F3BCD)
    offset = lanes.op("sub", "i64", lanes.bits(_D, scaled), root_half)
    exponent = lanes.op("ashr", "i64", offset, lanes.constant("i64", 52))
    mantissa = lanes.op("and", "i64", offset, lanes.constant("i64", (1 << 52) - 1))
    m = lanes.from_bits(_D, lanes.op("add", "i64", mantissa, root_half))
    f = lanes.op("fsub", _D, m, _c(lanes, 1.0))
    s = lanes.op("fdiv", _D, f, lanes.op("fadd", _D, f, _c(lanes, 2.0)))
    z = lanes.op("fmul", _D, s, s)
    r = lanes.op("fmul", _D, z, lanes.polynomial(_D, z, _LOG))
    half_square = lanes.op("fmul", _D, lanes.op("fmul", _D, f, f), _c(lanes, 0.5))
    product = lanes.op("fmul", _D, s, lanes.op("fadd", _D, half_square, r))
    e = lanes.op("fadd", _D, lanes.convert("sitofp", "i64", _D, exponent), shift)
    return e, f, lanes.op("fsub", _D, half_square, product)


def _edges(lanes: Lanes, x: str, y: str) -> str:
    zero, infinity = _c(lanes, 0.0), _c(lanes, math.inf)
    y = lanes.select(lanes.compare("oge", _D, x, zero), _D, y, _c(lanes, math.nan))
    y = lanes.select(lanes.compare("oeq", _D, x, zero), _D, _c(lanes, -math.inf), y)
    return lanes.select(lanes.compare("oeq", _D, x, infinity), _D, x, y)


def log(lanes: Lanes, x: str) -> str:
    """log(x) = e * ln 2 + log(1 + f), the mantissa taken between sqrt(1/2) and sqrt(2)."""
    e, f, correction = _log_parts(lanes, x)
    low = lanes.multiply_add(_D, e, _c(lanes, -_LN2_LOW), correction)
    y = lanes.op("fsub", _D, f, low)
    return _edges(lanes, x, lanes.multiply_add(_D, e, _c(lanes, _LN2_HIGH), y))


def sigmoid(lanes: Lanes, x: str) -> str:
    """1 / (1 + z) for x >= 0, else z / (1 + z), with z = e**-|x|."""
    z = exp(lanes, lanes.negate(_D, lanes.intrinsic("fabs", _D, x)))
    one = _c(lanes, 1.0)
    top = lanes.select(lanes.compare("oge", _D, x, _c(lanes, 0.0)), _D, one, z)
    return lanes.op("fdiv", _D, top, lanes.op("fadd", _D, z, one))


def pow32(lanes: Lanes, x: str, y: str) -> str:
    """x ** y of float32: exp(y * log|x|) in float64, with the sign and the special cases of C's pow."""
    element = "float"
    size = lanes.intrinsic("fabs", element, x)
    logarithm = log(lanes, lanes.convert("fpext", element, _D, size))
    product = lanes.op("fmul", _D, lanes.convert("fpext", element, _D, y), logarithm)
    result = lanes.convert("fptrunc", _D, element, exp(lanes, product))
    zero, one = lanes.constant(element, 0.0), lanes.constant(element, 1.0)
    half = lanes.op("fmul", element, y, lanes.constant(element, 0.5))
    whole = lanes.compare("oeq", element, lanes.intrinsic("floor", element, y), y)
    half_whole = lanes.compare("oeq", element, lanes.intrinsic("floor", element, half), half)
    odd = lanes.op("and", "i1", whole, lanes.op("xor", "i1", half_whole, "splat (i1 true)"))
    signed = lanes.intrinsic("copysign", element, result, x)
    result = lanes.select(odd, element, signed, result)
    undefined = lanes.op(
        "and", "i1", lanes.compare("olt", element, x, zero), lanes.op("xor", "i1", whole, "splat (i1 true)")
    )
    # An infinite base is positive or has a whole power's sign: only finite negative bases have no real power.
    finite = lanes.compare("one", element, size, lanes.constant(element, math.inf))
    undefined = lanes.op("and", "i1", undefined, finite)
    result = lanes.select(undefined, element, lanes.constant(element, math.nan), result)
    infinite = lanes.compare("oeq", element, lanes.intrinsic("fabs", element, y), lanes.constant(element, math.inf))
    unit = lanes.op("and", "i1", infinite, lanes.compare("oeq", element, size, one))
    unit = lanes.op("or", "i1", unit, lanes.compare("oeq", element, y, zero))
    unit = lanes.op("or", "i1", unit, lanes.compare("oeq", element, x, one))
    return lanes.select(unit, element, one, result)

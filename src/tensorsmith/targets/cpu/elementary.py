"""float32 vector code of exponentials, logarithms, hyperbolic and error functions.

Every function states its range reduction; polynomials are minimax fits in the stated variable, with coefficients from
the highest power down. The bounds in units in the last place are measured by the tests over dense grids.
"""

from __future__ import annotations

import math

from tensorsmith.targets.cpu import erf_table
from tensorsmith.targets.cpu.vector import Lanes

_F = "float"
_INFINITY = math.inf
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts: n * high is exact
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number, which then sits in the low bits
_ROUNDER_BITS = 0x4B400000
_EXP = (0.001382074202, 0.00836924836, 0.04166828096, 0.1666651666, 0.4999999404)  # (e**r - 1 - r) / r**2
_EXPM1 = (0.0001976699423, 0.001393322833, 0.008333541453, 0.04166648537, 0.1666666567, 0.5)
_EXP2 = (1.432090539e-05, 0.0001545219711, 0.001333796652, 0.00961808674, 0.05550405011, 0.2402265072, 0.6931471825)
_LOG = (0.06749556214, -0.1167019233, 0.1188347042, -0.1240620762, 0.142203629, -0.1666799039, 0.2000207156,
        -0.2500000894, 0.3333331347)  # (log(1 + f) - f + f**2 / 2) / f**3  # fmt: skip
_ERF_SMALL = (7.520992221e-05, -0.0007912919652, 0.005177722523, -0.02684851504, 0.1128346641, -0.3761261617,
              0.1283791645)  # erf(x) / x - 1 in x**2  # fmt: skip
_ERF_LARGE = (-0.0001669426627, 0.003060876701, -0.02121052045, 0.06296812095, -0.04465565628, -0.06974438866,
              -0.3050540134, 1.004572286)  # (1 - erf(t))**(1/4)  # fmt: skip
_TANH = (-0.005697345827, 0.02063172311, -0.05373726785, 0.1333141029, -0.3333328068)  # (tanh(x) - x) / x**3 in x**2
_ERFC = (8.294985301708302e-05, 0.00017599783450662228, -0.00040185042232726597, -0.0014282946878831613,
         0.0012512279601319227, 0.008712118377847113, -0.008030049810149792, -0.054218337387046386, 0.16405091594097349,
         -0.16603049044431964, -0.09276381608098316, 1.2769783823596608)  # (1 + 2 a) e**(a**2) erfc(a) in (a - 2) / (a + 2)
_SINH = (2.782213187e-06, 0.0001984289556, 0.008333310485, 0.1666666716)  # (sinh(x) - x) / x**3 in x**2


def at_most(lanes: Lanes, x: str, high: float, element: str = _F) -> str:
    """The smaller of x and a constant; NaN stays NaN."""
    bound = lanes.constant(element, high)
    return lanes.select(lanes.compare("ogt", element, x, bound), element, bound, x)


def at_least(lanes: Lanes, x: str, low: float, element: str = _F) -> str:
    """The larger of x and a constant; NaN stays NaN."""
    bound = lanes.constant(element, low)
    return lanes.select(lanes.compare("olt", element, x, bound), element, bound, x)


def _c(lanes: Lanes, value: float) -> str:
    return lanes.constant(_F, value)


def _rounded(lanes: Lanes, x: str, factor: float) -> tuple[str, str]:
    """(n, its bits as i32) with n = x * factor rounded to a whole number."""
    shifted = lanes.multiply_add(_F, x, _c(lanes, factor), _c(lanes, _ROUNDER))
    n = lanes.op("fsub", _F, shifted, _c(lanes, _ROUNDER))
    return n, lanes.op("sub", "i32", lanes.bits(_F, shifted), lanes.constant("i32", _ROUNDER_BITS))


def _power_of_two(lanes: Lanes, n: str) -> str:
    """2**n for an i32 vector -126 <= n <= 127, by its bits."""
    biased = lanes.op("add", "i32", n, lanes.constant("i32", 127))
    return lanes.from_bits(_F, lanes.op("shl", "i32", biased, lanes.constant("i32", 23)))


def _scaled(lanes: Lanes, y: str, n: str, n_bits: str) -> str:
    """y * 2**n for |n| <= 252, correctly rounded into denormals."""
    if lanes.machine.name == "avx512" and lanes.count == 16:
        vector = lanes.type(_F)
        operands = ((vector, y), (vector, n), (vector, "zeroinitializer"), ("i16", -1), ("i32", 4))
        return lanes.function.call(vector, "llvm.x86.avx512.mask.scalef.ps.512", *operands)
    half = lanes.op("ashr", "i32", n_bits, lanes.constant("i32", 1))
    for part in (half, lanes.op("sub", "i32", n_bits, half)):
        y = lanes.op("fmul", _F, y, _power_of_two(lanes, part))
    return y


def _exp_core(lanes: Lanes, x: str, halved: bool = False, correction: str | None = None) -> str:
    """exp(x + correction), or half of it, for x within [-104, 89.5] or NaN: 2**n * e**r with |r| <= ln 2 / 2."""
    n, bits = _rounded(lanes, x, math.log2(math.e))
    r = lanes.multiply_add(_F, n, _c(lanes, -_LN2_HIGH), x)
    r = lanes.multiply_add(_F, n, _c(lanes, -_LN2_LOW), r)
    if correction is not None:
        r = lanes.op("fadd", _F, r, correction)
    p = lanes.polynomial(_F, r, (*_EXP, 1.0, 1.0))
    if halved:
        n, bits = lanes.op("fsub", _F, n, _c(lanes, 1.0)), lanes.op("sub", "i32", bits, lanes.constant("i32", 1))
    return _scaled(lanes, p, n, bits)


def exp(lanes: Lanes, x: str) -> str:
    """e**x = 2**n * e**r, n = round(x / ln 2)."""
    return _exp_core(lanes, at_least(lanes, at_most(lanes, x, 89.0), -104.0))


def exp2(lanes: Lanes, x: str) -> str:
    """2**x = 2**n * 2**r, n = round(x)."""
    x = at_least(lanes, at_most(lanes, x, 129.0), -151.0)
    n, bits = _rounded(lanes, x, 1.0)
    r = lanes.op("fsub", _F, x, n)
    return _scaled(lanes, lanes.polynomial(_F, r, (*_EXP2, 1.0)), n, bits)


def _expm1_core(lanes: Lanes, x: str) -> str:
    """e**x - 1 for x within [-18, 89]: 2 * (2**(n-1) * (e**r - 1) + (2**(n-1) - 1/2))."""
    n, bits = _rounded(lanes, x, math.log2(math.e))
    r = lanes.multiply_add(_F, n, _c(lanes, -_LN2_HIGH), x)
    r = lanes.multiply_add(_F, n, _c(lanes, -_LN2_LOW), r)
    p = lanes.multiply_add(_F, lanes.op("fmul", _F, r, r), lanes.polynomial(_F, r, _EXPM1), r)
    half = _power_of_two(lanes, lanes.op("sub", "i32", bits, lanes.constant("i32", 1)))
    y = lanes.multiply_add(_F, half, p, lanes.op("fsub", _F, half, _c(lanes, 0.5)))
    return lanes.op("fadd", _F, y, y)


def expm1(lanes: Lanes, x: str) -> str:
    """e**x - 1 without cancellation near 0; zeros keep their sign."""
    y = _expm1_core(lanes, at_least(lanes, at_most(lanes, x, 89.0), -18.0))
    return lanes.select(lanes.compare("oeq", _F, x, _c(lanes, 0.0)), _F, x, y)


def _log_parts(lanes: Lanes, x: str, low_part: str | None = None) -> tuple[str, str, str]:
    """(e as a float, f, log(1 + f) - f) with x + low_part = 2**e * (1 + f) and sqrt(1/2) <= 1 + f < sqrt(2)."""
    denormal = lanes.compare("olt", _F, x, _c(lanes, 2.0**-126))
    scaled = lanes.select(denormal, _F, lanes.op("fmul", _F, x, _c(lanes, 2.0**23)), x)
    shift = lanes.select(denormal, _F, _c(lanes, -23.0), _c(lanes, 0.0))
    root_half = lanes.constant("i32", 0x3F3504F3)
    offset = lanes.op("sub", "i32", lanes.bits(_F, scaled), root_half)
    exponent = lanes.op("ashr", "i32", offset, lanes.constant("i32", 23))
    mantissa = lanes.op("and", "i32", offset, lanes.constant("i32", 0x007FFFFF))
    m = lanes.from_bits(_F, lanes.op("add", "i32", mantissa, root_half))
    f = lanes.op("fsub", _F, m, _c(lanes, 1.0))
    if low_part is not None:
        negated = lanes.op("sub", "i32", lanes.constant("i32", 0), exponent)
        inverse = _power_of_two(lanes, lanes.intrinsic("smax", "i32", negated, lanes.constant("i32", -126)))
        f = lanes.multiply_add(_F, low_part, inverse, f)
    e = lanes.op("fadd", _F, lanes.convert("sitofp", "i32", "float", exponent), shift)
    square = lanes.op("fmul", _F, f, f)
    p = lanes.op("fmul", _F, f, lanes.polynomial(_F, f, _LOG))
    return e, f, lanes.op("fmul", _F, square, lanes.op("fsub", _F, p, _c(lanes, 0.5)))


def _log_edges(lanes: Lanes, x: str, y: str) -> str:
    """The logarithm's special values: -inf at 0, inf at inf, NaN below 0 and at NaN."""
    y = lanes.select(lanes.compare("oge", _F, x, _c(lanes, 0.0)), _F, y, _c(lanes, math.nan))
    y = lanes.select(lanes.compare("oeq", _F, x, _c(lanes, 0.0)), _F, _c(lanes, -_INFINITY), y)
    return lanes.select(lanes.compare("oeq", _F, x, _c(lanes, _INFINITY)), _F, x, y)


def _log_core(lanes: Lanes, x: str, low_part: str | None = None) -> str:
    e, f, rest = _log_parts(lanes, x, low_part)
    rest = lanes.multiply_add(_F, e, _c(lanes, _LN2_LOW), rest)
    return lanes.multiply_add(_F, e, _c(lanes, _LN2_HIGH), lanes.op("fadd", _F, f, rest))


def log(lanes: Lanes, x: str) -> str:
    """log(x) = e * ln 2 + log(1 + f), the mantissa taken between sqrt(1/2) and sqrt(2)."""
    return _log_edges(lanes, x, _log_core(lanes, x))


def log1p(lanes: Lanes, x: str) -> str:
    """log(1 + x): the logarithm of u = 1 + x, with what u rounds away added to the mantissa."""
    one = _c(lanes, 1.0)
    u = lanes.op("fadd", _F, x, one)
    # The low part is x - (u - 1) for |x| < 1, else 1 - (u - x); both are exact.
    small = lanes.op("fsub", _F, x, lanes.op("fsub", _F, u, one))
    large = lanes.op("fsub", _F, one, lanes.op("fsub", _F, u, x))
    low = lanes.select(lanes.compare("ogt", _F, x, one), _F, large, small)
    huge = lanes.compare("ogt", _F, x, _c(lanes, 2.0**40))  # also keeps inf - inf out
    low = lanes.select(huge, _F, _c(lanes, 0.0), low)
    y = _log_edges(lanes, u, _log_core(lanes, u, low))
    return lanes.select(lanes.compare("oeq", _F, x, _c(lanes, 0.0)), _F, x, y)


def _scaled_log(lanes: Lanes, x: str, factor: float, exponent: tuple[float, float]) -> str:
    """log(x) * factor with the leading product in two parts; `exponent` is log(2) * factor in two parts."""
    e, f, rest = _log_parts(lanes, x)
    high = _upper(factor)
    total = lanes.op("fmul", _F, rest, _c(lanes, factor))
    total = lanes.multiply_add(_F, f, _c(lanes, factor - high), total)
    total = lanes.multiply_add(_F, e, _c(lanes, exponent[1]), total)
    total = lanes.multiply_add(_F, f, _c(lanes, high), total)
    return _log_edges(lanes, x, lanes.multiply_add(_F, e, _c(lanes, exponent[0]), total))


def _upper(value: float) -> float:
    """The leading 12 bits of a positive constant, so that the rest fits a float32."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * 4096), exponent - 12)


def log2(lanes: Lanes, x: str) -> str:
    """log2(x) = e + log(1 + f) / ln 2."""
    return _scaled_log(lanes, x, math.log2(math.e), (1.0, 0.0))


def log10(lanes: Lanes, x: str) -> str:
    """log10(x) = e * log10(2) + log(1 + f) / ln 10."""
    high = _upper(math.log10(2.0))
    return _scaled_log(lanes, x, math.log10(math.e), (high, math.log10(2.0) - high))


def tanh(lanes: Lanes, x: str) -> str:
    """A polynomial for |x| < 0.625, else t / (t + 2) with t = e**(2|x|) - 1; 1 from |x| = 9.1 on."""
    size = at_most(lanes, lanes.intrinsic("fabs", _F, x), 9.1)
    t = _expm1_core(lanes, lanes.op("fadd", _F, size, size))
    y = lanes.op("fdiv", _F, t, lanes.op("fadd", _F, t, _c(lanes, 2.0)))
    square = lanes.op("fmul", _F, x, x)
    near = lanes.multiply_add(_F, lanes.op("fmul", _F, square, x), lanes.polynomial(_F, square, _TANH), x)
    y = lanes.select(lanes.compare("olt", _F, size, _c(lanes, 0.625)), _F, near, y)
    return lanes.intrinsic("copysign", _F, y, x)  # of both: the polynomial gives 0 for -0


def _large_exponentials(lanes: Lanes, size: str) -> tuple[str, str]:
    """(e**s / 2, e**-s / 2) without overflow before the result does."""
    half = _exp_core(lanes, at_most(lanes, size, 89.5), halved=True)
    return half, lanes.op("fdiv", _F, _c(lanes, 0.25), half)


def sinh(lanes: Lanes, x: str) -> str:
    """A polynomial for |x| < 1, else (e**|x| - e**-|x|) / 2."""
    size = lanes.intrinsic("fabs", _F, x)
    square = lanes.op("fmul", _F, x, x)
    cube = lanes.op("fmul", _F, square, x)
    near = lanes.multiply_add(_F, cube, lanes.polynomial(_F, square, _SINH), x)
    grown, decayed = _large_exponentials(lanes, size)
    far = lanes.intrinsic("copysign", _F, lanes.op("fsub", _F, grown, decayed), x)
    return lanes.select(lanes.compare("olt", _F, size, _c(lanes, 1.0)), _F, near, far)


def cosh(lanes: Lanes, x: str) -> str:
    """(e**|x| + e**-|x|) / 2."""
    grown, decayed = _large_exponentials(lanes, lanes.intrinsic("fabs", _F, x))
    return lanes.op("fadd", _F, grown, decayed)


def sigmoid(lanes: Lanes, x: str) -> str:
    """1 / (1 + z) for x >= 0, else z / (1 + z), with z = e**-|x|."""
    size = lanes.intrinsic("fabs", _F, x)
    z = _exp_core(lanes, at_least(lanes, lanes.negate(_F, size), -104.0))
    one = _c(lanes, 1.0)
    top = lanes.select(lanes.compare("oge", _F, x, _c(lanes, 0.0)), _F, one, z)
    return lanes.op("fdiv", _F, top, lanes.op("fadd", _F, z, one))


def softplus(lanes: Lanes, x: str) -> str:
    """max(x, 0) + log1p(e**-|x|)."""
    one = _c(lanes, 1.0)
    z = _exp_core(lanes, at_least(lanes, lanes.negate(_F, lanes.intrinsic("fabs", _F, x)), -104.0))
    u = lanes.op("fadd", _F, z, one)
    low = lanes.op("fsub", _F, z, lanes.op("fsub", _F, u, one))
    small = _log_core(lanes, u, low)
    zero = _c(lanes, 0.0)
    positive = lanes.select(lanes.compare("ole", _F, x, zero), _F, zero, x)
    return lanes.op("fadd", _F, positive, small)


def erf(lanes: Lanes, x: str) -> str:
    """x + x * P(x**2) for |x| <= 1.05, else 1 - Q(|x|)**4; by table where there are permutes."""
    if lanes.machine.name == "avx512" and lanes.count == 16:
        return erf_table.erf(lanes, x)
    t = at_most(lanes, lanes.intrinsic("fabs", _F, x), 4.2)  # where Q**4 is less than half of the last place of 1
    near = lanes.multiply_add(_F, x, lanes.polynomial(_F, lanes.op("fmul", _F, x, x), _ERF_SMALL), x)
    root = lanes.polynomial(_F, t, _ERF_LARGE)
    square = lanes.op("fmul", _F, root, root)
    rest = lanes.multiply_add(_F, lanes.negate(_F, square), square, _c(lanes, 1.0))
    far = lanes.intrinsic("copysign", _F, rest, x)
    return lanes.select(lanes.compare("ole", _F, t, _c(lanes, 1.05)), _F, near, far)


def erfc(lanes: Lanes, x: str) -> str:
    """1 - erf(x) for |x| <= 1/2, else P(t) * e**(-a**2) / (1 + 2 a) with a = |x|, t = (a - 2) / (a + 2), from 2 below 0."""
    size = lanes.intrinsic("fabs", _F, x)
    a = at_most(lanes, size, 10.1)
    two = _c(lanes, 2.0)
    t = lanes.op("fdiv", _F, lanes.op("fsub", _F, a, two), lanes.op("fadd", _F, a, two))
    p = lanes.polynomial(_F, t, _ERFC)
    # a = h + l with a short h, so that h * h is exact: a**2 = h * h + l * (a + h).
    h = lanes.from_bits(_F, lanes.op("and", "i32", lanes.bits(_F, a), lanes.constant("i32", -(1 << 12))))
    rest = lanes.op("fmul", _F, lanes.op("fsub", _F, h, a), lanes.op("fadd", _F, a, h))
    decay = _exp_core(lanes, lanes.negate(_F, lanes.op("fmul", _F, h, h)), correction=rest)
    far = lanes.op("fmul", _F, lanes.op("fdiv", _F, p, lanes.multiply_add(_F, a, two, _c(lanes, 1.0))), decay)
    negative = lanes.compare("olt", _F, x, _c(lanes, 0.0))
    far = lanes.select(negative, _F, lanes.op("fsub", _F, two, far), far)
    near = lanes.multiply_add(_F, x, lanes.polynomial(_F, lanes.op("fmul", _F, x, x), _ERF_SMALL), x)
    near = lanes.op("fsub", _F, _c(lanes, 1.0), near)
    return lanes.select(lanes.compare("ole", _F, size, _c(lanes, 0.5)), _F, near, far)


def atanh(lanes: Lanes, x: str) -> str:
    """log1p(2|x| / (1 - |x|)) / 2."""
    size = lanes.intrinsic("fabs", _F, x)
    twice = lanes.op("fadd", _F, size, size)
    y = log1p(lanes, lanes.op("fdiv", _F, twice, lanes.op("fsub", _F, _c(lanes, 1.0), size)))
    y = lanes.op("fmul", _F, y, _c(lanes, 0.5))
    outside = lanes.compare("ogt", _F, size, _c(lanes, 1.0))
    return lanes.select(outside, _F, _c(lanes, math.nan), lanes.intrinsic("copysign", _F, y, x))

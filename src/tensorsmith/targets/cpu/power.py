"""Vector code of x ** y: float32 by float64, float64 by a logarithm of twice the precision.

Where all lanes have the same small exponent (`x ** 2` of a tensor and a number) it is multiplied out instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorsmith.targets.cpu import elementary64 as e64
from tensorsmith.targets.cpu.library import library_call
from tensorsmith.targets.cpu.vector import Lanes

_D = "double"
_THIRD_LOW = 1.8503717077085941e-17  # 1/3 less its float64
# 1/5, 1/7, ... : log(1 + f) = 2 s + 2 s**3 (1/3 + s**2 / 5 + ...), s = f / (2 + f), |s| < 0.172; 4e-19 off
_ODD = tuple(1.0 / k for k in range(23, 4, -2))
_ODD_SHORT = (0.1166548202588602, 0.14275401276638355, 0.2000006100040844, 0.3333333327715009)  # 2e-11 off
_EXP_SHORT = (
    0.0001989101718430203, 0.0013933673732931852, 0.00833331090172597, 0.04166646471137908, 0.16666666681647016,
    0.5000000013487226, 1.0, 1.0,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.6931471805598903, 5.497923018708371e-14  # n * high is exact
Power = Callable[[Lanes, str, str], str]


def power(lanes: Lanes, element: str, x: str, y: str) -> str:
    """x ** y, by multiplication where every exponent is 2 (or every one is 3, 1/2 or -1)."""
    f, vector = lanes.function, lanes.type(element)

    def multiplied(exponent: float) -> list[str]:
        if exponent == 2:
            return [lanes.op("fmul", element, x, x)]
        if exponent == 3:
            return [lanes.op("fmul", element, lanes.op("fmul", element, x, x), x)]
        if exponent == -1:
            return [lanes.op("fdiv", element, lanes.constant(element, 1.0), x)]
        zero, infinity = lanes.constant(element, 0.0), lanes.constant(element, math.inf)
        root = lanes.op("fadd", element, lanes.intrinsic("sqrt", element, x), zero)  # +0 of -0
        lowest = lanes.compare("oeq", element, x, lanes.constant(element, -math.inf))
        return [lanes.select(lowest, element, infinity, root)]

    def otherwise(exponents: tuple[float, ...]) -> list[str]:
        if not exponents:
            return [power32(lanes, x, y) if element == "float" else power64(lanes, x, y)]
        other = lanes.any(lanes.compare("une", element, y, lanes.constant(element, exponents[0])))
        return f.choose(other, [vector], lambda: otherwise(exponents[1:]), lambda: multiplied(exponents[0]))

    return otherwise((2.0, 3.0, 0.5, -1.0))[0]


def _special(lanes: Lanes, element: str, x: str, y: str, result: str) -> str:
    """The sign and the special cases of C's pow around |x| ** y."""
    size = lanes.intrinsic("fabs", element, x)
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


def power32(lanes: Lanes, x: str, y: str) -> str:
    """x ** y of float32: exp(y * log|x|) in float64, with polynomials for the precision of float32."""
    element = "float"
    size = lanes.intrinsic("fabs", element, x)
    wide = lanes.convert("fpext", element, _D, size)  # no float64 is denormal here
    root_half = lanes.constant("i64", 0x3FE6A09E667F3BCD)
    offset = lanes.op("sub", "i64", lanes.bits(_D, wide), root_half)
    exponent = lanes.op("ashr", "i64", offset, lanes.constant("i64", 52))
    mantissa = lanes.op("and", "i64", offset, lanes.constant("i64", (1 << 52) - 1))
    m = lanes.from_bits(_D, lanes.op("add", "i64", mantissa, root_half))
    e = lanes.convert("sitofp", "i64", _D, exponent)
    one = lanes.constant(_D, 1.0)
    s = lanes.op("fdiv", _D, lanes.op("fsub", _D, m, one), lanes.op("fadd", _D, m, one))
    z, twice = lanes.op("fmul", _D, s, s), lanes.op("fadd", _D, s, s)
    logarithm = lanes.multiply_add(_D, lanes.op("fmul", _D, twice, z), lanes.polynomial(_D, z, _ODD_SHORT), twice)
    logarithm = lanes.multiply_add(_D, e, lanes.constant(_D, math.log(2.0)), logarithm)
    product = lanes.op("fmul", _D, lanes.convert("fpext", element, _D, y), logarithm)
    product = e64.at_least(lanes, e64.at_most(lanes, product, 135.0, _D), -160.0, _D)
    result = lanes.convert("fptrunc", _D, element, e64.exp_short(lanes, product, _EXP_SHORT))
    # log 0 and log inf are no multiples of ln 2: the result is 0 or inf by the sign of y.
    zero, infinity = lanes.constant(element, 0.0), lanes.constant(element, math.inf)
    empty = lanes.compare("oeq", element, size, zero)
    edge = lanes.op("or", "i1", empty, lanes.compare("oeq", element, size, infinity))
    falls = lanes.op("xor", "i1", empty, lanes.compare("olt", element, y, zero))
    result = lanes.select(edge, element, lanes.select(falls, element, zero, infinity), result)
    unordered = lanes.compare("uno", element, x, y)
    result = lanes.select(unordered, element, lanes.constant(element, math.nan), result)
    return _special(lanes, element, x, y, result)


def _product(lanes: Lanes, a: str, b: str) -> tuple[str, str]:
    """a * b and what it rounds away."""
    high = lanes.op("fmul", _D, a, b)
    return high, lanes.fma(_D, a, b, lanes.negate(_D, high))


def _sum(lanes: Lanes, a: str, b: str) -> tuple[str, str]:
    """a + b and what it rounds away, for |a| >= |b|."""
    high = lanes.op("fadd", _D, a, b)
    return high, lanes.op("fsub", _D, b, lanes.op("fsub", _D, high, a))


def _logarithm(lanes: Lanes, x: str) -> tuple[str, str]:
    """log(x) of positive finite x as the sum of two float64, to about 2**-65 of it."""
    e, m = e64.exponent_and_mantissa(lanes, x)
    one, two = lanes.constant(_D, 1.0), lanes.constant(_D, 2.0)
    f, below = lanes.op("fsub", _D, m, one), lanes.op("fadd", _D, m, one)
    # s = f / (m + 1); the remainder of the division and the rounding of m + 1 give its low part.
    s = lanes.op("fdiv", _D, f, below)
    lost = lanes.op("fsub", _D, m, lanes.op("fsub", _D, below, one))
    rest = lanes.fma(_D, lanes.negate(_D, s), below, f)
    rest = lanes.fma(_D, lanes.negate(_D, s), lost, rest)
    s_low = lanes.op("fdiv", _D, rest, below)
    z, z_low = _product(lanes, s, s)
    z_low = lanes.fma(_D, lanes.op("fmul", _D, s, two), s_low, z_low)
    tail, tail_low = _product(lanes, z, lanes.polynomial(_D, z, _ODD))
    p, p_low = _sum(lanes, lanes.constant(_D, 1 / 3), tail)
    p_low = lanes.op("fadd", _D, p_low, lanes.op("fadd", _D, tail_low, lanes.constant(_D, _THIRD_LOW)))
    q, q_low = _product(lanes, z, p)
    q_low = lanes.op("fadd", _D, q_low, lanes.fma(_D, z, p_low, lanes.op("fmul", _D, z_low, p)))
    # log(1 + f) = 2 s (1 + q)
    r, r_low = _product(lanes, s, q)
    r_low = lanes.op("fadd", _D, r_low, lanes.fma(_D, s, q_low, lanes.op("fmul", _D, s_low, q)))
    high, low = _sum(lanes, s, r)
    low = lanes.op("fadd", _D, low, lanes.op("fadd", _D, s_low, r_low))
    high, low = lanes.op("fadd", _D, high, high), lanes.op("fadd", _D, low, low)
    total, more = _sum(lanes, lanes.op("fmul", _D, e, lanes.constant(_D, _LN2_HIGH)), high)
    more = lanes.op("fadd", _D, more, lanes.fma(_D, e, lanes.constant(_D, _LN2_LOW), low))
    return _sum(lanes, total, more)


def power64(lanes: Lanes, x: str, y: str) -> str:
    """x ** y of float64: exp of the product of y and the logarithm in two parts (the C library without fused products)."""
    if lanes.machine.name == "generic":
        return library_call(lanes, _D, "pow", (x, y))
    size = lanes.intrinsic("fabs", _D, x)
    zero, infinity = lanes.constant(_D, 0.0), lanes.constant(_D, math.inf)
    usual = lanes.op(
        "and", "i1", lanes.compare("ogt", _D, size, zero), lanes.compare("olt", _D, size, infinity)
    )
    high, low = _logarithm(lanes, lanes.select(usual, _D, size, lanes.constant(_D, 1.0)))
    edge = lanes.select(lanes.compare("oeq", _D, size, zero), _D, lanes.constant(_D, -math.inf), size)  # inf or NaN
    bound = lanes.constant(_D, 2.0**1000)  # the exponent is cut where the result is 0, 1 or inf anyway
    cut = lanes.select(lanes.compare("ogt", _D, y, bound), _D, bound, y)
    negative = lanes.constant(_D, -(2.0**1000))
    cut = lanes.select(lanes.compare("olt", _D, cut, negative), _D, negative, cut)
    product, rest = _product(lanes, cut, high)
    rest = lanes.fma(_D, cut, low, rest)
    bounded = e64.at_least(lanes, e64.at_most(lanes, product, 710.0, _D), -746.0, _D)
    inside = lanes.compare("oeq", _D, bounded, product)
    rest = lanes.select(inside, _D, rest, zero)
    result = e64.exp_core(lanes, bounded, 0, rest)
    extreme = e64.exp(lanes, lanes.op("fmul", _D, cut, edge))
    return _special(lanes, _D, x, y, lanes.select(usual, _D, result, extreme))

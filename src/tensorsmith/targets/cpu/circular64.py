"""float64 vector code of the circular functions and their inverses.

Arguments are reduced modulo pi / 2 by three parts of it with 33 bits each, whose products with n are exact up to |x| = 2**19;
beyond that the C library is called. What the reduced argument rounds away is carried along. Kernels of sine and cosine
and of asin are those of fdlibm, atan is a minimax polynomial in t**2, |t| <= tan(pi / 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorsmith.targets.cpu.library import library_call
from tensorsmith.targets.cpu.vector import Lanes

_D = "double"
_SIN = (1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
        -1.98412698298579493134e-04, 8.33333333332248946124e-03)  # fmt: skip
_SIN_FIRST = -1.66666666666666324348e-01
_COS = (-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
        2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02)  # fmt: skip
_ASIN_ABOVE = (3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
               2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01)  # fmt: skip
_ASIN_BELOW = (7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00,
               -2.40339491173441421878e00, 1.0)  # fmt: skip
_ATAN = (
    -0.01391619613961017, 0.030633694931617585, -0.04104349551664522, 0.04719373571989158, -0.05258038193993904,
    0.05881924906427421, -0.06666641996244854, 0.07692306734927001, -0.09090909066979425, 0.11111111110754218,
    -0.14285714285711515, 0.19999999999999993, -0.3333333333333333,
)  # fmt: skip
_ROUNDER = 6755399441055744.0  # 1.5 * 2**52
_HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624871116645580e-21)
_HALF_PI_LOW = 6.123233995736766036e-17  # pi / 2 less its float64
_TAN_EIGHTH = 0.41421356237309503


def _c(lanes: Lanes, value: float) -> str:
    return lanes.constant(_D, value)


def _reduced(lanes: Lanes, x: str) -> tuple[str, str, str]:
    """(r, what r rounds away, quadrant as i64) with x = quadrant * pi / 2 + r and |r| <= pi / 4."""
    rounder = _c(lanes, _ROUNDER)
    shifted = lanes.op("fadd", _D, lanes.op("fmul", _D, x, _c(lanes, 2 / math.pi)), rounder)
    n = lanes.op("fsub", _D, shifted, rounder)
    first = lanes.op("fsub", _D, x, lanes.op("fmul", _D, n, _c(lanes, _HALF_PI[0])))
    second = lanes.op("fmul", _D, n, _c(lanes, _HALF_PI[1]))
    r = lanes.op("fsub", _D, first, second)
    back = lanes.op("fsub", _D, r, first)
    low = lanes.op(
        "fsub", _D, lanes.op("fsub", _D, first, lanes.op("fsub", _D, r, back)), lanes.op("fadd", _D, second, back)
    )
    low = lanes.multiply_add(_D, n, _c(lanes, -_HALF_PI[2]), low)
    total = lanes.op("fadd", _D, r, low)
    rest = lanes.op("fsub", _D, low, lanes.op("fsub", _D, total, r))
    return total, rest, lanes.bits(_D, shifted)


def _sine(lanes: Lanes, r: str, low: str, square: str) -> str:
    """sin(r + low)."""
    cube = lanes.op("fmul", _D, square, r)
    tail = lanes.polynomial(_D, square, _SIN)
    half = lanes.op("fmul", _D, low, _c(lanes, 0.5))
    inner = lanes.op("fsub", _D, half, lanes.op("fmul", _D, cube, tail))
    rest = lanes.op("fsub", _D, lanes.op("fmul", _D, square, inner), low)
    rest = lanes.multiply_add(_D, cube, _c(lanes, -_SIN_FIRST), rest)
    return lanes.op("fsub", _D, r, rest)


def _cosine(lanes: Lanes, r: str, low: str, square: str) -> str:
    """cos(r + low)."""
    tail = lanes.op("fmul", _D, square, lanes.polynomial(_D, square, _COS))
    half = lanes.op("fmul", _D, square, _c(lanes, 0.5))
    one = _c(lanes, 1.0)
    start = lanes.op("fsub", _D, one, half)
    lost = lanes.op("fsub", _D, lanes.op("fsub", _D, one, start), half)
    rest = lanes.op("fsub", _D, lanes.op("fmul", _D, square, tail), lanes.op("fmul", _D, r, low))
    return lanes.op("fadd", _D, start, lanes.op("fadd", _D, lost, rest))


def _signed(lanes: Lanes, y: str, quadrant: str, bit: int, place: int) -> str:
    """y with its sign flipped where `bit` of the quadrant is set; `place` moves that bit to the sign."""
    flag = lanes.op("and", "i64", quadrant, lanes.constant("i64", bit))
    sign = lanes.op("shl", "i64", flag, lanes.constant("i64", place))
    return lanes.from_bits(_D, lanes.op("xor", "i64", lanes.bits(_D, y), sign))


def _odd(lanes: Lanes, quadrant: str) -> str:
    last = lanes.op("and", "i64", quadrant, lanes.constant("i64", 1))
    return lanes.compare("ne", "i64", last, lanes.constant("i64", 0))


def _guarded(lanes: Lanes, x: str, name: str, usual: Callable[[], str]) -> str:
    """`usual()`, or the C library's function of every lane where any is too large (or infinite)."""
    large = lanes.any(lanes.compare("ogt", _D, lanes.intrinsic("fabs", _D, x), _c(lanes, 2.0**19)))
    return lanes.function.choose(
        large, [lanes.type(_D)], lambda: [library_call(lanes, _D, name, [x])], lambda: [usual()], rare=True
    )[0]


def _both(lanes: Lanes, x: str) -> tuple[str, str, str]:
    """(sine, cosine, quadrant) of the reduced argument."""
    r, low, quadrant = _reduced(lanes, x)
    square = lanes.op("fmul", _D, r, r)
    return _sine(lanes, r, low, square), _cosine(lanes, r, low, square), quadrant


def sin(lanes: Lanes, x: str) -> str:
    """sin(r) or cos(r) by the quadrant, with the quadrant's sign."""

    def usual() -> str:
        sine, cosine, quadrant = _both(lanes, x)
        y = _signed(lanes, lanes.select(_odd(lanes, quadrant), _D, cosine, sine), quadrant, 2, 62)
        return lanes.select(lanes.compare("oeq", _D, x, _c(lanes, 0.0)), _D, x, y)

    return _guarded(lanes, x, "sin", usual)


def cos(lanes: Lanes, x: str) -> str:
    """The sine one quadrant on."""

    def usual() -> str:
        sine, cosine, quadrant = _both(lanes, x)
        y = lanes.select(_odd(lanes, quadrant), _D, sine, cosine)
        return _signed(lanes, y, lanes.op("add", "i64", quadrant, lanes.constant("i64", 1)), 2, 62)

    return _guarded(lanes, x, "cos", usual)


def tan(lanes: Lanes, x: str) -> str:
    """sin(r) / cos(r), or -cos(r) / sin(r) in odd quadrants."""

    def usual() -> str:
        sine, cosine, quadrant = _both(lanes, x)
        odd = _odd(lanes, quadrant)
        y = lanes.op("fdiv", _D, lanes.select(odd, _D, cosine, sine), lanes.select(odd, _D, sine, cosine))
        y = _signed(lanes, y, quadrant, 1, 63)
        return lanes.select(lanes.compare("oeq", _D, x, _c(lanes, 0.0)), _D, x, y)

    return _guarded(lanes, x, "tan", usual)


def _atan_of_ratio(lanes: Lanes, small: str, large: str) -> tuple[str, str]:
    """(atan(small / large) less its start, the start: 0 or pi / 4) for 0 <= small <= large."""
    above = lanes.compare("ogt", _D, small, lanes.op("fmul", _D, large, _c(lanes, _TAN_EIGHTH)))
    top = lanes.select(above, _D, lanes.op("fsub", _D, small, large), small)
    bottom = lanes.select(above, _D, lanes.op("fadd", _D, small, large), large)
    t = lanes.op("fdiv", _D, top, bottom)
    square = lanes.op("fmul", _D, t, t)
    y = lanes.multiply_add(_D, lanes.op("fmul", _D, t, square), lanes.polynomial(_D, square, _ATAN), t)
    low = lanes.select(above, _D, _c(lanes, _HALF_PI_LOW / 2), _c(lanes, 0.0))
    return lanes.op("fadd", _D, y, low), lanes.select(above, _D, _c(lanes, math.pi / 4), _c(lanes, 0.0))


def _from_half_pi(lanes: Lanes, turned: str, y: str, start: str) -> str:
    """start + y, or pi / 2 less that where `turned` is set."""
    rest = lanes.op("fsub", _D, _c(lanes, math.pi / 2), start)  # exact
    low = lanes.op("fsub", _D, _c(lanes, _HALF_PI_LOW), y)
    return lanes.select(turned, _D, lanes.op("fadd", _D, rest, low), lanes.op("fadd", _D, start, y))


def atan(lanes: Lanes, x: str) -> str:
    """atan(t) for t = |x| <= 1, pi / 2 - atan(1 / t) above."""
    one, size = _c(lanes, 1.0), lanes.intrinsic("fabs", _D, x)
    above = lanes.compare("ogt", _D, size, one)
    bounded = lanes.select(lanes.compare("ogt", _D, size, _c(lanes, 1e300)), _D, _c(lanes, 1e300), size)
    small, large = lanes.select(above, _D, one, size), lanes.select(above, _D, bounded, one)
    y, start = _atan_of_ratio(lanes, small, large)
    return lanes.intrinsic("copysign", _D, _from_half_pi(lanes, above, y, start), x)


def atan2(lanes: Lanes, y: str, x: str) -> str:
    """The angle of (x, y): atan of the smaller size over the larger one, moved to its octant."""
    height, width = lanes.intrinsic("fabs", _D, y), lanes.intrinsic("fabs", _D, x)
    turned = lanes.compare("ogt", _D, height, width)
    small = lanes.select(turned, _D, width, height)
    large = lanes.select(turned, _D, height, width)
    zero, one, infinity = _c(lanes, 0.0), _c(lanes, 1.0), _c(lanes, math.inf)
    # 0 / 0 counts as 0 / 1, and inf / inf as 1 / 1; large sums must not overflow.
    small = lanes.select(lanes.compare("oeq", _D, small, infinity), _D, one, small)
    both = lanes.op(
        "and", "i1", lanes.compare("oeq", _D, height, infinity), lanes.compare("oeq", _D, width, infinity)
    )
    large = lanes.select(lanes.compare("oeq", _D, large, zero), _D, one, lanes.select(both, _D, one, large))
    huge = lanes.compare("ogt", _D, large, _c(lanes, 2.0**1000))
    scale = lanes.select(huge, _D, _c(lanes, 2.0**-100), one)
    small, large = lanes.op("fmul", _D, small, scale), lanes.op("fmul", _D, large, scale)
    angle, start = _atan_of_ratio(lanes, small, large)
    result = _from_half_pi(lanes, turned, angle, start)
    back = lanes.op("fsub", _D, _c(lanes, math.pi), lanes.op("fsub", _D, result, _c(lanes, 2 * _HALF_PI_LOW)))
    left = lanes.compare("slt", "i64", lanes.bits(_D, x), lanes.constant("i64", 0))
    result = lanes.intrinsic("copysign", _D, lanes.select(left, _D, back, result), y)
    unordered = lanes.compare("uno", _D, x, y)
    return lanes.select(unordered, _D, lanes.op("fadd", _D, x, y), result)


def _asin_parts(lanes: Lanes, x: str) -> tuple[str, str, str]:
    """(|x| > 1/2, t, asin(t) - t), with t = |x| up to 1/2, else sqrt((1 - |x|) / 2): asin(|x|) = pi / 2 - 2 * asin(t)."""
    size = lanes.intrinsic("fabs", _D, x)
    half = _c(lanes, 0.5)
    above = lanes.compare("ogt", _D, size, half)
    folded = lanes.op("fmul", _D, lanes.op("fsub", _D, _c(lanes, 1.0), size), half)
    square = lanes.select(above, _D, folded, lanes.op("fmul", _D, size, size))
    t = lanes.select(above, _D, lanes.intrinsic("sqrt", _D, folded), size)
    ratio = lanes.op(
        "fdiv", _D, lanes.polynomial(_D, square, _ASIN_ABOVE), lanes.polynomial(_D, square, _ASIN_BELOW)
    )
    return above, t, lanes.op("fmul", _D, t, lanes.op("fmul", _D, square, ratio))


def asin(lanes: Lanes, x: str) -> str:
    """t + R(t) for |x| <= 1/2, else pi / 2 - 2 * asin(sqrt((1 - |x|) / 2))."""
    above, t, rest = _asin_parts(lanes, x)
    y = lanes.op("fadd", _D, t, rest)
    folded = lanes.op("fsub", _D, lanes.op("fadd", _D, y, y), _c(lanes, _HALF_PI_LOW))
    folded = lanes.op("fsub", _D, _c(lanes, math.pi / 2), folded)
    return lanes.intrinsic("copysign", _D, lanes.select(above, _D, folded, y), x)


def acos(lanes: Lanes, x: str) -> str:
    """pi / 2 - asin(x) for |x| <= 1/2, else 2 * asin(sqrt((1 - |x|) / 2)), from pi for negative x."""
    above, t, rest = _asin_parts(lanes, x)
    negative = lanes.compare("olt", _D, x, _c(lanes, 0.0))
    inner = lanes.op("fsub", _D, _c(lanes, _HALF_PI_LOW), lanes.intrinsic("copysign", _D, rest, x))
    near = lanes.op("fsub", _D, x, inner)
    near = lanes.op("fsub", _D, _c(lanes, math.pi / 2), near)
    y = lanes.op("fadd", _D, t, rest)
    twice = lanes.op("fadd", _D, y, y)
    far = lanes.op("fsub", _D, _c(lanes, math.pi), lanes.op("fsub", _D, twice, _c(lanes, 2 * _HALF_PI_LOW)))
    return lanes.select(above, _D, lanes.select(negative, _D, far, twice), near)

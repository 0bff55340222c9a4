"""float32 vector code of the circular functions and their inverses.

Arguments are reduced modulo pi / 2. With fused multiply-adds, in float32 by three parts of it up to 2**17, where the first
difference is exact (a multiple of 2**-24 below 1), and from there in float64 by two parts up to 2**40; without them in
float64 by three parts of 33 bits, up to 2**19. Beyond that the C library is called. Minimax coefficients from the highest
power down.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorsmith.targets.cpu.library import library_call
from tensorsmith.targets.cpu.vector import Lanes

_F, _D = "float", "double"
_SIN = (2.832680138e-06, -0.0001985307172, 0.008333379403, -0.1666666716)  # (sin(r) - r) / r**3 in r**2
_COS = (-2.887844914e-07, 2.482200762e-05, -0.001388898003, 0.04166666791)  # (cos(r) - 1 + r**2 / 2) / r**4 in r**2
_ATAN = (-0.001787547604, 0.01088736113, -0.03112700209, 0.0579065457, -0.08400475234, 0.109511748, -0.1426405162,
         0.1999853104, -0.3333329856)  # (atan(t) - t) / t**3 in t**2, t <= 1  # fmt: skip
_ASIN = (0.0376589708, 0.01433627773, 0.03183493018, 0.04451369122, 0.07500521094, 0.1666665971)  # |t| <= 1/2
_ROUNDER = 6755399441055744.0  # 1.5 * 2**52
_ROUNDER_SINGLE = 12582912.0  # 1.5 * 2**23
_HALF_PI = (math.pi / 2, 6.123233995736766e-17)
_HALF_PI_SINGLE = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_HALF_PI_SHORT = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624871116645580e-21)


def _reduced_in_single(lanes: Lanes, x: str) -> tuple[str, str]:
    """(r in [-pi/4, pi/4], quadrant as i32) with x = quadrant * pi / 2 + r, by fused multiply-adds in float32."""
    rounder = lanes.constant(_F, _ROUNDER_SINGLE)
    shifted = lanes.fma(_F, x, lanes.constant(_F, 2 / math.pi), rounder)
    n = lanes.op("fsub", _F, shifted, rounder)
    r = x
    for part in _HALF_PI_SINGLE:
        r = lanes.fma(_F, n, lanes.constant(_F, -part), r)
    return r, lanes.bits(_F, shifted)


def _reduced(lanes: Lanes, x: str) -> tuple[str, str]:
    """The same in float64."""
    wide = lanes.convert("fpext", _F, _D, x)
    rounder = lanes.constant(_D, _ROUNDER)
    scaled = lanes.op("fmul", _D, wide, lanes.constant(_D, 2 / math.pi))
    shifted = lanes.op("fadd", _D, scaled, rounder)
    n = lanes.op("fsub", _D, shifted, rounder)
    r = wide
    for part in _HALF_PI_SHORT if lanes.machine.name == "generic" else _HALF_PI:
        r = lanes.multiply_add(_D, n, lanes.constant(_D, -part), r)
    quadrant = lanes.convert("trunc", "i64", "i32", lanes.bits(_D, shifted))
    return lanes.convert("fptrunc", _D, _F, r), quadrant


def _sine(lanes: Lanes, r: str, square: str) -> str:
    return lanes.multiply_add(_F, lanes.op("fmul", _F, r, square), lanes.polynomial(_F, square, _SIN), r)


def _cosine(lanes: Lanes, square: str) -> str:
    tail = lanes.op("fmul", _F, square, lanes.polynomial(_F, square, _COS))
    half = lanes.op("fsub", _F, tail, lanes.constant(_F, 0.5))
    return lanes.multiply_add(_F, square, half, lanes.constant(_F, 1.0))


def _signed(lanes: Lanes, y: str, quadrant: str, bit: int, place: int) -> str:
    """y with its sign flipped where `bit` of the quadrant is set; `place` moves that bit to the sign."""
    flag = lanes.op("and", "i32", quadrant, lanes.constant("i32", bit))
    sign = lanes.op("shl", "i32", flag, lanes.constant("i32", place))
    return lanes.from_bits(_F, lanes.op("xor", "i32", lanes.bits(_F, y), sign))


def _odd(lanes: Lanes, quadrant: str) -> str:
    last = lanes.op("and", "i32", quadrant, lanes.constant("i32", 1))
    return lanes.compare("ne", "i32", last, lanes.constant("i32", 0))


Reduced = tuple[str, str]


def _reduce_and(lanes: Lanes, x: str, name: str, finish: Callable[[Reduced], str]) -> str:
    """`finish(reduced)`; the C library's function of every lane where any is too large (or infinite)."""
    vector, size = lanes.type(_F), lanes.intrinsic("fabs", _F, x)
    fused = lanes.machine.name != "generic"

    def beyond(bound: float) -> str:
        return lanes.any(lanes.compare("ogt", _F, size, lanes.constant(_F, bound)))

    def library() -> list[str]:
        return [library_call(lanes, _F, name, [x])]

    def in_double() -> list[str]:
        largest = 2.0**40 if fused else 2.0**19
        return lanes.function.choose(
            beyond(largest), [vector], library, lambda: [finish(_reduced(lanes, x))], rare=True
        )  # fmt: skip

    def in_single() -> list[str]:
        return [finish(_reduced_in_single(lanes, x))]

    return (lanes.function.choose(beyond(2.0**17), [vector], in_double, in_single, rare=True) if fused else in_double())[0]


def sin(lanes: Lanes, x: str) -> str:
    """sin(r) or cos(r) by the quadrant, with the quadrant's sign."""

    def finish(reduced: Reduced) -> str:
        r, quadrant = reduced
        square = lanes.op("fmul", _F, r, r)
        y = lanes.select(_odd(lanes, quadrant), _F, _cosine(lanes, square), _sine(lanes, r, square))
        y = _signed(lanes, y, quadrant, 2, 30)
        return lanes.select(lanes.compare("oeq", _F, x, lanes.constant(_F, 0.0)), _F, x, y)

    return _reduce_and(lanes, x, "sin", finish)


def cos(lanes: Lanes, x: str) -> str:
    """The sine one quadrant on."""

    def finish(reduced: Reduced) -> str:
        r, quadrant = reduced
        square = lanes.op("fmul", _F, r, r)
        y = lanes.select(_odd(lanes, quadrant), _F, _sine(lanes, r, square), _cosine(lanes, square))
        return _signed(lanes, y, lanes.op("add", "i32", quadrant, lanes.constant("i32", 1)), 2, 30)

    return _reduce_and(lanes, x, "cos", finish)


def tan(lanes: Lanes, x: str) -> str:
    """sin(r) / cos(r), or -cos(r) / sin(r) in odd quadrants."""

    def finish(reduced: Reduced) -> str:
        r, quadrant = reduced
        square = lanes.op("fmul", _F, r, r)
        sine, cosine, odd = _sine(lanes, r, square), _cosine(lanes, square), _odd(lanes, quadrant)
        y = lanes.op("fdiv", _F, lanes.select(odd, _F, cosine, sine), lanes.select(odd, _F, sine, cosine))
        y = _signed(lanes, y, quadrant, 1, 31)
        return lanes.select(lanes.compare("oeq", _F, x, lanes.constant(_F, 0.0)), _F, x, y)

    return _reduce_and(lanes, x, "tan", finish)


def _atan_to_one(lanes: Lanes, t: str) -> str:
    """atan(t) for 0 <= t <= 1."""
    square = lanes.op("fmul", _F, t, t)
    return lanes.multiply_add(_F, lanes.op("fmul", _F, t, square), lanes.polynomial(_F, square, _ATAN), t)


def atan(lanes: Lanes, x: str) -> str:
    """atan(t) for t = |x| <= 1, pi / 2 - atan(1 / t) above."""
    one = lanes.constant(_F, 1.0)
    size = lanes.intrinsic("fabs", _F, x)
    above = lanes.compare("ogt", _F, size, one)
    t = lanes.select(above, _F, lanes.op("fdiv", _F, one, size), size)
    y = _atan_to_one(lanes, t)
    y = lanes.select(above, _F, lanes.op("fsub", _F, lanes.constant(_F, math.pi / 2), y), y)
    return lanes.intrinsic("copysign", _F, y, x)


def atan2(lanes: Lanes, y: str, x: str) -> str:
    """The angle of (x, y): atan of the smaller size over the larger one, moved to its octant."""
    height, width = lanes.intrinsic("fabs", _F, y), lanes.intrinsic("fabs", _F, x)
    zero, one, infinity = lanes.constant(_F, 0.0), lanes.constant(_F, 1.0), lanes.constant(_F, math.inf)
    turned = lanes.compare("ogt", _F, height, width)
    small = lanes.select(turned, _F, width, height)
    large = lanes.select(turned, _F, height, width)
    t = lanes.op("fdiv", _F, small, large)
    t = lanes.select(lanes.compare("oeq", _F, large, zero), _F, zero, t)  # 0 / 0 counts as 0, inf / inf as 1
    t = lanes.select(lanes.compare("oeq", _F, small, infinity), _F, one, t)
    angle = _atan_to_one(lanes, t)
    angle = lanes.select(turned, _F, lanes.op("fsub", _F, lanes.constant(_F, math.pi / 2), angle), angle)
    left = lanes.compare("slt", "i32", lanes.bits(_F, x), lanes.constant("i32", 0))
    angle = lanes.select(left, _F, lanes.op("fsub", _F, lanes.constant(_F, math.pi), angle), angle)
    unordered = lanes.compare("uno", _F, x, y)
    return lanes.select(unordered, _F, lanes.op("fadd", _F, x, y), lanes.intrinsic("copysign", _F, angle, y))


def _asin_small(lanes: Lanes, t: str, square: str) -> str:
    return lanes.multiply_add(_F, lanes.op("fmul", _F, t, square), lanes.polynomial(_F, square, _ASIN), t)


def _asin_parts(lanes: Lanes, x: str) -> tuple[str, str, str]:
    """(|x| > 1/2, asin(t), |x|), with t = |x| up to 1/2, else sqrt((1 - |x|) / 2): asin(|x|) = pi / 2 - 2 * asin(t)."""
    size = lanes.intrinsic("fabs", _F, x)
    half = lanes.constant(_F, 0.5)
    above = lanes.compare("ogt", _F, size, half)
    folded = lanes.op("fmul", _F, lanes.op("fsub", _F, lanes.constant(_F, 1.0), size), half)
    square = lanes.select(above, _F, folded, lanes.op("fmul", _F, size, size))
    t = lanes.select(above, _F, lanes.intrinsic("sqrt", _F, folded), size)
    return above, _asin_small(lanes, t, square), size


def asin(lanes: Lanes, x: str) -> str:
    """A polynomial for |x| <= 1/2, else pi / 2 - 2 * asin(sqrt((1 - |x|) / 2))."""
    above, y, _ = _asin_parts(lanes, x)
    folded = lanes.op("fsub", _F, lanes.constant(_F, math.pi / 2), lanes.op("fadd", _F, y, y))
    return lanes.intrinsic("copysign", _F, lanes.select(above, _F, folded, y), x)


def acos(lanes: Lanes, x: str) -> str:
    """pi / 2 - asin(x) for |x| <= 1/2, else 2 * asin(sqrt((1 - |x|) / 2)), from pi for negative x."""
    above, y, _ = _asin_parts(lanes, x)
    negative = lanes.compare("olt", _F, x, lanes.constant(_F, 0.0))
    near = lanes.op("fsub", _F, lanes.constant(_F, math.pi / 2), lanes.intrinsic("copysign", _F, y, x))
    twice = lanes.op("fadd", _F, y, y)
    far = lanes.select(negative, _F, lanes.op("fsub", _F, lanes.constant(_F, math.pi), twice), twice)
    return lanes.select(above, _F, far, near)

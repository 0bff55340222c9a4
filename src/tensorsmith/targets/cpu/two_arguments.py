"""Vector code of fmod and hypot, of float32 or float64."""

from __future__ import annotations

import math

from tensorsmith.targets.cpu.library import library_call
from tensorsmith.targets.cpu.vector import Lanes

_MOST_QUOTIENT = {"float": 2.0**22, "double": 2.0**51}


def fmod(lanes: Lanes, element: str, x: str, y: str) -> str:
    """x - trunc(x / y) * y, exactly, with the sign of x.

    The rounded quotient is right or one too large, and the fused product loses nothing, so one correction makes the
    remainder exact. Quotients too large for that (and a zero divisor) take the C library, as do machines without fused
    products.
    """
    if lanes.machine.name == "generic":
        return library_call(lanes, element, "fmod", (x, y))
    a, b = lanes.intrinsic("fabs", element, x), lanes.intrinsic("fabs", element, y)
    ratio = lanes.op("fdiv", element, a, b)
    large = lanes.any(lanes.compare("oge", element, ratio, lanes.constant(element, _MOST_QUOTIENT[element])))

    def usual() -> list[str]:
        quotient = lanes.intrinsic("trunc", element, ratio)
        rest = lanes.fma(element, lanes.negate(element, quotient), b, a)
        zero = lanes.constant(element, 0.0)
        more = lanes.op("fadd", element, rest, b)
        rest = lanes.select(lanes.compare("olt", element, rest, zero), element, more, rest)
        infinite = lanes.compare("oeq", element, b, lanes.constant(element, math.inf))
        finite = lanes.compare("olt", element, a, lanes.constant(element, math.inf))
        rest = lanes.select(lanes.op("and", "i1", infinite, finite), element, a, rest)
        return [lanes.intrinsic("copysign", element, rest, x)]

    return lanes.function.choose(
        large, [lanes.type(element)], lambda: [library_call(lanes, element, "fmod", (x, y))], usual, rare=True
    )[0]


def hypot(lanes: Lanes, element: str, x: str, y: str) -> str:
    """sqrt(x**2 + y**2) without overflow: float32 in float64, float64 scaled by a power of two."""
    a, b = lanes.intrinsic("fabs", element, x), lanes.intrinsic("fabs", element, y)
    infinity = lanes.constant(element, math.inf)
    infinite = lanes.op(
        "or", "i1", lanes.compare("oeq", element, a, infinity), lanes.compare("oeq", element, b, infinity)
    )
    if element == "float":
        wide = [lanes.convert("fpext", element, "double", v) for v in (a, b)]
        squares = [lanes.op("fmul", "double", v, v) for v in wide]
        root = lanes.intrinsic("sqrt", "double", lanes.op("fadd", "double", *squares))
        result = lanes.convert("fptrunc", "double", element, root)
        return lanes.select(infinite, element, infinity, result)
    largest = lanes.select(lanes.compare("ogt", element, a, b), element, a, b)
    one = lanes.constant(element, 1.0)
    huge = lanes.compare("ogt", element, largest, lanes.constant(element, 2.0**500))
    tiny = lanes.compare("olt", element, largest, lanes.constant(element, 2.0**-450))
    up, down = lanes.constant(element, 2.0**600), lanes.constant(element, 2.0**-600)
    scale = lanes.select(huge, element, down, lanes.select(tiny, element, up, one))
    back = lanes.select(huge, element, up, lanes.select(tiny, element, down, one))
    a, b = lanes.op("fmul", element, a, scale), lanes.op("fmul", element, b, scale)
    total = lanes.multiply_add(element, a, a, lanes.op("fmul", element, b, b))
    root = lanes.op("fmul", element, lanes.intrinsic("sqrt", element, total), back)
    return lanes.select(infinite, element, infinity, root)

"""Vector code of asinh and acosh, of float32 or float64: by the logarithm of 1 + z, which keeps small results exact."""

from __future__ import annotations

import math

from tensorsmith.targets.cpu import elementary, elementary64
from tensorsmith.targets.cpu.vector import Lanes

_LARGE = {"float": 2.0**30, "double": 2.0**60}  # from here on, one part in z + 1 and in z * z + 1 is lost in rounding


def _logarithm(lanes: Lanes, element: str, size: str, z: str) -> str:
    """log1p(z), or log(2 * size) where size is large."""
    large = lanes.compare("ogt", element, size, lanes.constant(element, _LARGE[element]))
    log1p = elementary.log1p if element == "float" else elementary64.log1p
    y = log1p(lanes, lanes.select(large, element, size, z))
    more = lanes.op("fadd", element, y, lanes.constant(element, math.log(2.0)))
    return lanes.select(large, element, more, y)


def asinh(lanes: Lanes, element: str, x: str) -> str:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))) with a = |x|."""
    size, one = lanes.intrinsic("fabs", element, x), lanes.constant(element, 1.0)
    square = lanes.op("fmul", element, size, size)
    root = lanes.intrinsic("sqrt", element, lanes.op("fadd", element, square, one))
    z = lanes.op("fadd", element, size, lanes.op("fdiv", element, square, lanes.op("fadd", element, root, one)))
    return lanes.intrinsic("copysign", element, _logarithm(lanes, element, size, z), x)


def acosh(lanes: Lanes, element: str, x: str) -> str:
    """log1p(t + sqrt(2 t + t**2)) with t = x - 1; NaN below 1."""
    one = lanes.constant(element, 1.0)
    t = lanes.op("fsub", element, x, one)
    product = lanes.op("fmul", element, t, lanes.op("fadd", element, x, one))
    z = lanes.op("fadd", element, t, lanes.intrinsic("sqrt", element, product))
    y = _logarithm(lanes, element, x, z)
    below = lanes.compare("olt", element, x, one)
    return lanes.select(below, element, lanes.constant(element, math.nan), y)

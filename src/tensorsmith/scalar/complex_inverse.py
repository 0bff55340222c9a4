"""Inverse circular and hyperbolic functions of complex numbers in two real parts.

asin and acos are those of Hull, Fairgrieve & Tang, "Implementing the Complex Arcsine and Arccosine Functions Using
Exception Handling" (ACM TOMS 23, 1997); atanh is Kahan's. Branch cuts and signs of zero are C99's (Annex G).
"""

import math
from typing import Any

from tensorsmith.scalar import functions as f
from tensorsmith.scalar.complex_parts import LN2, Complex, Limits, both, either, log_magnitude

_CROSS_A, _CROSS_B = 1.5, 0.6417


def _first_quadrant(x: Any, y: Any, limits: Limits) -> tuple[Any, Any, Any]:
    """For x, y >= 0: (real part of asin, real part of acos, magnitude of the imaginary part of both)."""
    far = f.gt(f.maximum(x, y), 4 / limits.eps)
    away = f.where(far, 0.0, x), f.where(far, 0.0, y)
    log_far = log_magnitude((f.where(far, x, 1.0), f.where(far, y, 0.0)), limits) + LN2
    asin_far, acos_far = f.atan2(x, y), f.atan2(y, x)
    x, y = away
    r, s = f.hypot(x + 1, y), f.hypot(x - 1, y)
    a = 0.5 * (r + s)
    b = f.div(x, a)
    inside = f.le(x, 1)
    right, left = r + (x + 1), f.where(inside, s + (1 - x), s + (x - 1))
    above = a + x
    # sqrt(a^2 - x^2) without cancellation
    leg_inside = f.sqrt(0.5 * above * (f.div(y * y, right) + left))
    leg_outside = y * f.sqrt(0.5 * (f.div(above, right) + f.div(above, left)))
    leg = f.where(inside, leg_inside, leg_outside)
    near_axis = f.le(b, _CROSS_B)
    asin_real = f.where(near_axis, f.asin(b), f.atan2(x, leg))
    acos_real = f.where(near_axis, f.acos(b), f.atan2(leg, x))
    # a - 1, divided by y^2 where x < 1 so that a tiny y does not vanish in its square
    strictly = f.lt(x, 1)
    part = 0.5 * (f.reciprocal(right) + f.reciprocal(left))
    excess_inside = y * (y * part + f.sqrt(part * (a + 1)))
    excess = f.div(y * y, right) + left  # twice a - 1, which may be the smallest number
    excess_outside = 0.5 * excess + f.sqrt(excess * (0.5 * (a + 1)))
    small = f.log1p(f.where(strictly, excess_inside, excess_outside))
    large = f.log(a + f.sqrt(a * a - 1))
    imaginary = f.where(f.le(a, _CROSS_A), small, large)
    return f.where(far, asin_far, asin_real), f.where(far, acos_far, acos_real), f.where(far, log_far, imaginary)


def arcsine(z: Complex, limits: Limits) -> Complex:
    """asin z, its real part within [-pi/2, pi/2]."""
    x, y = z
    real, _, imaginary = _first_quadrant(f.abs(x), f.abs(y), limits)
    real = f.where(f.eq(x, 0), x, f.copysign(real, x))
    # An infinite part decides alone whatever the other is.
    endless = either(f.isinf(x), f.isinf(y))
    return real, f.copysign(f.where(endless, math.inf, imaginary), y)


def arccosine(z: Complex, limits: Limits) -> Complex:
    """acos z, its real part within [0, pi]."""
    x, y = z
    _, real, imaginary = _first_quadrant(f.abs(x), f.abs(y), limits)
    negative = f.lt(f.copysign(1.0, x), 0)
    real = f.where(f.eq(x, 0), 0.5 * math.pi, f.where(negative, math.pi - real, real))
    endless = either(f.isinf(x), f.isinf(y))
    return real, f.neg(f.copysign(f.where(endless, math.inf, imaginary), y))


def inverse_hyperbolic_sine(z: Complex, limits: Limits) -> Complex:
    """asinh z = asin(i z) / i."""
    real, imaginary = arcsine((z[1], z[0]), limits)
    return imaginary, real


def inverse_hyperbolic_cosine(z: Complex, limits: Limits) -> Complex:
    """acosh z = +-i acos z, with a real part of at least 0."""
    real, imaginary = arccosine(z, limits)
    return f.abs(imaginary), f.copysign(real, z[1])


def inverse_hyperbolic_tangent(z: Complex, limits: Limits) -> Complex:
    """atanh z: log1p(4x / ((1-x)^2 + y^2)) / 4 and half an angle; far out 1/z beside +-pi/2."""
    x, y = f.abs(z[0]), f.abs(z[1])
    size = f.maximum(x, y)
    far = f.gt(size, math.sqrt(limits.largest) / 8)
    endless = either(f.isinf(x), f.isinf(y))
    u, v = f.div(x, size), f.div(y, size)
    real_far = f.where(endless, 0.0, f.div(f.div(u, u * u + v * v), size))
    near = f.where(far, 0.0, x), f.where(far, 0.0, y)
    x, y = near
    gap = 1 - x
    at_pole = both(f.eq(x, 1), f.lt(y, limits.eps))
    usual = 0.25 * f.log1p(f.div(4 * x, gap * gap + y * y))
    real = f.where(at_pole, 0.5 * (LN2 - f.log(y)), usual)
    imaginary = 0.5 * f.atan2(2 * y, gap * (1 + x) - y * y)
    imaginary = f.where(both(f.eq(y, 0), f.le(x, 1)), y, imaginary)
    real = f.where(f.eq(x, 0), x, real)
    real, imaginary = f.where(far, real_far, real), f.where(far, 0.5 * math.pi, imaginary)
    imaginary = f.where(endless, f.where(f.isnan(z[1]), z[1], 0.5 * math.pi), imaginary)
    real = f.where(endless, 0.0, real)
    return f.copysign(real, z[0]), f.copysign(imaginary, z[1])


def arctangent(z: Complex, limits: Limits) -> Complex:
    """atan z = atanh(i z) / i."""
    real, imaginary = inverse_hyperbolic_tangent((z[1], z[0]), limits)
    return imaginary, real


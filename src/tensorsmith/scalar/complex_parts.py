"""Complex numbers as two real values: magnitude, logarithm, root and division, on which the table of functions is built.

Formulas are generic: given Python floats they compute, given IR nodes they build expressions. Both sides of every choice
are computed, so a formula may overflow or be NaN where it is not taken. `Limits` says how far the real type reaches.
The methods are those of W. Kahan, "Branch Cuts for Complex Elementary Functions" (1987).
"""

import math
from dataclasses import dataclass
from typing import Any

from tensorsmith.scalar import functions as f

Complex = tuple[Any, Any]


@dataclass(frozen=True)
class Limits:
    """A binary floating-point type: eps (distance of 1 to the next number), largest and tiny (smallest normal) number."""

    eps: float
    largest: float
    tiny: float

    @property
    def log_largest(self) -> float:
        """The largest x whose exponential is finite, rounded down."""
        return math.floor(math.log(self.largest))


SINGLE = Limits(2.0**-23, (2.0 - 2.0**-23) * 2.0**127, 2.0**-126)
DOUBLE = Limits(2.0**-52, (2.0 - 2.0**-52) * 2.0**1023, 2.0**-1022)

LN2 = math.log(2.0)


def either(*conditions: Any) -> Any:
    """Whether any condition holds."""
    found = conditions[0]
    for condition in conditions[1:]:
        found = f.logical_or(found, condition)
    return found


def both(*conditions: Any) -> Any:
    """Whether every condition holds."""
    found = conditions[0]
    for condition in conditions[1:]:
        found = f.logical_and(found, condition)
    return found


def number(condition: Any, a: float, b: float, like: Any) -> Any:
    """One of two numbers in the type of `like` (a choice between numbers alone has the default type)."""
    return f.where(condition, a, f.where(condition, like, b))


def times_i(z: Complex) -> Complex:
    """i z."""
    return f.neg(z[1]), z[0]


def larger(z: Complex) -> Any:
    """The larger magnitude of the two parts; NaN where one is."""
    return f.maximum(f.abs(z[0]), f.abs(z[1]))


def multiply(a: Complex, b: Complex) -> Complex:
    """The textbook product, as PyTorch has it: an infinite factor can give NaN parts."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def divide(a: Complex, b: Complex, limits: Limits) -> Complex:
    """Smith's quotient of scaled operands: no part overflows or vanishes on the way that does not in the result.

    Over zero each part is divided by 0.0, as in PyTorch.
    """
    (x, y), (c, d) = a, b
    size = larger(b)
    down, up = limits.largest / 8, limits.tiny / limits.eps
    scale = f.where(f.gt(size, down), 0.0625, number(f.lt(size, up), limits.eps**-2, 1.0, size))
    c, d = c * scale, d * scale
    half = number(f.gt(larger(a), limits.largest / 4), 0.25, 1.0, size)
    x, y = x * half, y * half
    swapped = f.lt(f.abs(c), f.abs(d))
    big, small = f.where(swapped, d, c), f.where(swapped, f.neg(c), d)
    ratio = f.div(small, big)
    below = f.reciprocal(big + small * ratio)
    first, second = f.where(swapped, y, x), f.where(swapped, f.neg(x), y)
    real, imaginary = (first + second * ratio) * below, (second - first * ratio) * below
    back = f.div(scale, half)
    zero = f.eq(size, 0)
    return f.where(zero, f.div(a[0], size), real * back), f.where(zero, f.div(a[1], size), imaginary * back)


def inverse(z: Complex, limits: Limits) -> Complex:
    """1 / z, as `divide`."""
    c, d = z
    size = larger(z)
    scale = f.where(f.gt(size, limits.largest / 8), 0.0625, number(f.lt(size, limits.tiny * 4), 4.0, 1.0, size))
    c, d = c * scale, d * scale
    swapped = f.lt(f.abs(c), f.abs(d))
    big, small = f.where(swapped, d, c), f.where(swapped, c, d)
    ratio = f.div(small, big)
    long = f.reciprocal(big + small * ratio) * scale
    short = f.where(swapped, ratio + 0.0, 0.0 - ratio) * long  # signs of zero as in the quotient of 1 + 0i
    zero = f.eq(size, 0)
    real, imaginary = f.where(swapped, short, long), f.where(swapped, f.neg(long), short)
    return f.where(zero, f.reciprocal(size), real), f.where(zero, f.div(0.0, size), imaginary)


def magnitude(z: Complex) -> Any:
    """|z|."""
    return f.hypot(z[0], z[1])


def log_magnitude(z: Complex, limits: Limits) -> Any:
    """log |z|, in norm of log z as exact as its parts: near |z| = 1 from (|z|^2 - 1), which does not cancel there."""
    a, b = f.abs(z[0]), f.abs(z[1])
    m, n = f.maximum(a, b), f.minimum(a, b)
    near = (m - 1) * (m + 1) + n * n
    huge, small = f.gt(m, limits.largest / 2), f.lt(m, limits.tiny / limits.eps)
    scale = f.where(huge, 0.5, number(small, limits.eps**-2, 1.0, m))
    far = f.log(f.hypot(a * scale, b * scale))
    far = f.where(huge, far + LN2, f.where(small, far + 2 * math.log(limits.eps), far))
    return f.where(both(f.gt(near, -0.5), f.lt(near, 2)), 0.5 * f.log1p(near), far)


def logarithm(z: Complex, limits: Limits) -> Complex:
    """log |z| + i arg z."""
    return log_magnitude(z, limits), f.atan2(z[1], z[0])


def square_root(z: Complex, limits: Limits) -> Complex:
    """The root with a real part of at least 0; its imaginary part has the sign of z's."""
    x, y = z
    size = larger(z)
    huge, small = f.gt(size, limits.largest / 4), f.lt(size, limits.tiny / limits.eps)
    tiny_scale = 2.0 ** (2 * round(math.log2(1 / limits.eps)))
    scale = f.where(huge, 0.0625, number(small, tiny_scale, 1.0, x))
    back = f.where(huge, 4.0, number(small, tiny_scale**-0.5, 1.0, x))
    a, b = x * scale, y * scale
    t = f.sqrt(0.5 * (f.abs(a) + f.hypot(a, b)))
    other = f.div(f.abs(b), 2 * t) * back
    t = t * back
    left = f.lt(x, 0)
    real, imaginary = f.where(left, other, t), f.copysign(f.where(left, t, other), y)
    zero = both(f.eq(x, 0), f.eq(y, 0))
    real, imaginary = f.where(zero, 0.0, real), f.where(zero, y, imaginary)
    # C99 Annex G: an infinite part decides alone.
    endless, flat = f.isinf(y), f.isinf(x)
    real = f.where(flat, f.where(left, f.where(f.isnan(y), y, 0.0), x), real)
    imaginary = f.where(flat, f.where(left, f.copysign(math.inf, y), f.where(f.isnan(y), y, y * 0)), imaginary)
    return f.where(endless, math.inf, real), f.where(endless, y, imaginary)


def exponential(z: Complex, limits: Limits) -> Complex:
    """e^x (cos y + i sin y); where e^x alone overflows, its root is multiplied twice."""
    x, y = z
    high = f.gt(x, limits.log_largest)
    root = f.exp(f.where(high, x * 0.5, x))
    rest = f.where(high, root, 1.0)
    real, imaginary = root * f.cos(y) * rest, root * f.sin(y) * rest
    turns, endless = f.logical_not(f.isfinite(y)), f.isinf(x)
    nothing = both(turns, f.eq(x, -math.inf))
    real = f.where(both(turns, endless), f.where(f.gt(x, 0), x, 0.0), real)
    imaginary = f.where(f.eq(y, 0), y, f.where(nothing, f.copysign(0.0, y), imaginary))
    return real, imaginary


def hyperbolic(z: Complex, limits: Limits) -> tuple[Complex, Complex]:
    """(sinh z, cosh z)."""
    x, y = z
    size = f.abs(x)
    high = f.gt(size, limits.log_largest)
    root = f.exp(0.5 * size)
    sinh = f.where(high, f.copysign(0.5 * root, x), f.sinh(x))
    cosh = f.where(high, 0.5 * root, f.cosh(x))
    rest = f.where(high, root, 1.0)
    cosine, sine = f.cos(y), f.sin(y)
    # Where y has no angle or x no size, C99 says what is left.
    level, turns = f.eq(y, 0), f.logical_not(f.isfinite(y))
    lost, spun = both(turns, f.eq(x, 0)), both(turns, f.isinf(x))
    first = f.where(lost, x, f.where(spun, size, sinh * cosine * rest)), f.where(level, y, cosh * sine * rest)
    edge = f.where(f.isnan(x), y, y * f.copysign(1.0, x))
    second = f.where(spun, size, cosh * cosine * rest)
    return first, (second, f.where(level, edge, f.where(lost, size, sinh * sine * rest)))


def hyperbolic_tangent(z: Complex, limits: Limits) -> Complex:
    """tanh z by Kahan's formula in tan y and sinh x, which does not cancel; its limit where |x| is large."""
    x, y = z
    size = f.abs(x)
    far = f.gt(size, 0.5 * math.log(4 / limits.eps) + 2)
    decay = f.exp(f.neg(f.where(far, size, 0.0)))
    turn = f.sin(y) * f.cos(y)
    endless, level = f.isinf(x), f.eq(y, 0)
    edge = f.copysign(0.0, f.where(f.isfinite(y), turn, y))
    t, s = f.tan(y), f.sinh(f.where(far, 1.0, x))
    beta = 1 + t * t
    below = f.reciprocal(1 + beta * s * s)
    near = beta * f.sqrt(1 + s * s) * s * below
    real = f.where(far, f.copysign(1.0, x), f.where(f.eq(x, 0), x, f.where(level, f.tanh(x), near)))
    imaginary = f.where(far, f.where(endless, edge, 4 * turn * decay * decay), t * below)
    spun = both(far, f.logical_not(endless), f.logical_not(f.isfinite(y)))
    return f.where(spun, y - y, real), f.where(level, y, imaginary)

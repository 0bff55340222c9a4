"""The table of scalar functions on complex numbers, each written in real values.

`COMPLEX[fn](limits, *operands)` takes the operands as pairs (real part, imaginary part) and gives a pair, or one real value
where the function is real. The rows are expressions of the real table, so every target that computes that one computes this
one. In norm the error is a few units in the last place of the result; pow is exp(y log x), which multiplies the error of the
logarithm by |y log x|, as PyTorch's does.
"""

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.scalar import functions as f
from tensorsmith.scalar.complex_inverse import (
    arccosine,
    arcsine,
    arctangent,
    inverse_hyperbolic_cosine,
    inverse_hyperbolic_sine,
    inverse_hyperbolic_tangent,
)
from tensorsmith.scalar.complex_parts import (
    LN2,
    Complex,
    Limits,
    both,
    divide,
    either,
    exponential,
    hyperbolic,
    hyperbolic_tangent,
    inverse,
    log_magnitude,
    logarithm,
    magnitude,
    multiply,
    square_root,
    times_i,
)
from tensorsmith.scalar.fn import Fn

ComplexRow = Callable[..., Any]


def _swapped(function: Callable[[Complex, Limits], Complex]) -> ComplexRow:
    """A circular function from its hyperbolic one: f(i z) / i, where f(z) is odd."""

    def row(limits: Limits, z: Complex) -> Complex:
        real, imaginary = function((z[1], z[0]), limits)
        return imaginary, real

    return row


def _of(function: Callable[[Complex, Limits], Any]) -> ComplexRow:
    return lambda limits, z: function(z, limits)


def _scaled_log(unit: float) -> ComplexRow:
    def row(limits: Limits, z: Complex) -> Complex:
        real, imaginary = logarithm(z, limits)
        return real * unit, imaginary * unit

    return row


def _cosine(limits: Limits, z: Complex) -> Complex:
    return hyperbolic(times_i(z), limits)[1]


def _log1p(limits: Limits, z: Complex) -> Complex:
    x, y = z
    near = f.where(both(f.eq(x, 0), f.eq(y, 0)), x, x * (x + 2) + y * y)  # log1p of -0 is -0
    real = f.where(both(f.gt(near, -0.5), f.lt(near, 2)), 0.5 * f.log1p(near), log_magnitude((x + 1, y), limits))
    return real, f.atan2(y, x + 1)


def _expm1(limits: Limits, z: Complex) -> Complex:
    x, y = z
    real, imaginary = exponential(z, limits)
    half = f.sin(0.5 * y)
    near = f.expm1(x) * f.cos(y) - 2 * half * half
    return f.where(f.lt(f.abs(x), 1), near, real - 1), imaginary


def _sigmoid(limits: Limits, z: Complex) -> Complex:
    """1 / (1 + e^-z) from the exponential that does not overflow."""
    left = f.lt(z[0], 0)
    a, b = exponential((f.neg(f.abs(z[0])), f.where(left, z[1], f.neg(z[1]))), limits)
    return divide((f.where(left, a, 1.0), f.where(left, b, 0.0)), (1 + a, b), limits)


def _sign(limits: Limits, z: Complex) -> Complex:
    """z / |z|, and 0 at 0."""
    size = magnitude(z)
    zero = f.eq(size, 0)
    size = f.where(zero, 1.0, size)
    return f.where(zero, 0.0, f.div(z[0], size)), f.where(zero, 0.0, f.div(z[1], size))


def _power(limits: Limits, a: Complex, b: Complex) -> Complex:
    real, imaginary = exponential(multiply(b, logarithm(a, limits)), limits)
    nothing = both(f.eq(b[0], 0), f.eq(b[1], 0))
    zero = both(f.eq(a[0], 0), f.eq(a[1], 0), f.gt(b[0], 0))
    real = f.where(nothing, 1.0, f.where(zero, 0.0, real))
    return real, f.where(either(nothing, zero), 0.0, imaginary)


def _chosen(limits: Limits, condition: Any, a: Complex, b: Complex) -> Complex:
    return f.where(condition, a[0], b[0]), f.where(condition, a[1], b[1])


def _any_part(function: Callable[[Any], Any]) -> ComplexRow:
    return lambda limits, z: either(function(z[0]), function(z[1]))


COMPLEX: dict[Fn, ComplexRow] = {
    Fn.ADD: lambda limits, a, b: (a[0] + b[0], a[1] + b[1]),
    Fn.SUB: lambda limits, a, b: (a[0] - b[0], a[1] - b[1]),
    Fn.MUL: lambda limits, a, b: multiply(a, b),
    Fn.DIV: lambda limits, a, b: divide(a, b, limits),
    Fn.POW: _power,
    Fn.NEG: lambda limits, z: (f.neg(z[0]), f.neg(z[1])),
    Fn.ABS: lambda limits, z: magnitude(z),
    Fn.ANGLE: lambda limits, z: f.atan2(z[1], z[0]),
    Fn.SGN: _sign,
    Fn.CONJ: lambda limits, z: (z[0], f.neg(z[1])),
    Fn.EXP: _of(exponential),
    Fn.EXP2: lambda limits, z: exponential((z[0] * LN2, z[1] * LN2), limits),
    Fn.EXPM1: _expm1,
    Fn.LOG: _of(logarithm),
    Fn.LOG1P: _log1p,
    Fn.LOG2: _scaled_log(1 / LN2),
    Fn.LOG10: _scaled_log(1 / math.log(10.0)),
    Fn.SQRT: _of(square_root),
    Fn.RSQRT: lambda limits, z: inverse(square_root(z, limits), limits),
    Fn.RECIPROCAL: _of(inverse),
    Fn.SIN: _swapped(lambda z, limits: hyperbolic(z, limits)[0]),
    Fn.COS: _cosine,
    Fn.TAN: _swapped(hyperbolic_tangent),
    Fn.ASIN: _of(arcsine),
    Fn.ACOS: _of(arccosine),
    Fn.ATAN: _of(arctangent),
    Fn.SINH: lambda limits, z: hyperbolic(z, limits)[0],
    Fn.COSH: lambda limits, z: hyperbolic(z, limits)[1],
    Fn.TANH: _of(hyperbolic_tangent),
    Fn.ASINH: _of(inverse_hyperbolic_sine),
    Fn.ACOSH: _of(inverse_hyperbolic_cosine),
    Fn.ATANH: _of(inverse_hyperbolic_tangent),
    Fn.SIGMOID: _sigmoid,
    Fn.EQ: lambda limits, a, b: both(f.eq(a[0], b[0]), f.eq(a[1], b[1])),
    Fn.NE: lambda limits, a, b: either(f.ne(a[0], b[0]), f.ne(a[1], b[1])),
    Fn.WHERE: _chosen,
    Fn.ISNAN: _any_part(f.isnan),
    Fn.ISINF: _any_part(f.isinf),
    Fn.ISFINITE: lambda limits, z: both(f.isfinite(z[0]), f.isfinite(z[1])),
}

# Functions that act on each part alone: on whole pairs in memory they are the real function.
BY_PARTS = frozenset({Fn.ADD, Fn.SUB, Fn.NEG})

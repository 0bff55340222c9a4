"""The table of scalar functions: everything else about pointwise mathematics is derived from these rows.

A row says what a function computes on Python numbers, how its result is typed, its derivative as an expression of the
same functions, and the accuracy its vector code aims at. Derivatives are generic: given numbers they are numbers,
given expressions or IR nodes they build expressions, which can be differentiated again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorsmith.scalar import functions as f
from tensorsmith.scalar.fn import Fn, Typing
from tensorsmith.scalar.values import VALUES

__all__ = ["TABLE", "Fn", "Row", "Typing"]

Partials = tuple[Any, ...]


@dataclass(frozen=True)
class Row:
    """One scalar function.

    `derivative(*args, out)` gives one partial derivative per input, None where it is zero everywhere or undefined.
    It uses `out`, the function's result, where PyTorch saves the result for the backward pass, the inputs elsewhere.
    `masked` says that the partials are masks (relu, where, maximum): a zero blocks even an infinite or NaN factor.
    `complex_rule(*args, out, factors)` gives the gradients of complex inputs where grad * conj(f'(x)) does not: f is not
    holomorphic, or its derivative has other branch cuts as a complex function. See `products`.
    """

    fn: Fn
    arity: int
    value: Callable[..., Any]
    typing: Typing
    derivative: Callable[..., Partials]
    ulp: float
    source: str
    masked: Callable[..., Partials] | None = None
    complex_rule: Callable[..., Partials] | None = None

    @property
    def name(self) -> str:
        """PyTorch's name of the function."""
        return self.fn.value

    @property
    def differentiable(self) -> bool:
        """Whether any partial derivative at real numbers can be other than zero."""
        return self.derivative is not _zero

    def products(
        self, args: Sequence[Any], out: Any, factors: Sequence[Any], conjugate: Callable[[Any], Any] | None = None
    ) -> Partials:
        """Partial i times factors[i], for every i; None where the partial or the factor is None.

        This is the chain rule in both directions: all factors the output's gradient gives the inputs' gradients;
        the factors the inputs' tangents gives the terms whose sum is the output's tangent.
        conjugate: of complex arguments, where gradients are wanted: partials are conjugated with it. By PyTorch's convention
        the gradient of a real loss L at z = x + iy is dL/dx + i dL/dy, so that of a holomorphic f is grad * conj(f'(z)).
        """
        if conjugate is not None and self.complex_rule is not None:
            return self.complex_rule(*args, out, tuple(factors))
        if self.masked is not None:
            return self.masked(*args, out, tuple(factors))
        partials = self.derivative(*args, out)
        if conjugate is not None:
            partials = tuple(p if p is None or isinstance(p, (int, float)) else conjugate(p) for p in partials)
        return tuple(_scaled(partial, factor) for partial, factor in zip(partials, factors, strict=True))


def _scaled(partial: Any, factor: Any) -> Any:
    if partial is None or factor is None:
        return None
    if type(partial) is int:  # the literals of the rules below: exact without a multiplication
        if partial == 1:
            return factor
        if partial == -1:
            return f.neg(factor)
    return f.mul(factor, partial)


def _keep(condition: Any, factor: Any) -> Any:
    """The factor where the condition holds, else zero."""
    return None if factor is None else f.where(condition, factor, 0)


def _drop(condition: Any, factor: Any) -> Any:
    """Zero where the condition holds, else the factor."""
    return None if factor is None else f.where(condition, 0, factor)


def _zero(*args_and_out: Any) -> Partials:
    return (None,) * (len(args_and_out) - 1)


# -------------------------------------------------------------------------------------------- rules of several lines


def _pow_derivative(x: Any, y: Any, out: Any) -> Partials:
    # Inputs that would make the side not taken infinite are replaced by harmless ones on that side, so that its own
    # derivative is finite too.
    no_exponent = f.eq(y, 0)
    by_base = f.where(no_exponent, 0, y * f.pow(x, f.where(no_exponent, 1, y) - 1))
    flat = f.logical_and(f.eq(x, 0), f.ge(y, 0))
    by_exponent = f.where(flat, 0, out * f.log(f.where(flat, 1, x)))
    return by_base, by_exponent


def _where_masked(condition: Any, x: Any, y: Any, out: Any, factors: Partials) -> Partials:
    return None, _keep(condition, factors[1]), _drop(condition, factors[2])


def _relu_masked(x: Any, out: Any, factors: Partials) -> Partials:
    return (_drop(f.le(out, 0), factors[0]),)


def _halved_at_tie(x: Any, y: Any, factor: Any) -> Any:
    return None if factor is None else f.where(f.eq(x, y), factor * 0.5, factor)


def _maximum_masked(x: Any, y: Any, out: Any, factors: Partials) -> Partials:
    return (
        _drop(f.lt(x, y), _halved_at_tie(x, y, factors[0])),
        _drop(f.gt(x, y), _halved_at_tie(x, y, factors[1])),
    )


def _minimum_masked(x: Any, y: Any, out: Any, factors: Partials) -> Partials:
    return (
        _drop(f.gt(x, y), _halved_at_tie(x, y, factors[0])),
        _drop(f.lt(x, y), _halved_at_tie(x, y, factors[1])),
    )


def _of_ones(masked: Callable[..., Partials]) -> Callable[..., Partials]:
    """The partials of a masked row: its products with factors of one."""

    def derivative(*args_and_out: Any) -> Partials:
        return masked(*args_and_out, (1.0,) * (len(args_and_out) - 1))

    return derivative


def _atan2_derivative(y: Any, x: Any, out: Any) -> Partials:
    square = x * x + y * y
    origin = f.eq(square, 0)
    inverse = f.where(origin, 0, f.reciprocal(f.where(origin, 1, square)))
    return x * inverse, -(y * inverse)


# Gradients of complex arguments (`Row.complex_rule`). Each is linear over the real numbers in its factor.


def _complex_abs(x: Any, out: Any, factors: Partials) -> Partials:
    return (_scaled(f.sgn(x), factors[0]),)


def _complex_angle(x: Any, out: Any, factors: Partials) -> Partials:
    if factors[0] is None:
        return (None,)
    origin = f.eq(x, 0)
    safe = f.where(origin, 1, x)
    return (f.where(origin, 0, f.div(factors[0] * 1j, f.conj_physical(safe))),)


def _complex_sgn(x: Any, out: Any, factors: Partials) -> Partials:
    """What is left of the gradient across the direction of x, over |x|."""
    grad = factors[0]
    if grad is None:
        return (None,)
    origin = f.eq(x, 0)
    along = grad * f.conj_physical(out)
    along = (along + f.conj_physical(along)) * 0.5
    return (f.where(origin, 0, f.div(grad - along * out, f.where(origin, 1, f.abs(x)))),)


def _complex_conj(x: Any, out: Any, factors: Partials) -> Partials:
    return (None if factors[0] is None else f.conj_physical(factors[0]),)


def _complex_acosh(x: Any, out: Any, factors: Partials) -> Partials:
    return (_scaled(f.conj_physical(f.rsqrt(x - 1) * f.rsqrt(x + 1)), factors[0]),)


def _complex_pow(x: Any, y: Any, out: Any, factors: Partials) -> Partials:
    no_exponent = f.eq(y, 0)
    by_base = f.where(no_exponent, 0, y * f.pow(x, f.where(no_exponent, 1, y) - 1))
    twice_real = y + f.conj_physical(y)
    flat = f.logical_and(f.eq(x, 0), f.eq(twice_real, f.abs(twice_real)))  # a power of 0 with a real part of at least 0
    by_exponent = f.where(flat, 0, out * f.log(f.where(flat, 1, x)))
    return _scaled(f.conj_physical(by_base), factors[0]), _scaled(f.conj_physical(by_exponent), factors[1])


def _trigamma(x: Any) -> Any:
    """The derivative of digamma, in terms of the table, so that it can be differentiated again.

    Reflection below 1/2, six steps of the recurrence, then the asymptotic series (Abramowitz & Stegun 6.4).
    """
    reflected = f.lt(x, 0.5)
    sine = f.sin(f.where(reflected, x, 0.5) * math.pi)
    z = f.where(reflected, 1 - x, x)
    total: Any = 0.0
    for _ in range(6):
        total = total + f.reciprocal(z * z)
        z = z + 1
    inverse = f.reciprocal(z)
    square = inverse * inverse
    series: Any = 7 / 6
    for coefficient in (-691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6):
        series = series * square + coefficient
    total = total + inverse + square * 0.5 + inverse * square * series
    return f.where(reflected, f.div(math.pi * math.pi, sine * sine) - total, total)


# ------------------------------------------------------------------------------------------------------- the rows

_SQRT_PI = math.sqrt(math.pi)
_LN2 = math.log(2.0)
_LN10 = math.log(10.0)


def _row(
    fn: Fn,
    arity: int,
    typing: Typing,
    ulp: float,
    derivative: Callable[..., Partials],
    source: str,
    masked: Callable[..., Partials] | None = None,
    complex_rule: Callable[..., Partials] | None = None,
) -> Row:
    return Row(fn, arity, VALUES[fn], typing, derivative, ulp, source, masked, complex_rule)


def _masked_row(fn: Fn, arity: int, typing: Typing, masked: Callable[..., Partials], source: str) -> Row:
    return _row(fn, arity, typing, 0.0, _of_ones(masked), source, masked)


_SAME, _FLOAT, _BOOL, _INTEGER = Typing.SAME, Typing.FLOAT, Typing.BOOL, Typing.INTEGER
_IEEE = "IEEE 754, one operation"
_RANGE = "range reduction by ln 2 in two parts and a minimax polynomial (Muller, Elementary Functions)"
_CODY = "Cody-Waite reduction by pi/2 and minimax polynomials (Muller, Elementary Functions)"

_ROWS = (
    _row(Fn.ADD, 2, _SAME, 0.0, lambda x, y, out: (1, 1), _IEEE),
    _row(Fn.SUB, 2, _SAME, 0.0, lambda x, y, out: (1, -1), _IEEE),
    _row(Fn.MUL, 2, _SAME, 0.0, lambda x, y, out: (y, x), _IEEE),
    _row(Fn.DIV, 2, _FLOAT, 0.0, lambda x, y, out: (f.reciprocal(y), -f.div(f.div(x, y), y)), _IEEE),
    _row(Fn.FLOOR_DIVIDE, 2, _SAME, 0.0, _zero, "fmod, corrected to the floor (CPython's float.__floordiv__)"),
    _row(Fn.REMAINDER, 2, _SAME, 0.0, lambda x, y, out: (1, -f.floor_divide(x, y)), "fmod, with the divisor's sign"),
    _row(Fn.FMOD, 2, _SAME, 0.0, lambda x, y, out: (1, -f.trunc(f.div(x, y))), "C99 fmod, exact"),
    _row(
        Fn.POW,
        2,
        _SAME,
        2.0,
        _pow_derivative,
        "2**(y log2 x), the logarithm in two parts",
        complex_rule=_complex_pow,
    ),
    _masked_row(Fn.MINIMUM, 2, _SAME, _minimum_masked, "IEEE 754-2019 minimum"),
    _masked_row(Fn.MAXIMUM, 2, _SAME, _maximum_masked, "IEEE 754-2019 maximum"),
    _row(Fn.NEG, 1, _SAME, 0.0, lambda x, out: (-1,), _IEEE),
    _row(Fn.ABS, 1, _SAME, 0.0, lambda x, out: (f.sign(x),), _IEEE, complex_rule=_complex_abs),
    _row(Fn.SIGN, 1, _SAME, 0.0, _zero, "two comparisons"),
    _row(Fn.SGN, 1, _SAME, 0.0, _zero, "two comparisons; x / |x| of complex numbers", complex_rule=_complex_sgn),
    _row(Fn.CONJ, 1, _SAME, 0.0, lambda x, out: (1,), "the value; conjugate of a complex number", complex_rule=_complex_conj),
    _row(Fn.ANGLE, 1, _FLOAT, 0.0, _zero, "0 or pi; atan2 of the parts of a complex number", complex_rule=_complex_angle),
    _row(Fn.FLOOR, 1, _SAME, 0.0, _zero, _IEEE),
    _row(Fn.CEIL, 1, _SAME, 0.0, _zero, _IEEE),
    _row(Fn.TRUNC, 1, _SAME, 0.0, _zero, _IEEE),
    _row(Fn.ROUND, 1, _SAME, 0.0, _zero, "IEEE 754 roundToIntegralTiesToEven"),
    _row(Fn.EXP, 1, _FLOAT, 1.5, lambda x, out: (out,), _RANGE),
    _row(Fn.EXP2, 1, _FLOAT, 1.5, lambda x, out: (out * _LN2,), _RANGE),
    _row(Fn.EXPM1, 1, _FLOAT, 2.0, lambda x, out: (out + 1,), _RANGE),
    _row(Fn.LOG, 1, _FLOAT, 1.5, lambda x, out: (f.reciprocal(x),), "log(m) + e ln 2, minimax on [sqrt(1/2), sqrt(2))"),
    _row(Fn.LOG1P, 1, _FLOAT, 2.0, lambda x, out: (f.reciprocal(x + 1),), "log with the rounding of 1 + x corrected"),
    _row(Fn.LOG2, 1, _FLOAT, 2.0, lambda x, out: (f.reciprocal(x * _LN2),), "log, scaled"),
    _row(Fn.LOG10, 1, _FLOAT, 2.0, lambda x, out: (f.reciprocal(x * _LN10),), "log, scaled"),
    _row(Fn.SQRT, 1, _FLOAT, 0.0, lambda x, out: (f.reciprocal(out * 2),), _IEEE),
    _row(Fn.RSQRT, 1, _FLOAT, 1.0, lambda x, out: (out * out * out * -0.5,), "1 / sqrt(x), two operations"),
    _row(Fn.RECIPROCAL, 1, _FLOAT, 0.0, lambda x, out: (-(out * out),), _IEEE),
    _row(Fn.SIN, 1, _FLOAT, 2.0, lambda x, out: (f.cos(x),), _CODY),
    _row(Fn.COS, 1, _FLOAT, 2.0, lambda x, out: (-f.sin(x),), _CODY),
    _row(Fn.TAN, 1, _FLOAT, 4.0, lambda x, out: (out * out + 1,), _CODY),
    _row(Fn.ASIN, 1, _FLOAT, 4.0, lambda x, out: (f.rsqrt(1 - x * x),), "Cephes asinf"),
    _row(Fn.ACOS, 1, _FLOAT, 4.0, lambda x, out: (-f.rsqrt(1 - x * x),), "Cephes acosf"),
    _row(Fn.ATAN, 1, _FLOAT, 4.0, lambda x, out: (f.reciprocal(x * x + 1),), "Cephes atanf"),
    _row(Fn.ATAN2, 2, _FLOAT, 4.0, _atan2_derivative, "atan of the quotient, moved to the quadrant"),
    _row(Fn.SINH, 1, _FLOAT, 4.0, lambda x, out: (f.cosh(x),), "from expm1"),
    _row(Fn.COSH, 1, _FLOAT, 4.0, lambda x, out: (f.sinh(x),), "from exp"),
    _row(Fn.TANH, 1, _FLOAT, 2.0, lambda x, out: (1 - out * out,), "odd minimax near 0, expm1 beyond"),
    _row(Fn.ASINH, 1, _FLOAT, 4.0, lambda x, out: (f.rsqrt(x * x + 1),), "from log1p"),
    _row(Fn.ACOSH, 1, _FLOAT, 4.0, lambda x, out: (f.rsqrt(x * x - 1),), "from log1p", complex_rule=_complex_acosh),
    _row(Fn.ATANH, 1, _FLOAT, 4.0, lambda x, out: (f.reciprocal(1 - x * x),), "from log1p"),
    _row(Fn.SIGMOID, 1, _FLOAT, 2.5, lambda x, out: (out * (1 - out),), "exp of -|x|, never overflowing"),
    _row(Fn.SOFTPLUS, 1, _FLOAT, 2.5, lambda x, out: (f.sigmoid(x),), "max(x, 0) + log1p(exp(-|x|))"),
    _row(Fn.ERF, 1, _FLOAT, 2.0, lambda x, out: (f.exp(-(x * x)) * (2 / _SQRT_PI),), "minimax of erf and of a root of erfc"),
    _row(Fn.ERFC, 1, _FLOAT, 4.0, lambda x, out: (f.exp(-(x * x)) * (-2 / _SQRT_PI),), "Cephes erfcf"),
    _row(Fn.ERFINV, 1, _FLOAT, 4.0, lambda x, out: (f.exp(out * out) * (_SQRT_PI / 2),), "minimax; float64: AS 241"),
    _row(Fn.LGAMMA, 1, _FLOAT, 8.0, lambda x, out: (f.digamma(x),), "Lanczos; reflection below 1/2"),
    _row(Fn.DIGAMMA, 1, _FLOAT, 8.0, lambda x, out: (_trigamma(x),), "recurrence and asymptotic series, A&S 6.3"),
    _row(Fn.EQ, 2, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.NE, 2, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.LT, 2, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.LE, 2, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.GT, 2, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.GE, 2, _BOOL, 0.0, _zero, _IEEE),
    _masked_row(Fn.WHERE, 3, Typing.SELECT, _where_masked, "a select"),
    _row(Fn.LOGICAL_AND, 2, _BOOL, 0.0, _zero, "non-zero is true"),
    _row(Fn.LOGICAL_OR, 2, _BOOL, 0.0, _zero, "non-zero is true"),
    _row(Fn.LOGICAL_XOR, 2, _BOOL, 0.0, _zero, "non-zero is true"),
    _row(Fn.LOGICAL_NOT, 1, _BOOL, 0.0, _zero, "non-zero is true"),
    _row(Fn.BITWISE_AND, 2, _INTEGER, 0.0, _zero, "bits"),
    _row(Fn.BITWISE_OR, 2, _INTEGER, 0.0, _zero, "bits"),
    _row(Fn.BITWISE_XOR, 2, _INTEGER, 0.0, _zero, "bits"),
    _row(Fn.BITWISE_NOT, 1, _INTEGER, 0.0, _zero, "bits; logical not for bool"),
    _row(Fn.LEFT_SHIFT, 2, _INTEGER, 0.0, _zero, "bits; 0 for a count outside the width"),
    _row(Fn.RIGHT_SHIFT, 2, _INTEGER, 0.0, _zero, "bits; the sign for a count outside the width"),
    _row(Fn.ISNAN, 1, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.ISINF, 1, _BOOL, 0.0, _zero, _IEEE),
    _row(Fn.ISFINITE, 1, _BOOL, 0.0, _zero, _IEEE),
    _masked_row(Fn.RELU, 1, _SAME, _relu_masked, "max(x, 0), NaN and -0 kept"),
    _row(Fn.NEXTAFTER, 2, _FLOAT, 0.0, lambda x, y, out: (f.where(f.eq(x, y), 0, 1), None), "IEEE 754 neighbours"),
    _row(Fn.COPYSIGN, 2, _FLOAT, 0.0, lambda x, y, out: (f.sign(x) * f.copysign(1.0, y), None), _IEEE),
    _row(Fn.HYPOT, 2, _FLOAT, 2.0, lambda x, y, out: (f.div(x, out), f.div(y, out)), "larger times sqrt(1 + ratio^2)"),
    _row(
        Fn.LOGADDEXP,
        2,
        _FLOAT,
        2.5,
        lambda x, y, out: (f.sigmoid(x - y), f.sigmoid(y - x)),
        "max(x, y) + log1p(exp(-|x - y|))",
    ),
)

TABLE: dict[Fn, Row] = {row.fn: row for row in _ROWS}

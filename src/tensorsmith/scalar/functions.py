"""The scalar functions as Python callables, one a row of the table, generic over what they are applied to.

On Python numbers they compute; on Scalar, Dual, Expr or IR nodes they do what that algebra does (see `algebra.py`).
Functions composed of several rows are in `composites.py`.
"""

from typing import Any

from tensorsmith.scalar.algebra import Operators as Operators, apply as apply
from tensorsmith.scalar.fn import Fn

__all__ = [
    "add",
    "sub",
    "mul",
    "div",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "minimum",
    "maximum",
    "neg",
    "abs",
    "sign",
    "sgn",
    "conj_physical",
    "angle",
    "floor",
    "ceil",
    "trunc",
    "round",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "sigmoid",
    "softplus",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "where",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_not",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "isnan",
    "isinf",
    "isfinite",
    "relu",
    "nextafter",
    "copysign",
    "hypot",
    "logaddexp",
]


def add(x: Any, y: Any) -> Any:
    """x + y."""
    return apply(Fn.ADD, x, y)


def sub(x: Any, y: Any) -> Any:
    """x - y."""
    return apply(Fn.SUB, x, y)


def mul(x: Any, y: Any) -> Any:
    """x y."""
    return apply(Fn.MUL, x, y)


def div(x: Any, y: Any) -> Any:
    """x / y, a float for integers too."""
    return apply(Fn.DIV, x, y)


def floor_divide(x: Any, y: Any) -> Any:
    """floor(x / y)."""
    return apply(Fn.FLOOR_DIVIDE, x, y)


def remainder(x: Any, y: Any) -> Any:
    """x - y floor(x / y): the sign of the divisor."""
    return apply(Fn.REMAINDER, x, y)


def fmod(x: Any, y: Any) -> Any:
    """x - y trunc(x / y): the sign of the dividend."""
    return apply(Fn.FMOD, x, y)


def pow(x: Any, y: Any) -> Any:
    """x to the power y."""
    return apply(Fn.POW, x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller; NaN if either is; at a tie each gets half of the gradient."""
    return apply(Fn.MINIMUM, x, y)


def maximum(x: Any, y: Any) -> Any:
    """The larger; NaN if either is; at a tie each gets half of the gradient."""
    return apply(Fn.MAXIMUM, x, y)


def neg(x: Any) -> Any:
    """-x."""
    return apply(Fn.NEG, x)


def abs(x: Any) -> Any:
    """|x|, with derivative 0 at 0."""
    return apply(Fn.ABS, x)


def sign(x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    return apply(Fn.SIGN, x)


def sgn(x: Any) -> Any:
    """The direction: x / |x| of a complex number, 0 for 0; the sign of a real one."""
    return apply(Fn.SGN, x)


def conj_physical(x: Any) -> Any:
    """The complex conjugate; a real number as it is."""
    return apply(Fn.CONJ, x)


def angle(x: Any) -> Any:
    """The argument in [-pi, pi]; of a real number 0 or, where it is negative, pi; NaN for NaN."""
    return apply(Fn.ANGLE, x)


def floor(x: Any) -> Any:
    """The largest whole number not above x."""
    return apply(Fn.FLOOR, x)


def ceil(x: Any) -> Any:
    """The smallest whole number not below x."""
    return apply(Fn.CEIL, x)


def trunc(x: Any) -> Any:
    """x without its fraction."""
    return apply(Fn.TRUNC, x)


def round(x: Any) -> Any:
    """The nearest whole number, halves to even."""
    return apply(Fn.ROUND, x)


def exp(x: Any) -> Any:
    """e to the power x."""
    return apply(Fn.EXP, x)


def exp2(x: Any) -> Any:
    """2 to the power x."""
    return apply(Fn.EXP2, x)


def expm1(x: Any) -> Any:
    """e**x - 1, accurate near 0."""
    return apply(Fn.EXPM1, x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return apply(Fn.LOG, x)


def log1p(x: Any) -> Any:
    """log(1 + x), accurate near 0."""
    return apply(Fn.LOG1P, x)


def log2(x: Any) -> Any:
    """The logarithm to base 2."""
    return apply(Fn.LOG2, x)


def log10(x: Any) -> Any:
    """The logarithm to base 10."""
    return apply(Fn.LOG10, x)


def sqrt(x: Any) -> Any:
    """The square root."""
    return apply(Fn.SQRT, x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return apply(Fn.RSQRT, x)


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return apply(Fn.RECIPROCAL, x)


def sin(x: Any) -> Any:
    """The sine of x radians."""
    return apply(Fn.SIN, x)


def cos(x: Any) -> Any:
    """The cosine of x radians."""
    return apply(Fn.COS, x)


def tan(x: Any) -> Any:
    """The tangent of x radians."""
    return apply(Fn.TAN, x)


def asin(x: Any) -> Any:
    """The inverse sine."""
    return apply(Fn.ASIN, x)


def acos(x: Any) -> Any:
    """The inverse cosine."""
    return apply(Fn.ACOS, x)


def atan(x: Any) -> Any:
    """The inverse tangent."""
    return apply(Fn.ATAN, x)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y)."""
    return apply(Fn.ATAN2, y, x)


def sinh(x: Any) -> Any:
    """The hyperbolic sine."""
    return apply(Fn.SINH, x)


def cosh(x: Any) -> Any:
    """The hyperbolic cosine."""
    return apply(Fn.COSH, x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return apply(Fn.TANH, x)


def asinh(x: Any) -> Any:
    """The inverse hyperbolic sine."""
    return apply(Fn.ASINH, x)


def acosh(x: Any) -> Any:
    """The inverse hyperbolic cosine."""
    return apply(Fn.ACOSH, x)


def atanh(x: Any) -> Any:
    """The inverse hyperbolic tangent."""
    return apply(Fn.ATANH, x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x), without overflow."""
    return apply(Fn.SIGMOID, x)


def softplus(x: Any) -> Any:
    """log(1 + e**x), without overflow."""
    return apply(Fn.SOFTPLUS, x)


def erf(x: Any) -> Any:
    """The error function."""
    return apply(Fn.ERF, x)


def erfc(x: Any) -> Any:
    """1 - erf(x), accurate for large x."""
    return apply(Fn.ERFC, x)


def erfinv(x: Any) -> Any:
    """The inverse of erf."""
    return apply(Fn.ERFINV, x)


def lgamma(x: Any) -> Any:
    """log |gamma(x)|."""
    return apply(Fn.LGAMMA, x)


def digamma(x: Any) -> Any:
    """The derivative of lgamma."""
    return apply(Fn.DIGAMMA, x)


def eq(x: Any, y: Any) -> Any:
    """x == y."""
    return apply(Fn.EQ, x, y)


def ne(x: Any, y: Any) -> Any:
    """x != y."""
    return apply(Fn.NE, x, y)


def lt(x: Any, y: Any) -> Any:
    """x < y."""
    return apply(Fn.LT, x, y)


def le(x: Any, y: Any) -> Any:
    """x <= y."""
    return apply(Fn.LE, x, y)


def gt(x: Any, y: Any) -> Any:
    """x > y."""
    return apply(Fn.GT, x, y)


def ge(x: Any, y: Any) -> Any:
    """x >= y."""
    return apply(Fn.GE, x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere."""
    return apply(Fn.WHERE, condition, x, y)


def logical_and(x: Any, y: Any) -> Any:
    """True where both are non-zero."""
    return apply(Fn.LOGICAL_AND, x, y)


def logical_or(x: Any, y: Any) -> Any:
    """True where either is non-zero."""
    return apply(Fn.LOGICAL_OR, x, y)


def logical_xor(x: Any, y: Any) -> Any:
    """True where exactly one is non-zero."""
    return apply(Fn.LOGICAL_XOR, x, y)


def logical_not(x: Any) -> Any:
    """True where x is zero."""
    return apply(Fn.LOGICAL_NOT, x)


def bitwise_and(x: Any, y: Any) -> Any:
    """x & y, integers and bool."""
    return apply(Fn.BITWISE_AND, x, y)


def bitwise_or(x: Any, y: Any) -> Any:
    """x | y, integers and bool."""
    return apply(Fn.BITWISE_OR, x, y)


def bitwise_xor(x: Any, y: Any) -> Any:
    """x ^ y, integers and bool."""
    return apply(Fn.BITWISE_XOR, x, y)


def bitwise_not(x: Any) -> Any:
    """~x, integers; logical for bool."""
    return apply(Fn.BITWISE_NOT, x)


def bitwise_left_shift(x: Any, y: Any) -> Any:
    """x << y, integers."""
    return apply(Fn.LEFT_SHIFT, x, y)


def bitwise_right_shift(x: Any, y: Any) -> Any:
    """x >> y, integers; keeps the sign."""
    return apply(Fn.RIGHT_SHIFT, x, y)


def isnan(x: Any) -> Any:
    """True for NaN."""
    return apply(Fn.ISNAN, x)


def isinf(x: Any) -> Any:
    """True for inf and -inf."""
    return apply(Fn.ISINF, x)


def isfinite(x: Any) -> Any:
    """True for all but NaN and infinities."""
    return apply(Fn.ISFINITE, x)


def relu(x: Any) -> Any:
    """max(x, 0), with derivative 0 at 0; NaN stays."""
    return apply(Fn.RELU, x)


def nextafter(x: Any, y: Any) -> Any:
    """The next representable number after x towards y."""
    return apply(Fn.NEXTAFTER, x, y)


def copysign(x: Any, y: Any) -> Any:
    """|x| with the sign of y."""
    return apply(Fn.COPYSIGN, x, y)


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x**2 + y**2), without overflow."""
    return apply(Fn.HYPOT, x, y)


def logaddexp(x: Any, y: Any) -> Any:
    """log(e**x + e**y), without overflow."""
    return apply(Fn.LOGADDEXP, x, y)

"""The CPU's rendering of every scalar function: `Fn` -> LLVM vector instructions.

`RENDERINGS[fn](context, dtype, args)` writes the instructions and returns the result, where `dtype` is the dtype of
the arguments (of the chosen values for WHERE). Comparisons and predicates give vectors of i1. No float-unsafe flag is
used: user arithmetic is neither reassociated nor contracted. LIBRARY_CALLS lists the functions computed by the C
library, lane by lane in float64 (exactly what is not vectorised yet).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorsmith.core.dtypes import DType
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu import (
    circular64 as t64,
    elementary as e,
    elementary64 as e64,
    inverse_hyperbolic,
    special,
    trigonometry as t,
)
from tensorsmith.targets.cpu.casts import to_bool
from tensorsmith.targets.cpu.context import Context, Rendering
from tensorsmith.targets.cpu.integers import integer_power, integer_quotient, left_shift, right_shift
from tensorsmith.targets.cpu.library import library_call
from tensorsmith.targets.cpu.power import power
from tensorsmith.targets.cpu.two_arguments import fmod, hypot
from tensorsmith.targets.cpu.vector import element_of


def _binary(floating: str, integer: str, boolean: str) -> Rendering:
    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        name = floating if dtype.is_floating_point else boolean if dtype.kind == "b" else integer
        if not name:
            raise NotImplementedError(f"a function without a meaning on {dtype.name} reached the CPU target")
        return context.lanes.op(name, element_of(dtype), *args)

    return render


def _compare(floating: str, signed: str, unsigned: str) -> Rendering:
    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        predicate = floating if dtype.is_floating_point else signed if dtype.kind == "i" else unsigned
        return context.lanes.compare(predicate, element_of(dtype), *args)

    return render


def _intrinsic(floating: str, signed: str = "", unsigned: str = "") -> Rendering:
    """An LLVM intrinsic; integers keep their value where no name is given for them."""

    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        name = floating if dtype.is_floating_point else signed if dtype.kind == "i" else unsigned
        return context.lanes.intrinsic(name, element_of(dtype), *args) if name else args[0]

    return render


def _logical(name: str) -> Rendering:
    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        return context.lanes.op(name, "i1", *(to_bool(context.lanes, dtype, a) for a in args))

    return render


def _neg(context: Context, dtype: DType, args: Sequence[str]) -> str:
    lanes, element = context.lanes, element_of(dtype)
    if dtype.is_floating_point:
        return lanes.negate(element, args[0])
    return lanes.op("sub", element, lanes.constant(element, 0), args[0])


def _abs(context: Context, dtype: DType, args: Sequence[str]) -> str:
    lanes, element = context.lanes, element_of(dtype)
    if dtype.is_floating_point:
        return lanes.intrinsic("fabs", element, args[0])
    if dtype.kind != "i":
        return args[0]
    negative = lanes.compare("slt", element, args[0], lanes.constant(element, 0))
    return lanes.select(negative, element, _neg(context, dtype, args), args[0])


def _angle(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """pi where x < 0, NaN for NaN, else 0."""
    lanes, element, x = context.lanes, element_of(dtype), args[0]
    zero, pi = lanes.constant(element, 0), lanes.constant(element, math.pi)
    result = lanes.select(lanes.compare("olt", element, x, zero), element, pi, zero)
    return lanes.select(lanes.compare("uno", element, x, x), element, x, result)


def _sign(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """(x > 0) - (x < 0): 0 for NaN."""
    lanes, element, x = context.lanes, element_of(dtype), args[0]
    if dtype.kind == "b":
        return x
    zero, one = lanes.constant(element, 0), lanes.constant(element, 1)
    above = lanes.compare("ogt" if dtype.is_floating_point else "sgt" if dtype.kind == "i" else "ugt", element, x, zero)
    result = lanes.select(above, element, one, zero)
    if dtype.kind == "u":
        return result
    below = lanes.compare("olt" if dtype.is_floating_point else "slt", element, x, zero)
    return lanes.select(below, element, lanes.constant(element, -1), result)


def _extreme(floating: str, signed: str, unsigned: str, boolean: str) -> Rendering:
    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        if dtype.kind == "b":
            return context.lanes.op(boolean, "i1", *args)
        name = floating if dtype.is_floating_point else signed if dtype.kind == "i" else unsigned
        return context.lanes.intrinsic(name, element_of(dtype), *args)

    return render


def _relu(context: Context, dtype: DType, args: Sequence[str]) -> str:
    lanes, element, x = context.lanes, element_of(dtype), args[0]
    if dtype.kind in "bu":
        return x
    zero = lanes.constant(element, 0)
    if dtype.is_floating_point:  # x < 0 ? 0 : x keeps NaN, and -0 as PyTorch does
        return lanes.select(lanes.compare("olt", element, x, zero), element, zero, x)
    return lanes.intrinsic("smax", element, x, zero)


def _where(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return context.lanes.select(args[0], element_of(dtype), args[1], args[2])


def _reciprocal(context: Context, dtype: DType, args: Sequence[str]) -> str:
    element = element_of(dtype)
    return context.lanes.op("fdiv", element, context.lanes.constant(element, 1.0), args[0])


def _sqrt(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return context.lanes.intrinsic("sqrt", element_of(dtype), args[0])


def _rsqrt(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return _reciprocal(context, dtype, [_sqrt(context, dtype, args)])


def _fmod(context: Context, dtype: DType, args: Sequence[str]) -> str:
    if not dtype.is_floating_point:
        return integer_quotient(context, dtype, args[0], args[1], floor=False)[1]
    return fmod(context.lanes, element_of(dtype), args[0], args[1])


def _shifted_remainder(context: Context, element: str, x: str, y: str) -> tuple[str, str, str]:
    """(fmod, the same moved to the divisor's sign, mask of the lanes moved)."""
    lanes = context.lanes
    zero = lanes.constant(element, 0)
    remainder = fmod(context.lanes, element, x, y)
    inexact = lanes.compare("one", element, remainder, zero)
    unequal = lanes.op(
        "xor", "i1", lanes.compare("olt", element, y, zero), lanes.compare("olt", element, remainder, zero)
    )
    moved = lanes.op("and", "i1", inexact, unequal)
    return remainder, lanes.select(moved, element, lanes.op("fadd", element, remainder, y), remainder), moved


def _remainder(context: Context, dtype: DType, args: Sequence[str]) -> str:
    if not dtype.is_floating_point:
        return integer_quotient(context, dtype, args[0], args[1], floor=True)[1]
    return _shifted_remainder(context, element_of(dtype), args[0], args[1])[1]


def _floor_divide(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """floor(x / y) even where x / y rounds up: (x - fmod) / y, less 1 where the signs differ, made whole."""
    x, y = args
    if not dtype.is_floating_point:
        return integer_quotient(context, dtype, x, y, floor=True)[0]
    lanes, element = context.lanes, element_of(dtype)
    remainder, _, moved = _shifted_remainder(context, element, x, y)
    ratio = lanes.op("fdiv", element, x, y)
    quotient = lanes.op("fdiv", element, lanes.op("fsub", element, x, remainder), y)
    less = lanes.op("fsub", element, quotient, lanes.constant(element, 1.0))
    quotient = lanes.select(moved, element, less, quotient)
    whole = lanes.intrinsic("floor", element, quotient)
    above = lanes.compare("ogt", element, lanes.op("fsub", element, quotient, whole), lanes.constant(element, 0.5))
    whole = lanes.select(above, element, lanes.op("fadd", element, whole, lanes.constant(element, 1.0)), whole)
    zero = lanes.compare("oeq", element, whole, lanes.constant(element, 0))
    whole = lanes.select(zero, element, lanes.intrinsic("copysign", element, whole, ratio), whole)
    by_zero = lanes.compare("oeq", element, y, lanes.constant(element, 0))
    return lanes.select(by_zero, element, ratio, whole)


def _bitwise_not(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return context.lanes.op("xor", element_of(dtype), args[0], context.lanes.constant(element_of(dtype), -1))


def _logical_not(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return context.lanes.op("xor", "i1", to_bool(context.lanes, dtype, args[0]), "splat (i1 true)")


def _isnan(context: Context, dtype: DType, args: Sequence[str]) -> str:
    if not dtype.is_floating_point:
        return "zeroinitializer"
    return context.lanes.compare("uno", element_of(dtype), args[0], args[0])


def _magnitude_is_infinite(predicate: str, integers: str) -> Rendering:
    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        if not dtype.is_floating_point:
            return integers
        lanes, element = context.lanes, element_of(dtype)
        size = lanes.intrinsic("fabs", element, args[0])
        return lanes.compare(predicate, element, size, lanes.constant(element, float("inf")))

    return render


def _pow(context: Context, dtype: DType, args: Sequence[str]) -> str:
    if not dtype.is_floating_point:
        return integer_power(context, dtype, args)
    return power(context.lanes, element_of(dtype), *args)


def _nextafter(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """The neighbour of x towards y: its bit pattern plus or minus one."""
    lanes, element = context.lanes, element_of(dtype)
    integer = f"i{dtype.itemsize * 8}"
    x, y = args
    zero, one = lanes.constant(element, 0), lanes.constant(integer, 1)
    bits = lanes.bits(element, x)
    up = lanes.compare("olt", element, x, y)
    positive = lanes.compare("ogt", element, x, zero)
    away = lanes.op("xor", "i1", lanes.op("xor", "i1", up, positive), "splat (i1 true)")  # magnitude grows
    moved = lanes.select(away, integer, lanes.op("add", integer, bits, one), lanes.op("sub", integer, bits, one))
    smallest = lanes.intrinsic("copysign", element, lanes.from_bits(element, one), y)
    at_zero = lanes.compare("oeq", element, x, zero)
    result = lanes.select(at_zero, element, smallest, lanes.from_bits(element, moved))
    result = lanes.select(lanes.compare("oeq", element, x, y), element, y, result)
    unordered = lanes.compare("uno", element, x, y)
    return lanes.select(unordered, element, lanes.op("fadd", element, x, y), result)


def _copysign(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return context.lanes.intrinsic("copysign", element_of(dtype), *args)


# --------------------------------------------------------------------------------------------- elementary functions

LIBRARY_NAMES: dict[Fn, str] = {
    Fn.EXP: "exp", Fn.EXP2: "exp2", Fn.EXPM1: "expm1", Fn.LOG: "log", Fn.LOG1P: "log1p", Fn.LOG2: "log2",
    Fn.LOG10: "log10", Fn.SIN: "sin", Fn.COS: "cos", Fn.TAN: "tan", Fn.ASIN: "asin", Fn.ACOS: "acos",
    Fn.ATAN: "atan", Fn.ATAN2: "atan2", Fn.SINH: "sinh", Fn.COSH: "cosh", Fn.TANH: "tanh",
    Fn.ATANH: "atanh", Fn.ERF: "erf", Fn.ERFC: "erfc", Fn.LGAMMA: "lgamma",
}  # fmt: skip


# float32 vector code.
VECTORISED: dict[Fn, Callable[..., str]] = {
    Fn.EXP: e.exp, Fn.EXP2: e.exp2, Fn.EXPM1: e.expm1, Fn.LOG: e.log, Fn.LOG1P: e.log1p, Fn.LOG2: e.log2,
    Fn.LOG10: e.log10, Fn.SIN: t.sin, Fn.COS: t.cos, Fn.TAN: t.tan, Fn.ASIN: t.asin, Fn.ACOS: t.acos, Fn.ATAN: t.atan,
    Fn.SINH: e.sinh, Fn.COSH: e.cosh, Fn.TANH: e.tanh, Fn.ATANH: e.atanh, Fn.ERF: e.erf, Fn.ERFC: e.erfc,
    Fn.ATAN2: t.atan2, Fn.SIGMOID: e.sigmoid, Fn.SOFTPLUS: e.softplus, Fn.LGAMMA: special.lgamma32,
}  # fmt: skip


# float64 vector code; the rest of float64 is the C library.
VECTORISED64: dict[Fn, Callable[..., str]] = {
    Fn.EXP: e64.exp, Fn.EXP2: e64.exp2, Fn.EXPM1: e64.expm1, Fn.LOG: e64.log, Fn.LOG1P: e64.log1p, Fn.LOG2: e64.log2,
    Fn.LOG10: e64.log10, Fn.SINH: e64.sinh, Fn.COSH: e64.cosh, Fn.TANH: e64.tanh, Fn.ATANH: e64.atanh, Fn.ERF: e64.erf,
    Fn.ERFC: e64.erfc, Fn.SIGMOID: e64.sigmoid, Fn.SIN: t64.sin, Fn.COS: t64.cos, Fn.TAN: t64.tan, Fn.ASIN: t64.asin,
    Fn.ACOS: t64.acos, Fn.ATAN: t64.atan, Fn.ATAN2: t64.atan2,
}  # fmt: skip


def _elementary(fn: Fn) -> Rendering:
    """The vector code where there is some, else the C library."""
    vectorised, vectorised64 = VECTORISED.get(fn), VECTORISED64.get(fn)

    def render(context: Context, dtype: DType, args: Sequence[str]) -> str:
        element = element_of(dtype)
        if vectorised is not None and element == "float":
            return vectorised(context.lanes, *args)
        if vectorised64 is not None and element == "double":
            return vectorised64(context.lanes, *args)
        return library_call(context.lanes, element, LIBRARY_NAMES[fn], args)

    return render


def _of_element(function: Callable[..., str]) -> Rendering:
    return lambda context, dtype, args: function(context.lanes, element_of(dtype), *args)


def _call(fn: Fn, context: Context, dtype: DType, *args: str) -> str:
    return RENDERINGS[fn](context, dtype, args)


def _softplus(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """max(x, 0) + log1p(exp(-|x|))."""
    lanes, element, x = context.lanes, element_of(dtype), args[0]
    if element == "float":
        return e.softplus(lanes, x)
    decay = _call(Fn.EXP, context, dtype, lanes.negate(element, lanes.intrinsic("fabs", element, x)))
    return lanes.op("fadd", element, _relu(context, dtype, args), _call(Fn.LOG1P, context, dtype, decay))


def _logaddexp(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """max + log1p(exp(-|x - y|)); equal infinities give themselves."""
    lanes, element = context.lanes, element_of(dtype)
    x, y = args
    gap = lanes.intrinsic("fabs", element, lanes.op("fsub", element, x, y))
    small = _call(Fn.LOG1P, context, dtype, _call(Fn.EXP, context, dtype, lanes.negate(element, gap)))
    total = lanes.op("fadd", element, _call(Fn.MAXIMUM, context, dtype, x, y), small)
    infinite = _call(Fn.ISINF, context, dtype, x)
    equal = lanes.op("and", "i1", infinite, lanes.compare("oeq", element, x, y))
    return lanes.select(equal, element, x, total)


RENDERINGS: dict[Fn, Rendering] = {
    Fn.ADD: _binary("fadd", "add", "or"),
    Fn.SUB: _binary("fsub", "sub", "xor"),
    Fn.MUL: _binary("fmul", "mul", "and"),
    Fn.DIV: _binary("fdiv", "", ""),
    Fn.FLOOR_DIVIDE: _floor_divide,
    Fn.REMAINDER: _remainder,
    Fn.FMOD: _fmod,
    Fn.POW: _pow,
    Fn.MINIMUM: _extreme("minimum", "smin", "umin", "and"),
    Fn.MAXIMUM: _extreme("maximum", "smax", "umax", "or"),
    Fn.NEG: _neg,
    Fn.ABS: _abs,
    Fn.SIGN: _sign,
    Fn.SGN: _sign,
    Fn.CONJ: lambda context, dtype, args: args[0],
    Fn.ANGLE: _angle,
    Fn.FLOOR: _intrinsic("floor"),
    Fn.CEIL: _intrinsic("ceil"),
    Fn.TRUNC: _intrinsic("trunc"),
    Fn.ROUND: _intrinsic("roundeven"),
    Fn.SQRT: _sqrt,
    Fn.RSQRT: _rsqrt,
    Fn.RECIPROCAL: _reciprocal,
    Fn.EQ: _compare("oeq", "eq", "eq"),
    Fn.NE: _compare("une", "ne", "ne"),
    Fn.LT: _compare("olt", "slt", "ult"),
    Fn.LE: _compare("ole", "sle", "ule"),
    Fn.GT: _compare("ogt", "sgt", "ugt"),
    Fn.GE: _compare("oge", "sge", "uge"),
    Fn.WHERE: _where,
    Fn.LOGICAL_AND: _logical("and"),
    Fn.LOGICAL_OR: _logical("or"),
    Fn.LOGICAL_XOR: _logical("xor"),
    Fn.LOGICAL_NOT: _logical_not,
    Fn.BITWISE_AND: _binary("", "and", "and"),
    Fn.BITWISE_OR: _binary("", "or", "or"),
    Fn.BITWISE_XOR: _binary("", "xor", "xor"),
    Fn.BITWISE_NOT: _bitwise_not,
    Fn.LEFT_SHIFT: left_shift,
    Fn.RIGHT_SHIFT: right_shift,
    Fn.ISNAN: _isnan,
    Fn.ISINF: _magnitude_is_infinite("oeq", "zeroinitializer"),
    Fn.ISFINITE: _magnitude_is_infinite("one", "splat (i1 true)"),
    Fn.RELU: _relu,
    Fn.NEXTAFTER: _nextafter,
    Fn.COPYSIGN: _copysign,
    Fn.SIGMOID: _elementary(Fn.SIGMOID),
    Fn.SOFTPLUS: _softplus,
    Fn.LOGADDEXP: _logaddexp,
    **{fn: _elementary(fn) for fn in LIBRARY_NAMES},
    Fn.HYPOT: lambda context, dtype, args: hypot(context.lanes, element_of(dtype), *args),
    Fn.ASINH: _of_element(inverse_hyperbolic.asinh),
    Fn.ACOSH: _of_element(inverse_hyperbolic.acosh),
    Fn.ERFINV: _of_element(special.erfinv),
    Fn.DIGAMMA: _of_element(special.in_double(special.digamma)),
}

# Functions that no kernel can compute: a graph that needs one calls NumPy for it.
LIBRARY_CALLS: frozenset[Fn] = frozenset(Fn) - frozenset(RENDERINGS)

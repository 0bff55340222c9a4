"""CUDA's rendering of every scalar function: `Fn` -> a C++ expression, by the kind of its arguments.

In the expressions {0}, {1}, {2} are the arguments (names or literals, so they may be repeated), {T} is their type, {U}
the unsigned type in which integers of that type wrap, {f} the suffix of float functions and literals ("f", or "" for
double), {error} the address of the error word. Kernels are compiled without contraction into fused multiply-adds, so
that arithmetic rounds as on the other targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.scalar.table import Fn

# Types of values in registers; the half types are kept as bits and computed in float.
C_TYPES: dict[DType, str] = {
    dtypes.bool_: "bool",
    dtypes.uint8: "unsigned char",
    dtypes.int8: "signed char",
    dtypes.int16: "short",
    dtypes.int32: "int",
    dtypes.int64: "long long",
    dtypes.float16: "unsigned short",
    dtypes.bfloat16: "unsigned short",
    dtypes.float32: "float",
    dtypes.float64: "double",
    dtypes.uint16: "unsigned short",
    dtypes.uint32: "unsigned int",
    dtypes.uint64: "unsigned long long",
}


def c_type(dtype: DType) -> str:
    """The C++ type of a value of `dtype`."""
    found = C_TYPES.get(dtype)
    if found is None:
        raise NotImplementedError(f"the CUDA target has no {dtype.name} kernels yet")
    return found


def memory_type(dtype: DType) -> str:
    """The C++ type of an element in memory."""
    return "unsigned char" if dtype.kind == "b" else c_type(dtype)


@dataclass(frozen=True)
class Rendering:
    """Expressions for floating, integer (signed, unsigned) and bool arguments; "" where the function has no meaning."""

    floating: str
    signed: str
    unsigned: str
    boolean: str


def _all(floating: str, integer: str, boolean: str, unsigned: str | None = None) -> Rendering:
    return Rendering(floating, integer, integer if unsigned is None else unsigned, boolean)


def _float(expression: str) -> Rendering:
    return Rendering(expression, "", "", "")


def _call(name: str, arity: int = 1) -> Rendering:
    """A mathematical function of CUDA that adds `f` to its name for float."""
    return _float(f"{name}{{f}}({', '.join(f'{{{i}}}' for i in range(arity))})")


def _everywhere(expression: str) -> Rendering:
    return Rendering(expression, expression, expression, expression)


def _wrapping(operator: str, boolean: str) -> Rendering:
    # Signed overflow has no meaning in C++; unsigned arithmetic wraps.
    integer = f"({{T}})(({{U}}){{0}} {operator} ({{U}}){{1}})"
    return _all(f"{{0}} {operator} {{1}}", integer, f"{{0}} {boolean} {{1}}" if boolean else "")


def _rounding(name: str) -> Rendering:
    return _all(f"{name}{{f}}({{0}})", "{0}", "{0}")


def _bits(operator: str) -> Rendering:
    return _all("", f"({{T}})({{0}} {operator} {{1}})", f"{{0}} {operator} {{1}}")


RENDERINGS: dict[Fn, Rendering] = {
    Fn.ADD: _wrapping("+", "|"),
    Fn.SUB: _wrapping("-", "^"),
    Fn.MUL: _wrapping("*", "&"),
    Fn.DIV: _float("{0} / {1}"),
    Fn.FLOOR_DIVIDE: _all("floor_divide<{T}>({0}, {1})", "integer_quotient<{T}>({0}, {1}, {error})", ""),
    Fn.REMAINDER: _all("floored_remainder<{T}>({0}, {1})", "integer_remainder<{T}>({0}, {1}, true, {error})", ""),
    Fn.FMOD: _all("fmod{f}({0}, {1})", "integer_remainder<{T}>({0}, {1}, false, {error})", ""),
    Fn.POW: _all("pow{f}({0}, {1})", "integer_power<{T}>({0}, {1})", ""),
    Fn.MINIMUM: _all("minimum<{T}>({0}, {1})", "{0} < {1} ? {0} : {1}", "{0} & {1}"),
    Fn.MAXIMUM: _all("maximum<{T}>({0}, {1})", "{0} > {1} ? {0} : {1}", "{0} | {1}"),
    Fn.NEG: _all("-{0}", "({T})(({U})0 - ({U}){0})", ""),
    Fn.ABS: _all("fabs{f}({0})", "{0} < 0 ? ({T})(({U})0 - ({U}){0}) : {0}", "{0}", unsigned="{0}"),
    Fn.CONJ: _all("{0}", "{0}", "{0}"),
    Fn.SGN: _all("({T})(({0} > 0) - ({0} < 0))", "({T})(({0} > 0) - ({0} < 0))", "{0}", unsigned="({T})({0} > 0)"),
    Fn.ANGLE: _float("{0} != {0} ? {0} : {0} < 0 ? ({T})3.14159265358979323846 : ({T})0"),
    Fn.SIGN: _all("({T})(({0} > 0) - ({0} < 0))", "({T})(({0} > 0) - ({0} < 0))", "{0}", unsigned="({T})({0} > 0)"),
    Fn.FLOOR: _rounding("floor"),
    Fn.CEIL: _rounding("ceil"),
    Fn.TRUNC: _rounding("trunc"),
    Fn.ROUND: _rounding("rint"),  # half to even
    Fn.EXP: _call("exp"),
    Fn.EXP2: _call("exp2"),
    Fn.EXPM1: _call("expm1"),
    Fn.LOG: _call("log"),
    Fn.LOG1P: _call("log1p"),
    Fn.LOG2: _call("log2"),
    Fn.LOG10: _call("log10"),
    Fn.SQRT: _call("sqrt"),
    Fn.RSQRT: _float("1.0{f} / sqrt{f}({0})"),  # two roundings, as on the other targets; rsqrtf is less exact
    Fn.RECIPROCAL: _float("1.0{f} / {0}"),
    Fn.SIN: _call("sin"),
    Fn.COS: _call("cos"),
    Fn.TAN: _call("tan"),
    Fn.ASIN: _call("asin"),
    Fn.ACOS: _call("acos"),
    Fn.ATAN: _call("atan"),
    Fn.ATAN2: _call("atan2", 2),
    Fn.SINH: _call("sinh"),
    Fn.COSH: _call("cosh"),
    Fn.TANH: _call("tanh"),
    Fn.ASINH: _call("asinh"),
    Fn.ACOSH: _call("acosh"),
    Fn.ATANH: _call("atanh"),
    Fn.SIGMOID: _float("1.0{f} / (1.0{f} + exp{f}(-{0}))"),
    Fn.SOFTPLUS: _float("softplus<{T}>({0})"),
    Fn.ERF: _call("erf"),
    Fn.ERFC: _call("erfc"),
    Fn.ERFINV: _call("erfinv"),
    Fn.LGAMMA: _call("lgamma"),
    Fn.DIGAMMA: _float("({T})digamma({0})"),
    Fn.EQ: _everywhere("{0} == {1}"),
    Fn.NE: _everywhere("{0} != {1}"),
    Fn.LT: _everywhere("{0} < {1}"),
    Fn.LE: _everywhere("{0} <= {1}"),
    Fn.GT: _everywhere("{0} > {1}"),
    Fn.GE: _everywhere("{0} >= {1}"),
    Fn.WHERE: _everywhere("{0} ? {1} : {2}"),
    Fn.LOGICAL_AND: _everywhere("({0} != 0) & ({1} != 0)"),
    Fn.LOGICAL_OR: _everywhere("({0} != 0) | ({1} != 0)"),
    Fn.LOGICAL_XOR: _everywhere("({0} != 0) != ({1} != 0)"),
    Fn.LOGICAL_NOT: _everywhere("{0} == 0"),
    Fn.BITWISE_AND: _bits("&"),
    Fn.BITWISE_OR: _bits("|"),
    Fn.BITWISE_XOR: _bits("^"),
    Fn.BITWISE_NOT: _all("", "({T})~{0}", "!{0}"),
    Fn.LEFT_SHIFT: _all("", "left_shift<{T}>({0}, {1})", ""),
    Fn.RIGHT_SHIFT: _all("", "right_shift<{T}>({0}, {1})", ""),
    Fn.ISNAN: _all("{0} != {0}", "false", "false"),
    Fn.ISINF: _all("fabs{f}({0}) == {infinity}", "false", "false"),
    Fn.ISFINITE: _all("fabs{f}({0}) < {infinity}", "true", "true"),
    Fn.RELU: _all("{0} < 0 ? ({T})0 : {0}", "{0} > 0 ? {0} : ({T})0", "{0}", unsigned="{0}"),  # keeps NaN
    Fn.NEXTAFTER: _call("nextafter", 2),
    Fn.COPYSIGN: _call("copysign", 2),
    Fn.HYPOT: _call("hypot", 2),
    Fn.LOGADDEXP: _float("logaddexp<{T}>({0}, {1})"),
}

# Functions that no CUDA kernel computes: none is left.
LIBRARY_CALLS: frozenset[Fn] = frozenset()

_INFINITY = {"float": "__int_as_float(0x7f800000)", "double": "__longlong_as_double(0x7ff0000000000000ll)"}


def apply_expression(fn: Fn, dtype: DType, args: Sequence[str], error: str = "error") -> str:
    """`fn` of `args`; `dtype` is the dtype of the last argument, no half type (compute those in float32)."""
    rendering = RENDERINGS[fn]
    template = {"f": rendering.floating, "i": rendering.signed, "u": rendering.unsigned, "b": rendering.boolean}.get(
        dtype.kind, ""
    )
    if not template:
        raise NotImplementedError(f"{fn.value} of {dtype.name} has no CUDA kernel")
    name = c_type(dtype)
    wrapping = "unsigned long long" if dtype.itemsize == 8 else "unsigned int"
    return template.format(
        *args, T=name, U=wrapping, f="f" if name == "float" else "", error=error, infinity=_INFINITY.get(name, "")
    )


def literal(dtype: DType, value: bool | int | float) -> str:
    """A constant of `dtype`, exactly."""
    name = c_type(dtype)
    if dtype.is_half:
        with np.errstate(over="ignore"):
            return f"0x{int(np.asarray(value, np.float64).astype(np.float32).astype(dtype.numpy).view(np.uint16)):04x}"
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            number = float(np.float32(value)) if name == "float" else float(value)
        if math.isnan(number):
            return "__int_as_float(0x7fc00000)" if name == "float" else "__longlong_as_double(0x7ff8000000000000ll)"
        if math.isinf(number):
            return _INFINITY[name] if number > 0 else f"(-{_INFINITY[name]})"
        text = f"{number!r}{'f' if name == 'float' else ''}"
        return f"({text})" if text.startswith("-") else text
    bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
    return f"({name})0x{bits:x}ull" if dtype.itemsize == 8 and bits >> 63 else f"({name}){_signed(dtype, bits)}"


def _signed(dtype: DType, bits: int) -> str:
    value = bits - (1 << 8 * dtype.itemsize) if dtype.kind == "i" and bits >> (8 * dtype.itemsize - 1) else bits
    return f"{value}" if dtype.itemsize < 8 else f"{value}ll"


def widen(dtype: DType, bits: str) -> str:
    """A half value as float."""
    return f"widen_{dtype.name}({bits})"


def narrow(dtype: DType, value: str) -> str:
    """A float rounded to a half type."""
    return f"narrow_{dtype.name}({value})"


def cast_expression(source: DType, target: DType, value: str) -> str:
    """`value` as `target`: floats to integers saturate (NaN gives 0), integers wrap, bool is != 0."""
    if source is target:
        return value
    if source.is_half:
        return cast_expression(dtypes.float32, target, widen(source, value))
    if target.is_half:
        return narrow(target, cast_expression(source, dtypes.float32, value))
    if target.kind == "b":
        return f"({value} != 0)"
    name = c_type(target)
    if source.kind == "f" and target.kind in "iu":
        bits = 8 * target.itemsize - (target.kind == "i")
        lowest = -(2.0**bits) if target.kind == "i" else 0.0
        limits = f"{literal(source, lowest)}, {literal(source, 2.0**bits)}"
        return f"saturate<{name}, {c_type(source)}>({value}, {limits})"
    return f"({name})({value})"

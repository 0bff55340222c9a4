"""Integer division, shifts and powers on vectors (none may trap); a zero divisor is reported in the error word."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.errors import ZERO_DIVISION
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.vector import Lanes, element_of


def _safe_divisor(context: Context, dtype: DType, x: str, y: str) -> tuple[str, str, str]:
    """(divisor that cannot trap, mask of zero divisors, mask of divisors -1), zero divisors reported."""
    lanes, element = context.lanes, element_of(dtype)
    one = lanes.constant(element, 1)
    zero = lanes.compare("eq", element, y, lanes.constant(element, 0))
    context.report(zero, ZERO_DIVISION)
    safe = lanes.select(zero, element, one, y)
    if dtype.kind != "i":
        return safe, zero, "zeroinitializer"
    minus = lanes.compare("eq", element, y, lanes.constant(element, -1))
    return lanes.select(minus, element, one, safe), zero, minus


def integer_quotient(context: Context, dtype: DType, x: str, y: str, floor: bool) -> tuple[str, str]:
    """(quotient, remainder) of integers, floored or truncated; division by zero gives (0, 0) and reports."""
    lanes, element = context.lanes, element_of(dtype)
    zero_constant = lanes.constant(element, 0)
    safe, zero, minus = _safe_divisor(context, dtype, x, y)
    quotient = _quotient(lanes, dtype, x, safe)
    remainder = lanes.op("sub", element, x, lanes.op("mul", element, quotient, safe))
    if dtype.kind == "i":
        quotient = lanes.select(minus, element, lanes.op("sub", element, zero_constant, x), quotient)
        remainder = lanes.select(minus, element, zero_constant, remainder)
        if floor:
            unequal = lanes.compare("slt", element, lanes.op("xor", element, remainder, y), zero_constant)
            inexact = lanes.compare("ne", element, remainder, zero_constant)
            adjust = lanes.op("and", "i1", unequal, inexact)
            less = lanes.op("sub", element, quotient, lanes.constant(element, 1))
            quotient = lanes.select(adjust, element, less, quotient)
            remainder = lanes.select(adjust, element, lanes.op("add", element, remainder, y), remainder)
    return (
        lanes.select(zero, element, zero_constant, quotient),
        lanes.select(zero, element, zero_constant, remainder),
    )


def _quotient(lanes: Lanes, dtype: DType, x: str, y: str) -> str:
    """x / y truncated, y not 0 nor (signed) -1; up to four bytes in floats, where no rounding reaches a whole number.

    Where x / y is not whole, it lies at least 1 / |y| from the next whole number q. With |q y| < 2**b that is more than
    |q| / 2**b, and half a unit in the last place of q is less, as the float has more than b digits.
    """
    element, signed = element_of(dtype), dtype.kind == "i"
    if dtype.itemsize > 4:
        return lanes.op("sdiv" if signed else "udiv", element, x, y)
    floating, wide = ("float", "i32") if dtype.itemsize <= 2 else ("double", element)
    a, b = (lanes.convert("sitofp" if signed else "uitofp", element, floating, v) for v in (x, y))
    ratio = lanes.op("fdiv", floating, a, b)
    whole = lanes.convert("fptosi" if signed or wide != element else "fptoui", floating, wide, ratio)
    return lanes.convert("trunc", wide, element, whole)


def left_shift(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return _shift(context, dtype, args, "shl")


def right_shift(context: Context, dtype: DType, args: Sequence[str]) -> str:
    return _shift(context, dtype, args, "ashr" if dtype.kind == "i" else "lshr")


def _shift(context: Context, dtype: DType, args: Sequence[str], name: str) -> str:
    """A shift by less than the width; beyond it (or by a negative amount) all bits leave: 0, or the sign for ashr."""
    lanes, element = context.lanes, element_of(dtype)
    bits = dtype.itemsize * 8
    inside = lanes.compare("ult", element, args[1], lanes.constant(element, bits))
    amount = lanes.select(inside, element, args[1], lanes.constant(element, bits - 1))
    shifted = lanes.op(name, element, args[0], amount)
    if name == "ashr":
        return shifted
    return lanes.select(inside, element, shifted, lanes.constant(element, 0))


def integer_power(context: Context, dtype: DType, args: Sequence[str]) -> str:
    """x ** y of integers by squaring, wrapping; a negative exponent gives 0 except for bases 1 and -1."""
    lanes, element = context.lanes, element_of(dtype)
    base, exponent = args
    one, zero = lanes.constant(element, 1), lanes.constant(element, 0)
    remaining = exponent
    if dtype.kind == "i":
        negative = lanes.compare("slt", element, exponent, zero)
        remaining = lanes.select(negative, element, zero, exponent)
    # As many squarings as the largest exponent of the lanes has bits.
    f = lanes.function
    vector = lanes.type(element)
    largest = f.call(element, f"llvm.vector.reduce.umax.{lanes.mangled(element)}", (vector, remaining))
    wide = largest if element == "i64" else f.value(f"zext {element} {largest} to i64")
    leading = f.value(f"call i64 @llvm.ctlz.i64(i64 {wide}, i1 false)")
    f.declarations.add("declare i64 @llvm.ctlz.i64(i64, i1)")
    rounds = f.sub(64, leading)
    with f.loop(
        0, rounds, 1, [(vector, one), (vector, base), (vector, remaining)], name="bits of the exponent"
    ) as loop:
        total, power, left = loop.carried
        odd = lanes.compare("ne", element, lanes.op("and", element, left, one), zero)
        loop.next = [
            lanes.select(odd, element, lanes.op("mul", element, total, power), total),
            lanes.op("mul", element, power, power),
            lanes.op("lshr", element, left, one),
        ]
    total = str(loop.out[0])
    if dtype.kind != "i":
        return total
    minus = lanes.constant(element, -1)
    is_one = lanes.compare("eq", element, base, one)
    is_minus = lanes.compare("eq", element, base, minus)
    odd = lanes.compare("ne", element, lanes.op("and", element, exponent, one), zero)
    inverse = lanes.select(is_minus, element, lanes.select(odd, element, minus, one), zero)
    return lanes.select(negative, element, lanes.select(is_one, element, one, inverse), total)

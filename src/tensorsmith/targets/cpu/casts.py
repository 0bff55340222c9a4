"""Conversions between dtypes on vectors."""

from __future__ import annotations

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.vector import Lanes, element_of


def to_bool(lanes: Lanes, dtype: DType, value: str) -> str:
    """value != 0; NaN counts as true."""
    element = element_of(dtype)
    if element == "i1":
        return value
    return lanes.compare("une" if dtype.is_floating_point else "ne", element, value, lanes.constant(element, 0))


def widen_half(lanes: Lanes, dtype: DType, bits: str) -> str:
    """float32 values of float16 or bfloat16 bits (exact)."""
    if dtype is dtypes.bfloat16:
        wide = lanes.convert("zext", "i16", "i32", bits)
        return lanes.from_bits("float", lanes.op("shl", "i32", wide, lanes.constant("i32", 16)))
    if lanes.machine.name != "generic":
        return lanes.convert("fpext", "half", "float", lanes.convert("bitcast", "i16", "half", bits))
    # Shift exponent and mantissa into place and multiply by 2**112, which also normalises denormals; inf and NaN apart.
    wide = lanes.convert("zext", "i16", "i32", bits)
    magnitude = lanes.op("and", "i32", wide, lanes.constant("i32", 0x7FFF))
    shifted = lanes.op("shl", "i32", magnitude, lanes.constant("i32", 13))
    scaled = lanes.op("fmul", "float", lanes.from_bits("float", shifted), lanes.constant("float", 2.0**112))
    special = lanes.compare("uge", "i32", magnitude, lanes.constant("i32", 0x7C00))
    infinite = lanes.op("or", "i32", shifted, lanes.constant("i32", 0x7F800000))
    result = lanes.select(special, "i32", infinite, lanes.bits("float", scaled))
    sign = lanes.op("shl", "i32", lanes.op("xor", "i32", wide, magnitude), lanes.constant("i32", 16))
    return lanes.from_bits("float", lanes.op("or", "i32", result, sign))


def narrow_half(lanes: Lanes, dtype: DType, value: str, whole: bool = False) -> str:
    """float16 or bfloat16 bits of float32 values, rounded to nearest even; `whole` where all are whole numbers."""
    if dtype is dtypes.bfloat16:
        return _narrow_bfloat16(lanes, value, whole)
    bits = lanes.bits("float", value)
    if lanes.machine.name != "generic":
        return lanes.convert("bitcast", "half", "i16", lanes.convert("fptrunc", "float", "half", value))
    magnitude = lanes.op("and", "i32", bits, lanes.constant("i32", 0x7FFFFFFF))
    sign = lanes.op("lshr", "i32", lanes.op("xor", "i32", bits, magnitude), lanes.constant("i32", 16))
    # Normal results: rebias the exponent by -112, round at bit 13. Denormal ones: adding 0.5 makes the adder round.
    odd = lanes.op(
        "and", "i32", lanes.op("lshr", "i32", magnitude, lanes.constant("i32", 13)), lanes.constant("i32", 1)
    )
    rebiased = lanes.op("add", "i32", lanes.op("add", "i32", magnitude, lanes.constant("i32", 0xC8000FFF)), odd)
    normal = lanes.op("lshr", "i32", rebiased, lanes.constant("i32", 13))
    added = lanes.op("fadd", "float", lanes.from_bits("float", magnitude), lanes.constant("float", 0.5))
    denormal = lanes.op("sub", "i32", lanes.bits("float", added), lanes.constant("i32", 0x3F000000))
    result = lanes.select(
        lanes.compare("ult", "i32", magnitude, lanes.constant("i32", 0x38800000)), "i32", denormal, normal
    )
    overflow = lanes.compare("uge", "i32", magnitude, lanes.constant("i32", 0x477FF000))  # 65520 and above
    result = lanes.select(overflow, "i32", lanes.constant("i32", 0x7C00), result)
    is_nan = lanes.compare("ugt", "i32", magnitude, lanes.constant("i32", 0x7F800000))
    result = lanes.select(is_nan, "i32", lanes.constant("i32", 0x7E00), result)
    return lanes.convert("trunc", "i32", "i16", lanes.op("or", "i32", result, sign))


def _narrow_bfloat16(lanes: Lanes, value: str, whole: bool) -> str:
    """bfloat16 bits by the conversion instruction where there is one; it flushes denormals, so those take integers."""
    if not (lanes.machine.has("avx512bf16") and lanes.count in (8, 16)):
        return _round_bfloat16(lanes, value)

    def converted() -> list[str]:
        return [lanes.convert("bitcast", "bfloat", "i16", lanes.convert("fptrunc", "float", "bfloat", value))]

    if whole:
        return converted()[0]
    magnitude = lanes.op("and", "i32", lanes.bits("float", value), lanes.constant("i32", 0x7FFFFFFF))
    below = lanes.op("sub", "i32", magnitude, lanes.constant("i32", 1))  # zero becomes the largest
    denormal = lanes.any(lanes.compare("ult", "i32", below, lanes.constant("i32", 0x007FFFFF)))
    kind = lanes.type("i16")
    return lanes.function.choose(denormal, [kind], lambda: [_round_bfloat16(lanes, value)], converted, rare=True)[0]


def _round_bfloat16(lanes: Lanes, value: str) -> str:
    """bfloat16 bits in integers: add half a unit (and the odd bit), cut."""
    bits = lanes.bits("float", value)
    high = lanes.op("lshr", "i32", bits, lanes.constant("i32", 16))
    odd = lanes.op("and", "i32", high, lanes.constant("i32", 1))
    rounded = lanes.op("add", "i32", lanes.op("add", "i32", bits, lanes.constant("i32", 0x7FFF)), odd)
    cut = lanes.op("lshr", "i32", rounded, lanes.constant("i32", 16))
    quiet = lanes.op("or", "i32", high, lanes.constant("i32", 0x40))
    cut = lanes.select(lanes.compare("uno", "float", value, value), "i32", quiet, cut)
    return lanes.convert("trunc", "i32", "i16", cut)


def _saturated(lanes: Lanes, source: DType, target: DType, value: str) -> str:
    """The integer part of floats, the nearest value of the target where it has none, 0 of NaN."""
    bounds = dtypes.iinfo(target)
    element, signed = element_of(source), target.kind == "i"
    middle = element_of(target) if target.itemsize >= 4 else "i32"
    low, high = float(bounds.min), float(bounds.max)
    rounds = int(high) != bounds.max or (element == "float" and target.itemsize == 4)
    if rounds:  # the largest float below the bound; what lies above gets the bound itself
        bits, digits = 8 * target.itemsize - signed, 24 if element == "float" else 53
        high = float(2**bits - 2 ** (bits - digits))
    lowest, highest = lanes.constant(element, low), lanes.constant(element, high)
    x = lanes.select(lanes.compare("ogt", element, value, lowest), element, value, lowest)  # NaN becomes the lowest
    x = lanes.select(lanes.compare("olt", element, x, highest), element, x, highest)
    unsigned = not signed and target.itemsize >= 4
    result = lanes.convert("fptoui" if unsigned else "fptosi", element, middle, x)
    if rounds:
        above = lanes.compare("ogt", element, value, highest)
        result = lanes.select(above, middle, lanes.constant(middle, bounds.max), result)
    nan = lanes.compare("uno", element, value, value)
    result = lanes.select(nan, middle, lanes.constant(middle, 0), result)
    return lanes.convert("trunc", middle, element_of(target), result)


def cast(lanes: Lanes, source: DType, target: DType, value: str) -> str:
    """`value` of dtype `source` as `target`: floats to integers saturate (NaN gives 0), integers wrap, bool is != 0."""
    if source is target:
        return value
    if source.is_half:
        return cast(lanes, dtypes.float32, target, widen_half(lanes, source, value))
    if target.is_half:
        return narrow_half(lanes, target, cast(lanes, source, dtypes.float32, value), not source.is_floating_point)
    from_element, to_element = element_of(source), element_of(target)
    if target.kind == "b":
        return to_bool(lanes, source, value)
    if source.is_floating_point and target.is_floating_point:
        return lanes.convert(
            "fpext" if target.itemsize > source.itemsize else "fptrunc", from_element, to_element, value
        )
    if target.is_floating_point:
        return lanes.convert("sitofp" if source.kind == "i" else "uitofp", from_element, to_element, value)
    if source.is_floating_point:
        return _saturated(lanes, source, target, value)
    from_bits = 1 if source.kind == "b" else source.itemsize * 8
    to_bits = target.itemsize * 8
    if to_bits < from_bits:
        return lanes.convert("trunc", from_element, to_element, value)
    if to_bits == from_bits:
        return value
    return lanes.convert("sext" if source.kind == "i" else "zext", from_element, to_element, value)

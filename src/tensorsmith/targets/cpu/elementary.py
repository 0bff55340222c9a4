"""float32 vector polynomials of the elementary functions, and library calls lane by lane for the rest.

Each function states its range reduction; the bounds in units in the last place are measured by the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.vector import Lanes

_F = "float"
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds a float32 to an integer, which then sits in the low bits
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts; n * high is exact


def clamp(lanes: Lanes, element: str, x: str, low: float, high: float) -> str:
    """x limited to [low, high]; NaN stays NaN."""
    bound = lanes.constant(element, high)
    x = lanes.select(lanes.compare("ogt", element, x, bound), element, bound, x)
    bound = lanes.constant(element, low)
    return lanes.select(lanes.compare("olt", element, x, bound), element, bound, x)


def scale_by_power_of_two(lanes: Lanes, y: str, n: str, n_bits: str) -> str:
    """y * 2**n for |n| <= 252, correctly rounded into denormals; n as a float and as an i32."""
    if lanes.machine.name == "avx512" and lanes.count == 16:
        vector = lanes.type(_F)
        return lanes.function.call(
            vector,
            "llvm.x86.avx512.mask.scalef.ps.512",
            (vector, y),
            (vector, n),
            (vector, "zeroinitializer"),
            ("i16", -1),
            ("i32", 4),
        )
    half = lanes.op("ashr", "i32", n_bits, lanes.constant("i32", 1))
    for part in (half, lanes.op("sub", "i32", n_bits, half)):
        biased = lanes.op("add", "i32", part, lanes.constant("i32", 127))
        power = lanes.from_bits(_F, lanes.op("shl", "i32", biased, lanes.constant("i32", 23)))
        y = lanes.op("fmul", _F, y, power)
    return y


def exp(lanes: Lanes, x: str) -> str:
    """exp(x) = 2**n * e**r, n = round(x / ln 2), |r| <= ln 2 / 2, e**r by a polynomial of degree 6."""
    x = clamp(lanes, _F, x, -104.0, 89.0)
    shifted = lanes.multiply_add(_F, x, lanes.constant(_F, 1.4426950408889634), lanes.constant(_F, _ROUNDER))
    n = lanes.op("fsub", _F, shifted, lanes.constant(_F, _ROUNDER))
    r = lanes.multiply_add(_F, n, lanes.constant(_F, -_LN2_HIGH), x)
    r = lanes.multiply_add(_F, n, lanes.constant(_F, -_LN2_LOW), r)
    p = lanes.polynomial(
        _F,
        r,
        (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0),
    )
    rounder = lanes.constant("i32", 0x4B400000)
    return scale_by_power_of_two(lanes, p, n, lanes.op("sub", "i32", lanes.bits(_F, shifted), rounder))


def library_call(lanes: Lanes, element: str, name: str, arguments: Sequence[str]) -> str:
    """`double name(double, ...)` of the C library in every lane; float32 arguments go through float64."""
    f = lanes.function
    wide = [lanes.convert("fpext", "float", "double", a) if element == "float" else a for a in arguments]
    result = "poison"
    for lane in range(lanes.count):
        scalars = [("double", lanes.extract("double", a, lane)) for a in wide]
        result = lanes.insert("double", result, f.call("double", name, *scalars), lane)
    return lanes.convert("fptrunc", "double", "float", result) if element == "float" else result

"""The error function by table: sixteen short polynomials whose coefficients AVX-512 picks with register permutes.

On the interval around k / 4 (k = 0..15) a polynomial P of degree 5 in t - k / 4, t = |x|, goes through Chebyshev nodes.
For k < 4 it stands for erf(t) / t - 1, small, so that t + t * P keeps relative accuracy at 0; from k = 4 on for erf(t)
itself. A vector of sixteen float32 coefficients per power is indexed by k with one instruction. From 3.87 on, where erf
is within a unit in the last place of 1, the result is 1.
"""

from __future__ import annotations

import functools
import math

from tensorsmith.targets.cpu.build import float_literal
from tensorsmith.targets.cpu.vector import Lanes

_F = "float"
_DEGREE = 5
_WIDTH = 0.25
_DIRECT = 4  # the first interval that holds erf itself
_LARGEST = 3.87
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number, which then sits in the low bits


def _target(k: int, t: float) -> float:
    if k >= _DIRECT:
        return math.erf(t)
    return math.erf(t) / t - 1 if t else 2 / math.sqrt(math.pi) - 1


def _interpolant(k: int) -> list[float]:
    """Coefficients, constant first, of the polynomial through the Chebyshev nodes of interval k (Newton's scheme)."""
    nodes = [_WIDTH / 2 * math.cos((2 * j + 1) * math.pi / (2 * _DEGREE + 2)) for j in range(_DEGREE + 1)]
    differences = [_target(k, abs(_WIDTH * k + node)) for node in nodes]
    for order in range(1, _DEGREE + 1):
        for j in range(_DEGREE, order - 1, -1):
            differences[j] = (differences[j] - differences[j - 1]) / (nodes[j] - nodes[j - order])
    coefficients = [0.0] * (_DEGREE + 1)
    for j in range(_DEGREE, -1, -1):  # p = p * (x - node_j) + difference_j
        shifted = [0.0, *coefficients[:-1]]
        coefficients = [s - nodes[j] * c for s, c in zip(shifted, coefficients)]
        coefficients[0] += differences[j]
    return coefficients


@functools.cache
def _tables() -> tuple[str, ...]:
    """Per power, from the highest down: the sixteen coefficients as an LLVM constant."""
    intervals = [_interpolant(k) for k in range(16)]
    return tuple(
        "<" + ", ".join(f"float {float_literal(c[power])}" for c in intervals) + ">" for power in range(_DEGREE, -1, -1)
    )


def erf(lanes: Lanes, x: str) -> str:
    """erf of sixteen float32 lanes on AVX-512."""
    vector, integers = lanes.type(_F), lanes.type("i32")
    bound = lanes.constant(_F, _LARGEST)
    size = lanes.intrinsic("fabs", _F, x)
    one = lanes.constant(_F, 1.0)
    shifted = lanes.fma(_F, size, lanes.constant(_F, 1 / _WIDTH), lanes.constant(_F, _ROUNDER))
    k = lanes.op("fsub", _F, shifted, lanes.constant(_F, _ROUNDER))
    local = lanes.fma(_F, k, lanes.constant(_F, -_WIDTH), size)
    index = lanes.bits(_F, shifted)  # the permute looks at the low four bits only
    total = ""
    for table in _tables():
        picked = lanes.function.call(vector, "llvm.x86.avx512.permvar.sf.512", (vector, table), (integers, index))
        total = lanes.fma(_F, total, local, picked) if total else picked
    near = lanes.compare("olt", _F, k, lanes.constant(_F, _DIRECT - 0.5))
    factor = lanes.select(near, _F, size, one)
    base = lanes.select(near, _F, size, lanes.constant(_F, 0.0))
    inside = lanes.fma(_F, factor, total, base)
    return lanes.intrinsic("copysign", _F, lanes.select(lanes.compare("ogt", _F, size, bound), _F, one, inside), x)

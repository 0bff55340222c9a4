"""Points of a rectangular domain by their number: the struct that a kernel gets, and the offsets of its operands at a point.

A domain of any rank (MAX_AXES after merging) and the element strides of some operands are one struct of 64-bit words, so
neither extents nor rank are in a kernel's text:

    struct Walk<operands> { points, axes, extents[MAX_AXES], strides[operands][MAX_AXES] }
    offsets_at(walk, number, offsets)       offsets of all operands at point `number`, row-major
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_AXES = 12
THREADS = 256  # of a block, where a kernel has no reason for another number
_BLOCKS_A_MULTIPROCESSOR = 32  # enough to fill it; threads stride over the rest

WALK = f"""
template <int operands> struct Walk {{
    long long points, axes, extents[{MAX_AXES}], strides[operands][{MAX_AXES}];
}};
// Quotients of 32 bits are several times cheaper, and nearly all are; the others are once in a text, which compiles faster so.
__device__ __noinline__ long long long_quotient(long long x, long long y) {{ return x / y; }}
__device__ __forceinline__ long long quotient_of(long long x, long long y) {{
    return ((x | y) >> 32) == 0 ? (long long)((unsigned int)x / (unsigned int)y) : long_quotient(x, y);
}}
template <int operands>
__device__ __forceinline__ void offsets_at(const Walk<operands>& walk, long long number, long long (&offsets)[operands]) {{
    #pragma unroll
    for (int k = 0; k < operands; k++) offsets[k] = 0;
    for (int axis = (int)walk.axes - 1; axis > 0; axis--) {{
        const long long next = quotient_of(number, walk.extents[axis]), coordinate = number - next * walk.extents[axis];
        #pragma unroll
        for (int k = 0; k < operands; k++) offsets[k] += coordinate * walk.strides[k][axis];
        number = next;
    }}
    #pragma unroll
    for (int k = 0; k < operands; k++) offsets[k] += number * walk.strides[k][0];
}}""".strip()


def walk_words(name: str, extents: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The words of `Walk`: extents, outermost first, and the strides of every operand. NotImplementedError beyond MAX_AXES."""
    if len(extents) > MAX_AXES:
        raise NotImplementedError(f"{name}: {len(extents)} axes that do not merge, at most {MAX_AXES} fit")
    words = [math.prod(extents), max(len(extents), 1)]
    for row in (extents or (1,), *strides):
        words += [*row, *[0] * (MAX_AXES - len(row))]
    return words


def blocks_for(threads: int, multiprocessors: int, block: int = THREADS) -> int:
    """How many blocks are launched for so many threads; kernels stride over what is more than fills the device."""
    return max(1, min(-(-threads // block), multiprocessors * _BLOCKS_A_MULTIPROCESSOR))

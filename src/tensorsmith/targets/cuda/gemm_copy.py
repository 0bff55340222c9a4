"""An operand of a product copied so that it lies along K, its rows at multiples of 16 bytes: what tensor maps take."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec_gemm import Strides
from tensorsmith.targets.cuda.kernel import Constant, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type

SIDE = 64  # of a tile
THREADS = 256


@dataclass(frozen=True)
class Copied:
    """A copy: its launch, strides as (batch, batch, rows, k), and bytes."""

    launch: Launch
    strides: Strides
    nbytes: int


def copied(dtype: DType, strides: Strides, batch: tuple[int, int], rows: int, k: int, word: int, to: int) -> Copied:
    """The copy of an operand at `word`, strides given as (batch, batch, rows, k), into the buffer of word `to`."""
    outer, inner = (extent if stride else 1 for extent, stride in zip(batch, strides))
    line = -(-k * dtype.itemsize // 16) * 16 // dtype.itemsize
    tiles = -(-rows // SIDE) * -(-k // SIDE)
    sizes = Constant((rows, k, inner, line, *strides, -(-k // SIDE), tiles))
    launch = Launch(
        _text(dtype, strides[3] != 1), "gemm_copy", (tiles * outer * inner, 1, 1), (THREADS, 1, 1),
        (Word(word), Word(to), sizes),
    )  # fmt: skip
    made = (rows * line * inner if strides[0] else 0, rows * line if strides[1] else 0, line, 1)
    return Copied(launch, made, math.prod((outer, inner, rows, line)) * dtype.itemsize)


@functools.cache
def _text(dtype: DType, turns: bool) -> str:
    """turns: rows lie nearer to each other than what is along K, so that a tile is read by columns."""
    element = c_type(dtype)
    read = (f"i % {SIDE}", f"i / {SIDE}") if turns else (f"i / {SIDE}", f"i % {SIDE}")
    return f"""
struct Sizes {{
    long long rows, k, inner, line;  // extents; elements of a row of the copy
    long long strides[4];  // of batch, batch, rows, k
    long long across, tiles;  // tiles along K, and in a matrix
}};

extern "C" __global__ void __launch_bounds__({THREADS}) gemm_copy(
    const {element}* __restrict__ from, {element}* __restrict__ to, const __grid_constant__ Sizes sizes) {{
    __shared__ {element} tile[{SIDE}][{SIDE} + 4 / sizeof({element})];
    const int batch = blockIdx.x / (int)sizes.tiles, number = blockIdx.x % (int)sizes.tiles;
    const long long row = number / (int)sizes.across * {SIDE}, k = number % (int)sizes.across * {SIDE};
    const int outer = batch / (int)sizes.inner, inner = batch % (int)sizes.inner;
    const {element}* const source = from + outer * sizes.strides[0] + inner * sizes.strides[1];
    {element}* const target = to + batch * sizes.rows * sizes.line;
    #pragma unroll 4
    for (int i = threadIdx.x; i < {SIDE * SIDE}; i += {THREADS}) {{
        const int y = {read[0]}, x = {read[1]};
        if (row + y < sizes.rows && k + x < sizes.k) {{
            tile[y][x] = source[(row + y) * sizes.strides[2] + (k + x) * sizes.strides[3]];
        }}
    }}
    __syncthreads();
    #pragma unroll 4
    for (int i = threadIdx.x; i < {SIDE * SIDE}; i += {THREADS}) {{
        const int y = i / {SIDE}, x = i % {SIDE};
        if (row + y < sizes.rows && k + x < sizes.k) target[(row + y) * sizes.line + k + x] = tile[y][x];
    }}
}}
"""

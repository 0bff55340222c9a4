"""Products of 4- and 8-byte elements by tiles in shared memory: float32, float64, int32, int64, and float32 in tf32.

A block multiplies a tile (rows, columns) in steps of DEPTH along K. Both operands' parts lie in shared memory as planes
[k][row] and [k][column], copied element by element (any strides) or, where rows lie side by side and the address allows it,
16 bytes at a time; copies of later steps are under way while one is multiplied. Ordinary arithmetic holds a small block of
sums in every thread; tf32 gives a warp's part to tensor cores.

Of few results the blocks of a cluster (sm_90) have the same tile and a part of K each: every block adds up a share of the
tile, in the order of the parts, from the shared memory of all.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda.gemm_epilogue import (
    Epilogue,
    accumulator_type,
    loaded,
    partial_stride_words,
    stride_words,
)
from tensorsmith.targets.cuda.gemm_naive import SIZES, multiply_add, size_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions

THREADS = 256
WARPS_DOWN, WARPS_ACROSS = 4, 2  # of a tile, for ordinary arithmetic
LANES_DOWN, LANES_ACROSS = 4, 8  # of a warp


@dataclass(frozen=True)
class Tile:
    """How the work is cut.

    down, across: blocks of sums that a thread has, each `nbytes` of rows by `nbytes` of columns
    stages:       of shared memory
    depth:        along K of a step
    parts:        blocks of a cluster, each with a part of K
    """

    down: int = 2
    across: int = 2
    stages: int = 3
    nbytes: int = 16
    depth: int = 16
    parts: int = 1

    def rows(self, dtype: DType) -> int:
        """Rows of a tile."""
        return WARPS_DOWN * LANES_DOWN * self.down * (self.nbytes // dtype.itemsize)

    def columns(self, dtype: DType) -> int:
        """Columns of a tile."""
        return WARPS_ACROSS * LANES_ACROSS * self.across * (self.nbytes // dtype.itemsize)


@dataclass(frozen=True)
class _Structure:
    """What the text of a kernel depends on.

    sides: how A and B lie: along "k", with "rows" side by side, which where strides allow it are copied as "vectors" of 16
        bytes, or "strided"
    """

    dtype: DType
    tile: Tile
    sides: tuple[str, str]
    tf32: bool
    split: bool
    epilogue: Epilogue


def fits(spec: GemmSpec) -> bool:
    """Whether the dtype is one of these."""
    return spec.dtype.kind in "fiu" and spec.dtype.itemsize in (4, 8) and max(spec.M, spec.N, spec.K) < 2**31 - 512


def tiled_launch(spec: GemmSpec, tile: Tile, splits: int = 1, depth: int = 0, partial_word: int = 0) -> Launch:
    """The launch of a kernel for a spec that `fits`.

    splits, depth: parts that K is in and the extent of one (a multiple of the tile's depth)
    partial_word:  where their sums go; not used where they are the parts of a cluster
    """
    dtype, split = spec.dtype, splits > 1 and tile.parts == 1
    assert tile.parts in (1, splits)
    outer, inner, k, column = spec.b
    tf32 = spec.allow_tf32 and dtype is dtypes.float32 and tile.rows(dtype) == 128 and tile.columns(dtype) == 128
    structure = _Structure(
        dtype, tile, (_side(spec.a, dtype), _side((outer, inner, column, k), dtype)), tf32, split,
        Epilogue.of_partial_sums(spec) if split else Epilogue.of(spec),
    )  # fmt: skip
    rows, columns = tile.rows(dtype), tile.columns(dtype)
    blocks = -(-spec.M // rows) * -(-spec.N // columns) * math.prod(spec.batch) * splits
    ring = tile.stages * _stage_elements(structure) * dtype.itemsize
    exchanged = rows * columns * dtype.itemsize if tile.parts > 1 else 0
    strides = partial_stride_words(spec) if split else stride_words(spec)
    sizes = Constant((*size_words(spec, splits, depth or spec.K), *strides))
    results: list[Argument] = [Word(partial_word)] if split else [Word(2 + i) for i in range(1 + len(spec.beside))]
    return Launch(
        _text(structure), "gemm_tiled", (min(blocks, 2**31 - 1), 1, 1), (THREADS, 1, 1),
        (Word(0), Word(1), *results, ErrorWord(), sizes), max(ring, exchanged), (tile.parts, 1, 1),
    )  # fmt: skip


def _side(strides: tuple[int, int, int, int], dtype: DType) -> str:
    """How an operand lies, strides given as (batch, batch, rows, k)."""
    outer, inner, row, k = strides
    if row == 1:
        return "vectors" if all(stride * dtype.itemsize % 16 == 0 for stride in (outer, inner, k)) else "rows"
    return "k" if k == 1 else "strided"


def _line(s: _Structure, rows: int) -> int:
    """Elements from k to k + 1 of a plane: one more vector, so that a column of it is in different banks."""
    return rows + (8 if s.tf32 else 16 // s.dtype.itemsize)


def _stage_elements(s: _Structure) -> int:
    return s.tile.depth * (_line(s, s.tile.rows(s.dtype)) + _line(s, s.tile.columns(s.dtype)))


def _copy(s: _Structure, number: int) -> str:
    """The text of a function that starts copying one operand's part of a step; `whole`: all of it is inside the operand."""
    rows = (s.tile.rows if number == 0 else s.tile.columns)(s.dtype)
    element, size, side, line = c_type(s.dtype), s.dtype.itemsize, s.sides[number], _line(s, rows)
    depth, vector = s.tile.depth, 16 // size
    row_step, k_step = "1" if side in ("rows", "vectors") else "row_step", "1" if side == "k" else "k_step"
    places = "const int r = threadIdx.x % 32, k = threadIdx.x / 32;"
    if side in ("k", "strided"):
        places = "const int r = threadIdx.x / 32 * 4 + threadIdx.x % 32 / 8, k = threadIdx.x % 8;"
    vectors = ""
    if side == "vectors" and depth * rows // vector >= THREADS:
        each = rows // vector
        vectors = f"""
    if (((unsigned long long)from & 15) == 0) {{
        const int r = threadIdx.x % {each} * {vector}, k = threadIdx.x / {each};
        const int left = rows_left - r;
        const unsigned int bytes = whole || left >= {vector} ? 16 : left <= 0 ? 0 : left * {size};
        #pragma unroll
        for (int j = 0; j < {depth * each // THREADS}; j++) {{
            const int line = k + j * {THREADS // each};
            const bool inside = whole || (bytes && line < k_left);
            cp_async_16(to + (line * {line} + r) * {size}, inside ? from + r + line * k_step : from, inside ? bytes : 0);
        }}
        return;
    }}"""
    return f"""
template <bool whole> __device__ __forceinline__ void copy_{"ab"[number]}(
    unsigned int to, const {element}* from, long long row_step, long long k_step, int rows_left, int k_left) {{{vectors}
    {places}
    #pragma unroll
    for (int i = 0; i < {rows // 32}; i++) {{
        #pragma unroll
        for (int j = 0; j < {depth // 8}; j++) {{
            const int row = r + 32 * i, line = k + 8 * j;
            const bool inside = whole || (row < rows_left && line < k_left);
            const {element}* const source = inside ? from + row * {row_step} + line * {k_step} : from;
            cp_async_{size}(to + (line * {line} + row) * {size}, source, inside ? {size} : 0);
        }}
    }}
}}"""


@functools.cache
def _text(s: _Structure) -> str:
    dtype, tile = s.dtype, s.tile
    element, epilogue = c_type(dtype), s.epilogue
    rows, columns = tile.rows(dtype), tile.columns(dtype)
    sums, multiply, store = _tensor_core_parts(s) if s.tf32 else _ordinary_parts(s)
    batch_lines = "\n    ".join(epilogue.batch_lines("split" if s.split else ""))
    split = "batch / (int)(sizes.inner * sizes.outer)" if s.split else "0"
    if tile.parts > 1:
        split, store = "cluster_rank()", _exchange(s)
    kernel = f"""
#define ROWS {rows}
#define COLUMNS {columns}
#define STAGES {tile.stages}
#define DEPTH {tile.depth}
#define LINE_A {_line(s, rows)}
#define LINE_B {_line(s, columns)}

struct Sizes {{
{SIZES}
    {epilogue.sizes()}
}};

{epilogue.function()}
{_copy(s, 0)}
{_copy(s, 1)}

extern "C" __global__ void __launch_bounds__({THREADS}, {2 if tile.down * tile.across <= 4 else 1}) gemm_tiled(
    const {element}* __restrict__ A, const {element}* __restrict__ B, {epilogue.parameters()},
    long long* error, const __grid_constant__ Sizes sizes) {{
    extern __shared__ __align__(16) unsigned char shared[];
    const {element}* const planes = (const {element}*)shared;
    const int stage_elements = DEPTH * (LINE_A + LINE_B);
    const int down = (int)((sizes.M + ROWS - 1) / ROWS), across = (int)((sizes.N + COLUMNS - 1) / COLUMNS);
    const int block = blockIdx.x{f" / {tile.parts}" if tile.parts > 1 else ""};
    const int tiles = down * across, batch = block / tiles;
    // Tiles in groups of 8 rows, walked column by column, so that blocks that run together share what they read.
    const int group = block % tiles / (8 * across), height = min(8, down - 8 * group);
    const int rest = block % tiles - group * 8 * across;
    const int m = (8 * group + rest % height) * ROWS, n = rest / height * COLUMNS;
    const int inner = batch % (int)sizes.inner, outer = batch / (int)sizes.inner % (int)sizes.outer;
    const int split = {split};
    const int begin = split * (int)sizes.depth, end = min((int)sizes.K, begin + (int)sizes.depth);
    const int steps = (end - begin + DEPTH - 1) / DEPTH;
    const {element}* const a = A + outer * sizes.a[0] + inner * sizes.a[1] + m * sizes.a[2] + begin * sizes.a[3];
    const {element}* const b = B + outer * sizes.b[0] + inner * sizes.b[1] + n * sizes.b[3] + begin * sizes.b[2];
    const int rows_left = (int)min((long long)ROWS, sizes.M - m), columns_left = (int)min((long long)COLUMNS, sizes.N - n);
    const unsigned int base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto start = [&](int step) {{
        if (step < steps) {{
            const unsigned int to = base + step % STAGES * stage_elements * {dtype.itemsize};
            const int left = end - begin - step * DEPTH;
            const unsigned int to_b = to + DEPTH * LINE_A * {dtype.itemsize};
            const {element}* const from_a = a + step * DEPTH * sizes.a[3];
            const {element}* const from_b = b + step * DEPTH * sizes.b[2];
            if (rows_left == ROWS && columns_left == COLUMNS && left >= DEPTH) {{
                copy_a<true>(to, from_a, sizes.a[2], sizes.a[3], ROWS, DEPTH);
                copy_b<true>(to_b, from_b, sizes.b[3], sizes.b[2], COLUMNS, DEPTH);
            }} else {{
                copy_a<false>(to, from_a, sizes.a[2], sizes.a[3], rows_left, left);
                copy_b<false>(to_b, from_b, sizes.b[3], sizes.b[2], columns_left, left);
            }}
        }}
        cp_async_commit();
    }};
    {sums}
    #pragma unroll 1
    for (int step = 0; step < STAGES - 1; step++) start(step);
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {{
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        start(step + STAGES - 1);
        const {element}* const left = planes + step % STAGES * stage_elements;
        const {element}* const right = left + DEPTH * LINE_A;
        {multiply}
    }}
    {batch_lines}
    const bool aligned = !({epilogue.misaligned()});
    {store}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel


def _ordinary_parts(s: _Structure) -> tuple[str, str, str]:
    """Sums, the multiplication of a step, and the stores, by multiply-adds on a thread's blocks of sums."""
    dtype, down, across = s.dtype, s.tile.down, s.tile.across
    element, total, vector = c_type(dtype), accumulator_type(dtype), s.tile.nbytes // s.dtype.itemsize
    height, width = down * vector, across * vector
    sums = f"""const int row = warp / {WARPS_ACROSS} * {LANES_DOWN * height} + lane / {LANES_ACROSS} * {vector};
    const int column = warp % {WARPS_ACROSS} * {LANES_ACROSS * width} + lane % {LANES_ACROSS} * {vector};
    {total} sums[{height}][{width}];
    #pragma unroll
    for (int i = 0; i < {height}; i++)
        #pragma unroll
        for (int j = 0; j < {width}; j++) sums[i][j] = 0;"""
    x, y = loaded(dtype, "x[i]"), loaded(dtype, "y[j]")
    multiply = f"""#pragma unroll
        for (int k = 0; k < DEPTH; k++) {{
            struct __align__({s.tile.nbytes}) Vector {{ {element} at[{vector}]; }};
            {element} x[{height}], y[{width}];
            #pragma unroll
            for (int i = 0; i < {down}; i++) {{
                const Vector v = *(const Vector*)(left + k * LINE_A + row + i * {LANES_DOWN * vector});
                #pragma unroll
                for (int e = 0; e < {vector}; e++) x[i * {vector} + e] = v.at[e];
            }}
            #pragma unroll
            for (int j = 0; j < {across}; j++) {{
                const Vector v = *(const Vector*)(right + k * LINE_B + column + j * {LANES_ACROSS * vector});
                #pragma unroll
                for (int e = 0; e < {vector}; e++) y[j * {vector} + e] = v.at[e];
            }}
            #pragma unroll
            for (int i = 0; i < {height}; i++)
                #pragma unroll
                for (int j = 0; j < {width}; j++) sums[i][j] = {multiply_add(dtype, x, y, "sums[i][j]")};
        }}"""
    at_row = f"m + row + i / {vector} * {LANES_DOWN * vector} + i % {vector}"
    at_column = f"n + column + j / {vector} * {LANES_ACROSS * vector} + j % {vector}"
    store = f"""#pragma unroll
    for (int i = 0; i < {height}; i++)
        #pragma unroll
        for (int j = 0; j < {width}; j += 2) {{
            {_store_pair(s.epilogue, ("sums[i][j]", "sums[i][j + 1]"), at_row, at_column)}
        }}"""
    return sums, multiply, store


def _exchange(s: _Structure) -> str:
    """Lines that put a block's sums into shared memory and store its share of the cluster's."""
    dtype, tile = s.dtype, s.tile
    total, vector, wide = accumulator_type(dtype), tile.nbytes // dtype.itemsize, dtype.itemsize == 8
    rows, columns = tile.rows(dtype), tile.columns(dtype)
    height, width = tile.down * vector, tile.across * vector
    word = f"cluster_load_{64 if wide else 32}(base + e * {dtype.itemsize}, part)"
    if dtype.kind == "f":
        word = f"__longlong_as_double({word})" if wide else f"__uint_as_float({word})"
    share = -(-rows * columns // tile.parts)
    if s.tf32:
        leave = """for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = row + i * 16 + lane / 4 + e / 2 * 8;
                mine[r * COLUMNS + column + j * 8 + lane % 4 * 2 + e % 2] = sums[i][j][e];
            }"""
    else:
        leave = f"""for (int i = 0; i < {height}; i++)
        #pragma unroll
        for (int j = 0; j < {width}; j++) {{
            const int r = row + i / {vector} * {LANES_DOWN * vector} + i % {vector};
            mine[r * COLUMNS + column + j / {vector} * {LANES_ACROSS * vector} + j % {vector}] = sums[i][j];
        }}"""
    return f"""cp_async_wait<0>();
    __syncthreads();
    {total}* const mine = ({total}*)shared;
    #pragma unroll
    {leave}
    cluster_sync();
    for (int e = split * {share} + threadIdx.x; e < min((split + 1) * {share}, ROWS * COLUMNS); e += {THREADS}) {{
        const long long at_row = m + e / COLUMNS, at_column = n + e % COLUMNS;
        if (at_row >= sizes.M || at_column >= sizes.N) continue;
        {total} sum = 0;
        #pragma unroll
        for (int part = 0; part < {tile.parts}; part++) sum += {word};
        {s.epilogue.element("sum", "at_row", "at_column")}
    }}
    cluster_sync();  // others may still read here"""


def _tensor_core_parts(s: _Structure) -> tuple[str, str, str]:
    """The same by tensor cores, operands rounded to tf32: a warp has 64 rows and 32 columns."""
    sums = """const int row = warp / 4 * 64, column = warp % 4 * 32;
    float sums[4][4][4];
    #pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = 0;"""
    multiply = """#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            unsigned int x[4][4], y[4][2];
            const float* const from_a = left + (k + lane % 4) * LINE_A + row + lane / 4;
            const float* const from_b = right + (k + lane % 4) * LINE_B + column + lane / 4;
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int e = 0; e < 4; e++) x[i][e] = round_to_tf32(from_a[i * 16 + e % 2 * 8 + e / 2 * 4 * LINE_A]);
            #pragma unroll
            for (int j = 0; j < 4; j++)
                #pragma unroll
                for (int e = 0; e < 2; e++) y[j][e] = round_to_tf32(from_b[j * 8 + e * 4 * LINE_B]);
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int j = 0; j < 4; j++) mma_tf32(sums[i][j], x[i], y[j]);
        }"""
    pair = ("sums[i][j][2 * h]", "sums[i][j][2 * h + 1]")
    store = f"""#pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int h = 0; h < 2; h++)
            #pragma unroll
            for (int j = 0; j < 4; j++) {{
                {_store_pair(s.epilogue, pair, "m + row + i * 16 + lane / 4 + 8 * h", "n + column + j * 8 + lane % 4 * 2")}
            }}"""
    return sums, multiply, store


def _store_pair(epilogue: Epilogue, sums: tuple[str, str], row: str, column: str) -> str:
    """Lines that store two results side by side, in pairs where all addresses allow it."""
    lines = [f"const long long at_row = {row}, at_column = {column};"]
    lines.append("const bool inside = at_row < sizes.M && at_column < sizes.N;")
    lines.append("const bool inside1 = inside && at_column + 1 < sizes.N;")
    lines += epilogue.pair_lines(sums, "at_row", "at_column")
    lines += epilogue.store_pair_lines("at_row", "at_column", "aligned")
    return "\n            ".join(lines)

"""Products of float16 and bfloat16 on tensor cores by warps (mma.sync), for sm_80 and for operands that fit no tensor map.

Both operands' parts of a step lie in shared memory as they lie in memory, [row][k] or [k][row], in pieces of 8 elements
whose order within a line depends on the line, so that neither copies nor ldmatrix meet in a bank. Pieces are copied
asynchronously where strides and address allow 16-byte accesses; elements one by one where not.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.targets.cuda.gemm_epilogue import Epilogue, partial_stride_words, stride_words
from tensorsmith.targets.cuda.gemm_naive import SIZES, any_product, size_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions

DEPTH = 32  # along K of a step


@dataclass(frozen=True)
class MmaTile:
    """Rows and columns of a tile, how many warps it has down and across, and stages of shared memory."""

    rows: int = 128
    columns: int = 128
    down: int = 2
    across: int = 4
    stages: int = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.down * self.across

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.stages * DEPTH * (self.rows + self.columns) * 2


@dataclass(frozen=True)
class _Structure:
    """What the text depends on. sides: how A and B lie, "k" or "rows" side by side, and whether in pieces of 8 elements."""

    dtype: DType
    tile: MmaTile
    sides: tuple[tuple[str, bool], tuple[str, bool]]
    split: bool
    epilogue: Epilogue


def fits(spec: GemmSpec) -> bool:
    """Whether it is a half type."""
    return spec.dtype.is_half and max(spec.M, spec.N, spec.K) < 2**31 - 512


def mma_launch(spec: GemmSpec, tile: MmaTile, splits: int = 1, depth: int = 0, partial_word: int = 0) -> Launch:
    """The launch of a kernel for a spec that `fits`.

    splits, depth: parts that K is in and the extent of one (a multiple of DEPTH); partial_word: where their sums go
    """
    outer, inner, k, column = spec.b
    split = splits > 1
    structure = _Structure(
        spec.dtype, tile, (_side(spec.a), _side((outer, inner, column, k))), split,
        Epilogue.of_partial_sums(spec) if split else Epilogue.of(spec),
    )  # fmt: skip
    tiles = -(-spec.M // tile.rows) * -(-spec.N // tile.columns) * math.prod(spec.batch) * splits
    strides = partial_stride_words(spec) if split else stride_words(spec)
    sizes = Constant((*size_words(spec, splits, depth or spec.K), *strides))
    results: list[Argument] = [Word(partial_word)] if split else [Word(2 + i) for i in range(1 + len(spec.beside))]
    return Launch(
        _text(structure), "gemm_mma", (tiles, 1, 1), (tile.threads, 1, 1),
        (Word(0), Word(1), *results, ErrorWord(), sizes), tile.shared_bytes,
    )  # fmt: skip


def _side(strides: Strides) -> tuple[str, bool]:
    """How an operand lies, strides given as (batch, batch, rows, k), and whether in pieces of 8 elements."""
    outer, inner, row, k = strides
    if k == 1 or row != 1:
        return "k", k == 1 and all(stride % 8 == 0 for stride in (outer, inner, row))
    return "rows", all(stride % 8 == 0 for stride in (outer, inner, k))


def _functions(s: _Structure, number: int) -> str:
    """The text of two functions for an operand: `copy_*` copies its part of a step, `fragments_*` reads 16 rows by 16 of k."""
    side, pieces = s.sides[number]
    rows, name, threads = (s.tile.columns if number else s.tile.rows), "ab"[number], s.tile.threads
    element = c_type(s.dtype)
    width = DEPTH if side == "k" else rows  # elements of a line in shared memory
    lines, each = rows * DEPTH // width, width // 8
    swizzle = "line / 2 % 4" if side == "k" else "line % 8"
    row_of, k_of = ("line", "place") if side == "k" else ("place", "line")
    line_left, place_left = ("rows_left", "k_left") if side == "k" else ("k_left", "rows_left")
    line_step = "row_step" if side == "k" else "k_step"
    in_pieces = ""
    if pieces:
        in_pieces = f"""
    if (((unsigned long long)from & 15) == 0) {{
        #pragma unroll
        for (int i = 0; i < {lines * each // threads}; i++) {{
            const int line = (threadIdx.x + i * {threads}) / {each}, place = (threadIdx.x + i * {threads}) % {each} * 8;
            const int left = line < {line_left} ? {place_left} - place : 0;
            const unsigned int bytes = left <= 0 ? 0 : left < 8 ? left * 2 : 16;
            cp_async_16(to + place_{name}(line, place / 8), bytes ? from + line * {line_step} + place : from, bytes);
        }}
        return;
    }}"""
    if side == "k":
        read = ("lane % 8 + lane / 16 * 8", "lane / 8 % 2") if number else ("lane % 16", "lane / 16")
        address = f"place_{name}(row + {read[0]}, k / 8 + {read[1]})"
    else:
        read = ("lane % 16", "lane / 16") if number else ("lane % 8 + lane / 16 * 8", "lane / 8 % 2")
        address = f"place_{name}(k + {read[0]}, row / 8 + {read[1]})"
    return f"""
// Bytes to piece `piece` (8 elements) of a line.
__device__ __forceinline__ unsigned int place_{name}(int line, int piece) {{
    return line * {width * 2} + (piece ^ ({swizzle})) * 16;
}}

__device__ __noinline__ void copy_elements_{name}(unsigned char* to, const {element}* from,
    long long row_step, long long k_step, int rows_left, int k_left) {{
    #pragma unroll 8
    for (unsigned int i = threadIdx.x; i < {rows * DEPTH}; i += {threads}) {{
        const int line = i / {width}, place = i % {width};
        const bool inside = {row_of} < rows_left && {k_of} < k_left;
        *({element}*)(to + place_{name}(line, place / 8) + place % 8 * 2)
            = inside ? from[{row_of} * row_step + {k_of} * k_step] : ({element})0;
    }}
}}

__device__ __forceinline__ void copy_{name}(unsigned char* shared, unsigned int to, unsigned int offset, const {element}* from,
    long long row_step, long long k_step, int rows_left, int k_left) {{{in_pieces}
    copy_elements_{name}(shared + offset, from, row_step, k_step, rows_left, k_left);
}}

__device__ __forceinline__ void fragments_{name}(unsigned int (&r)[4], unsigned int at, int row, int k, int lane) {{
    ldmatrix_x4{"_transposed" if side == "rows" else ""}(r, at + {address});
}}"""


@functools.cache
def _text(s: _Structure) -> str:
    tile, element, epilogue = s.tile, c_type(s.dtype), s.epilogue
    height, width = tile.rows // tile.down // 16, tile.columns // tile.across // 16  # of a warp, in blocks of 16
    batch_lines = "\n    ".join(epilogue.batch_lines("split" if s.split else ""))
    store = [
        "const long long at_row = m + row + i * 16 + lane / 4 + 8 * h, at_column = n + column + j * 8 + lane % 4 * 2;",
        "const bool inside = at_row < sizes.M && at_column < sizes.N, inside1 = inside && at_column + 1 < sizes.N;",
        *epilogue.pair_lines(("sums[i][j][2 * h]", "sums[i][j][2 * h + 1]"), "at_row", "at_column"),
        *epilogue.store_pair_lines("at_row", "at_column"),
    ]
    store_lines = "\n                ".join(store)
    kernel = f"""
#define ROWS {tile.rows}
#define COLUMNS {tile.columns}
#define STAGES {tile.stages}
#define DEPTH {DEPTH}

struct Sizes {{
{SIZES}
    {epilogue.sizes()}
}};

{epilogue.function()}
{any_product(s.dtype, epilogue)}
{_functions(s, 0)}
{_functions(s, 1)}

extern "C" __global__ void __launch_bounds__({tile.threads}, {256 // tile.threads * 2}) gemm_mma(
    const {element}* __restrict__ A, const {element}* __restrict__ B, {epilogue.parameters()},
    long long* error, const __grid_constant__ Sizes sizes) {{
    if ({epilogue.misaligned()}) {{
        any_product(A, B, {epilogue.arguments()}, error, sizes);
        return;
    }}
    extern __shared__ __align__(128) unsigned char shared[];
    const int down = (int)((sizes.M + ROWS - 1) / ROWS), across = (int)((sizes.N + COLUMNS - 1) / COLUMNS);
    const int tiles = down * across, batch = blockIdx.x / tiles;
    // Tiles in groups of 8 rows, walked column by column, so that blocks that run together share what they read.
    const int group = blockIdx.x % tiles / (8 * across), rows_of_tiles = min(8, down - 8 * group);
    const int rest = blockIdx.x % tiles - group * 8 * across;
    const int m = (8 * group + rest % rows_of_tiles) * ROWS, n = rest / rows_of_tiles * COLUMNS;
    const int inner = batch % (int)sizes.inner, outer = batch / (int)sizes.inner % (int)sizes.outer;
    {"const int split = batch / (int)(sizes.inner * sizes.outer);" if s.split else "const int split = 0;"}
    const int begin = split * (int)sizes.depth, end = min((int)sizes.K, begin + (int)sizes.depth);
    const int steps = (end - begin + DEPTH - 1) / DEPTH;
    const {element}* const a = A + outer * sizes.a[0] + inner * sizes.a[1] + m * sizes.a[2] + begin * sizes.a[3];
    const {element}* const b = B + outer * sizes.b[0] + inner * sizes.b[1] + n * sizes.b[3] + begin * sizes.b[2];
    const int rows_left = (int)min((long long)ROWS, sizes.M - m), columns_left = (int)min((long long)COLUMNS, sizes.N - n);
    const unsigned int base = shared_address(shared), bytes_a = ROWS * DEPTH * 2, bytes = (ROWS + COLUMNS) * DEPTH * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / {tile.across} * {height * 16}, column = warp % {tile.across} * {width * 16};
    auto start = [&](int step) {{
        if (step < steps) {{
            const unsigned int stage = step % STAGES * bytes;
            const int left = end - begin - step * DEPTH;
            const {element}* const from_a = a + step * DEPTH * sizes.a[3];
            const {element}* const from_b = b + step * DEPTH * sizes.b[2];
            copy_a(shared, base + stage, stage, from_a, sizes.a[2], sizes.a[3], rows_left, left);
            copy_b(shared, base + stage + bytes_a, stage + bytes_a, from_b, sizes.b[3], sizes.b[2], columns_left, left);
        }}
        cp_async_commit();
    }};
    float sums[{height}][{2 * width}][4];
    #pragma unroll
    for (int i = 0; i < {height}; i++)
        #pragma unroll
        for (int j = 0; j < {2 * width}; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = 0;
    #pragma unroll 1
    for (int step = 0; step < STAGES - 1; step++) start(step);
    #pragma unroll 1
    for (int step = 0; step < steps; step++) {{
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        start(step + STAGES - 1);
        const unsigned int left = base + step % STAGES * bytes, right = left + bytes_a;
        #pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {{
            unsigned int x[{height}][4], y[{width}][4];
            #pragma unroll
            for (int i = 0; i < {height}; i++) fragments_a(x[i], left, row + i * 16, k, lane);
            #pragma unroll
            for (int j = 0; j < {width}; j++) fragments_b(y[j], right, column + j * 16, k, lane);
            #pragma unroll
            for (int i = 0; i < {height}; i++)
                #pragma unroll
                for (int j = 0; j < {width}; j++) {{
                    const unsigned int y0[2] = {{y[j][0], y[j][1]}}, y1[2] = {{y[j][2], y[j][3]}};
                    mma_{s.dtype.name}(sums[i][2 * j], x[i], y0);
                    mma_{s.dtype.name}(sums[i][2 * j + 1], x[i], y1);
                }}
        }}
    }}
    {batch_lines}
    #pragma unroll
    for (int i = 0; i < {height}; i++)
        #pragma unroll
        for (int h = 0; h < 2; h++)
            #pragma unroll
            for (int j = 0; j < {2 * width}; j++) {{
                {store_lines}
            }}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel

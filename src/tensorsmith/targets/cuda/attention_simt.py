"""Attention and its gradient for every dtype, size and stride, on the ordinary units: tiles in shared memory.

A block of 256 threads, 16 by 16, has TILE queries (or, for the gradients of keys and values, keys) of one batch and COLUMNS
columns of the result; where there are more columns, blocks beside it compute the same scores for theirs. Thread (y, x) holds
the scores of ROWS rows from y ROWS on and as many columns from x ROWS on.

    forward         for tiles of keys:     s = q k^T;  p = exp(s - m), m, l running;     out = out a + p v
    backward_keys   for tiles of queries:  s = q k^T;  d = g v^T;  p, ds of both;  dv += p^T g;  dk += ds^T q
    backward_queries  for tiles of keys:   s = q k^T;  d = g v^T;  ds of both;     dq += ds k

The gradient is two passes, so that every sum has one order and nothing is added atomically.
"""

from __future__ import annotations

import math

from tensorsmith.core.dtypes import float32
from tensorsmith.targets.cuda.attention_functions import with_attention_functions
from tensorsmith.targets.cuda.attention_scores import batch_text, infinity, kept_text, lse_text, score_text
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, constant, parameter_types, struct_text
from tensorsmith.targets.cuda.kernel import Argument, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type, narrow, widen

THREADS = 256
_MOST_BLOCKS = 1 << 20  # a block takes several units beyond
_FEW_BLOCKS = 512  # of a kernel that is hardly ever to do anything

# Tiles are read into shared memory a slice at a time, turned so that what a thread multiplies lies together: an access of
# 16 bytes for ROWS numbers. Places are exchanged within a line so that neither writing nor reading meets in one bank.
_PRODUCTS = """
struct __align__(16) Pack {
    Real at[ROWS];
};

__device__ __forceinline__ int place_of(int k, int row) {
    return k * TILE + (row ^ k % 8 * ROWS);
}

// s = a b^T for TILE rows of either; rows beyond those that are left count as zeros.
__device__ __forceinline__ void rows_by_rows(
    Real (&s)[ROWS][ROWS], const Stored* a, long long a_row, long long a_column, long long a_left,
    const Stored* b, long long b_row, long long b_column, long long b_left, long long depth, Real* room
) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    Real* left = room;
    Real* right = room + TILE * DEPTH;
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        #pragma unroll
        for (int j = 0; j < ROWS; j++) s[i][j] = 0;
    }
    for (long long first = 0; first < depth; first += DEPTH) {
        __syncthreads();
        #pragma unroll
        for (int at = threadIdx.x; at < TILE * DEPTH; at += THREADS) {
            const int k = at % 8 + at / (8 * TILE) * 8, row = at / 8 % TILE;
            const bool within = first + k < depth;
            left[place_of(k, row)] = within && row < a_left ? real(a[row * a_row + (first + k) * a_column]) : (Real)0;
            right[place_of(k, row)] = within && row < b_left ? real(b[row * b_row + (first + k) * b_column]) : (Real)0;
        }
        __syncthreads();
        #pragma unroll 8
        for (int k = 0; k < DEPTH; k++) {
            const Pack u = *(const Pack*)(left + place_of(k, y * ROWS)), w = *(const Pack*)(right + place_of(k, x * ROWS));
            #pragma unroll
            for (int i = 0; i < ROWS; i++) {
                #pragma unroll
                for (int j = 0; j < ROWS; j++) s[i][j] = fused(u.at[i], w.at[j], s[i][j]);
            }
        }
    }
}

// sum += p b for p in shared memory, its row r of k at p[k * PITCH + r], and COLUMNS columns of b from `begin` on.
__device__ __forceinline__ void add_product(
    Real (&sum)[ROWS][WIDE], const Real* p, const Stored* b, long long b_row, long long b_column,
    long long b_left, long long begin, long long columns, Real* room
) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int first = 0; first < TILE; first += SLICE) {
        __syncthreads();
        #pragma unroll
        for (int at = threadIdx.x; at < SLICE * COLUMNS; at += THREADS) {
            const int row = at / COLUMNS, column = at % COLUMNS;
            const bool within = first + row < b_left && begin + column < columns;
            room[at] = within ? real(b[(first + row) * b_row + (begin + column) * b_column]) : (Real)0;
        }
        __syncthreads();
        #pragma unroll 8
        for (int k = 0; k < SLICE; k++) {
            const Pack u = *(const Pack*)(p + (first + k) * PITCH + y * ROWS);
            #pragma unroll
            for (int group = 0; group < WIDE / ROWS; group++) {
                const Pack w = *(const Pack*)(room + k * COLUMNS + (x + 16 * group) * ROWS);
                #pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    #pragma unroll
                    for (int i = 0; i < ROWS; i++) {
                        sum[i][group * ROWS + j] = fused(u.at[i], w.at[j], sum[i][group * ROWS + j]);
                    }
                }
            }
        }
    }
}

__device__ __forceinline__ void clear(Real (&sum)[ROWS][WIDE]) {
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        #pragma unroll
        for (int j = 0; j < WIDE; j++) sum[i][j] = 0;
    }
}

// The matrix of a result, from its first row; rows beyond `left` and columns beyond `columns` are not written.
__device__ __forceinline__ void store(
    const Real (&sum)[ROWS][WIDE], Result* to, long long row_stride, long long left, long long begin, long long columns
) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = y * ROWS + i;
        #pragma unroll
        for (int j = 0; j < WIDE; j++) {
            const long long column = begin + (x + j / ROWS * 16) * ROWS + j % ROWS;
            if (row < left && column < columns) to[row * row_stride + column] = rounded(sum[i][j]);
        }
    }
}
"""

_FORWARD = """
    const long long row0 = tile * TILE, rows_left = sizes.L - row0;
    const Stored* q_rows = q_batch + row0 * sizes.q_row;
    Real sum[ROWS][WIDE], largest[ROWS], total[ROWS];
    clear(sum);
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        largest[i] = -INFINITE;
        total[i] = 0;
    }
    const long long seen = @seen@;
    for (long long key0 = 0; key0 < seen; key0 += TILE) {
        const long long keys_left = sizes.S - key0;
        Real s[ROWS][ROWS];
        rows_by_rows(s, q_rows, sizes.q_row, sizes.q_column, rows_left, k_batch + key0 * sizes.k_row, sizes.k_row,
                     sizes.k_column, keys_left, sizes.E, room);
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const long long query = row0 + y * ROWS + i;
            Real most = largest[i], part = 0;
            #pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const long long key = key0 + x * ROWS + j;
                @score@
                most = s[i][j] > most ? s[i][j] : most;  // keeps a number where a score is NaN: that shows in the sum
            }
            #pragma unroll
            for (int distance = 8; distance > 0; distance >>= 1) {
                const Real other = shuffle<Real>(most, distance);
                most = other > most ? other : most;
            }
            const Real base = most == -INFINITE ? (Real)0 : most;  // everything hidden so far
            #pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const long long key = key0 + x * ROWS + j;
                const Real weight = exponential(s[i][j] - base);
                part += weight;
                weights[(x * ROWS + j) * PITCH + y * ROWS + i] = @forward_weight@;
            }
            #pragma unroll
            for (int distance = 8; distance > 0; distance >>= 1) part += shuffle<Real>(part, distance);
            const Real factor = exponential(largest[i] - base);
            total[i] = total[i] * factor + part;
            largest[i] = most;
            #pragma unroll
            for (int j = 0; j < WIDE; j++) sum[i][j] *= factor;
        }
        add_product(sum, weights, v_batch + key0 * sizes.v_row, sizes.v_row, sizes.v_column, keys_left, begin,
                    sizes.F, room);
    }
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const bool hidden = total[i] == 0;
        const Real inverse = hidden ? (Real)0 : 1 / total[i];
        #pragma unroll
        for (int j = 0; j < WIDE; j++) sum[i][j] *= inverse;
        if (begin == 0 && x == 0 && y * ROWS + i < rows_left) {
            const Real lse = hidden ? (Real)0 : largest[i] + logarithm(total[i]);
            @lse@
        }
    }
    store(sum, @result0@ + row0 * sizes.result0_row, sizes.result0_row, rows_left, begin, sizes.F);
"""

# The scores and the products of g with the values, and from both p in `s` and ds in `d`.
_AGAIN = """
        rows_by_rows(s, q_batch + row0 * sizes.q_row, sizes.q_row, sizes.q_column, rows_left, k_batch + key0 * sizes.k_row,
                     sizes.k_row, sizes.k_column, keys_left, sizes.E, room);
        rows_by_rows(d, g_batch + row0 * sizes.g_row, sizes.g_row, sizes.g_column, rows_left, v_batch + key0 * sizes.v_row,
                     sizes.v_row, sizes.v_column, keys_left, sizes.F, room);
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const long long query = row0 + y * ROWS + i;
            const bool there = y * ROWS + i < rows_left;
            const Real row_lse = there ? lse_batch[query * sizes.lse_row] : (Real)0;
            const Real row_delta = there ? delta_batch[query * sizes.delta_row] : (Real)0;
            #pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const long long key = key0 + x * ROWS + j;
                @score@
                const Real weight = exponential(s[i][j] - row_lse);
                const Real z = @kept@;
                s[i][j] = weight * z;
                d[i][j] = there && x * ROWS + j < keys_left ? weight * (z * d[i][j] - row_delta) * (Real)sizes.scale : (Real)0;
            }
        }
"""

# Weights, or what they are multiplied to, into shared memory: as what is summed over, queries or keys, wants them.
_KEEP = """
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            #pragma unroll
            for (int j = 0; j < ROWS; j++) weights[@place@] = @kept_tile@[i][j];
        }
"""
_BY_QUERY = _KEEP.replace("@place@", "(y * ROWS + i) * PITCH + x * ROWS + j")
_BY_KEY = _KEEP.replace("@place@", "(x * ROWS + j) * PITCH + y * ROWS + i")

_BACKWARD_KEYS = (
    """
    const long long key0 = tile * TILE, keys_left = sizes.S - key0;
    Real of_key[ROWS][WIDE], of_value[ROWS][WIDE];
    clear(of_key);
    clear(of_value);
    for (long long row0 = @low@; row0 < sizes.L; row0 += TILE) {
        const long long rows_left = sizes.L - row0;
        Real s[ROWS][ROWS], d[ROWS][ROWS];
"""
    + _AGAIN
    + _BY_QUERY.replace("@kept_tile@", "s")
    + """
        add_product(of_value, weights, g_batch + row0 * sizes.g_row, sizes.g_row, sizes.g_column, rows_left, begin,
                    sizes.F, room);
"""
    + _BY_QUERY.replace("@kept_tile@", "d")
    + """
        add_product(of_key, weights, q_batch + row0 * sizes.q_row, sizes.q_row, sizes.q_column, rows_left, begin,
                    sizes.E, room);
    }
    store(of_key, @result1@ + key0 * sizes.result1_row, sizes.result1_row, keys_left, begin, sizes.E);
    store(of_value, @result2@ + key0 * sizes.result2_row, sizes.result2_row, keys_left, begin, sizes.F);
"""
)

_BACKWARD_QUERIES = (
    """
    const long long row0 = tile * TILE, rows_left = sizes.L - row0;
    Real of_query[ROWS][WIDE];
    clear(of_query);
    const long long seen = @seen@;
    for (long long key0 = 0; key0 < seen; key0 += TILE) {
        const long long keys_left = sizes.S - key0;
        Real s[ROWS][ROWS], d[ROWS][ROWS];
"""
    + _AGAIN
    + _BY_KEY.replace("@kept_tile@", "d")
    + """
        add_product(of_query, weights, k_batch + key0 * sizes.k_row, sizes.k_row, sizes.k_column, keys_left, begin,
                    sizes.E, room);
    }
    store(of_query, @result0@ + row0 * sizes.result0_row, sizes.result0_row, rows_left, begin, sizes.E);
"""
)


def launches(spec: AttentionSpec, only_if: str = "") -> tuple[Launch, ...]:
    """The forward pass as one launch, the gradient as two; `only_if`: a condition without which nothing is done."""
    if not spec.backward:
        return (_launch(spec, only_if, "attention", _FORWARD, spec.L, spec.F),)
    return (
        _launch(spec, only_if, "attention_backward_keys", _BACKWARD_KEYS, spec.S, max(spec.E, spec.F)),
        _launch(spec, only_if, "attention_backward_queries", _BACKWARD_QUERIES, spec.L, spec.E),
    )


def _launch(spec: AttentionSpec, only_if: str, name: str, body: str, rows: int, columns: int) -> Launch:
    tile = 64 if spec.accumulator is float32 else 32
    wide = 2 * tile if columns > tile else tile
    tiles, chunks = math.ceil(rows / tile), math.ceil(columns / wide)
    units = spec.batch * tiles * chunks
    fields = [*spec.sizes(), ("tiles", tiles), ("chunks", chunks), ("units", units)]
    arguments: list[Argument] = [Word(number) for number in range(len(spec.operands) + 1)]
    return Launch(
        _source(spec, only_if, name, body, tile, wide),
        name,
        (min(units, _FEW_BLOCKS if only_if else _MOST_BLOCKS), 1, 1),
        (THREADS, 1, 1),
        (*arguments, constant(fields)),
    )


def _result(number: int) -> str:
    """Where the matrix of a batch among the results starts."""
    here = f"sizes.result{number}"
    return f"((Result*)(result + {here}) + outer * {here}_outer + inner * {here}_inner)"


def _source(spec: AttentionSpec, only_if: str, name: str, body: str, tile: int, wide: int) -> str:
    real, stored = c_type(spec.accumulator), c_type(spec.dtype)
    half, suffix = spec.dtype.is_half, "f" if real == "float" else ""
    numbers = {
        "THREADS": THREADS, "TILE": tile, "COLUMNS": wide, "DEPTH": tile // 2, "SLICE": tile * tile // wide, "ROWS": tile // 16,
        "PITCH": tile + tile // 16, "WIDE": wide // 16,
    }  # fmt: skip
    result = c_type(spec.result_dtype)
    rounded = narrow(spec.result_dtype, "value") if spec.result_dtype.is_half else "value"
    lines = [
        *(f"constexpr int {constant_name} = {value};" for constant_name, value in numbers.items()),
        f"typedef {real} Real;",
        f"typedef {stored} Stored;",
        f"typedef {result} Result;",
        f"#define INFINITE {infinity(real)}",
        f"__device__ __forceinline__ Real real(Stored value) {{ return {widen(spec.dtype, 'value') if half else 'value'}; }}",
        f"__device__ __forceinline__ Result rounded(Real value) {{ return {rounded}; }}",
        f"__device__ __forceinline__ Real fused(Real a, Real b, Real c) {{ return fma{suffix}(a, b, c); }}",
        f"__device__ __forceinline__ Real exponential(Real x) {{ return exp{suffix}(x); }}",
        f"__device__ __forceinline__ Real logarithm(Real x) {{ return log{suffix}(x); }}",
    ]
    matrices = ("q", "k", "v", "g") if spec.backward else ("q", "k", "v")
    start = [
        "const int x = threadIdx.x % 16, y = threadIdx.x / 16;",
        "const long long begin = unit % sizes.chunks * COLUMNS, of_batch = unit / sizes.chunks;",
        "const long long batch = of_batch / sizes.tiles, outer = batch / sizes.inner, inner = batch % sizes.inner;",
        # Where causal, a tile further down sees more keys, and fewer queries see a tile of keys: the long ones begin.
        f"const long long tile = {'of_batch % sizes.tiles' if 'keys' in name else 'sizes.tiles - 1 - of_batch % sizes.tiles'};",
        *(f"const Stored* {m}_batch = {m} + outer * sizes.{m}_outer + inner * sizes.{m}_inner;" for m in matrices),
        *(
            f"const Real* {m}_batch = {m} + outer * sizes.{m}_outer + inner * sizes.{m}_inner;"
            for m in (("lse", "delta") if spec.backward else ())
        ),
        batch_text(spec),
    ]
    kept = kept_text(spec, "query", "key", "Real") if spec.dropout else "(Real)1"
    places = {
        "@score@": score_text(spec, "s[i][j]", "query", "key", real, "query < sizes.L && key < sizes.S"),
        "@kept@": kept,
        "@lse@": lse_text(spec, "batch * sizes.L + row0 + y * ROWS + i", "lse"),
        "@forward_weight@": f"weight * {kept}" if spec.dropout else "weight",
        "@seen@": "min(sizes.S, row0 + TILE)" if spec.causal else "sizes.S",
        "@low@": "key0" if spec.causal else "0",
        **{f"@result{n}@": _result(n) for n in range(3)},
    }
    for place, text in places.items():
        body = body.replace(place, text)
    fields = [*spec.sizes(), ("tiles", 0), ("chunks", 0), ("units", 0)]
    kernel = "\n".join([
        f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(',
        "    " + ", ".join([*parameter_types(spec), "const __grid_constant__ Sizes sizes"]),
        ") {",
        f"if (!({only_if})) return;" if only_if else "",
        "__shared__ __align__(16) Real room[TILE * TILE], weights[TILE * PITCH];",
        "for (long long unit = blockIdx.x; unit < sizes.units; unit += gridDim.x) {",
        *start,
        body.strip("\n"),
        "}",
        "}",
    ])  # fmt: skip
    text = "\n".join([*lines, struct_text("Sizes", fields), _PRODUCTS.strip(), kernel])
    return with_attention_functions(text) + "\n"

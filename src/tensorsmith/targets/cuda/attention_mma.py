"""Attention of halves and its gradient by the tensor cores of a warp (`mma`, sm_80 and later): any strides, any addresses.

A warp has 16 rows of matrices that stay in shared memory, and goes with the other warps of its block through tiles of those of
the other side. Scores, weights and sums are in its registers:

    forward       queries stay:         s = q k^T;  p = exp2(s - m), m, l running;                   out = out a + p v
    over keys     keys, values stay:    s = k q^T;  d = v g^T;  p, ds of both;  dv += p g;  dk += ds q
    over queries  queries, g stay:      s = q k^T;  d = g v^T;  ds of both;     dq += ds k

A tile is copied asynchronously while the one before is computed, in pieces of 16 bytes where a matrix lies so, else element by
element. Where a matrix has too many columns for the registers, dv and dk are passes of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import bool_
from tensorsmith.targets.cuda.attention_fragments import (
    dropped_text,
    fragments_text,
    prescaled,
    scores_text,
    store_text,
)
from tensorsmith.targets.cuda.attention_functions import with_attention_functions
from tensorsmith.targets.cuda.attention_scores import batch_text, infinity, lse_text
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, constant, parameter_types, struct_text
from tensorsmith.targets.cuda.kernel import Argument, DeviceProperties, Launch, Word

WARPS = 4
ROWS = 16 * WARPS  # of a block
_LARGEST = 1 << 31
_FEW_BLOCKS = 512  # of a kernel that is hardly ever to do anything
_MOST_BLOCKS = 1 << 20  # a block takes several units beyond


@dataclass(frozen=True)
class _Pass:
    """part: forward, kv, k, v or q; along: rows of the tiles that it goes through; stages: 1 or 2 of those."""

    part: str
    along: int
    stages: int

    @property
    def stays(self) -> str:
        """The matrices of which a block has rows: one of E columns, one of F columns where its products are needed."""
        return {"forward": "q", "q": "qg", "kv": "kv", "k": "kv", "v": "k"}[self.part]

    @property
    def comes(self) -> str:
        """The matrices that come in tiles, of E and of F columns."""
        return "kv" if self.part in ("forward", "q") else "qg"


def takes(spec: AttentionSpec, properties: DeviceProperties) -> bool:
    """Whether there are such tensor cores, and registers for the columns."""
    fits = max(spec.L, spec.S) + 512 < _LARGEST and max(spec.E, spec.F) <= 256
    return spec.dtype.is_half and fits and properties.capability >= (8, 0)


def launches(spec: AttentionSpec, properties: DeviceProperties, only_if: str = "") -> tuple[Launch, ...]:
    """One launch forward, two or three backward; `only_if`: a condition without which nothing is done."""
    wide = max(_padded(spec.E), _padded(spec.F)) > 128
    parts = ("forward",) if not spec.backward else ("v", "k", "q") if wide else ("kv", "q")
    return tuple(_launch(spec, part, properties, only_if) for part in parts)


def _padded(columns: int) -> int:
    """Columns as tiles have them: what is beyond counts as zeros."""
    return -(-columns // 32) * 32


def _pitch(columns: int) -> int:
    """Bytes from row to row of a tile: an odd number of 16-byte pieces, so that 8 rows lie in different banks."""
    return 2 * columns + 16


def _shared(spec: AttentionSpec, way: _Pass) -> int:
    first, second = _pitch(_padded(spec.E)), _pitch(_padded(spec.F))
    stay = ROWS * (first + second * (len(way.stays) - 1))
    rows = 8 * way.along if way.part in ("kv", "k", "v") else 0
    return stay + way.stages * (way.along * (first + second) + rows)


def _choose(spec: AttentionSpec, part: str, properties: DeviceProperties) -> _Pass:
    """The largest tiles whose scores fit the registers and that fit shared memory twice, or else once."""
    wide = max(_padded(spec.E), _padded(spec.F)) > 64
    along = 32 if wide and part in ("kv", "k") else 64
    for stages in (2, 1):
        found = _Pass(part, along, stages)
        if _shared(spec, found) <= properties.shared_bytes:
            return found
    return _Pass(part, along // 2 if not spec.dropout else along, 1)


def _launch(spec: AttentionSpec, part: str, properties: DeviceProperties, only_if: str) -> Launch:
    way = _choose(spec, part, properties)
    tiles = math.ceil((spec.L if part in ("forward", "q") else spec.S) / ROWS)
    units = spec.batch * tiles
    even = [spec.E, spec.F, *(stride for _, strides in spec.results() for stride in strides)]
    fields = [
        *spec.sizes(), ("tiles", tiles), ("units", units), ("whole_pairs", int(all(place % 2 == 0 for place in even))),
        *((f"{name}_lines", int(_in_lines(spec, name))) for name in dict.fromkeys(way.stays + way.comes)),
    ]  # fmt: skip
    name = f"attention_{part}_mma" if part == "forward" else f"attention_backward_{part}_mma"
    arguments: list[Argument] = [Word(number) for number in range(len(spec.operands) + 1)]
    grid = (min(units, _FEW_BLOCKS if only_if else _MOST_BLOCKS), 1, 1)
    source = _source(spec, way, name, fields, only_if)
    return Launch(source, name, grid, (32 * WARPS, 1, 1), (*arguments, constant(fields)), _shared(spec, way))


def _in_lines(spec: AttentionSpec, name: str) -> bool:
    """Whether rows of a matrix are copied in pieces of 16 bytes, where its address allows it."""
    outer, inner, row, column = spec.strides(name)
    columns = spec.E if name in "qk" else spec.F
    return (column == 1 or columns == 1) and all(stride % 8 == 0 for stride in (outer, inner, row))


_COPY = """
// Rows of a matrix into shared memory; rows and columns beyond those that there are, as zeros.
template <int rows, int columns>
__device__ __forceinline__ void copy_tile(
    unsigned char* to, const unsigned short* from, long long row_stride, long long column_stride, int rows_left,
    int columns_left, bool lines
) {
    constexpr int pieces = columns / 8, pitch = 2 * columns + 16;
    for (int at = threadIdx.x; at < rows * pieces; at += THREADS) {
        const int row = at / pieces, column = at % pieces * 8;
        const int count = row < rows_left ? max(0, min(8, columns_left - column)) : 0;
        unsigned char* place = to + row * pitch + column * 2;
        if (lines) {
            cp_async_16(shared_address(place), count ? from + row * row_stride + column : from, 2 * count);
        } else {
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                const unsigned short value = i < count ? from[row * row_stride + (column + i) * column_stride] : 0;
                ((unsigned short*)place)[i] = value;
            }
        }
    }
}
"""


def _products_text(name: str, along: int, columns: int) -> str:
    """A device function: s = a b^T of the 16 rows of a warp and `along` rows, both of `columns` columns."""
    return f"""
__device__ __forceinline__ void {name}(float (&s)[{along // 2}], unsigned int a, unsigned int b) {{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < {along // 2}; i++) s[i] = 0;
    #pragma unroll
    for (int step = 0; step < {columns // 16}; step++) {{
        unsigned int left[4];
        ldmatrix_x4(left, a + lane % 16 * {_pitch(columns)} + step * 32 + lane / 16 * 16);
        #pragma unroll
        for (int block = 0; block < {along // 8}; block += 2) {{
            unsigned int right[4];
            ldmatrix_x4(right, b + (block * 8 + lane / 16 * 8 + lane % 8) * {_pitch(columns)} + step * 32 + lane / 8 % 2 * 16);
            multiply(&s[4 * block], left, right);
        }}
    }}
}}"""


def _sums_text(name: str, along: int, columns: int) -> str:
    """A device function: sum += p b of a fragment and a tile of `along` rows and `columns` columns."""
    parameters = f"float (&sum)[{columns // 2}], const unsigned int (&p)[{along // 16}][4], unsigned int b"
    return f"""
__device__ __forceinline__ void {name}({parameters}) {{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int step = 0; step < {along // 16}; step++) {{
        #pragma unroll
        for (int block = 0; block < {columns // 8}; block += 2) {{
            unsigned int right[4];
            ldmatrix_x4_transposed(right, b + (step * 16 + lane % 16) * {_pitch(columns)} + block * 16 + lane / 16 * 16);
            multiply(&sum[4 * block], p[step], right);
        }}
    }}
}}"""


def _multiply_text(dtype: str) -> str:
    """A device function: two neighbouring blocks of 8 columns of an accumulator."""
    return f"""
__device__ __forceinline__ void multiply(float* d, const unsigned int (&a)[4], const unsigned int (&b)[4]) {{
    const unsigned int first[2] = {{b[0], b[1]}}, second[2] = {{b[2], b[3]}};
    mma_{dtype}(*(float (*)[4])d, a, first);
    mma_{dtype}(*(float (*)[4])(d + 4), a, second);
}}"""


def _source(
    spec: AttentionSpec, way: _Pass, name: str, fields: list[tuple[str, int | float]], only_if: str
) -> str:  # fmt: skip
    depth, width, dtype = _padded(spec.E), _padded(spec.F), spec.dtype.name
    over_queries = way.part in ("forward", "q")
    numbers = {
        "THREADS": 32 * WARPS, "ROWS": ROWS, "ALONG": way.along, "STAGES": way.stages, "DEPTH": depth, "WIDTH": width,
        "SCORES": way.along // 2, "FIRST_PITCH": _pitch(depth), "SECOND_PITCH": _pitch(width),
    }  # fmt: skip
    columns = {"q": "DEPTH", "k": "DEPTH", "v": "WIDTH", "g": "WIDTH"}

    def copy(matrix: str, to: str, rows: str, first: str) -> str:
        left = "queries" if matrix in "qg" else "keys"
        there = "sizes.E" if matrix in "qk" else "sizes.F"
        return (
            f"copy_tile<{rows}, {columns[matrix]}>({to}, {matrix}_batch + {first} * sizes.{matrix}_row, sizes.{matrix}_row, "
            f"sizes.{matrix}_column, {left} - {first}, (int){there}, {matrix}_lines);"
        )

    one, two = way.comes[0], way.comes[1]
    stay = [copy(way.stays[0], "a_first", "ROWS", "row0")]
    stay += [copy(way.stays[1], "a_second", "ROWS", "row0")] if len(way.stays) > 1 else []
    come = [copy(one, "b_first + stage * ALONG * FIRST_PITCH", "ALONG", "tile0")]
    come += [copy(two, "b_second + stage * ALONG * SECOND_PITCH", "ALONG", "tile0")]
    if not over_queries:
        come.append(f"""
        for (int i = threadIdx.x; i < ALONG; i += THREADS) {{
            const int query = tile0 + i;
            const bool there = query < queries;  // beyond, weights are zeros
            rows[2 * stage * ALONG + i] = there ? lse_batch[query * sizes.lse_row] * LOG2_E : {infinity("float")};
            rows[(2 * stage + 1) * ALONG + i] = there ? delta_batch[query * sizes.delta_row] : 0.0f;
        }}""")
    low, high = "0", "sizes.S" if over_queries else "sizes.L"
    if spec.causal and over_queries:
        high = "min(sizes.S, row0 + (long long)ROWS)"
    elif spec.causal:
        low = "row0 / ALONG"
    matrices = dict.fromkeys(way.stays + way.comes)
    begin, compute, end = {"forward": _forward, "q": _queries}.get(way.part, _keys)(spec, way)
    guard = f"if (!({only_if})) return;" if only_if else ""
    kinds = dict.fromkeys(matrices, "unsigned short") | dict.fromkeys(("lse", "delta") if spec.backward else (), "float")
    places = "\n".join(
        f"const {kind}* {each}_batch = {each} + outer * sizes.{each}_outer + inner * sizes.{each}_inner;"
        for each, kind in kinds.items()
    )
    tile = "sizes.tiles - 1 - unit % sizes.tiles" if over_queries else "unit % sizes.tiles"  # the longest first
    kernel = f"""
extern "C" __global__ void __launch_bounds__({32 * WARPS}) {name}(
    {", ".join([*parameter_types(spec), "const __grid_constant__ Sizes sizes"])}
) {{
    {guard}
    extern __shared__ __align__(16) unsigned char memory[];
    unsigned char* a_first = memory;
    unsigned char* a_second = a_first + ROWS * FIRST_PITCH;
    unsigned char* b_first = a_second + {"ROWS * SECOND_PITCH" if len(way.stays) > 1 else "0"};
    unsigned char* b_second = b_first + STAGES * ALONG * FIRST_PITCH;
    float* rows = (float*)(b_second + STAGES * ALONG * SECOND_PITCH);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int keys = (int)sizes.S, queries = (int)sizes.L;
    const float scale_log2 = (float)(sizes.scale * 1.44269504088896340736);
    {" ".join(f"const bool {m}_lines = sizes.{m}_lines && ((unsigned long long){m} & 15) == 0;" for m in matrices)}
    for (long long unit = blockIdx.x; unit < sizes.units; unit += gridDim.x) {{
        const long long batch = unit / sizes.tiles, outer = batch / sizes.inner, inner = batch % sizes.inner;
        const int row0 = (int)({tile}) * ROWS, first_row = row0 + 16 * warp;
        const int low = {low}, high = (int)(({high} + ALONG - 1) / ALONG);
        {places}
        {batch_text(spec)}
        {begin}
        __syncthreads();  // shared memory is no longer read for the unit before
        if (low < high) {{
            {" ".join(stay)}
        }}
        if (STAGES == 2 && low < high) {{
            const int tile0 = low * ALONG, stage = 0;
            {" ".join(come)}
            cp_async_commit();
        }}
        for (int number = low; number < high; number++) {{
            if (STAGES == 1 || number + 1 < high) {{
                const int tile0 = (number + STAGES - 1) * ALONG, stage = (number + STAGES - 1 - low) % STAGES;
                {" ".join(come)}
            }}
            cp_async_commit();
            cp_async_wait<STAGES - 1>();
            __syncthreads();
            const int tile0 = number * ALONG, stage = (number - low) % STAGES;
            const unsigned int a1 = shared_address(a_first) + 16 * warp * FIRST_PITCH;
            const unsigned int a2 = shared_address(a_second) + 16 * warp * SECOND_PITCH;
            const unsigned int b1 = shared_address(b_first) + stage * ALONG * FIRST_PITCH;
            const unsigned int b2 = shared_address(b_second) + stage * ALONG * SECOND_PITCH;
            {compute}
            __syncthreads();
        }}
        {end}
    }}
}}
"""
    head = [
        "#define LOG2_E 1.44269504088896340736f",
        *(f"constexpr int {number} = {value};" for number, value in numbers.items()),
        struct_text("Sizes", fields),
        _COPY.strip(),
        _multiply_text(dtype),
        _products_text("first_products", way.along, depth),
        _products_text("second_products", way.along, width),
        _sums_text("add_first", way.along, depth),
        _sums_text("add_second", way.along, width),
        fragments_text(dtype),
        store_text(spec),
        dropped_text(way.along // 2, over_queries) if spec.dropout else "",
    ]
    return with_attention_functions("\n".join([*head, kernel.strip()])) + "\n"


def _dropped(spec: AttentionSpec, query: str, key: str) -> str:
    """Statements that find which weights are dropped, as bits."""
    return f"""
            unsigned int dropped[(SCORES + 31) / 32];
            find_dropped(
                dropped, {query}, {key}, stream_key, stream_first, sizes.row_words, (unsigned int)sizes.limit);
            const float drop_factor = (float)sizes.factor;""" if spec.dropout else ""  # fmt: skip


def _kept(spec: AttentionSpec, value: str) -> str:
    """An element of scores times z."""
    return f"(dropped[i / 32] >> i % 32 & 1 ? 0.0f : {value} * drop_factor)" if spec.dropout else value


def _each(statement: str) -> str:
    return f"#pragma unroll\nfor (int i = 0; i < SCORES; i++) {statement}"


_OF_QUERIES = ("first_row + lane / 4 + 8 * (i / 2 % 2)", "tile0 + lane % 4 * 2 + i / 4 * 8 + i % 2")


def _forward(spec: AttentionSpec, way: _Pass) -> tuple[str, str, str]:
    """Statements before the tiles of keys, for each, and after them."""
    factor = "" if prescaled(spec) else " * scale_log2"
    exponent = "s[i] - base[i / 2 % 2]" if prescaled(spec) else "__fmaf_rn(s[i], scale_log2, -base[i / 2 % 2])"
    log = "largest[h] * 0.69314718055994530942f" if prescaled(spec) else "largest[h] * (float)sizes.scale"
    low = f"-{infinity('float')}"
    begin = f"""
        float out[WIDTH / 2], largest[2] = {{{low}, {low}}}, total[2] = {{0, 0}};
        #pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) out[i] = 0;"""
    compute = f"""
            float s[SCORES], base[2], factor[2];
            unsigned int p[ALONG / 16][4];
            first_products(s, a1, b1);
            {scores_text(spec, way.along // 2, *_OF_QUERIES, "first_row", "tile0 + ALONG")}
            #pragma unroll
            for (int h = 0; h < 2; h++) {{
                float most = largest[h];
                #pragma unroll
                for (int i = 0; i < SCORES; i++) {{
                    if (i / 2 % 2 == h) most = fmaxf(most, s[i]);
                }}
                most = fmaxf(most, shuffle<float>(most, 1));
                most = fmaxf(most, shuffle<float>(most, 2));
                base[h] = most == {low} ? 0.0f : most{factor};
                factor[h] = exp2_fast(largest[h]{factor} - base[h]);
                total[h] *= factor[h];
                largest[h] = most;
            }}
            #pragma unroll
            for (int i = 0; i < SCORES; i++) {{
                s[i] = exp2_fast({exponent});
                total[i / 2 % 2] += s[i];
            }}
            {_dropped(spec, "first_row + lane / 4", "tile0 + lane % 4 * 2")}
            {_each(f"s[i] = {_kept(spec, 's[i]')};") if spec.dropout else ""}
            to_fragments(p, s);
            #pragma unroll
            for (int i = 0; i < WIDTH / 2; i++) out[i] *= factor[i / 2 % 2];
            add_second(out, p, b2);"""
    end = f"""
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            total[h] += shuffle<float>(total[h], 1);
            total[h] += shuffle<float>(total[h], 2);
            const bool hidden = total[h] == 0;
            const int query = first_row + lane / 4 + 8 * h;
            if (query < queries) {{
                const float lse = hidden ? 0.0f : {log} + logf(total[h]);
                if (lane % 4 == 0) {{
                    {lse_text(spec, "batch * sizes.L + query", "lse")}
                }}
                {_store("out", 0, "query", "hidden ? 0.0f : 1.0f / total[h]", "F")}
            }}
        }}"""
    return begin, compute, end


def _store(sum_name: str, number: int, row: str, factor: str, columns: str) -> str:
    """A statement that writes a row of a result."""
    here = f"sizes.result{number}"
    start = f"(Result*)(result + {here}) + outer * {here}_outer + inner * {here}_inner + {row} * {here}_row"
    return f"store_row({sum_name}, h, {factor}, {start}, (int)sizes.{columns}, sizes.whole_pairs);"


def _weights(spec: AttentionSpec, lse: str) -> str:
    """Statements that make the scores in s weights."""
    additive = spec.scale <= 0 or (spec.mask is not None and spec.mask is not bool_)
    exponent = f"s[i] - {lse}" if additive else f"__fmaf_rn(s[i], scale_log2, -{lse})"
    return _each(f"s[i] = exp2_fast({exponent});")


def _queries(spec: AttentionSpec, way: _Pass) -> tuple[str, str, str]:
    """The same for the gradient of queries."""
    begin = f"""
        float of_query[DEPTH / 2], row_lse[2], row_delta[2];
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            const int query = first_row + lane / 4 + 8 * h;
            const bool there = query < queries;  // beyond, weights are zeros
            row_lse[h] = there ? lse_batch[query * sizes.lse_row] * LOG2_E : {infinity("float")};
            row_delta[h] = there ? delta_batch[query * sizes.delta_row] : 0.0f;
        }}
        #pragma unroll
        for (int i = 0; i < DEPTH / 2; i++) of_query[i] = 0;"""
    compute = f"""
            float s[SCORES], d[SCORES];
            unsigned int ds[ALONG / 16][4];
            first_products(s, a1, b1);
            {scores_text(spec, way.along // 2, *_OF_QUERIES, "first_row", "tile0 + ALONG")}
            {_weights(spec, "row_lse[i / 2 % 2]")}
            {_dropped(spec, "first_row + lane / 4", "tile0 + lane % 4 * 2")}
            second_products(d, a2, b2);
            {_each(f"d[i] = s[i] * ({_kept(spec, 'd[i]')} - row_delta[i / 2 % 2]);")}
            to_fragments(ds, d);
            add_first(of_query, ds, b1);"""
    end = f"""
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            const int query = first_row + lane / 4 + 8 * h;
            if (query < queries) {{
                {_store("of_query", 0, "query", "(float)sizes.scale", "E")}
            }}
        }}"""
    return begin, compute, end


def _keys(spec: AttentionSpec, way: _Pass) -> tuple[str, str, str]:
    """The same for the gradients of keys and values; scores have keys as rows."""
    of_keys, of_values = "k" in way.part, "v" in way.part
    query, key = "tile0 + lane % 4 * 2 + i / 4 * 8 + i % 2", "first_row + lane / 4 + 8 * (i / 2 % 2)"
    column = "i / 4 * 8 + lane % 4 * 2 + i % 2"
    begin, compute, end = [], [], []
    if of_values:
        begin.append("float of_value[WIDTH / 2];\n#pragma unroll\nfor (int i = 0; i < WIDTH / 2; i++) of_value[i] = 0;")
    if of_keys:
        begin.append("float of_key[DEPTH / 2];\n#pragma unroll\nfor (int i = 0; i < DEPTH / 2; i++) of_key[i] = 0;")
    compute.append(f"""
            float s[SCORES];
            unsigned int p[ALONG / 16][4];
            const float* row_lse = rows + 2 * stage * ALONG;
            first_products(s, a1, b1);
            {scores_text(spec, way.along // 2, query, key, "tile0", "first_row + 16")}
            {_weights(spec, f"row_lse[{column}]")}
            {_dropped(spec, "tile0 + lane % 4 * 2", "first_row + lane / 4")}""")
    if of_values:
        compute.append(f"""
            float kept[SCORES];
            {_each(f"kept[i] = {_kept(spec, 's[i]')};")}
            to_fragments(p, kept);
            add_second(of_value, p, b2);""")
        end.append(_store("of_value", 2, "key", "1.0f", "F"))
    if of_keys:
        compute.append(f"""
            float d[SCORES];
            second_products(d, a2, b2);
            {_each(f"d[i] = s[i] * ({_kept(spec, 'd[i]')} - row_lse[ALONG + {column}]);")}
            to_fragments(p, d);
            add_first(of_key, p, b1);""")
        end.append(_store("of_key", 1, "key", "(float)sizes.scale", "E"))
    finish = f"""
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            const int key = first_row + lane / 4 + 8 * h;
            if (key < keys) {{
                {" ".join(end)}
            }}
        }}"""
    return "\n".join(begin), "\n".join(compute), finish

"""What the kernels of attention for Hopper share: tiles by tensor maps, barriers, fragments of scores, results.

A block is one producer warpgroup, of which one thread asks for copies, and some consumer warpgroups of 64 rows each. Tiles
lie in shared memory in blocks of 64 columns, 128 bytes a row, swizzled. An accumulator of a warpgroup with C columns is
C / 2 registers a thread: number i holds row 16 warp + lane / 4 + 8 (i / 2 % 2) and column i / 4 * 8 + 2 (lane % 4) + i % 2.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import bfloat16, bool_
from tensorsmith.targets.cuda.attention_scores import infinity
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, parameter_types
from tensorsmith.targets.cuda.kernel import TensorMap, Word

ALIGNMENT = 16  # of addresses and strides that a tensor map can express, in bytes
BLOCK = 64  # columns of a tile that lie together
GROUP_BYTES = 32 << 20  # keys and values of the batches that run at once: they stay in the cache
_LARGEST = 1 << 31

TENSOR_MAP = "struct __align__(64) TensorMap { unsigned long long opaque[16]; };"


def padded(columns: int) -> int:
    """Columns as whole blocks: what is beyond counts as zeros."""
    return -(-columns // BLOCK) * BLOCK


def takes(spec: AttentionSpec) -> bool:
    """Whether strides are what tensor maps can express, and sizes what the kernels are for; of addresses, see `guard_text`."""
    matrices = ("q", "k", "v", "g") if spec.backward else ("q", "k", "v")
    return (
        spec.dtype.is_half
        and max(spec.L, spec.S) + 512 < _LARGEST
        and max(spec.E, spec.F) <= 256
        and all(_describable(spec, name) for name in matrices)
    )


def operand_parameters(spec: AttentionSpec) -> tuple[list[str], list[Word]]:
    """Declarations and words beside the tensor maps: matrices only where their addresses have to be looked at."""
    mapped = ("q", "k", "v", "g") if spec.aligned else ()
    kinds, numbers = parameter_types(spec), range(len(spec.operands) + 1)
    kept = [n for n in numbers if n == len(spec.operands) or spec.names[n] not in mapped]
    return [kinds[n] for n in kept], [Word(n) for n in kept]


def guard_text(spec: AttentionSpec) -> str:
    """A statement that leaves the kernel where an address is no multiple of ALIGNMENT: another kernel follows for that."""
    return "" if spec.aligned else f"if ({misaligned_text(spec)}) return;"


def misaligned_text(spec: AttentionSpec) -> str:
    matrices = [f"(unsigned long long){name}" for name in (("q", "k", "v", "g") if spec.backward else ("q", "k", "v"))]
    return f"(({' | '.join(matrices)}) & {ALIGNMENT - 1}) != 0"


def _describable(spec: AttentionSpec, name: str) -> bool:
    outer, inner, row, column = spec.strides(name)
    columns = spec.E if name in "qk" else spec.F
    rows = spec.L if name in "qg" else spec.S
    lies = (column == 1 or columns == 1) and (row != 0 or rows == 1)
    return lies and all(stride * 2 % ALIGNMENT == 0 for stride in (outer, inner, row))


def tensor_map(spec: AttentionSpec, name: str, rows: int) -> TensorMap:
    """Tiles of `rows` rows and one block of columns of a matrix, along (columns, rows, inner, outer)."""
    length = spec.L if name in "qg" else spec.S
    columns = spec.E if name in "qk" else spec.F
    outer, inner, row, _ = spec.strides(name)
    # An axis along which nothing moves is one of extent 1, as `moves` says to the kernel.
    shape = (columns, length if row else 1, spec.inner if inner else 1, spec.outer if outer else 1)
    strides = tuple(2 * stride if stride else ALIGNMENT for stride in (row, inner, outer))
    dtype = "BFLOAT16" if spec.dtype is bfloat16 else "FLOAT16"
    return TensorMap(spec.names.index(name), dtype, shape, strides, (BLOCK, rows, 1, 1))


def moves(spec: AttentionSpec, names: str) -> list[tuple[str, int]]:
    """Fields that say whether a matrix differs along the batch axes."""
    found = []
    for name in names:
        outer, inner, _, _ = spec.strides(name)
        found += [(f"{name}_outer_moves", int(outer != 0)), (f"{name}_inner_moves", int(inner != 0))]
    return found


def load_text(name: str, to: str, row: str, rows: int, columns: int, barrier: str) -> str:
    """Statements that ask for a tile of `columns` columns from `row` on."""
    place = f"(int)(inner * sizes.{name}_inner_moves), (int)(outer * sizes.{name}_outer_moves)"
    return "\n".join(
        f"tensor_load_4d({to} + {c * rows * 2}, &{name}_map, {c}, {row}, {place}, {barrier});" for c in range(0, columns, BLOCK)
    )


def prescaled(spec: AttentionSpec) -> bool:
    """Whether scores are scaled before their largest is looked for: not where the scale is a factor that keeps their order."""
    return spec.scale <= 0 or (spec.mask is not None and spec.mask is not bool_)


def scores_text(spec: AttentionSpec, count: int, query: str, key: str, first_query: str, end_key: str) -> str:
    """Statements that make the products in s scores, in units of log2, or to be scaled so where not `prescaled`.

    query, key:  expressions of the element i
    first_query, end_key: the first query of the warpgroup's tile, and one beyond its last key: inside, nothing is hidden
    """
    hidden = f"-{infinity('float')}"
    tests = ["key >= keys", *(["key > query"] if spec.causal else [])]
    edges = [f"{end_key} > keys", *([f"{end_key} > {first_query} + 1"] if spec.causal else [])]
    head = f"#pragma unroll\nfor (int i = 0; i < {count}; i++) {{\nconst int query = {query}, key = {key};"
    place = "mask_rows[query * sizes.mask_row + key * sizes.mask_column]"
    lines = []
    if spec.mask is not None:
        beyond = " || ".join(["query >= queries", *tests])
        if spec.mask is bool_:
            scaled = "s[i] * scale_log2" if prescaled(spec) else "s[i]"
            lines += [head, f"if ({beyond} || !{place}) s[i] = {hidden};", f"else s[i] = {scaled};", "}"]
        else:
            added = f"__fmaf_rn(s[i], scale_log2, {place} * LOG2_E)"
            lines += [head, f"s[i] = {beyond} ? {hidden} : {added};", "}"]
        return "\n".join(lines)
    if prescaled(spec):
        lines += ["#pragma unroll", f"for (int i = 0; i < {count}; i++) s[i] *= scale_log2;"]
    lines += [f"if ({' || '.join(edges)}) {{", head, f"if ({' || '.join(tests)}) s[i] = {hidden};", "}", "}"]
    return "\n".join(lines)


def products_text(name: str, dtype: str, columns: int, depth: int, a_rows: int, b_rows: int) -> str:
    """A device function: d = a b^T of a tile of 64 rows and one of `columns` rows, in blocks of `a_rows` and `b_rows` rows."""
    return f"""
__device__ __forceinline__ void {name}(float (&d)[{columns // 2}], unsigned int a, unsigned int b) {{
    #pragma unroll
    for (int step = 0; step < {depth // 16}; step++) {{
        const unsigned int along = step % 4 * 32;
        wgmma_n{columns}_{dtype}<0, 0>(
            d, matrix_descriptor(a + step / 4 * {128 * a_rows} + along, 16, 1024),
            matrix_descriptor(b + step / 4 * {128 * b_rows} + along, 16, 1024), step != 0);
    }}
}}"""


def sums_text(name: str, dtype: str, columns: int, rows: int) -> str:
    """A device function: sum += p b of a fragment of `rows` columns and a tile of so many rows and `columns` columns."""
    parameters = f"float (&sum)[{columns // 2}], const unsigned int (&p)[{rows // 16}][4], unsigned int b"
    return f"""
__device__ __forceinline__ void {name}({parameters}) {{
    #pragma unroll
    for (int step = 0; step < {rows // 16}; step++) {{
        wgmma_n{columns}_{dtype}_registers<1>(sum, p[step], matrix_descriptor(b + step * 2048, {128 * rows}, 1024), 1);
    }}
}}"""


def fragments_text(dtype: str) -> str:
    """A device function: an accumulator as the left operand of the next product, two neighbours in one register."""
    return f"""
template <int count>
__device__ __forceinline__ void to_fragments(unsigned int (&p)[count / 8][4], const float (&s)[count]) {{
    #pragma unroll
    for (int i = 0; i < count; i += 2) p[i / 8][i / 2 % 4] = pack_{dtype}(s[i], s[i + 1]);
}}"""


def store_text(spec: AttentionSpec) -> str:
    """A device function that writes a row of an accumulator times a factor: elements of the rows 8 h beyond lane / 4."""
    half = spec.result_dtype.is_half
    pack, single = f"pack_{spec.dtype.name}", f"narrow_{spec.dtype.name}"
    pair = f"*(unsigned int*)to = {pack}(a, b);" if half else "*(float2*)to = make_float2(a, b);"
    first, second = (f"{single}({value})" if half else value for value in "ab")
    return f"""
typedef {"unsigned short" if half else "float"} Result;
template <int count>
__device__ __forceinline__ void store_row(
    const float (&sum)[count], int h, float factor, Result* row, int columns, bool pairs
) {{
    #pragma unroll
    for (int block = 0; block < count / 4; block++) {{
        const int column = 8 * block + threadIdx.x % 4 * 2;
        const float a = sum[4 * block + 2 * h] * factor, b = sum[4 * block + 2 * h + 1] * factor;
        Result* to = row + column;
        if (pairs) {{
            if (column < columns) {pair}
        }} else {{
            if (column < columns) to[0] = {first};
            if (column + 1 < columns) to[1] = {second};
        }}
    }}
}}"""


def dropped_text(count: int, keys_along: bool) -> str:
    """A device function: bit i of `bits` says that the weight of element i is dropped (`ir/dropout.py`).

    keys_along: keys are columns, and the words of a block of random bits, 16 keys apart, all belong to this thread; else keys
    are rows, and every element takes one word. query, key: of element 0.
    """
    head = f"""
__device__ __forceinline__ void find_dropped(
    unsigned int (&bits)[{-(-count // 32)}], int query, int key, unsigned long long stream_key, unsigned long long stream_first,
    long long row_words, unsigned int limit
) {{
    #pragma unroll
    for (int i = 0; i < {-(-count // 32)}; i++) bits[i] = 0;"""
    if keys_along:
        return f"""{head}
    #pragma unroll
    for (int h = 0; h < 2; h++) {{
        const unsigned long long row = (stream_first + (query + 8 * h) * (unsigned long long)row_words) / 4;
        #pragma unroll
        for (int group = 0; group < {count // 32}; group++) {{
            #pragma unroll
            for (int low = 0; low < 4; low++) {{
                // Keys 64 group + 16 word + 8 (low / 2) + low % 2 from this one on, for every word.
                unsigned int words[4];
                philox_block(stream_key, row + (key / 64 + group) * 16 + key % 16 + low / 2 * 8 + low % 2, words);
                #pragma unroll
                for (int word = 0; word < 4; word++) {{
                    if (words[word] < limit) bits[group] |= 1u << ((2 * word + low / 2) * 4 + 2 * h + low % 2);
                }}
            }}
        }}
    }}
}}"""
    return f"""{head}
    const int word = key / 16 % 4;
    #pragma unroll
    for (int i = 0; i < {count}; i++) {{
        const int at = key + 8 * (i / 2 % 2), of = query + i / 4 * 8 + i % 2;
        unsigned int words[4];
        philox_block(stream_key, (stream_first + of * (unsigned long long)row_words) / 4 + at / 64 * 16 + at % 16, words);
        const unsigned int mine = word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
        if (mine < limit) bits[i / 32] |= 1u << i % 32;
    }}
}}"""

"""What kernels of attention do with scores, weights and sums that are fragments of tensor cores in registers.

An accumulator of C columns is C / 2 registers a thread: number i holds row lane / 4 + 8 (i / 2 % 2) of its warp's 16 and
column i / 4 * 8 + 2 (lane % 4) + i % 2, for instructions of a warp and of a warpgroup alike.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import bool_
from tensorsmith.targets.cuda.attention_scores import infinity
from tensorsmith.targets.cuda.attention_spec import AttentionSpec


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

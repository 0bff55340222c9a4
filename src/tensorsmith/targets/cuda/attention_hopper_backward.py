"""The gradient of attention on Hopper's tensor cores, in two passes whose sums all stay in the registers of one warpgroup.

    for the gradients of keys and values, a warpgroup having 64 keys:      for tiles of queries:
        s = k q^T;  d = v g^T;  p = exp2(s - lse);  dv += p g;   ds = p (z d - delta);  dk += ds q
    for the gradients of queries, a warpgroup having 64 queries:           for tiles of keys:
        s = q k^T;  d = g v^T;  p = exp2(s - lse);  ds = p (z d - delta);  dq += ds k

Scores of the first pass are transposed, so that in both p and ds are, as they lie in registers, left operands of the next
product: nothing goes through shared memory, nothing is added atomically, every sum has one order. It costs two products
more than one pass would. Where a matrix has too many columns for the registers, dv and dk are passes of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import bool_
from tensorsmith.targets.cuda.attention_fragments import (
    dropped_text,
    fragments_text,
    scores_text,
    store_text,
)
from tensorsmith.targets.cuda.attention_functions import with_attention_functions
from tensorsmith.targets.cuda.attention_hopper import (
    GROUP_BYTES,
    NEXT_STAGE,
    TENSOR_MAP,
    guard_text,
    load_text,
    moves,
    operand_parameters,
    padded,
    products_text,
    sums_text,
    tensor_map,
)
from tensorsmith.targets.cuda.attention_scores import batch_text, infinity
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, constant, struct_text
from tensorsmith.targets.cuda.kernel import Argument, Launch


@dataclass(frozen=True)
class Tiles:
    """consumers: warpgroups of 64 rows; along: rows of the tiles that they go through; stages: of those, under way

    late: whether what is summed of a tile waits for the products of the next one, and so needs registers (and two stages);
    in the pass over queries it always does
    """

    consumers: int
    along: int
    stages: int
    late: bool = True


def usual_tiles(width: int, part: str, dropout: bool) -> Tiles:
    """What is fastest for matrices of up to `width` columns, in the pass over keys ("kv", "k", "v") or that over queries."""
    if part == "q":
        if width > 128:
            return Tiles(2, 64, 2)
        if dropout:  # whole groups of keys
            return Tiles(2, 128, 3) if width <= 64 else Tiles(2, 64, 3)
        return Tiles(2, 128, 3) if width <= 64 else Tiles(2, 96, 3)
    if width > 128:
        return Tiles(2, 64, 2) if part == "v" else Tiles(2, 64, 1, late=False)
    return Tiles(2, 96, 3) if width <= 64 else Tiles(2, 64, 3, late=False)


def launches(spec: AttentionSpec, of_keys: Tiles | None = None, of_queries: Tiles | None = None) -> tuple[Launch, ...]:
    """The passes: over keys, in two parts where matrices are wide, and over queries; tiles as usual where not given."""
    width = max(padded(spec.E), padded(spec.F))
    parts = ("kv", "q") if width <= 128 else ("v", "k", "q")
    given = {"kv": of_keys, "q": of_queries}
    return tuple(_launch(spec, part, given.get(part) or usual_tiles(width, part, spec.dropout > 0)) for part in parts)


def _launch(spec: AttentionSpec, part: str, tiles: Tiles) -> Launch:
    depth, width = padded(spec.E), padded(spec.F)
    rows = 64 * tiles.consumers
    blocks = math.ceil((spec.L if part == "q" else spec.S) / rows)
    through = spec.S if part == "q" else spec.L
    group = max(1, min(spec.batch, GROUP_BYTES // (2 * through * (depth + width))))
    even = [spec.E, spec.F, *(stride for _, strides in spec.results() for stride in strides)]
    fields = [
        *spec.sizes(), *moves(spec, "qkvg"), ("tiles", blocks), ("group", group),
        ("whole_pairs", int(all(place % 2 == 0 for place in even))),
    ]  # fmt: skip
    # Matrices with the rows of the warpgroups stay; those of the other side come tile by tile.
    heights = {name: 64 if (name in "qg") == (part == "q") else tiles.along for name in "qkvg"}
    maps = [tensor_map(spec, name, heights[name]) for name in "qkvg"]
    arguments: list[Argument] = [*maps, *operand_parameters(spec)[1], constant(fields)]
    sides = depth + (width if part != "v" else 0)  # of the matrices that stay; the other two always come
    free = tiles.stages - (part == "q")  # stages of the matrix that is not summed
    shared = 1024 + 2 * (rows * sides + tiles.along * (tiles.stages * depth + free * width)) + 8 * (1 + 4 * tiles.stages)
    shared += 8 * tiles.stages * tiles.along if part != "q" else 0
    name = f"attention_backward_{part}_hopper"
    source = _queries_source(spec, tiles, name, fields) if part == "q" else _keys_source(spec, tiles, part, name, fields)
    return Launch(source, name, (spec.batch * blocks, 1, 1), (128 * (tiles.consumers + 1), 1, 1), tuple(arguments), shared)


def _head(spec: AttentionSpec, tiles: Tiles, fields: list[tuple[str, int | float]], keys_along: bool) -> list[str]:
    numbers = {
        "ALONG": tiles.along, "CONSUMERS": tiles.consumers, "STAGES": tiles.stages,
        "FREE_STAGES": tiles.stages - 1, "SCORES": tiles.along // 2,
        "DEPTH": padded(spec.E), "WIDTH": padded(spec.F),
    }  # fmt: skip
    dtype = spec.dtype.name
    return [
        "#define LOG2_E 1.44269504088896340736f",
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        TENSOR_MAP,
        struct_text("Sizes", fields),
        products_text("first_products", dtype, tiles.along, padded(spec.E), 64, tiles.along),
        products_text("second_products", dtype, tiles.along, padded(spec.F), 64, tiles.along),
        sums_text("add_first", dtype, padded(spec.E), tiles.along),
        sums_text("add_second", dtype, padded(spec.F), tiles.along),
        fragments_text(dtype),
        store_text(spec),
        dropped_text(tiles.along // 2, keys_along) if spec.dropout else "",
    ]


def _parameters(spec: AttentionSpec) -> str:
    maps = [f"const __grid_constant__ TensorMap {name}_map" for name in "qkvg"]
    return ", ".join([*maps, *operand_parameters(spec)[0], "const __grid_constant__ Sizes sizes"])


# The next stage of the ring of what is free as soon as it was multiplied.
_NEXT_FREE = "if (++{0} == FREE_STAGES) {{\n{0} = 0;\n{1} ^= 1;\n}}"


def _weights(spec: AttentionSpec, lse: str) -> str:
    """Statements that make the scores in s weights."""
    additive = spec.scale <= 0 or (spec.mask is not None and spec.mask is not bool_)
    exponent = f"s[i] - {lse}" if additive else f"__fmaf_rn(s[i], scale_log2, -{lse})"
    return f"#pragma unroll\nfor (int i = 0; i < SCORES; i++) s[i] = exp2_fast({exponent});"


def _dropout(spec: AttentionSpec, query: str, key: str) -> tuple[str, str, str]:
    """Statements that find what is dropped, and the expressions z s[i] and z d[i]."""
    if not spec.dropout:
        return "", "s[i]", "d[i]"
    found = f"""
        unsigned int dropped[(SCORES + 31) / 32];
        find_dropped(dropped, {query}, {key}, stream_key, stream_first, sizes.row_words, (unsigned int)sizes.limit);
        const float drop_factor = (float)sizes.factor;""".strip()
    kept = "(dropped[i / 32] >> i % 32 & 1 ? 0.0f : {}[i] * drop_factor)"
    return found, kept.format("s"), kept.format("d")


# The longest blocks start first; a group of batches has what it goes through in the cache together.
_PLACE = """
    const long long group = blockIdx.x / (sizes.group * sizes.tiles), unit = blockIdx.x % (sizes.group * sizes.tiles);
    const long long here = min(sizes.group, sizes.batch - group * sizes.group);
    const long long tile = @tile@, batch = sizes.group * group + unit % here;
    const long long outer = batch / sizes.inner, inner = batch % sizes.inner;
    const int keys = (int)sizes.S, queries = (int)sizes.L;
    const int warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
    const float* lse_batch = lse + outer * sizes.lse_outer + inner * sizes.lse_inner;
    const float* delta_batch = delta + outer * sizes.delta_outer + inner * sizes.delta_inner;"""


def _keys_source(spec: AttentionSpec, tiles: Tiles, part: str, name: str, fields: list[tuple[str, int | float]]) -> str:
    depth, width = padded(spec.E), padded(spec.F)
    few, many = (24, 240) if tiles.consumers == 2 else (32, 160)
    of_keys, of_values = "k" in part, "v" in part
    scores = scores_text(
        spec, tiles.along // 2, "query0 + lane % 4 * 2 + i / 4 * 8 + i % 2", "first_key + lane / 4 + 8 * (i / 2 % 2)",
        "query0", "tile_key + 64",
    )  # fmt: skip
    column = "i / 4 * 8 + lane % 4 * 2 + i % 2"
    found, kept_s, kept_d = _dropout(spec, "query0 + lane % 4 * 2", "first_key + lane / 4")
    add_values = "add_second(of_value, p, g_at + {0} * G_BYTES);" if of_values else ""
    add_keys = "add_first(of_key, ds, q_at + {0} * Q_BYTES);" if of_keys else ""
    settle = "\n".join(["settle(of_value);"] * of_values + ["settle(of_key);"] * of_keys)
    keep = change = ""
    if of_values:
        keep = f"#pragma unroll\nfor (int i = 0; i < SCORES; i++) {{}} = {kept_s};\nto_fragments(p, {{}});"
    if of_keys:
        changed = f"s[i] * ({kept_d} - row_lse[ALONG + {column}])"
        change = f"settle(d);\n#pragma unroll\nfor (int i = 0; i < SCORES; i++) d[i] = {changed};"
    if tiles.late:
        add = f"{add_values}\n{add_keys}".format("before")
        first = f"""
        if (before >= 0) {{
            {add}
        }}
        wgmma_commit();
        wgmma_wait<{2 if of_keys else 1}>();"""
        rest = f"""
        {"wgmma_wait<1>();" if of_keys else ""}
        {change}
        wgmma_wait<0>();
        {settle}
        __syncwarp();  // all lanes have read the rows of the stage
        if (before >= 0 && lane == 0) mbarrier_arrive(empty + 8 * before);
        {keep.format("s[i]", "s")}
        {"to_fragments(ds, d);" if of_keys else ""}
        before = stage;"""
        end = f"""
    wgmma_fence();
    if (before >= 0) {{
        {add}
    }}
    wgmma_commit();"""
    else:
        first = f"wgmma_wait<{int(of_keys)}>();"
        fence = "wgmma_fence();\n        {}\n        wgmma_commit();"
        rest = f"""
        {"{ float kept[SCORES];" if of_values else ""}
        {keep.format("kept[i]", "kept")}
        {"}" if of_values else ""}
        {fence.format(add_values.format("stage")) if of_values else ""}
        {f"wgmma_wait<{int(of_values)}>();" if of_keys else ""}
        {change}
        {"to_fragments(ds, d);" if of_keys else ""}
        {fence.format(add_keys.format("stage")) if of_keys else ""}
        wgmma_wait<0>();
        __syncwarp();  // all lanes have read the rows of the stage
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);"""
        end = ""
    values = load_text("v", "v_at + consumer * V_BYTES", "key0 + 64 * consumer", 64, width, "k_full")
    kernel = f"""
extern "C" __global__ void __launch_bounds__({128 * (tiles.consumers + 1)}, 1) {name}(
    {_parameters(spec)}
) {{
    {guard_text(spec)}
    extern __shared__ char memory[];
    constexpr int K_BYTES = 128 * DEPTH, V_BYTES = {"128 * WIDTH" if of_keys else 0};
    constexpr int Q_BYTES = 2 * ALONG * DEPTH, G_BYTES = 2 * ALONG * WIDTH;
    const unsigned int k_at = (shared_address(memory) + 1023) & ~1023u, v_at = k_at + CONSUMERS * K_BYTES;
    const unsigned int q_at = v_at + CONSUMERS * V_BYTES, g_at = q_at + STAGES * Q_BYTES, rows_at = g_at + STAGES * G_BYTES;
    const unsigned int k_full = rows_at + 8 * STAGES * ALONG, q_full = k_full + 8, g_full = q_full + 8 * STAGES;
    const unsigned int rows_full = g_full + 8 * STAGES, empty = rows_full + 8 * STAGES;
    // For every query of a tile: its log-sum-exp in units of log2, then its delta.
    float* rows = (float*)(memory + (rows_at - shared_address(memory)));
    if (threadIdx.x == 0) {{
        mbarrier_init(k_full, 1);
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(q_full + 8 * stage, 1);
            mbarrier_init(rows_full + 8 * stage, 32);
            mbarrier_init(g_full + 8 * stage, 1);
            mbarrier_init(empty + 8 * stage, 4 * CONSUMERS);
        }}
        mbarrier_fence();
    }}
    __syncthreads();
    {_PLACE.replace("@tile@", "unit / here").strip()}
    const int key0 = (int)tile * 64 * CONSUMERS;
    const int low = {"key0 / ALONG" if spec.causal else "0"}, high = (queries + ALONG - 1) / ALONG;
    if (warpgroup == 0) {{
        fewer_registers<{few}>();
        if (threadIdx.x < 32) {{
            if (lane == 0) {{
                mbarrier_arrive_expect(k_full, CONSUMERS * (K_BYTES + V_BYTES));
                for (int consumer = 0; consumer < CONSUMERS; consumer++) {{
                    {load_text("k", "k_at + consumer * K_BYTES", "key0 + 64 * consumer", 64, depth, "k_full")}
                    {values if of_keys else ""}
                }}
            }}
            int stage = 0, parity = 1;
            for (int number = low; number < high; number++) {{
                const int query0 = number * ALONG;
                mbarrier_wait(empty + 8 * stage, parity);
                if (lane == 0) {{
                    mbarrier_arrive_expect(q_full + 8 * stage, Q_BYTES);
                    {load_text("q", "q_at + stage * Q_BYTES", "query0", tiles.along, depth, "q_full + 8 * stage")}
                    mbarrier_arrive_expect(g_full + 8 * stage, G_BYTES);
                    {load_text("g", "g_at + stage * G_BYTES", "query0", tiles.along, width, "g_full + 8 * stage")}
                }}
                for (int i = lane; i < ALONG; i += 32) {{
                    const int query = query0 + i;
                    const bool there = query < queries;  // beyond, weights are zeros
                    rows[2 * stage * ALONG + i] = there ? lse_batch[query * sizes.lse_row] * LOG2_E : {infinity("float")};
                    rows[(2 * stage + 1) * ALONG + i] = there ? delta_batch[query * sizes.delta_row] : 0.0f;
                }}
                mbarrier_arrive(rows_full + 8 * stage);
                {NEXT_STAGE}
            }}
        }}
        return;
    }}
    more_registers<{many}>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4;
    const int tile_key = key0 + 64 * consumer, first_key = tile_key + 16 * warp;
    const unsigned int k_here = k_at + consumer * K_BYTES, v_here = v_at + consumer * V_BYTES;
    const float scale_log2 = (float)(sizes.scale * 1.44269504088896340736);
    {batch_text(spec)}
    float s[SCORES];
    {"float of_value[WIDTH / 2];" if of_values else ""}
    {"float d[SCORES], of_key[DEPTH / 2];" if of_keys else ""}
    {"unsigned int p[ALONG / 16][4];" if of_values else ""}
    {"unsigned int ds[ALONG / 16][4];" if of_keys else ""}
    {"for (int i = 0; i < WIDTH / 2; i++) of_value[i] = 0;" if of_values else ""}
    {"for (int i = 0; i < DEPTH / 2; i++) of_key[i] = 0;" if of_keys else ""}
    mbarrier_wait(k_full, 0);
    int stage = 0, parity = 0{", before = -1" if tiles.late else ""};
    for (int number = low; number < high; number++) {{
        const int query0 = number * ALONG;
        const float* row_lse = rows + 2 * stage * ALONG;
        mbarrier_wait(q_full + 8 * stage, parity);
        wgmma_fence();
        first_products(s, k_here, q_at + stage * Q_BYTES);
        wgmma_commit();
        mbarrier_wait(g_full + 8 * stage, parity);
        {"second_products(d, v_here, g_at + stage * G_BYTES);" if of_keys else ""}
        {"wgmma_commit();" if of_keys else ""}
        {first.strip()}
        settle(s);
        mbarrier_wait(rows_full + 8 * stage, parity);
        {scores}
        {_weights(spec, f"row_lse[{column}]")}
        {found}
        {rest.strip()}
        {NEXT_STAGE}
    }}
    {end.strip()}
    wgmma_wait<0>();
    {settle}
    #pragma unroll
    for (int h = 0; h < 2; h++) {{
        const int key = first_key + lane / 4 + 8 * h;
        if (key < keys) {{
            {_store("of_key", 1, "key", "(float)sizes.scale", "E") if of_keys else ""}
            {_store("of_value", 2, "key", "1.0f", "F") if of_values else ""}
        }}
    }}
}}
"""
    return with_attention_functions("\n".join([*_head(spec, tiles, fields, False), kernel.strip()])) + "\n"


def _store(sum_name: str, number: int, row: str, factor: str, columns: str) -> str:
    """A statement that writes a row of a result."""
    here = f"sizes.result{number}"
    start = f"(Result*)(result + {here}) + outer * {here}_outer + inner * {here}_inner + {row} * {here}_row"
    return f"store_row({sum_name}, h, {factor}, {start}, (int)sizes.{columns}, sizes.whole_pairs);"


def _queries_source(spec: AttentionSpec, tiles: Tiles, name: str, fields: list[tuple[str, int | float]]) -> str:
    depth, width = padded(spec.E), padded(spec.F)
    few, many = (24, 240) if tiles.consumers == 2 else (32, 160)
    scores = scores_text(
        spec, tiles.along // 2, "first_query + lane / 4 + 8 * (i / 2 % 2)", "key0 + lane % 4 * 2 + i / 4 * 8 + i % 2",
        "tile_query", "key0 + ALONG",
    )  # fmt: skip
    found, _, kept_d = _dropout(spec, "first_query + lane / 4", "key0 + lane % 4 * 2")
    kernel = f"""
extern "C" __global__ void __launch_bounds__({128 * (tiles.consumers + 1)}, 1) {name}(
    {_parameters(spec)}
) {{
    {guard_text(spec)}
    extern __shared__ char memory[];
    constexpr int Q_BYTES = 128 * DEPTH, G_BYTES = 128 * WIDTH, K_BYTES = 2 * ALONG * DEPTH, V_BYTES = 2 * ALONG * WIDTH;
    const unsigned int q_at = (shared_address(memory) + 1023) & ~1023u, g_at = q_at + CONSUMERS * Q_BYTES;
    const unsigned int k_at = g_at + CONSUMERS * G_BYTES, v_at = k_at + STAGES * K_BYTES;
    const unsigned int q_full = v_at + FREE_STAGES * V_BYTES, k_full = q_full + 8, k_empty = k_full + 8 * STAGES;
    const unsigned int v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * FREE_STAGES;
    if (threadIdx.x == 0) {{
        mbarrier_init(q_full, 1);
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(k_full + 8 * stage, 1);
            mbarrier_init(k_empty + 8 * stage, 4 * CONSUMERS);
        }}
        for (int stage = 0; stage < FREE_STAGES; stage++) {{
            mbarrier_init(v_full + 8 * stage, 1);
            mbarrier_init(v_empty + 8 * stage, 4 * CONSUMERS);
        }}
        mbarrier_fence();
    }}
    __syncthreads();
    {_PLACE.replace("@tile@", "sizes.tiles - 1 - unit / here").strip()}
    const int row0 = (int)tile * 64 * CONSUMERS;
    const int seen = {"min(keys, row0 + 64 * CONSUMERS)" if spec.causal else "keys"};
    const int count = (seen + ALONG - 1) / ALONG;
    if (warpgroup == 0) {{
        fewer_registers<{few}>();
        if (threadIdx.x == 0) {{
            mbarrier_arrive_expect(q_full, CONSUMERS * (Q_BYTES + G_BYTES));
            for (int consumer = 0; consumer < CONSUMERS; consumer++) {{
                {load_text("q", "q_at + consumer * Q_BYTES", "row0 + 64 * consumer", 64, depth, "q_full")}
                {load_text("g", "g_at + consumer * G_BYTES", "row0 + 64 * consumer", 64, width, "q_full")}
            }}
            int stage = 0, parity = 1, v_stage = 0, v_parity = 1;
            for (int number = count - 1; number >= 0; number--) {{
                mbarrier_wait(k_empty + 8 * stage, parity);
                mbarrier_arrive_expect(k_full + 8 * stage, K_BYTES);
                {load_text("k", "k_at + stage * K_BYTES", "number * ALONG", tiles.along, depth, "k_full + 8 * stage")}
                mbarrier_wait(v_empty + 8 * v_stage, v_parity);
                mbarrier_arrive_expect(v_full + 8 * v_stage, V_BYTES);
                {load_text("v", "v_at + v_stage * V_BYTES", "number * ALONG", tiles.along, width, "v_full + 8 * v_stage")}
                {NEXT_STAGE}
                {_NEXT_FREE.format("v_stage", "v_parity")}
            }}
        }}
        return;
    }}
    more_registers<{many}>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4;
    const int tile_query = row0 + 64 * consumer, first_query = tile_query + 16 * warp;
    const unsigned int q_here = q_at + consumer * Q_BYTES, g_here = g_at + consumer * G_BYTES;
    const float scale_log2 = (float)(sizes.scale * 1.44269504088896340736);
    {batch_text(spec)}
    float s[SCORES], d[SCORES], of_query[DEPTH / 2], row_lse[2], row_delta[2];
    unsigned int ds[ALONG / 16][4];
    #pragma unroll
    for (int h = 0; h < 2; h++) {{
        const int query = first_query + lane / 4 + 8 * h;
        const bool there = query < queries;  // beyond, weights are zeros
        row_lse[h] = there ? lse_batch[query * sizes.lse_row] * LOG2_E : {infinity("float")};
        row_delta[h] = there ? delta_batch[query * sizes.delta_row] : 0.0f;
    }}
    #pragma unroll
    for (int i = 0; i < DEPTH / 2; i++) of_query[i] = 0;
    mbarrier_wait(q_full, 0);
    int stage = 0, parity = 0, before = -1, v_stage = 0, v_parity = 0;
    for (int number = count - 1; number >= 0; number--) {{
        const int key0 = number * ALONG;
        mbarrier_wait(k_full + 8 * stage, parity);
        wgmma_fence();
        first_products(s, q_here, k_at + stage * K_BYTES);
        wgmma_commit();
        mbarrier_wait(v_full + 8 * v_stage, v_parity);
        second_products(d, g_here, v_at + v_stage * V_BYTES);
        wgmma_commit();
        if (before >= 0) add_first(of_query, ds, k_at + before * K_BYTES);
        wgmma_commit();
        wgmma_wait<2>();
        settle(s);
        {scores}
        {_weights(spec, "row_lse[i / 2 % 2]")}
        {found}
        wgmma_wait<1>();
        settle(d);
        if (lane == 0) mbarrier_arrive(v_empty + 8 * v_stage);
        #pragma unroll
        for (int i = 0; i < SCORES; i++) d[i] = s[i] * ({kept_d} - row_delta[i / 2 % 2]);
        wgmma_wait<0>();
        settle(of_query);
        if (before >= 0 && lane == 0) mbarrier_arrive(k_empty + 8 * before);
        to_fragments(ds, d);
        before = stage;
        {NEXT_STAGE}
        {_NEXT_FREE.format("v_stage", "v_parity")}
    }}
    wgmma_fence();
    add_first(of_query, ds, k_at + before * K_BYTES);
    wgmma_commit();
    wgmma_wait<0>();
    settle(of_query);
    #pragma unroll
    for (int h = 0; h < 2; h++) {{
        const int query = first_query + lane / 4 + 8 * h;
        if (query < queries) {{
            {_store("of_query", 0, "query", "(float)sizes.scale", "E")}
        }}
    }}
}}
"""
    return with_attention_functions("\n".join([*_head(spec, tiles, fields, True), kernel.strip()])) + "\n"

"""Attention forward on Hopper's tensor cores: copies by tensor maps, both products as warpgroup instructions.

A block has 64 queries for each of its consumer warpgroups and goes through the keys from the last tile that they see to the
first, so that tiles on the diagonal come at the beginning. A warpgroup holds its scores and its results in registers:

    s = q k^T of the first tile;  p = exp2(s - m)
    for the other tiles:  s = q k^T  and, at the same time,  out += p v  of the tile before
                          m, l and p of s, while out is still computed;  out = out a
    out += p v;  out = out / l

The other warpgroup computes exponentials while this one's products run (Shah et al. 2024, "FlashAttention-3").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsmith.targets.cuda.attention_fragments import (
    dropped_text,
    fragments_text,
    prescaled,
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
from tensorsmith.targets.cuda.attention_scores import batch_text, infinity, lse_text
from tensorsmith.targets.cuda.attention_spec import AttentionSpec, constant, struct_text
from tensorsmith.targets.cuda.kernel import Argument, Launch

NAME = "attention_forward_hopper"


@dataclass(frozen=True)
class Tiles:
    """keys: of a tile; consumers: warpgroups of 64 queries; stages: tiles of keys and values under way; turns: whether
    warpgroups take turns at the tensor cores; cluster: blocks with neighbouring queries that bring tiles for each other."""

    keys: int
    consumers: int
    stages: int
    turns: bool
    cluster: int = 1


def usual_tiles(width: int, causal: bool = True, dropout: bool = False) -> Tiles:
    """What is fastest for matrices of up to `width` columns; with dropout tiles have whole groups of keys."""
    if width <= 64:
        return Tiles(128, 3, 2, True)
    if width <= 128:
        return Tiles(128 if causal or dropout else 160, 2, 2, True)
    return Tiles(64, 2, 2, True)


def launches(spec: AttentionSpec, tiles: Tiles | None = None) -> tuple[Launch, ...]:
    """One launch."""
    depth, width = padded(spec.E), padded(spec.F)
    tiles = tiles or usual_tiles(max(depth, width), spec.causal, spec.dropout > 0)
    queries = 64 * tiles.consumers
    blocks = math.ceil(spec.L / queries / tiles.cluster) * tiles.cluster
    group = max(1, min(spec.batch, GROUP_BYTES // (2 * spec.S * (depth + width))))
    fields = [
        *spec.sizes(), *moves(spec, "qkv"), ("tiles", blocks), ("group", group),
        ("whole_pairs", int(all(place % 2 == 0 for place in (spec.F, *spec.results()[0][1])))),
    ]  # fmt: skip
    part = tiles.keys // tiles.cluster
    maps = [tensor_map(spec, "q", 64), tensor_map(spec, "k", part), tensor_map(spec, "v", part)]
    arguments: list[Argument] = [*maps, *operand_parameters(spec)[1], constant(fields)]
    shared = 1024 + 2 * (queries * depth + tiles.stages * tiles.keys * (depth + width)) + 8 * (1 + 4 * tiles.stages)
    grid = (spec.batch * blocks, 1, 1)
    block = (128 * (tiles.consumers + 1), 1, 1)
    cluster = (tiles.cluster, 1, 1)
    return (Launch(_source(spec, tiles, fields), NAME, grid, block, tuple(arguments), shared, cluster),)


def _source(spec: AttentionSpec, tiles: Tiles, fields: list[tuple[str, int | float]]) -> str:
    depth, width, dtype = padded(spec.E), padded(spec.F), spec.dtype.name
    numbers = {
        "KEYS": tiles.keys, "CONSUMERS": tiles.consumers, "STAGES": tiles.stages, "CLUSTER": tiles.cluster,
        "DEPTH": depth, "WIDTH": width, "SCORES": tiles.keys // 2, "SUMS": width // 2,
        "Q_BYTES": 128 * depth, "K_BYTES": 2 * tiles.keys * depth, "V_BYTES": 2 * tiles.keys * width,
    }  # fmt: skip
    # setmaxnreg divides 65536 registers among the warpgroups.
    few, many = (24, 240) if tiles.consumers == 2 else (32, 160)
    parameters = ["const __grid_constant__ TensorMap " + name for name in ("q_map", "k_map", "v_map")]
    parameters += [*operand_parameters(spec)[0], "const __grid_constant__ Sizes sizes"]
    query = "first_query + lane / 4 + 8 * (i / 2 % 2)"
    key = "key0 + i / 4 * 8 + lane % 4 * 2 + i % 2"
    scores = scores_text(spec, tiles.keys // 2, query, key, "tile_query", "key0 + KEYS")
    factor = "" if prescaled(spec) else " * scale_log2"
    exponent = "s[i] - base[i / 2 % 2]" if prescaled(spec) else "__fmaf_rn(s[i], scale_log2, -base[i / 2 % 2])"
    other = "1 + (consumer + 1) % CONSUMERS"
    turn = "barrier_sync(1 + consumer, 256);" if tiles.turns else ""
    pass_on = f"barrier_arrive({other}, 256);" if tiles.turns else ""
    begin_turns = "if (consumer == CONSUMERS - 1) barrier_arrive(1, 256);" if tiles.turns else ""
    end_turns = "if (consumer == 0) barrier_sync(1, 256);" if tiles.turns else ""
    drop = ""
    if spec.dropout:
        drop = """
        {
            unsigned int dropped[SCORES / 32];
            find_dropped(
                dropped, first_query + lane / 4, key0 + lane % 4 * 2, stream_key, stream_first, sizes.row_words,
                (unsigned int)sizes.limit);
            #pragma unroll
            for (int i = 0; i < SCORES; i++) s[i] = dropped[i / 32] >> i % 32 & 1 ? 0.0f : s[i] * (float)sizes.factor;
        }""".strip()
    clusters = tiles.cluster > 1
    # A stage is free where no block of the cluster reads it any more.
    ranks = range(tiles.cluster)
    done = {
        name: " ".join(f"mbarrier_arrive_at({name}_empty + 8 * {{0}}, {rank});" for rank in ranks)
        if clusters
        else f"mbarrier_arrive({name}_empty + 8 * {{0}});"
        for name in "kv"
    }
    loads = {
        name: load_text(
            name, f"{name}_at + stage * {name.upper()}_BYTES", "number * KEYS", tiles.keys, columns,
            f"{name}_full + 8 * stage", tiles.cluster,
        )
        for name, columns in (("k", depth), ("v", width))
    }  # fmt: skip
    see = "min(keys, {0} + 64 * CONSUMERS)" if spec.causal else "keys"
    unseen = ""
    if clusters and spec.causal:
        unseen = f"""
    for (int number = all_count - 1; number >= count; number--) {{  // tiles that only other blocks of the cluster see
        mbarrier_wait(k_full + 8 * stage, parity);
        mbarrier_wait(v_full + 8 * stage, parity);
        if (lane == 0) {{ {done["k"].format("stage")} {done["v"].format("stage")} }}
        {NEXT_STAGE}
    }}""".strip()
    kernel = f"""
extern "C" __global__ void __launch_bounds__({128 * (tiles.consumers + 1)}, 1) {NAME}(
    {", ".join(parameters)}
) {{
    {guard_text(spec)}
    extern __shared__ char memory[];
    const unsigned int base_address = (shared_address(memory) + 1023) & ~1023u;
    const unsigned int q_at = base_address, k_at = q_at + CONSUMERS * Q_BYTES, v_at = k_at + STAGES * K_BYTES;
    const unsigned int q_full = v_at + STAGES * V_BYTES, k_full = q_full + 8, v_full = k_full + 8 * STAGES;
    const unsigned int k_empty = v_full + 8 * STAGES, v_empty = k_empty + 8 * STAGES;
    const int warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {{
        mbarrier_init(q_full, 1);
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(k_full + 8 * stage, 1);
            mbarrier_init(v_full + 8 * stage, 1);
            mbarrier_init(k_empty + 8 * stage, 4 * CONSUMERS * CLUSTER);
            mbarrier_init(v_empty + 8 * stage, 4 * CONSUMERS * CLUSTER);
        }}
        mbarrier_fence();
    }}
    {"cluster_sync();" if clusters else "__syncthreads();"}
    {"const unsigned int rank = cluster_rank();" if clusters else ""}
    // The longest blocks, those of the last queries, start first; a group of batches has its keys in the cache together.
    const long long unit = blockIdx.x / CLUSTER, pairs = sizes.tiles / CLUSTER;
    const long long group = unit / (sizes.group * pairs), of_group = unit % (sizes.group * pairs);
    const long long here = min(sizes.group, sizes.batch - group * sizes.group);
    const long long batch = sizes.group * group + of_group % here, outer = batch / sizes.inner, inner = batch % sizes.inner;
    const int last0 = (int)((pairs - of_group / here) * CLUSTER - 1) * 64 * CONSUMERS;  // of the cluster's last block
    const int row0 = last0{" - (int)(CLUSTER - 1 - rank) * 64 * CONSUMERS" if clusters else ""};
    const int keys = (int)sizes.S, queries = (int)sizes.L;
    const int seen = {see.format("row0")}, count = (seen + KEYS - 1) / KEYS;
    const int all_count = ({see.format("last0")} + KEYS - 1) / KEYS;
    if (warpgroup == 0) {{
        fewer_registers<{few}>();
        if (threadIdx.x == 0) {{
            mbarrier_arrive_expect(q_full, CONSUMERS * Q_BYTES);
            for (int consumer = 0; consumer < CONSUMERS; consumer++) {{
                {load_text("q", "q_at + consumer * Q_BYTES", "row0 + 64 * consumer", 64, depth, "q_full")}
            }}
            int stage = 0, parity = 1;
            for (int number = all_count - 1; number >= 0; number--) {{
                mbarrier_wait(k_empty + 8 * stage, parity);
                mbarrier_arrive_expect(k_full + 8 * stage, K_BYTES);
                {loads["k"]}
                mbarrier_wait(v_empty + 8 * stage, parity);
                mbarrier_arrive_expect(v_full + 8 * stage, V_BYTES);
                {loads["v"]}
                {NEXT_STAGE}
            }}
        }}
        return;
    }}
    more_registers<{many}>();
    const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4;
    const unsigned int q_here = q_at + consumer * Q_BYTES;
    const float scale_log2 = (float)(sizes.scale * 1.44269504088896340736);
    const int tile_query = row0 + 64 * consumer, first_query = tile_query + 16 * warp;
    {batch_text(spec)}
    float s[SCORES], out[SUMS], largest[2], total[2], base[2];
    unsigned int p[KEYS / 16][4];
    #pragma unroll
    for (int i = 0; i < SUMS; i++) out[i] = 0;
    {begin_turns}
    int stage = 0, parity = 0;
    {unseen}
    mbarrier_wait(q_full, 0);
    mbarrier_wait(k_full + 8 * stage, parity);
    {turn}
    wgmma_fence();
    scores(s, q_here, k_at + stage * K_BYTES);
    wgmma_commit();
    {pass_on}
    wgmma_wait<0>();
    settle(s);
    if (lane == 0) {{ {done["k"].format("stage")} }}
    {{
        const int key0 = (count - 1) * KEYS;
        {scores}
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            largest[h] = -{infinity("float")};
            #pragma unroll
            for (int i = 0; i < SCORES; i++) {{
                if (i / 2 % 2 == h) largest[h] = fmaxf(largest[h], s[i]);
            }}
            largest[h] = fmaxf(largest[h], shuffle<float>(largest[h], 1));
            largest[h] = fmaxf(largest[h], shuffle<float>(largest[h], 2));
            base[h] = largest[h] == -{infinity("float")} ? 0.0f : largest[h]{factor};
            total[h] = 0;
        }}
        #pragma unroll
        for (int i = 0; i < SCORES; i++) {{
            s[i] = exp2_fast({exponent});
            total[i / 2 % 2] += s[i];
        }}
        {drop}
        to_fragments(p, s);
    }}
    for (int number = count - 2; number >= 0; number--) {{
        const int v_stage = stage, v_parity = parity;
        {NEXT_STAGE}
        mbarrier_wait(k_full + 8 * stage, parity);
        {turn}
        wgmma_fence();
        scores(s, q_here, k_at + stage * K_BYTES);
        wgmma_commit();
        mbarrier_wait(v_full + 8 * v_stage, v_parity);
        add_values(out, p, v_at + v_stage * V_BYTES);
        wgmma_commit();
        {pass_on}
        wgmma_wait<1>();
        settle(s);
        if (lane == 0) {{ {done["k"].format("stage")} }}
        const int key0 = number * KEYS;
        {scores}
        float factor[2];
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            float most = largest[h];
            #pragma unroll
            for (int i = 0; i < SCORES; i++) {{
                if (i / 2 % 2 == h) most = fmaxf(most, s[i]);
            }}
            most = fmaxf(most, shuffle<float>(most, 1));
            most = fmaxf(most, shuffle<float>(most, 2));
            // Weights may be as large as 2^8: what was summed is seldom scaled anew.
            most = (most - largest[h]){factor} <= 8.0f ? largest[h] : most;
            base[h] = most == -{infinity("float")} ? 0.0f : most{factor};
            factor[h] = exp2_fast(largest[h]{factor} - base[h]);
            total[h] *= factor[h];
            largest[h] = most;
        }}
        #pragma unroll
        for (int i = 0; i < SCORES; i++) {{
            s[i] = exp2_fast({exponent});
            total[i / 2 % 2] += s[i];
        }}
        {drop}
        wgmma_wait<0>();
        settle(out);
        if (lane == 0) {{ {done["v"].format("v_stage")} }}
        if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {{
            #pragma unroll
            for (int i = 0; i < SUMS; i++) out[i] *= factor[i / 2 % 2];
        }}
        to_fragments(p, s);
    }}
    mbarrier_wait(v_full + 8 * stage, parity);
    wgmma_fence();
    add_values(out, p, v_at + stage * V_BYTES);
    wgmma_commit();
    wgmma_wait<0>();
    settle(out);
    {end_turns}
    {_finish(spec)}
    {"cluster_sync();  // other blocks may still arrive at barriers of this one" if clusters else ""}
}}
"""
    head = [
        "#define LOG2_E 1.44269504088896340736f",
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        TENSOR_MAP,
        struct_text("Sizes", fields),
        products_text("scores", dtype, tiles.keys, depth, 64, tiles.keys),
        sums_text("add_values", dtype, width, tiles.keys),
        fragments_text(dtype),
        store_text(spec),
        dropped_text(tiles.keys // 2, True) if spec.dropout else "",
    ]
    return with_attention_functions("\n".join([*head, kernel.strip()])) + "\n"


def _finish(spec: AttentionSpec) -> str:
    """The results of a warpgroup, and the log-sum-exps of its rows."""
    log = "largest[h] * 0.69314718055994530942f" if prescaled(spec) else "largest[h] * (float)sizes.scale"
    return f"""
    Result* of_batch = (Result*)(result + sizes.result0) + outer * sizes.result0_outer + inner * sizes.result0_inner;
    #pragma unroll
    for (int h = 0; h < 2; h++) {{
        total[h] += shuffle<float>(total[h], 1);
        total[h] += shuffle<float>(total[h], 2);
        const bool hidden = total[h] == 0;
        const float inverse = hidden ? 0.0f : 1.0f / total[h];
        const int query = first_query + lane / 4 + 8 * h;
        if (query < queries) {{
            const float lse = hidden ? 0.0f : {log} + logf(total[h]);
            if (lane % 4 == 0) {{
                {lse_text(spec, "batch * sizes.L + query", "lse")}
            }}
            store_row(out, h, inverse, of_batch + query * sizes.result0_row, (int)sizes.F, sizes.whole_pairs);
        }}
    }}""".strip()

"""The loops of the direct convolution around its register tile, as one entry point of the kernel ABI.

    for unit in this chunk:                        (image, group of channels, part of the outer rows)
        slab = the part of x that the unit reads: zeros around, and the phases of the strides apart
        for rows in blocks of output channels:
            for channels in blocks:                whose panels of the slab stay in the first-level cache, weights in the second
                for positions of the unit in panels:
                    tiles of base + 1 output channels, then tiles of base; sums are kept from block to block of channels

Axes of space are (0, 1, w), w the last; parts are of axis 0. The slab is [channel][phase 0][phase 1][phase w][0][1][w]:
what a stride of s skips lies in another of its s phases, so that the tile always moves by one. Where results follow each
other in y as they do in the slab, they are one run.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv_slab import fill_slab
from tensorsmith.targets.cpu.gemm_blocks import entry_function, read_words
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Constant words, in order; strides in bytes.
WORDS = (
    "units", "units_per_chunk", "parts", "groups", "block", "outer",  # outer rows, `block` of them a part
    "channels", "slab_0", "slab_1", "pitch", "plane",  # extents of the slab, bytes of a channel of it
    "behind", "run_pitch", "run",  # positions of a row of axis 0 after its last result; runs of results, one a `run_pitch`
    "space_0", "space_1", "stride_0", "stride_1", "low_0", "low_1", "phases_0", "phases_1", "apart_1", "phases_w",
    "x_batch", "x_group", "x_channel", "x_0", "x_1", "x_w", "x_step", "edges", "contiguous",
    "taps", "tap_count", "rows", "w_group", "w_row", "y_batch", "y_group", "y_row", "y_0",
    "tiles", "base", "extra", "block_tiles", "columns", "panel", "channel_block", "kept", "kept_tile", "workspace_stride",
    # Tiles of base + 1 or base channels, and of a panel, two vectors, one.
    "big_wide", "small_wide", "big_middle", "small_middle", "big_narrow", "small_narrow",
)  # fmt: skip

SIZES = ("big", "small")
LAUNCH = ("x", "w", "y", "bias", "workspace")


def entry_name(bias: bool) -> str:
    """Symbol of the entry whose launch words are x, w, y, the bias where there is one, and the workspace."""
    return "conv_bias" if bias else "conv"


def entry_functions() -> list[Function]:
    """The entries without and with a bias."""
    return [
        entry_function(entry_name(bias), "conv_blocks", LAUNCH, [each for each in LAUNCH if bias or each != "bias"])
        for bias in (False, True)
    ]


def blocks_function(vectors: Vectors) -> Function:
    """The loops for one element type, called `conv_blocks`."""
    f = Function(
        "conv_blocks", [*(("ptr", name) for name in LAUNCH), ("ptr", "words"), ("i64", "chunk")], attributes="noinline"
    )
    w = read_words(f, WORDS)
    size = vectors.compute_size
    slab = f.offset("%workspace", f.mul("%chunk", w["workspace_stride"]))
    taps, rows, edges = (f.value(f"inttoptr i64 {w[name]} to ptr") for name in ("taps", "rows", "edges"))
    has_bias = f.compare("ne", "%bias", "null", "ptr")
    unit0 = f.mul("%chunk", w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])

    def channel_of(tile: Value) -> Value:
        return f.add(f.mul(tile, w["base"]), f.minimum(tile, w["extra"]))

    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (image, group, part)") as unit:
        image_group = f.udiv(unit.index, w["parts"])
        part = f.sub(unit.index, f.mul(image_group, w["parts"]))
        image = f.udiv(image_group, w["groups"])
        group = f.sub(image_group, f.mul(image, w["groups"]))
        outer0 = f.mul(part, w["block"])
        outer = f.minimum(w["block"], f.sub(w["outer"], outer0))
        x = f.offset("%x", f.add(f.mul(image, w["x_batch"]), f.mul(group, w["x_group"])))
        # As many rows beyond the unit's own as the whole slab has beyond a whole block.
        rows_0 = f.sub(w["slab_0"], f.sub(w["block"], outer))
        fill_slab(f, vectors, w, x, slab, edges, outer0, rows_0)
        y = f.offset("%y", f.add(f.add(f.mul(image, w["y_batch"]), f.mul(group, w["y_group"])), f.mul(outer0, w["y_0"])))
        weights = f.offset("%w", f.mul(group, w["w_group"]))
        channel0 = f.mul(group, channel_of(w["tiles"]))
        end = f.sub(f.mul(f.mul(outer, w["slab_1"]), w["pitch"]), w["behind"])
        kept0 = f.offset(slab, w["kept"])
        with (
            f.loop(0, w["tiles"], w["block_tiles"], name="i in tiles of output channels, step block_tiles") as block,
            f.loop(0, w["channels"], w["channel_block"], name="c in channels, step channel_block") as channels,
        ):
            tile1 = f.minimum(f.add(block.index, w["block_tiles"]), w["tiles"])
            count = f.minimum(w["channel_block"], f.sub(w["channels"], channels.index))
            later = f.compare("sgt", channels.index, 0)
            more = f.compare("slt", f.add(channels.index, count), w["channels"])
            with_bias = f.value(f"and i1 {has_bias}, {f.value(f'xor i1 {later}, true')}")
            seen0 = f.offset(slab, f.mul(channels.index, w["plane"]))
            weights0 = f.offset(weights, f.mul(f.mul(channels.index, w["tap_count"]), size))
            arguments = f"i64 {count}, i64 {w['plane']}, i64 {w['tap_count']}, i64 {w['w_row']}, i64 {w['y_row']}"

            def panels(
                low: Value, high: Value, step: Value, kinds: tuple[str, str], kept: str, seen0: str = seen0,
                weights0: str = weights0, with_bias: str = with_bias, later: str = later, more: str = more, end: Value = end,
                y: str = y, channel0: Value = channel0, first: Value = block.index, last: Value = tile1,
                arguments: str = arguments,
            ) -> str:  # fmt: skip
                """Panels of positions by tiles of the first kind, or the second where one vector is left; the next sums."""
                with f.loop(low, high, step, [("ptr", kept)], name="positions in panels") as position:
                    whole = f.compare("sgt", f.sub(end, position.index), vectors.lanes)
                    seen = f.offset(seen0, f.mul(position.index, size))
                    big, small = (f.select(whole, "i64", *(w[f"{which}_{kind}"] for kind in kinds)) for which in SIZES)
                    with f.loop(first, last, 1, [("ptr", position.carried[0])], name="tile") as tile:
                        chosen = f.select(f.compare("slt", tile.index, w["extra"]), "i64", big, small)
                        channel = channel_of(tile.index)
                        own = f.offset("%bias", f.mul(f.add(channel0, channel), size))
                        bias = f.select(with_bias, "ptr", own, "null")
                        sums = tile.carried[0]
                        before, after = (f.select(there, "ptr", sums, "null") for there in (later, more))
                        f.do(
                            f"call void {f.value(f'inttoptr i64 {chosen} to ptr')}("
                            f"ptr {f.offset(weights0, f.mul(channel, w['w_row']))}, ptr {seen}, "
                            f"ptr {f.offset(y, f.mul(channel, w['y_row']))}, ptr {bias}, ptr {before}, ptr {after}, "
                            f"ptr {taps}, ptr {rows}, {arguments}, i64 {position.index}, i64 {end}, i64 {w['run_pitch']}, "
                            f"i64 {w['run']})"
                        )
                        f.note("the tile: its sums over channels and taps, kept or stored")
                        tile.next = [f.offset(sums, w["kept_tile"])]
                    position.next = [tile.out[0]]
                return str(position.out[0])

            # Where one vector would be left, two panels of two vectors are less than a wide one and that.
            vector_count = f.udiv(f.add(end, vectors.lanes - 1), vectors.lanes)
            left = f.urem(vector_count, w["columns"])
            fewer = f.value(f"and i1 {f.compare('eq', left, 1)}, {f.compare('eq', w['columns'], 3)}")
            fewer = f.value(f"and i1 {fewer}, {f.compare('sgt', vector_count, 1)}")
            left = f.select(fewer, "i64", 4, left)
            wide = f.mul(f.sub(vector_count, left), vectors.lanes)
            kept = panels(0, wide, w["panel"], ("wide", "wide"), kept0)
            panels(wide, end, 2 * vectors.lanes, ("middle", "narrow"), kept)
    return f

"""The loops of the direct convolution around its register tile, as one entry point of the kernel ABI.

    for unit in this chunk:                        (image, group of channels, part of the outer rows)
        slab = the part of x that the unit reads: zeros around, and the phases of the strides apart
        for rows in blocks of output channels:     whose weights stay in the second-level cache
            for positions of the unit step panel:
                tiles of base + 1 output channels, then tiles of base

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
    "tiles", "base", "extra", "block_tiles", "panel", "workspace_stride",
    "big_wide", "small_wide", "big_narrow", "small_narrow",  # tiles: base + 1 or base channels, a panel or one vector
)  # fmt: skip

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
        with f.loop(0, w["tiles"], w["block_tiles"], name="i in tiles of output channels, step block_tiles") as block:
            tile1 = f.minimum(f.add(block.index, w["block_tiles"]), w["tiles"])
            with f.loop(0, end, w["panel"], name="position in positions of the part, step panel") as position:
                wide = f.compare("sgt", f.sub(end, position.index), vectors.lanes)
                seen = f.offset(slab, f.mul(position.index, size))
                with f.loop(block.index, tile1, 1, name="tile") as tile:
                    big = f.compare("slt", tile.index, w["extra"])
                    of_wide = f.select(big, "i64", w["big_wide"], w["small_wide"])
                    of_narrow = f.select(big, "i64", w["big_narrow"], w["small_narrow"])
                    function = f.value(f"inttoptr i64 {f.select(wide, 'i64', of_wide, of_narrow)} to ptr")
                    channel = channel_of(tile.index)
                    own = f.offset("%bias", f.mul(f.add(channel0, channel), size))
                    bias = f.select(has_bias, "ptr", own, "null")
                    f.do(
                        f"call void {function}(ptr {f.offset(weights, f.mul(channel, w['w_row']))}, ptr {seen}, "
                        f"ptr {f.offset(y, f.mul(channel, w['y_row']))}, ptr {bias}, ptr {taps}, ptr {rows}, "
                        f"i64 {w['channels']}, i64 {w['plane']}, i64 {w['tap_count']}, i64 {w['w_row']}, i64 {w['y_row']}, "
                        f"i64 {position.index}, i64 {end}, i64 {w['run_pitch']}, i64 {w['run']})"
                    )
                    f.note("the tile: its sums over channels and taps, stored")
    return f

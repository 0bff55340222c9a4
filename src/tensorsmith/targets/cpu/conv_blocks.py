"""The loops of the direct convolution around its register tile, as one entry point of the kernel ABI.

    for unit in this chunk:                        (image, group of channels, part of the outer rows)
        slab = the part of x that the unit reads: zeros around, and the phases of the strides apart
        for rows in blocks of output channels:
            for channels in blocks:                whose panels of the slab stay in the first-level cache, weights in the second
                for positions of the unit in panels:
                    tiles of base + 1 output channels, then tiles of base; sums are kept from block to block of channels
                the few positions that would be a vector by themselves, as `conv_left` computes them

Where that would be few units, a unit has a part of the output channels only, and slabs are filled once: the first chunks, the
shares, fill those of some channels each, the others wait for them.

Axes of space are (0, 1, w), w the last; parts are of axis 0. The slab is [channel][phase 0][phase 1][phase w][0][1][w]:
what a stride of s skips lies in another of its s phases, so that the tile always moves by one. Where results follow each
other in y as they do in the slab, they are one run.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv_left import copy_windows
from tensorsmith.targets.cpu.conv_slab import fill_slab
from tensorsmith.targets.cpu.gemm_blocks import entry_function, read_words
from tensorsmith.targets.cpu.gemm_vectors import Vectors

DONE = "done"  # a word that chunks write, for every launch has words of its own: how many shares are complete

# Constant words, in order; strides in bytes.
WORDS = (
    "units", "units_per_chunk", "parts", "groups", "block", "outer",  # outer rows, `block` of them a part
    "channels", "slab_0", "slab_1", "pitch", "plane",  # extents of the slab, bytes of a channel of it
    "behind", "run_pitch", "run",  # positions of a row of axis 0 after its last result; runs of results, one a `run_pitch`
    "space_0", "space_1", "stride_0", "stride_1", "low_0", "low_1", "phases_0", "phases_1", "apart_1", "phases_w",
    "x_batch", "x_group", "x_channel", "x_0", "x_1", "x_w", "x_step", "edges", "contiguous",
    "taps", "tap_count", "rows", "w_group", "w_row", "y_batch", "y_group", "y_row", "y_0",
    "tiles", "base", "extra", "block_tiles", "columns", "panel", "channel_block", "kept", "kept_tile", "workspace_stride",
    "out_parts", "shares", "share_channels", "share_slabs", "slab_bytes", "shared_bytes", "wait",
    # Positions left over in a whole part and in the last one, where their windows lie, and what computes them.
    "left", "last_left", "windows", "left_function", "last_left_function",
    # Tiles of base + 1 or base channels, and of a panel, two vectors, one.
    "big_wide", "small_wide", "big_middle", "small_middle", "big_narrow", "small_narrow",
    DONE,
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
    w = read_words(f, WORDS[: WORDS.index(DONE)])
    size = vectors.compute_size
    own = f.offset("%workspace", f.add(w["shared_bytes"], f.mul("%chunk", w["workspace_stride"])))
    taps, rows, edges = (f.value(f"inttoptr i64 {w[name]} to ptr") for name in ("taps", "rows", "edges"))
    has_bias = f.compare("ne", "%bias", "null", "ptr")
    shared, shares = f.compare("ne", w["shares"], 0), f.compare("slt", "%chunk", w["shares"])
    fills = f.value(f"or i1 {shares}, {f.value(f'xor i1 {shared}, true')}")
    done = f.offset("%words", 8 * WORDS.index(DONE))
    with f.if_(f.value(f"xor i1 {fills}, true")):
        wait = f.value(f"inttoptr i64 {w['wait']} to ptr")
        f.do(f"call void {wait}(ptr {done}, i64 {w['shares']})")
    share_channel = f.select(shares, "i64", f.mul("%chunk", w["share_channels"]), 0)
    share_count = str(f.minimum(w["share_channels"], f.sub(w["channels"], share_channel)))
    unit0 = f.mul(f.sub("%chunk", w["shares"]), w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    unit0, unit1 = f.select(shares, "i64", 0, unit0), f.select(shares, "i64", w["share_slabs"], unit1)
    out_parts = f.select(shares, "i64", 1, w["out_parts"])

    def channel_of(tile: Value) -> Value:
        return f.add(f.mul(tile, w["base"]), f.minimum(tile, w["extra"]))

    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (image, group, part, output channels)") as unit:
        number = f.udiv(unit.index, out_parts)
        out_part = f.sub(unit.index, f.mul(number, out_parts))
        image_group = f.udiv(number, w["parts"])
        part = f.sub(number, f.mul(image_group, w["parts"]))
        image = f.udiv(image_group, w["groups"])
        group = f.sub(image_group, f.mul(image, w["groups"]))
        outer0 = f.mul(part, w["block"])
        outer = f.minimum(w["block"], f.sub(w["outer"], outer0))
        x = f.offset("%x", f.add(f.mul(image, w["x_batch"]), f.mul(group, w["x_group"])))
        slab = f.select(shared, "ptr", f.offset("%workspace", f.mul(number, w["slab_bytes"])), own)
        # As many rows beyond the unit's own as the whole slab has beyond a whole block.
        rows_0 = f.sub(w["slab_0"], f.sub(w["block"], outer))
        with f.if_(fills):
            source, target = (f.offset(p, f.mul(share_channel, w[n])) for p, n in ((x, "x_channel"), (slab, "plane")))
            fill_slab(f, vectors, {**w, "channels": share_count}, source, target, edges, outer0, rows_0)
        y = f.offset("%y", f.add(f.add(f.mul(image, w["y_batch"]), f.mul(group, w["y_group"])), f.mul(outer0, w["y_0"])))
        weights = f.offset("%w", f.mul(group, w["w_group"]))
        channel0 = f.mul(group, channel_of(w["tiles"]))
        whole_part = f.compare("eq", outer, w["block"])
        few = f.select(whole_part, "i64", w["left"], w["last_left"])
        left_function = f.select(whole_part, "i64", w["left_function"], w["last_left_function"])
        positions = f.sub(f.mul(f.mul(outer, w["slab_1"]), w["pitch"]), w["behind"])
        end = f.sub(positions, few)
        windows = f.offset(own, w["windows"])
        copies = f.select(shares, "i64", 0, few)
        copy_windows(f, vectors, w, f.offset(slab, f.mul(end, size)), windows, taps, copies)
        kept0 = f.offset(own, w["kept"])
        first_tile, end_tile = (f.udiv(f.mul(f.add(out_part, i), w["tiles"]), out_parts) for i in range(2))
        end_tile = f.select(shares, "i64", first_tile, end_tile)
        with (
            f.loop(first_tile, end_tile, w["block_tiles"], name="i in tiles of output channels, step block_tiles") as block,
            f.loop(0, w["channels"], w["channel_block"], name="c in channels, step channel_block") as channels,
        ):
            tile1 = f.minimum(f.add(block.index, w["block_tiles"]), end_tile)
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
            with f.if_(f.compare("sgt", few, 0)):
                channel = channel_of(block.index)
                bias = f.select(with_bias, "ptr", f.offset("%bias", f.mul(f.add(channel0, channel), size)), "null")
                depth = f.mul(count, w["tap_count"])
                run = f.udiv(end, w["run_pitch"])
                to = f.load("i64", f.offset(rows, f.mul(run, 8)), 8)
                first = f.add(to, f.mul(f.sub(end, f.mul(run, w["run_pitch"])), size))
                seen = f.offset(windows, f.mul(f.mul(channels.index, w["tap_count"]), size))
                f.do(
                    f"call void {f.value(f'inttoptr i64 {left_function} to ptr')}("
                    f"ptr {f.offset(weights0, f.mul(channel, w['w_row']))}, ptr {seen}, "
                    f"ptr {f.offset(y, f.add(f.mul(channel, w['y_row']), first))}, ptr {bias}, i64 {depth}, "
                    f"i64 {f.sub(channel_of(tile1), channel)}, i64 {f.mul(f.mul(w['channels'], w['tap_count']), size)}, "
                    f"i64 {w['w_row']}, i64 {w['y_row']}, i1 {later}, i1 {more})"
                )
                f.note("the positions left over: sums over channels and taps as vectors")
    with f.if_(shares):
        f.do(f"atomicrmw add ptr {done}, i64 1 release, align 8")
    return f

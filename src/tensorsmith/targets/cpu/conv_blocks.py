"""The loops of the direct convolution around its register tile, as one entry point of the kernel ABI.

    for unit in this chunk:                        (image, group of channels, part of the outer rows)
        slab = the part of x that the unit reads: zeros around, and the phases of the strides apart
        for rows in blocks of output channels:     whose weights stay in the second-level cache
            for positions of the unit step panel:
                tiles of base + 1 output channels, then tiles of base

Axes of space are (0, 1, w), w the last; parts are of axis 0. The slab is [channel][phase 0][phase 1][phase w][0][1][w]:
what a stride of s skips lies in another of its s phases, so that the tile always moves by one.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_blocks import read_words
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Constant words, in order; strides in bytes.
WORDS = (
    "units", "units_per_chunk", "parts", "groups", "block", "outer",  # outer rows, `block` of them a part
    "channels", "slab_0", "slab_1", "pitch", "width", "plane",  # extents of the slab, bytes of a channel of it
    "space_0", "space_1", "stride_0", "stride_1", "low_0", "low_1", "phases_0", "phases_1", "phases_w",
    "x_batch", "x_group", "x_channel", "x_0", "x_1", "x_w", "x_step", "edges", "contiguous",
    "taps", "tap_count", "rows", "w_group", "w_row", "y_batch", "y_group", "y_row", "y_0",
    "tiles", "base", "extra", "block_tiles", "panel", "workspace_stride",
    "big_wide", "small_wide", "big_narrow", "small_narrow",  # tiles: base + 1 or base channels, a panel or one vector
)  # fmt: skip

LAUNCH = ("x", "w", "y", "bias", "workspace")


def entry_name(bias: bool) -> str:
    """Symbol of the entry whose launch words are x, w, y, the bias where there is one, and the workspace."""
    return "conv_bias" if bias else "conv"


def entry_function(bias: bool) -> Function:
    """An entry of the kernel ABI that unpacks its launch words and calls the loops."""
    f = Function(entry_name(bias), [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    words = [name for name in LAUNCH if bias or name != "bias"]
    loaded = {name: f.load("ptr", f.offset("%args", 8 * i), 8) for i, name in enumerate(words)}
    pointers = ", ".join(f"ptr {loaded.get(name, 'null')}" for name in LAUNCH)
    constants = f.offset("%args", 8 * (len(words) + 1))
    chunk = f.value("zext i32 %chunk to i64")
    f.do(f"call void @conv_blocks({pointers}, ptr {constants}, i64 {chunk})")
    return f


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
        _fill(f, vectors, w, x, slab, edges, outer0, outer)
        y = f.offset("%y", f.add(f.add(f.mul(image, w["y_batch"]), f.mul(group, w["y_group"])), f.mul(outer0, w["y_0"])))
        weights = f.offset("%w", f.mul(group, w["w_group"]))
        channel0 = f.mul(group, channel_of(w["tiles"]))
        end = f.add(f.mul(f.sub(f.mul(outer, w["slab_1"]), 1), w["pitch"]), w["width"])
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
                        f"i64 {position.index}, i64 {end}, i64 {w['pitch']}, i64 {w['width']})"
                    )
                    f.note("the tile: its sums over channels and taps, stored")
    return f


def _fill(
    f: Function, vectors: Vectors, w: dict[str, str], x: str, slab: str, edges: str, outer0: Value, outer: Value
) -> None:
    """Copy what a unit reads: row after row, so that a vector may write past its row's end into the next row."""
    size = vectors.compute_size
    # Rows of axis 0 that the unit reads: as many beyond its own as the whole slab has beyond a whole block.
    rows_0 = f.sub(w["slab_0"], f.sub(w["block"], outer))
    row_bytes = f.mul(w["pitch"], size)
    row_1 = f.mul(row_bytes, w["slab_1"])
    phase = f.mul(row_1, w["slab_0"])
    with f.loop(0, w["channels"], 1, [("ptr", slab)], name="c in channels") as c:
        source_c = f.offset(x, f.mul(c.index, w["x_channel"]))
        target_c = c.carried[0]
        with f.loop(0, w["phases_0"], 1, [("ptr", target_c)], name="phase 0") as p0:
            with f.loop(0, w["phases_1"], 1, [("ptr", p0.carried[0])], name="phase 1") as p1:
                with f.loop(0, w["phases_w"], 1, [("ptr", p1.carried[0])], name="phase w") as pw:
                    edge = f.offset(edges, f.mul(pw.index, 24))
                    first, stop, start = (f.load("i64", f.offset(edge, 8 * i), 8) for i in range(3))
                    with f.loop(0, rows_0, 1, name="row of axis 0") as r0:
                        at_0 = f.sub(f.add(f.mul(f.add(outer0, r0.index), w["stride_0"]), p0.index), w["low_0"])
                        inside_0 = f.compare("ult", at_0, w["space_0"])
                        source_0 = f.offset(source_c, f.mul(at_0, w["x_0"]))
                        target_0 = f.offset(pw.carried[0], f.mul(r0.index, row_1))
                        with f.loop(0, w["slab_1"], 1, name="row of axis 1") as r1:
                            at_1 = f.sub(f.add(f.mul(r1.index, w["stride_1"]), p1.index), w["low_1"])
                            inside = f.value(f"and i1 {inside_0}, {f.compare('ult', at_1, w['space_1'])}")
                            low = f.select(inside, "i64", first, w["pitch"])
                            target = f.offset(target_0, f.mul(r1.index, row_bytes))
                            _zeros(f, vectors, target, 0, low)
                            with f.if_(inside):
                                source = f.offset(f.offset(source_0, f.mul(at_1, w["x_1"])), f.mul(start, w["x_w"]))
                                _row(f, vectors, w, source, target, first, stop)
                                _zeros(f, vectors, target, stop, w["pitch"])
                            f.note("slab row = zeros, x[...], zeros")
                    pw.next = [f.offset(pw.carried[0], phase)]
                p1.next = [pw.out[0]]
            p0.next = [p1.out[0]]
        c.next = [f.offset(target_c, w["plane"])]


def _zeros(f: Function, vectors: Vectors, target: str, low: Value, high: Value) -> None:
    with f.loop(low, high, vectors.lanes) as i:
        vectors.store(f, vectors.zero, f.offset(target, f.mul(i.index, vectors.compute_size)))


def _row(f: Function, vectors: Vectors, w: dict[str, str], source: str, target: str, first: Value, stop: Value) -> None:
    size, lanes = vectors.compute_size, vectors.lanes
    count = f.sub(stop, first)
    place = f.offset(target, f.mul(first, size))

    def in_vectors() -> None:
        whole = f.round_down(count, lanes)
        with f.loop(0, whole, lanes) as i:
            bytes_in = f.mul(i.index, size)
            vectors.store(f, vectors.load(f, f.offset(source, bytes_in)), f.offset(place, bytes_in))
        rest = f.sub(count, whole)
        with f.if_(f.compare("sgt", rest, 0)):
            bytes_in = f.mul(whole, size)
            value = vectors.load(f, f.offset(source, bytes_in), vectors.mask(f, rest))
            vectors.store(f, value, f.offset(place, bytes_in))

    def one_by_one() -> None:
        with f.loop(0, count, 1, [("ptr", source)]) as i:
            value = f.load(vectors.scalar, i.carried[0], size)
            f.store(value, vectors.scalar, f.offset(place, f.mul(i.index, size)), size)
            i.next = [f.offset(i.carried[0], w["x_step"])]

    f.branch(f.compare("ne", w["contiguous"], 0), in_vectors, one_by_one)

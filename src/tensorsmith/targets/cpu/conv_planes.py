"""The gradient of a convolution's weight where results are as wide as x and no stride skips anything: planes as they lie.

    dw[o, c, t] = sum over n, p of g[n, o, p] x[n, c, p + t dilation - low]

Rows follow each other, so that a row of the kernel is one distance along the whole plane. x is copied once for every tap of
the last axis: moved by it, with zeros above, below and where the tap reaches over the end of a row. The sums are `conv_dot`'s:

    for unit in this chunk:                          (group, block of output channels, block of input channels)
        for images, some at a time, for parts of the rows:
            slab of x
            for rows o step R:
                g of the tile
                for columns (c, tap) step T:
                    sums[R][T] += g[o][positions] * x[c, tap of the last axis][row of the kernel + positions]
                                                                                    then over lanes, into totals
        dw = totals
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv_dot import totals_of_tile
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Rows and columns of tiles, as in `conv_dot`; the last ones are for one and for three input channels.
TILES = {
    "avx512": ((4, 6), (6, 4), (4, 5), (8, 3)),
    "avx2": ((3, 4), (4, 3), (2, 5)),
    "generic": ((3, 4), (4, 3), (2, 5)),
}

WORDS = (
    "units", "units_per_chunk", "outer_blocks", "outer_block", "channel_blocks", "channel_block", "outer", "inner", "images",
    "together", "parts", "block", "rows", "space", "beyond", "low", "width", "front", "copy", "jump", "taps",
    "copies", "reach", "low_w", "masks", "masks_of_copy", "places", "to", "y_group", "y_outer", "x_group", "x_channel",
    "x_image", "g_group", "g_outer", "g_image", "g_offset", "totals_offset", "zero_bytes", "workspace_stride",
)  # fmt: skip

ENTRY = "conv_planes"


def tile_of(isa: str, outer: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the tile that has the fewest sums beside those of `outer` channels and `columns`; else the first."""
    return min(TILES[isa], key=lambda tile: -(-outer // tile[0]) * -(-columns // tile[1]) * tile[0] * tile[1])


def planes_function(vectors: Vectors, tile: tuple[int, int]) -> Function:
    """The loops around the tile of `conv_dot`, the entry of the kernel ABI: launch words x, g, dw, workspace."""
    f = Function(ENTRY, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    x_in, g_in, y_out, space = (f.load("ptr", f.offset("%args", 8 * i), 8) for i in range(4))
    w = {name: f.load("i64", f.offset("%args", 8 * (5 + i)), 8) for i, name in enumerate(WORDS)}
    rows, columns = tile
    size, lanes = vectors.compute_size, vectors.lanes
    tile_bytes = totals_of_tile(lanes, tile) * size
    masks, places, to = (f.value(f"inttoptr i64 {w[name]} to ptr") for name in ("masks", "places", "to"))
    chunk = f.value("zext i32 %chunk to i64")
    x_slab = f.offset(space, f.mul(chunk, w["workspace_stride"]))
    g_slab, totals = f.offset(x_slab, w["g_offset"]), f.offset(x_slab, w["totals_offset"])
    unit0 = f.mul(chunk, w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (group, blocks of output and input channels)") as unit:
        of_group = f.udiv(unit.index, w["channel_blocks"])
        channel0 = f.mul(f.urem(unit.index, w["channel_blocks"]), w["channel_block"])
        group = f.udiv(of_group, w["outer_blocks"])
        outer0 = f.mul(f.urem(of_group, w["outer_blocks"]), w["outer_block"])
        channels = f.minimum(w["channel_block"], f.sub(w["inner"], channel0))
        outers = f.minimum(w["outer_block"], f.sub(w["outer"], outer0))
        count = f.mul(channels, w["taps"])
        x = f.offset(x_in, f.add(f.mul(group, w["x_group"]), f.mul(channel0, w["x_channel"])))
        g = f.offset(g_in, f.add(f.mul(group, w["g_group"]), f.mul(outer0, w["g_outer"])))
        with f.loop(0, w["zero_bytes"], lanes * size, name="slabs and totals = 0") as i:
            vectors.store(f, vectors.zero, f.offset(x_slab, i.index))
        with (
            f.loop(0, w["images"], w["together"], name="images, some at a time") as first,
            f.loop(0, w["parts"], 1, name="part of the rows") as part,
        ):
            images = f.minimum(w["together"], f.sub(w["images"], first.index))
            row0 = f.mul(part.index, w["block"])
            own = f.mul(f.minimum(w["block"], f.sub(w["rows"], row0)), w["width"])
            from_x = f.offset(x, f.mul(first.index, w["x_image"]))
            from_g = f.offset(g, f.add(f.mul(first.index, w["g_image"]), f.mul(f.mul(row0, w["width"]), size)))
            _fill_x(f, vectors, w, from_x, x_slab, masks, channels, images, row0)
            run = f.mul(f.round_down(f.add(own, lanes - 1), lanes), size)
            with f.loop(0, outers, rows, [("ptr", totals)], name="o in output channels") as o:
                tile_rows = f.minimum(rows, f.sub(outers, o.index))
                _fill_g(f, vectors, w, f.offset(from_g, f.mul(o.index, w["g_outer"])), g_slab, tile_rows, images, own)
                with f.loop(0, count, columns, [("ptr", o.carried[0])], name="column (c, tap)") as column:
                    at = f.offset(places, f.mul(column.index, 8))
                    f.do(
                        f"call void @conv_dot_tile(ptr {x_slab}, ptr {at}, ptr {g_slab}, i64 {w['copy']}, "
                        f"i64 {images}, i64 {run}, i64 {w['jump']}, ptr {column.carried[0]})"
                    )
                    column.next = [f.offset(column.carried[0], tile_bytes)]
                o.next = [column.out[0]]
        y = f.offset(y_out, f.add(f.mul(group, w["y_group"]), f.mul(outer0, w["y_outer"])))
        first_column = f.mul(channel0, w["taps"])
        row_bytes = f.mul(f.udiv(f.add(count, columns - 1), columns), tile_bytes)
        with f.loop(0, outers, 1, name="o") as o:
            tile_row = f.udiv(o.index, rows)
            own_totals = f.offset(totals, f.add(f.mul(tile_row, row_bytes), f.mul(f.sub(o.index, f.mul(tile_row, rows)), size)))
            place = f.offset(y, f.mul(o.index, w["y_outer"]))
            with f.loop(0, count, 1, name="column") as column:
                tile_column = f.udiv(column.index, columns)
                within = f.sub(column.index, f.mul(tile_column, columns))
                source = f.add(f.mul(tile_column, tile_bytes), f.mul(within, rows * size))
                total = f.load(vectors.scalar, f.offset(own_totals, source), size)
                target = f.load("i64", f.offset(to, f.mul(f.add(first_column, column.index), 8)), 8)
                f.store(total, vectors.scalar, f.offset(place, target), size)
            f.note("dw[o, c, t] = totals")
    return f


def _fill_x(
    f: Function, vectors: Vectors, w: dict[str, str], x: str, slab: str, masks: str, channels: Value, images: Value, row0: Value
) -> None:
    """Rows row0 - low ... of every channel and image, once for each tap of the last axis; zeros where x has none."""
    size, lanes = vectors.compute_size, vectors.lanes
    integers = f"<{lanes} x i{8 * size}>"
    slab_rows = f.add(w["block"], w["beyond"])
    start = f.sub(row0, w["low"])
    first = f.select(f.compare("sgt", start, 0), "i64", start, 0)
    held = f.sub(f.minimum(f.add(start, slab_rows), w["space"]), first)
    held = f.mul(f.select(f.compare("sgt", held, 0), "i64", held, 0), w["width"])
    above = f.mul(f.minimum(f.sub(first, start), slab_rows), w["width"])
    every = f.mul(slab_rows, w["width"])
    source0 = f.mul(f.mul(first, w["width"]), size)
    whole = f.round_down(held, lanes)
    rest = vectors.mask(f, f.sub(held, whole))
    with f.loop(0, channels, 1, name="c in input channels") as c, f.loop(0, images, 1, name="image") as image:
        place = f.add(f.add(f.mul(f.mul(c.index, w["copies"]), w["copy"]), f.mul(image.index, w["jump"])), w["front"])
        target = f.offset(slab, place)
        source = f.offset(x, f.add(f.add(f.mul(c.index, w["x_channel"]), f.mul(image.index, w["x_image"])), source0))
        with f.loop(0, w["copies"], 1, [("ptr", target), ("i64", f.sub(0, w["low_w"]))], name="tap of the last axis") as tap:
            own, moved = tap.carried
            with f.loop(0, f.sub(above, moved), lanes) as i:
                vectors.store(f, vectors.zero, f.offset(own, f.mul(i.index, size)))
            tap.next = [f.offset(own, w["copy"]), f.add(moved, w["reach"])]
        inner = f.offset(target, f.mul(f.add(above, w["low_w"]), size))
        apart = f.sub(w["copy"], f.mul(w["reach"], size))

        def copies(at: Value, value: str) -> None:
            bits = f.value(f"bitcast {vectors.type} {value} to {integers}")
            first_mask, first_place = f.offset(masks, at), f.offset(inner, at)
            with f.loop(0, w["copies"], 1, [("ptr", first_mask), ("ptr", first_place)], do_while=True) as tap:
                kept = f.value(f"and {integers} {bits}, {f.load(integers, tap.carried[0], size)}")
                f.store(kept, integers, tap.carried[1], size)
                tap.next = [f.offset(tap.carried[0], w["masks_of_copy"]), f.offset(tap.carried[1], apart)]

        with f.loop(0, whole, lanes) as i:
            at = f.mul(i.index, size)
            copies(at, vectors.load(f, f.offset(source, at)))
        with f.if_(f.compare("slt", whole, held)):
            at = f.mul(whole, size)
            copies(at, vectors.load(f, f.offset(source, at), rest))
        with f.loop(0, w["copies"], 1, [("ptr", target), ("i64", f.sub(0, w["low_w"]))]) as tap:
            own, moved = tap.carried
            with f.loop(f.sub(f.add(above, held), moved), every, lanes) as i:
                vectors.store(f, vectors.zero, f.offset(own, f.mul(i.index, size)))
            tap.next = [f.offset(own, w["copy"]), f.add(moved, w["reach"])]
        f.note("slab of x = zeros, rows of x & bits of the tap, zeros")


def _fill_g(
    f: Function, vectors: Vectors, w: dict[str, str], g: str, slab: str, rows: Value, images: Value, own: Value
) -> None:
    """`own` positions of every row of a tile and image, and zeros up to a whole vector."""
    size, lanes = vectors.compute_size, vectors.lanes
    whole = f.round_down(own, lanes)
    rest = vectors.mask(f, f.sub(own, whole))
    with f.loop(0, rows, 1, name="o in the tile") as o, f.loop(0, images, 1, name="image") as image:
        source = f.offset(g, f.add(f.mul(o.index, w["g_outer"]), f.mul(image.index, w["g_image"])))
        target = f.offset(slab, f.add(f.mul(o.index, w["copy"]), f.mul(image.index, w["jump"])))
        with f.loop(0, whole, lanes) as i:
            at = f.mul(i.index, size)
            vectors.store(f, vectors.load(f, f.offset(source, at)), f.offset(target, at))
        at = f.mul(whole, size)
        vectors.store(f, vectors.load(f, f.offset(source, at), rest), f.offset(target, at))
        f.note("g of the tile = g")


__all__ = ["ENTRY", "WORDS", "planes_function", "tile_of"]

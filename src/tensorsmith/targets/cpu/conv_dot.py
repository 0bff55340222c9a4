"""The convolution whose kernels are larger than its results, as the gradient of a weight is, in the words of that gradient:

    dw[o, c, t] = sum over n, p of g[n, o, p] x[n, c, p stride + t dilation - low]

Slabs of x and of g (with zeros where a row of x is longer than a row of g) make both operands of a sum contiguous, and a
tile of some o and some (c, t) is summed as vectors along the positions:

    for unit in this chunk:                          (group, block of input channels)
        for images, for parts of the outer rows:
            slabs of x and g
            for rows o step R, for columns (c, t) step T:
                sums[R][T] += g[o][positions] * x[c][t + positions]         then over lanes, into the unit's totals
        dw = totals

A zero of g's slab meets a value of x that the sum does not have: where x is not finite, so may be what it is not part of.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv_slab import fill_slab
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Output channels and columns (input channel, tap) of a tile: their sums, the vectors of one side and one of the other fill the
# registers.
TILES = {"avx512": ((4, 6), (6, 4)), "avx2": ((3, 4), (4, 3)), "generic": ((2, 4), (4, 2))}
SINGLE = {"avx512": 25, "avx2": 12, "generic": 12}  # most columns where a group has one output channel

SLAB = (
    "slab_0", "slab_1", "pitch", "plane", "space_0", "space_1", "stride_0", "stride_1", "low_0", "low_1", "phases_0",
    "phases_1", "phases_w", "x_channel", "x_0", "x_1", "x_w", "x_step", "contiguous", "edges", "x_image", "x_group",
)  # fmt: skip
WORDS = (
    "units", "units_per_chunk", "channel_blocks", "channel_block", "inner", "outer", "images", "parts", "block",
    "taps", "columns", "places", "y_channel", "y_group", "y_outer", "runs", "run", "jump", "row_tiles",
    "g_offset", "totals_offset", "zero_bytes", "workspace_stride",
    *(f"x_{name}" for name in SLAB), *(f"g_{name}" for name in SLAB),
)  # fmt: skip

ENTRY = "conv_dot"


def tile_of(isa: str, outer: int, inner: int, taps: int) -> tuple[int, int]:
    """Rows and columns of the tile for groups of `outer` output and `inner` input channels and kernels of so many taps."""
    if outer > 1:
        return min(TILES[isa], key=lambda tile: -(-outer // tile[0]) * -(-inner * taps // tile[1]))
    return 1, -(-taps // -(-taps // SINGLE[isa]))


def totals_of_tile(lanes: int, tile: tuple[int, int]) -> int:
    """Elements that the sums of one tile take: whole vectors."""
    return -(-tile[0] * tile[1] // lanes) * lanes


def tile_function(vectors: Vectors, tile: tuple[int, int]) -> Function:
    """totals += the sums of a tile over `runs` of `run` bytes, `jump` apart; places: bytes to its columns in the slab of x."""
    rows, columns = tile
    f = Function(
        "conv_dot_tile",
        [
            ("ptr", "x"), ("ptr", "places"), ("ptr", "g"), ("i64", "g_plane"), ("i64", "runs"), ("i64", "run"), ("i64", "jump"),
            ("ptr", "totals"),
        ],
        attributes="noinline",
    )
    size, lanes = vectors.compute_size, vectors.lanes
    starts = [f.offset("%x", f.load("i64", f.offset("%places", 8 * j), 8)) for j in range(columns)]
    starts += [f.offset("%g", f.mul("%g_plane", r)) for r in range(rows)]
    cells = rows * columns
    # Indices of the starts, of x and of g: those of the fewer stay in registers.
    few, many = sorted((range(columns), range(columns, columns + rows)), key=len)
    with f.loop(0, "%runs", 1, [*[(vectors.type, vectors.zero)] * cells, ("i64", 0)], do_while=True, name="run") as run:
        begin = run.carried[cells]
        sums = [(vectors.type, value) for value in run.carried[:cells]]
        with f.loop(begin, f.add(begin, "%run"), lanes * size, sums, do_while=True, name="position in the run") as p:
            after: list[Value] = list(p.carried)
            held = {i: vectors.load(f, f.offset(starts[i], p.index)) for i in few}
            for i in many:
                passing = vectors.load(f, f.offset(starts[i], p.index))
                for k, value in held.items():
                    cell = min(i, k) * rows + max(i, k) - columns
                    after[cell] = vectors.multiply_add(f, value, passing, after[cell])
            f.note(f"sums[{rows}][{columns} x {lanes}] += g[o][positions] * x[c][t + positions]")
            p.next = after
        run.next = [*p.out, f.add(begin, "%jump")]
    for i, total in enumerate(vectors.sum_lanes(f, list(run.out[:cells]))):
        place = f.offset("%totals", i * lanes * size)
        vectors.store(f, vectors.plus(f, vectors.load(f, place), total), place)
    return f


def blocks_function(vectors: Vectors, tile: tuple[int, int]) -> Function:
    """The loops around the tile, the entry of the kernel ABI: launch words x, g, dw, workspace."""
    f = Function(ENTRY, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    x_in, g_in, y_out, space = (f.load("ptr", f.offset("%args", 8 * i), 8) for i in range(4))
    w = {name: f.load("i64", f.offset("%args", 8 * (5 + i)), 8) for i, name in enumerate(WORDS)}
    rows, columns = tile
    size = vectors.compute_size
    tile_bytes = totals_of_tile(vectors.lanes, tile) * size
    chunk = f.value("zext i32 %chunk to i64")
    x_slab = f.offset(space, f.mul(chunk, w["workspace_stride"]))
    g_slab, totals = f.offset(x_slab, w["g_offset"]), f.offset(x_slab, w["totals_offset"])
    of_x, of_g = ({name: w[f"{which}_{name}"] for name in SLAB} for which in "xg")
    places, to = (f.value(f"inttoptr i64 {w[name]} to ptr") for name in ("places", "y_channel"))
    edges = {which: f.value(f"inttoptr i64 {w[f'{which}_edges']} to ptr") for which in "xg"}
    of_g["channels"] = w["outer"]
    unit0 = f.mul(chunk, w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (group, block of input channels)") as unit:
        group = f.udiv(unit.index, w["channel_blocks"])
        channel0 = f.mul(f.sub(unit.index, f.mul(group, w["channel_blocks"])), w["channel_block"])
        of_x["channels"] = str(f.minimum(w["channel_block"], f.sub(w["inner"], channel0)))
        count = f.mul(of_x["channels"], w["taps"])
        x = f.offset(x_in, f.add(f.mul(group, of_x["x_group"]), f.mul(channel0, of_x["x_channel"])))
        g = f.offset(g_in, f.mul(group, of_g["x_group"]))
        with f.loop(0, w["zero_bytes"], vectors.lanes * size, name="slabs and totals = 0") as i:
            vectors.store(f, vectors.zero, f.offset(x_slab, i.index))
        with f.loop(0, w["images"], 1, name="image") as image, f.loop(0, w["parts"], 1, name="part of the outer rows") as part:
            outer0 = f.mul(part.index, w["block"])
            from_x = f.offset(x, f.mul(image.index, of_x["x_image"]))
            from_g = f.offset(g, f.mul(image.index, of_g["x_image"]))
            fill_slab(f, vectors, of_x, from_x, x_slab, edges["x"], outer0, of_x["slab_0"])
            fill_slab(f, vectors, of_g, from_g, g_slab, edges["g"], outer0, of_g["slab_0"])
            own_rows = f.minimum(of_g["slab_0"], f.sub(of_g["space_0"], outer0))  # the others are zeros
            apart = f.compare("sgt", w["runs"], 1)
            runs = f.select(apart, "i64", own_rows, 1)
            in_one = f.round_down(f.add(f.mul(own_rows, w["jump"]), vectors.lanes * size - 1), vectors.lanes * size)
            run = f.select(apart, "i64", w["run"], in_one)
            column_bytes = f.mul(w["row_tiles"], tile_bytes)
            with f.loop(0, w["row_tiles"], 1, [("ptr", g_slab), ("ptr", totals)], name="tile of output channels") as row:
                seen, first_sums = row.carried
                with f.loop(0, count, columns, [("ptr", first_sums)], name="columns") as column:
                    own = f.offset(places, f.mul(column.index, 8))
                    f.do(
                        f"call void @conv_dot_tile(ptr {x_slab}, ptr {own}, ptr {seen}, i64 {of_g['plane']}, "
                        f"i64 {runs}, i64 {run}, i64 {w['jump']}, ptr {column.carried[0]})"
                    )
                    column.next = [f.offset(column.carried[0], column_bytes)]
                row.next = [f.offset(seen, f.mul(of_g["plane"], rows)), f.offset(first_sums, tile_bytes)]
        y = f.offset(y_out, f.mul(group, w["y_group"]))
        first = f.mul(channel0, w["taps"])
        with f.loop(0, count, 1, name="column") as column:
            tile_column = f.udiv(column.index, columns)
            within = f.sub(column.index, f.mul(tile_column, columns))
            own = f.offset(totals, f.mul(f.mul(tile_column, w["row_tiles"]), tile_bytes))
            place = f.offset(y, f.load("i64", f.offset(to, f.mul(f.add(first, column.index), 8)), 8))
            with f.loop(0, w["outer"], 1, name="o") as o:
                tile_row = f.udiv(o.index, rows)
                at = f.add(f.mul(within, rows), f.sub(o.index, f.mul(tile_row, rows)))
                source = f.offset(f.offset(own, f.mul(tile_row, tile_bytes)), f.mul(at, size))
                total = f.load(vectors.scalar, source, size)
                f.store(total, vectors.scalar, f.offset(place, f.mul(o.index, w["y_outer"])), size)
            f.note("dw[o, c, t] = totals")
    return f


__all__ = ["ENTRY", "SLAB", "WORDS", "blocks_function", "tile_function", "tile_of", "totals_of_tile"]

"""Winograd's F(m x m, 3 x 3): a 3x3 convolution of stride 1 with (m + 2)^2 multiplications for m^2 results, not 9 m^2.

    U = G w G'    V = B' d B    M[point] = U[point] V[point], a matrix product a point    y = A' M A

Results come in tiles of m x m, each of which needs m + 2 rows and columns d of x. The tiles of all images are numbered row
after row. A unit is `block` of them, and all output channels, group after group; V of a block and M of a group stay in the
second-level cache:

    for unit in this chunk:
        for line in the rows of tiles that it meets:
            for c in channels:
                slab = m + 2 rows of x, padded, columns of the same remainder modulo m side by side
                V[point][c][tiles] = B' d B                      tiles side by side are vectors
        for group of output channels:
            for point: M[point][o][tiles] = U[point] V[point]    on the register tile of matrix products
            for line: for o in the group: y = A' M A + bias, columns interleaved

Where that would be few units, a unit is a block and one group, and V is made once: the first chunks, the shares, transform all
tiles of some channels each, the others wait for them.

U lies as the register tile reads it (`winograd_weight`). Rounding errors are in docs/numerics.md. What is not finite spreads
over the tiles that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.ir.winograd import Form
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_tile import PANEL_VECTORS
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors
from tensorsmith.targets.cpu.winograd_transforms import Transforms

DONE = "done"  # a word that chunks write, for every launch has words of its own: how many shares are complete

# Constant words, in order; strides in bytes. A unit has `unit_groups` of the groups of output channels, a block `block_units`.
WORDS = (
    "units", "units_per_chunk", "block", "tiles", "across", "down",  # tiles in all, in a row, and rows of an image
    "channels", "out_channels", "height", "width", "height_out", "width_out", "low_0", "low_1",
    "x_batch", "x_channel", "x_0", "y_batch", "y_channel", "y_0", "inside",  # inside: address of a table
    "pitch", "v_offset", "v_row", "v_point", "m_offset", "m_row", "m_point", "workspace_stride", "u_point",
    "rows_tiles", "base", "extra", "big", "small", "big_narrow", "small_narrow",
    "groups", "unit_groups", "block_units", "depth", "shares", "share_channels", "shared_bytes", "wait",
    "left", "left_big", "left_small",  # tiles of the last block beyond whole vectors, and what computes them
    DONE,
)  # fmt: skip
LAUNCH = ("x", "u", "y", "bias", "workspace")


def loops_function(vectors: Vectors, form: Form, bias: bool, function: str) -> Function:
    """The whole convolution, an entry of the kernel ABI: launch words x, u, y, the bias where there is one, workspace."""
    name = "_".join([f"winograd{form.outputs}", *(["bias"] if bias else []), *([function] if function else [])])
    f = Function(name, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    names = [each for each in LAUNCH if bias or each != "bias"]
    at = {each: f.load("ptr", f.offset("%args", 8 * i), 8) for i, each in enumerate(names)}
    w: dict[str, Value] = {
        word: f.load("i64", f.offset("%args", 8 * (len(names) + 1 + i)), 8) for i, word in enumerate(WORDS)
    }
    chunk = f.value("zext i32 %chunk to i64")
    scratch = Transforms(form, f, vectors).scratch()
    # A worker keeps its own part of the workspace, which its caches know; workers beyond the number of chunks take one a chunk.
    worker, chunks = f.value("zext i32 %worker to i64"), f.value("zext i32 %chunks to i64")
    part = f.select(f.compare("ult", worker, chunks), "i64", worker, f.add(chunks, chunk))
    slab = f.offset(at["workspace"], f.add(w["shared_bytes"], f.mul(part, w["workspace_stride"])))
    own_v, m = f.offset(slab, w["v_offset"]), f.offset(slab, w["m_offset"])
    shared, shares = f.compare("ne", w["shares"], 0), f.compare("slt", chunk, w["shares"])
    alone = f.value(f"xor i1 {shared}, true")
    multiplies = f.value(f"xor i1 {shares}, true")
    done = f.offset("%args", 8 * (len(names) + 1 + WORDS.index(DONE)))
    with f.if_(f.value(f"and i1 {shared}, {multiplies}")):
        wait = f.value(f"inttoptr i64 {w['wait']} to ptr")
        f.do(f"call void {wait}(ptr {done}, i64 {w['shares']})")
    unit0 = f.mul(f.sub(chunk, w["shares"]), w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    unit0, unit1 = f.select(shares, "i64", 0, unit0), f.select(shares, "i64", 1, unit1)
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk, or all tiles of a share") as unit:
        block = f.udiv(unit.index, w["block_units"])
        tile0 = f.mul(block, w["block"])
        tile1 = f.select(shares, "i64", w["tiles"], f.minimum(f.add(tile0, w["block"]), w["tiles"]))
        v = f.select(shared, "ptr", f.offset(at["workspace"], f.mul(tile0, vectors.compute_size)), own_v)
        line0 = f.udiv(tile0, w["across"])
        line1 = f.add(f.udiv(f.sub(tile1, 1), w["across"]), 1)

        def place(line: Value, tile0: Value = tile0, tile1: Value = tile1) -> tuple[Value, ...]:
            """Image, row of tiles, first tile in the row, how many, and the number of the first one in the unit."""
            image = f.udiv(line, w["down"])
            start = f.mul(line, w["across"])
            first = not_negative(f, f.sub(tile0, start))
            count = f.sub(f.minimum(w["across"], f.sub(tile1, start)), first)
            return image, f.sub(line, f.mul(image, w["down"])), first, count, f.sub(f.add(start, first), tile0)

        with f.if_(f.value(f"or i1 {alone}, {shares}")):
            c0 = f.select(shares, "i64", f.mul(chunk, w["share_channels"]), 0)
            channels = c0, f.minimum(f.add(c0, w["share_channels"]), w["channels"])
            with f.loop(line0, line1, 1, name="line in rows of tiles of this unit") as line:
                _input(f, vectors, form, w, at["x"], slab, v, scratch, channels, *place(line.index))
        group0 = f.mul(f.sub(unit.index, f.mul(block, w["block_units"])), w["unit_groups"])
        group1 = f.select(shares, "i64", group0, f.add(group0, w["unit_groups"]))
        with f.loop(group0, group1, 1, name="group of output channels") as group:
            rows = [f.udiv(f.mul(f.add(group.index, i), w["rows_tiles"]), w["groups"]) for i in range(2)]
            first, last = (f.add(f.mul(tile, w["base"]), f.minimum(tile, w["extra"])) for tile in rows)
            with f.loop(0, form.products, 1, name="point") as point:
                a, b, c = (f.offset(p, f.mul(point.index, w[f"{n}_point"])) for n, p in (("u", at["u"]), ("v", v), ("m", m)))
                a = f.offset(a, f.mul(f.mul(first, w["channels"]), vectors.compute_size))
                left = f.select(f.compare("eq", tile1, w["tiles"]), "i64", w["left"], 0)
                _product(f, vectors, w, a, b, c, f.sub(f.sub(tile1, tile0), left), left, rows)
            with f.loop(line0, line1, 1, name="line in rows of tiles of this unit") as line:
                _output(f, vectors, form, w, m, at["y"], at.get("bias"), function, scratch, (first, last), *place(line.index))
    with f.if_(shares):
        f.do(f"atomicrmw add ptr {done}, i64 1 release, align 8")
    return f


def not_negative(f: Function, number: Value) -> Value:
    """The number, or 0."""
    return f.select(f.compare("sgt", number, 0), "i64", number, 0)


def _start(f: Function, lanes: int, index: Value, count: Value) -> Value:
    """Where the vector at `index` of `count` tiles starts: the last one ends with them where there are enough."""
    return f.minimum(index, not_negative(f, f.sub(count, lanes)))


def _input(
    f: Function, vectors: Vectors, form: Form, w: dict[str, Value], x: str, slab: str, v: str, scratch: str,
    channels: tuple[Value, Value], image: Value, row: Value, first: Value, count: Value, position: Value,
) -> None:  # fmt: skip
    """V of one row of tiles, some channels; the slab holds one channel of it: [row][remainder][pitch]."""
    size, lanes, m, side = vectors.compute_size, vectors.lanes, form.outputs, form.side
    phase = f.mul(w["pitch"], size)
    slab_row = f.mul(phase, m)
    top = f.sub(f.mul(row, m), w["low_0"])  # of the tiles, in x
    needed = f.add(count, 1)  # columns of each remainder
    inside0 = f.minimum(not_negative(f, f.sub(0, top)), side)
    inside1 = f.minimum(f.add(inside0, not_negative(f, f.sub(f.sub(w["height"], top), inside0))), side)

    def zeros(low: Value, high: Value) -> None:
        with f.loop(low, high, 1) as r:
            line = f.offset(slab, f.mul(r.index, slab_row))
            with f.loop(0, f.mul(w["pitch"], m), lanes) as i:
                vectors.store(f, vectors.zero, f.offset(line, f.mul(i.index, size)))

    zeros(0, inside0)
    zeros(inside1, side)
    column0 = f.mul(first, m)  # of the slab, in x with its padding
    source0 = f.offset(f.offset(x, f.mul(image, w["x_batch"])), f.mul(f.add(top, inside0), w["x_0"]))
    source0 = f.offset(source0, f.mul(f.sub(column0, w["low_1"]), size))
    target0 = f.offset(slab, f.mul(inside0, slab_row))
    table = f.offset(f.value(f"inttoptr i64 {w['inside']} to ptr"), f.mul(column0, 4))
    inner0 = f.sub(w["low_1"], column0)  # columns from here on ..
    inner1 = f.sub(f.add(inner0, w["width"]), m * lanes)  # .. until here begin whole vectors inside x
    transforms = Transforms(form, f, vectors)
    rows = [f.mul(slab_row, i) for i in range(side)]
    columns = [f.add(f.mul(phase, j % m), (j // m) * size) for j in range(side)]
    places = [[f.add(above, beside) for beside in columns] for above in rows]
    targets = [f.mul(w["v_point"], point) for point in range(form.products)]
    to = f.offset(f.offset(v, f.mul(channels[0], w["v_row"])), f.mul(position, size))
    source0 = f.offset(source0, f.mul(channels[0], w["x_channel"]))
    with f.loop(*channels, 1, [("ptr", source0), ("ptr", to)], name="c in channels") as c:
        carried = [("ptr", c.carried[0]), ("ptr", target0)]
        with f.loop(inside0, inside1, 1, carried, name="row of the slab inside x") as r:
            source, target = r.carried
            with f.loop(0, needed, lanes, name="columns in vectors") as q:
                column = f.mul(q.index, m)
                here, there = f.offset(source, f.mul(column, size)), f.offset(target, f.mul(q.index, size))

                def load(masked: bool, here: str = here, column: Value = column) -> list[Value]:
                    found: list[Value] = []
                    for k in range(m):
                        mask = _inside(f, vectors, f.offset(table, f.mul(f.add(column, k * lanes), 4))) if masked else None
                        found.append(vectors.load(f, f.offset(here, k * lanes * size), mask))
                    return found

                whole = f.value(f"and i1 {f.compare('sge', column, inner0)}, {f.compare('sle', column, inner1)}")
                loaded = f.choose(whole, [vectors.type] * m, lambda: load(False), lambda: load(True))
                for p, value in enumerate(_apart(f, vectors, list(loaded))):
                    vectors.store(f, value, f.offset(there, f.mul(phase, p)))
                f.note("slab = columns of x with the same remainder")
            r.next = [f.offset(source, w["x_0"]), f.offset(target, slab_row)]
        with f.loop(0, count, lanes, name="tiles in vectors") as q:
            start = f.mul(_start(f, lanes, q.index, count), size)
            here, there = f.offset(slab, start), f.offset(c.carried[1], start)

            def element(i: int, j: int, here: str = here) -> Value:
                return vectors.load(f, f.offset(here, places[i][j]))

            for i, values in enumerate(transforms.rows(transforms.of_input, element, scratch)):
                for j, value in enumerate(values):
                    vectors.store(f, value, f.offset(there, targets[side * i + j]))
            f.note("V[points][c][tiles] = B' d B")
        c.next = [f.offset(c.carried[0], w["x_channel"]), f.offset(c.carried[1], w["v_row"])]


def _inside(f: Function, vectors: Vectors, table: str) -> Mask:
    """The mask of columns inside x, from a table of -1 and 0."""
    kind = f"<{vectors.lanes} x i32>"
    wide = f.load(kind, table, 4)
    return Mask(f.value(f"icmp ne {kind} {wide}, zeroinitializer"), wide)


def _apart(f: Function, vectors: Vectors, values: list[Value]) -> list[Value]:
    """Elements 0, m, 2 m ... of m vectors side by side, then 1, m + 1 ..., for m = 2 or 4."""
    even = [2 * k for k in range(vectors.lanes)]
    odd = [k + 1 for k in even]
    pairs = list(zip(values[::2], values[1::2]))
    split = [[vectors.shuffle(f, a, b, order) for a, b in pairs] for order in (even, odd)]
    if len(values) == 2:
        return [split[0][0], split[1][0]]
    halves = [_apart(f, vectors, list(half)) for half in split]
    return [halves[p % 2][p // 2] for p in range(len(values))]


def _together(f: Function, vectors: Vectors, values: list[Value]) -> list[Value]:
    """The inverse of `_apart`."""
    lanes = vectors.lanes
    order = [k + side * lanes for k in range(lanes) for side in (0, 1)]
    if len(values) == 2:
        return [vectors.shuffle(f, values[0], values[1], order[half * lanes : (half + 1) * lanes]) for half in range(2)]
    halves = [_together(f, vectors, list(values[half::2])) for half in range(2)]
    return [each for pair in zip(*halves) for each in _together(f, vectors, list(pair))]


def _product(
    f: Function, vectors: Vectors, w: dict[str, Value], u: str, v: str, m: str, end: Value, left: Value, rows: Sequence[Value]
) -> None:
    """The register tiles from rows[0] until rows[1], by panels of two vectors of tiles, and one of a single vector where no
    more remain before `end`; then `left` single tiles. u, m: those of the first register tile."""
    size, panel = vectors.compute_size, PANEL_VECTORS * vectors.lanes
    big_tiles = f.sub(f.minimum(w["extra"], rows[1]), f.minimum(w["extra"], rows[0]))
    big = f.mul(big_tiles, f.add(w["base"], 1))  # channels in tiles of base + 1
    parts = ((big_tiles, "big", 0), (f.sub(f.sub(rows[1], rows[0]), big_tiles), "small", big))

    def multiply(columns: Value, address_of: Callable[[str], Value], more: str = "") -> None:
        """Every point's product for the tiles from `columns` on, by the function of a part; more: its further arguments."""
        for count, which, first in parts:
            with f.if_(f.compare("sgt", count, 0)):
                address = f.value(f"inttoptr i64 {address_of(which)} to ptr")
                weights = f.offset(u, f.mul(f.mul(first, w["channels"]), size))
                target = f.offset(f.offset(m, columns), f.mul(first, w["m_row"]))
                f.do(
                    f"call void {address}(ptr {weights}, ptr {f.offset(v, columns)}, ptr {target}, i64 {w['channels']}, "
                    f"i64 {w['depth']}, i64 {count}, i64 {w['v_row']}, i64 {w['m_row']}{more})"
                )

    with f.loop(0, end, panel, name="panel of tiles") as j:
        wide = f.compare("sgt", f.sub(end, j.index), vectors.lanes)
        multiply(f.mul(j.index, size), lambda which: f.select(wide, "i64", w[which], w[f"{which}_narrow"]))
        f.note("M[point][o][tiles] = U[point] V[point]")
    with f.if_(f.compare("sgt", left, 0)):
        multiply(f.mul(end, size), lambda which: w[f"left_{which}"], f", i64 {left}")
        f.note("the tiles left over")


def _output(
    f: Function, vectors: Vectors, form: Form, w: dict[str, Value], products: str, y: str, bias: str | None, function: str,
    scratch: str, channels: tuple[Value, Value], image: Value, row: Value, first: Value, count: Value, position: Value,
) -> None:  # fmt: skip
    """The results of one row of tiles for the output channels that `products` begins with."""
    size, lanes, m, side = vectors.compute_size, vectors.lanes, form.outputs, form.side
    transforms = Transforms(form, f, vectors)
    sources = [f.mul(w["m_point"], point) for point in range(form.products)]
    top, column0 = f.mul(row, m), f.mul(first, m)
    right = f.sub(f.minimum(f.mul(f.add(first, count), m), w["width_out"]), column0)
    below = f.sub(w["height_out"], top)
    to = f.offset(f.offset(y, f.mul(image, w["y_batch"])), f.add(f.mul(top, w["y_0"]), f.mul(column0, size)))
    to = f.offset(to, f.mul(channels[0], w["y_channel"]))
    carried = [("ptr", f.offset(products, f.mul(position, size))), ("ptr", to)]
    with f.loop(*channels, 1, carried, name="o in output channels") as o:
        begin = vectors.load_splat(f, f.offset(bias, f.mul(o.index, size))) if bias is not None else None
        with f.loop(0, count, lanes, name="tiles in vectors") as q:
            start = _start(f, lanes, q.index, count)
            here = f.offset(o.carried[0], f.mul(start, size))
            there = f.offset(o.carried[1], f.mul(start, m * size))
            left = f.sub(right, f.mul(start, m))

            def element(i: int, j: int, here: str = here) -> Value:
                return vectors.load(f, f.offset(here, sources[side * i + j]))

            def write(i: int, found: list[Value], there: str = there, left: Value = left) -> None:
                line = found if begin is None else [transforms.plus(value, 1, begin) for value in found]  # noqa: B023
                line = _together(f, vectors, apply(f, vectors, function, line))
                place = f.offset(there, f.mul(w["y_0"], i))

                def plain() -> None:
                    for k, value in enumerate(line):
                        vectors.store(f, value, f.offset(place, k * lanes * size))

                def masked() -> None:
                    for k, value in enumerate(line):
                        mask = vectors.mask(f, f.sub(left, k * lanes))
                        with f.if_(f.compare("sgt", left, k * lanes)):
                            vectors.store(f, value, f.offset(place, k * lanes * size), mask)

                f.branch(f.compare("sge", left, m * lanes), plain, masked)

            for i, found in enumerate(transforms.rows(transforms.of_output, element, scratch)):
                with f.if_(f.compare("sgt", below, i)):  # always for the first one
                    write(i, found)
            f.note("y[o][m rows][m tiles] = A' M A + bias")
        o.next = [f.offset(o.carried[0], w["m_row"]), f.offset(o.carried[1], w["y_channel"])]

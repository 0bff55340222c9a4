"""Winograd's F(2x2, 3x3): a 3x3 convolution of stride 1 with 4 multiplications a result instead of 9.

    U = G w G'    V = B' d B    M[16] = U[16] V[16], a matrix product a point    y = A' M A

Results come in tiles of 2x2, each of which needs 4x4 elements d of x. Slabs of x lie with even and odd rows and columns
apart (`conv_slab`), so 16 tiles side by side are read as whole vectors.

    for unit in this chunk:                    (image, part of the rows of tiles)
        slab of x; V[point][c][tiles]
        for point: M[point][o][tiles] = U[point] V[point]      on the register tile of matrix products
        y = A' M A + bias, its pairs of columns interleaved

Rounding errors are about those of the direct sum: the transforms add a few numbers of like size. What is not finite spreads
over the tiles that read it.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv_dot import SLAB
from tensorsmith.targets.cpu.conv_slab import fill_slab
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_tile import FINISH, PANEL_VECTORS
from tensorsmith.targets.cpu.gemm_vectors import Vectors

WORDS = (
    "units", "units_per_chunk", "parts", "block", "outer", "channels", "out_channels", "padded", "width",
    "height_out", "width_out", "y_batch", "y_channel", "y_0", "v_offset", "m_offset", "workspace_stride", "tiles", "extra",
    "base", "big", "small", "big_narrow", "small_narrow", *(f"x_{name}" for name in SLAB),
)  # fmt: skip
POINTS = 16
LAUNCH = ("x", "u", "y", "bias", "workspace")

Rule = Callable[[list[Value]], list[Value]]


def _arithmetic(f: Function, vectors: Vectors) -> tuple[Callable[..., str], Callable[..., str]]:
    add = lambda a, b: f.value(f"fadd {vectors.type} {a}, {b}")
    subtract = lambda a, b: f.value(f"fsub {vectors.type} {a}, {b}")
    return add, subtract


def _both_ways(rule: Rule, d: list[list[Value]]) -> list[list[Value]]:
    """A linear rule on the columns, then on the rows of a matrix of vectors."""
    columns = [rule([row[j] for row in d]) for j in range(len(d[0]))]
    return [rule([column[i] for column in columns]) for i in range(len(columns[0]))]


def loops_function(vectors: Vectors, bias: bool, function: str) -> Function:
    """The whole convolution, an entry of the kernel ABI: launch words x, u, y, the bias where there is one, workspace."""
    name = "_".join(["winograd", *(["bias"] if bias else []), *([function] if function else [])])
    f = Function(name, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    names = [each for each in LAUNCH if bias or each != "bias"]
    at = {each: f.load("ptr", f.offset("%args", 8 * i), 8) for i, each in enumerate(names)}
    w = {word: f.load("i64", f.offset("%args", 8 * (len(names) + 1 + i)), 8) for i, word in enumerate(WORDS)}
    size = vectors.compute_size
    of_x = {word: w[f"x_{word}"] for word in SLAB} | {"channels": w["channels"]}
    edges = f.value(f"inttoptr i64 {of_x['edges']} to ptr")
    chunk = f.value("zext i32 %chunk to i64")
    slab = f.offset(at["workspace"], f.mul(chunk, w["workspace_stride"]))
    v, m = f.offset(slab, w["v_offset"]), f.offset(slab, w["m_offset"])
    row = f.mul(w["padded"], size)  # of V and M
    v_point, m_point = f.mul(row, w["channels"]), f.mul(row, w["out_channels"])
    u_row = f.mul(w["channels"], size)
    u_point = f.mul(u_row, w["out_channels"])
    unit0 = f.mul(chunk, w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (image, part)") as unit:
        image = f.udiv(unit.index, w["parts"])
        outer0 = f.mul(f.sub(unit.index, f.mul(image, w["parts"])), w["block"])
        rows = f.minimum(w["block"], f.sub(w["outer"], outer0))
        x = f.offset(at["x"], f.mul(image, of_x["x_image"]))
        fill_slab(f, vectors, of_x, x, slab, edges, outer0, f.add(rows, 1))
        positions = f.mul(rows, of_x["pitch"])
        _transform_input(f, vectors, of_x, slab, v, v_point, row, positions)
        with f.loop(0, POINTS, 1, name="point") as point:
            a = f.offset(at["u"], f.mul(point.index, u_point))
            b = f.offset(v, f.mul(point.index, v_point))
            c = f.offset(m, f.mul(point.index, m_point))
            _product(f, vectors, w, a, b, c, u_row, row, f.round_down(f.add(positions, vectors.lanes - 1), vectors.lanes))
        y = f.offset(at["y"], f.mul(image, w["y_batch"]))
        _transform_output(f, vectors, w, m, y, at.get("bias"), function, m_point, row, outer0, rows, of_x["pitch"])
    return f


def _transform_input(
    f: Function, vectors: Vectors, of_x: dict[str, str], slab: str, v: str, v_point: Value, row: Value, positions: Value
) -> None:
    size, lanes = vectors.compute_size, vectors.lanes
    add, subtract = _arithmetic(f, vectors)
    row_bytes = f.mul(of_x["pitch"], size)
    phase = f.mul(row_bytes, of_x["slab_0"])
    places = [
        [f.add(f.add(f.mul(phase, 2 * (i % 2) + j % 2), f.mul(row_bytes, i // 2)), (j // 2) * size) for j in range(4)]
        for i in range(4)
    ]
    targets = [f.mul(v_point, point) for point in range(POINTS)]

    def rule(d: list[Value]) -> list[Value]:
        return [subtract(d[0], d[2]), add(d[1], d[2]), subtract(d[2], d[1]), subtract(d[1], d[3])]

    with f.loop(0, of_x["channels"], 1, [("ptr", slab), ("ptr", v)], name="c in channels") as c:
        with f.loop(0, positions, lanes, name="tiles in vectors") as q:
            here = f.offset(c.carried[0], f.mul(q.index, size))
            d: list[list[Value]] = [[vectors.load(f, f.offset(here, places[i][j])) for j in range(4)] for i in range(4)]
            there = f.offset(c.carried[1], f.mul(q.index, size))
            values = [value for line in _both_ways(rule, d) for value in line]
            for point, value in enumerate(values):
                vectors.store(f, value, f.offset(there, targets[point]))
            f.note("V[16][c][tiles] = B' d B")
        c.next = [f.offset(c.carried[0], of_x["plane"]), f.offset(c.carried[1], row)]


def _product(
    f: Function, vectors: Vectors, w: dict[str, str], a: str, b: str, c: str, u_row: Value, row: Value, end: Value
) -> None:
    """Panels of two vectors of tiles, and one of a single vector where no more are left before `end`."""
    panel = PANEL_VECTORS * vectors.lanes
    size = vectors.compute_size
    big_rows = f.mul(w["extra"], f.add(w["base"], 1))
    parts = ((w["extra"], "big", 0), (f.sub(w["tiles"], w["extra"]), "small", big_rows))
    with f.loop(0, end, panel, name="panel of tiles") as j:
        columns = f.mul(j.index, size)
        width = f.minimum(panel, f.sub(end, j.index))
        wide = f.compare("sgt", width, vectors.lanes)
        for count, which, first in parts:
            with f.if_(f.compare("sgt", count, 0)):
                function = f.select(wide, "i64", w[which], w[f"{which}_narrow"])
                address = f.value(f"inttoptr i64 {function} to ptr")
                f.do(
                    f"call void {address}(ptr {f.offset(a, f.mul(first, u_row))}, ptr {f.offset(b, columns)}, "
                    f"ptr {f.offset(f.offset(c, columns), f.mul(first, row))}, i64 {w['channels']}, i64 {count}, i64 {u_row}, "
                    f"i64 {size}, i64 {row}, i64 {row}, i64 {width}, ptr null, i64 {FINISH})"
                )
        f.note("M[point][o][tiles] = U[point] V[point]")


def _transform_output(
    f: Function, vectors: Vectors, w: dict[str, str], m: str, y: str, bias: str | None, function: str, m_point: Value,
    row: Value, outer0: Value, rows: Value, pitch: str,
) -> None:  # fmt: skip
    size, lanes = vectors.compute_size, vectors.lanes
    add, subtract = _arithmetic(f, vectors)
    sources = [f.mul(m_point, point) for point in range(POINTS)]
    order = [k + side * lanes for k in range(lanes) for side in (0, 1)]

    def rule(d: list[Value]) -> list[Value]:
        return [add(add(d[0], d[1]), d[2]), subtract(subtract(d[1], d[2]), d[3])]

    with f.loop(0, w["out_channels"], 1, [("ptr", m), ("ptr", y)], name="o in output channels") as o:
        start = vectors.load_splat(f, f.offset(bias, f.mul(o.index, size))) if bias is not None else None
        with f.loop(0, rows, 1, name="row of tiles") as r:
            line = f.mul(f.add(outer0, r.index), 2)
            second = f.compare("slt", f.add(line, 1), w["height_out"])
            to = f.offset(o.carried[1], f.mul(line, w["y_0"]))
            here = f.offset(o.carried[0], f.mul(f.mul(r.index, pitch), size))
            with f.loop(0, w["width"], lanes, name="tiles in vectors") as q:
                seen = f.offset(here, f.mul(q.index, size))
                d: list[list[Value]] = [
                    [vectors.load(f, f.offset(seen, sources[4 * i + j])) for j in range(4)] for i in range(4)
                ]
                found = _both_ways(rule, d)
                left = f.sub(w["width_out"], f.mul(q.index, 2))
                masks = [vectors.mask(f, left), vectors.mask(f, f.sub(left, lanes))]
                place = f.offset(to, f.mul(q.index, 2 * size))

                def write(number: int, place: str, found: list[list[Value]] = found, masks: list = masks) -> None:
                    pair = [value if start is None else add(value, start) for value in found[number]]
                    pair = apply(f, vectors, function, pair)
                    for half in range(2):
                        value = vectors.shuffle(f, pair[0], pair[1], order[half * lanes : (half + 1) * lanes])
                        vectors.store(f, value, f.offset(place, half * lanes * size), masks[half])

                write(0, place)
                with f.if_(second):
                    write(1, f.offset(place, w["y_0"]))
                f.note("y[o][2 rows][2 tiles] = A' M A + bias")
        o.next = [f.offset(o.carried[0], row), f.offset(o.carried[1], w["y_channel"])]

"""The weights of a Winograd convolution: U = G w G' of every kernel, as the register tile reads it.

U lies as [point][tile of output channels][c][channels of the tile]. One vector holds the output channels of a tile; what a
store writes beyond them is written again by the next c, but for the last ones.

Weights that are kept from run to run have a copy of w behind U, and a word for every tile that says whether there is one: a
tile whose weights are those of the copy, bit for bit, is left as it is. So nobody has to say when weights change.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorsmith.ir.winograd import Form
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors
from tensorsmith.targets.cpu.winograd import not_negative
from tensorsmith.targets.cpu.winograd_transforms import Transforms

WORDS = (
    "tiles_per_chunk", "tiles", "base", "extra", "channels", "u_point",  # tiles: `extra` of base + 1 channels, then of base
    "w_out", "w_in", "w_0", "w_1", "row", "copy", "marks",  # row: elements of an output channel; the others: bytes behind U
)  # fmt: skip


def weight_function(vectors: Vectors, form: Form, base: int, extra: bool, kept: bool) -> Function:
    """An entry of the kernel ABI: launch words w and u."""
    name = f"winograd{form.outputs}_weight_{base}_{int(extra)}{'_kept' if kept else ''}"
    f = Function(name, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    w_at, u_at = (f.load("ptr", f.offset("%args", 8 * i), 8) for i in range(2))
    w: dict[str, Value] = {word: f.load("i64", f.offset("%args", 8 * (3 + i)), 8) for i, word in enumerate(WORDS)}
    chunk = f.value("zext i32 %chunk to i64")
    tile0 = f.mul(chunk, w["tiles_per_chunk"])
    tile1 = f.minimum(f.add(tile0, w["tiles_per_chunk"]), w["tiles"])
    if extra:
        _tiles(f, vectors, form, w, w_at, u_at, base + 1, tile0, f.minimum(tile1, w["extra"]), kept)
        tile0 = f.add(w["extra"], not_negative(f, f.sub(tile0, w["extra"])))
    _tiles(f, vectors, form, w, w_at, u_at, base, tile0, tile1, kept)
    return f


def _tiles(
    f: Function, vectors: Vectors, form: Form, w: dict[str, Value], w_at: str, u_at: str, rows: int, low: Value, high: Value,
    kept: bool,
) -> None:  # fmt: skip
    """Tiles low to high, of `rows` output channels each."""
    with f.loop(low, high, 1, name=f"tile of {rows} output channels") as tile:
        first = f.add(f.mul(tile.index, w["base"]), f.minimum(tile.index, w["extra"]))
        source = f.offset(w_at, f.mul(first, w["w_out"]))
        target = f.offset(u_at, f.mul(f.mul(first, w["channels"]), vectors.compute_size))
        if kept:
            _where_changed(f, vectors, form, w, u_at, tile.index, first, source, target, rows)
        else:
            _transform(f, vectors, form, w, source, target, rows)


def _where_changed(
    f: Function, vectors: Vectors, form: Form, w: dict[str, Value], u_at: str, tile: Value, first: Value, source: str,
    target: str, rows: int,
) -> None:  # fmt: skip
    """One tile, where its weights are not those it was computed from."""
    copy = f.offset(f.offset(u_at, w["copy"]), f.mul(f.mul(first, w["row"]), vectors.compute_size))
    mark = f.offset(f.offset(u_at, w["marks"]), f.mul(tile, 8))
    made = f.compare("ne", f.load("i64", mark, 8), 0)
    same = f.value(f"and i1 {made}, {_is_copy(f, vectors, w, source, copy, rows)}")
    with f.if_(f.value(f"xor i1 {same}, true")):
        _transform(f, vectors, form, w, source, target, rows)
        _copy(f, vectors, w, source, copy, rows)
        f.store(1, "i64", mark, 8)
        f.note("where w is not what it was")


def _over_rows(
    f: Function, vectors: Vectors, w: dict[str, Value], source: str, copy: str, rows: int, start: Value,
    step: Callable[[str, str, Mask | None, Value], Value],
) -> Value:  # fmt: skip
    """step(place in w, place in the copy, mask, carried) over all vectors of the rows; the last carried vector of integers."""
    size, lanes, kind = vectors.compute_size, vectors.lanes, f"<{vectors.lanes} x i{8 * vectors.compute_size}>"
    row_bytes = f.mul(w["row"], size)
    whole = f.round_down(w["row"], lanes)
    tail = vectors.mask(f, f.sub(w["row"], whole))
    with f.loop(0, rows, 1, [("ptr", source), ("ptr", copy), (kind, start)], name="output channel of the tile") as r:
        here, there = r.carried[:2]
        with f.loop(0, whole, lanes, [(kind, r.carried[2])]) as i:
            at = f.mul(i.index, size)
            i.next = [step(f.offset(here, at), f.offset(there, at), None, i.carried[0])]
        at = f.mul(whole, size)
        last = step(f.offset(here, at), f.offset(there, at), tail, i.out[0])
        r.next = [f.offset(here, w["w_out"]), f.offset(there, row_bytes), last]
    return r.out[2]


def _is_copy(f: Function, vectors: Vectors, w: dict[str, Value], source: str, copy: str, rows: int) -> Value:
    """Whether the rows are those of the copy, bit for bit."""
    bits = 8 * vectors.compute_size
    kind = f"<{vectors.lanes} x i{bits}>"

    def differences(here: str, there: str, mask: Mask | None, found: Value) -> Value:
        new, old = (f.value(f"bitcast {vectors.type} {vectors.load(f, at, mask)} to {kind}") for at in (here, there))
        return f.value(f"or {kind} {found}, {f.value(f'xor {kind} {new}, {old}')}")

    found = _over_rows(f, vectors, w, source, copy, rows, "zeroinitializer", differences)
    name = f"llvm.vector.reduce.or.v{vectors.lanes}i{bits}"
    vectors.declarations.add(f"declare i{bits} @{name}({kind})")
    return f.compare("eq", f.value(f"call i{bits} @{name}({kind} {found})"), 0, f"i{bits}")


def _copy(f: Function, vectors: Vectors, w: dict[str, Value], source: str, copy: str, rows: int) -> None:
    def move(here: str, there: str, mask: Mask | None, carried: Value) -> Value:
        vectors.store(f, vectors.load(f, here, mask), there, mask)
        return carried

    _over_rows(f, vectors, w, source, copy, rows, "zeroinitializer", move)


def _transform(
    f: Function, vectors: Vectors, form: Form, w: dict[str, Value], source: str, target: str, rows: int
) -> None:
    """One tile."""
    size = vectors.compute_size
    transforms = Transforms(form, f, vectors)
    taps = [[f.add(f.mul(w["w_0"], i), f.mul(w["w_1"], j)) for j in range(3)] for i in range(3)]
    outs = [f.mul(w["w_out"], r) for r in range(rows)]
    points = [f.mul(w["u_point"], point) for point in range(form.products)]
    mask = vectors.mask(f, rows)

    def kernels(source: str, target: str, mask: Mask | None) -> None:
        g: list[list[Value]] = []
        for i in range(3):
            g.append([])
            for j in range(3):
                value: Value = vectors.zero
                for r in range(rows):
                    element = f.load(vectors.scalar, f.offset(f.offset(source, outs[r]), taps[i][j]), size)
                    value = f.value(f"insertelement {vectors.type} {value}, {vectors.scalar} {element}, i64 {r}")
                g[i].append(value)
        found = [value for line in transforms.both_ways(transforms.of_kernel, g) for value in line]
        for point, value in enumerate(found):
            vectors.store(f, value, f.offset(target, points[point]), mask)

    here = [("ptr", source), ("ptr", target)]
    masked = -(-vectors.lanes // rows) - 1  # of the last input channels: whole vectors would reach beyond the tile
    plain = not_negative(f, f.sub(w["channels"], masked))
    with f.loop(0, plain, 1, here, name="c in channels") as c:
        kernels(c.carried[0], c.carried[1], None)
        f.note("U[points][tile][c] = G w G'")
        c.next = [f.offset(c.carried[0], w["w_in"]), f.offset(c.carried[1], rows * size)]
    if masked:
        rest = [("ptr", c.out[0]), ("ptr", c.out[1])]
        with f.loop(plain, w["channels"], 1, rest, name="c in the last channels") as c:
            kernels(c.carried[0], c.carried[1], mask)
            c.next = [f.offset(c.carried[0], w["w_in"]), f.offset(c.carried[1], rows * size)]

"""The weights of a Winograd convolution: U = G w G' of every kernel, as the register tile reads it.

U lies as [point][tile of output channels][c][channels of the tile]. One vector holds the output channels of a tile; what a
store writes beyond them is written again by the next c, but for the last one.
"""

from __future__ import annotations

from tensorsmith.ir.winograd import Form
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors
from tensorsmith.targets.cpu.winograd import not_negative
from tensorsmith.targets.cpu.winograd_transforms import Transforms

WORDS = (
    "tiles_per_chunk", "tiles", "base", "extra", "channels", "u_point",  # tiles: `extra` of base + 1 channels, then of base
    "w_out", "w_in", "w_0", "w_1",
)  # fmt: skip


def weight_function(vectors: Vectors, form: Form, base: int, extra: bool) -> Function:
    """An entry of the kernel ABI: launch words w and u."""
    name = f"winograd{form.outputs}_weight_{base}_{int(extra)}"
    f = Function(name, [("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker")])
    w_at, u_at = (f.load("ptr", f.offset("%args", 8 * i), 8) for i in range(2))
    w: dict[str, Value] = {word: f.load("i64", f.offset("%args", 8 * (3 + i)), 8) for i, word in enumerate(WORDS)}
    chunk = f.value("zext i32 %chunk to i64")
    tile0 = f.mul(chunk, w["tiles_per_chunk"])
    tile1 = f.minimum(f.add(tile0, w["tiles_per_chunk"]), w["tiles"])
    middle = f.minimum(tile1, w["extra"])
    if extra:
        _tiles(f, vectors, form, w, w_at, u_at, base + 1, tile0, middle)
        tile0 = f.add(w["extra"], not_negative(f, f.sub(tile0, w["extra"])))
    _tiles(f, vectors, form, w, w_at, u_at, base, tile0, tile1)
    return f


def _tiles(
    f: Function, vectors: Vectors, form: Form, w: dict[str, Value], w_at: str, u_at: str, rows: int, low: Value, high: Value
) -> None:
    """Tiles low to high, of `rows` output channels each."""
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

    with f.loop(low, high, 1, name=f"tile of {rows} output channels") as tile:
        first = f.add(f.mul(tile.index, w["base"]), f.minimum(tile.index, w["extra"]))
        here = [("ptr", f.offset(w_at, f.mul(first, w["w_out"])))]
        here += [("ptr", f.offset(u_at, f.mul(f.mul(first, w["channels"]), size)))]
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

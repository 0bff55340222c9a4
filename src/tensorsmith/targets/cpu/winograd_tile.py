"""The register tile of Winograd's products: some output channels at one or two vectors of tiles, for packed weights.

    for each of `count` tiles of output channels, one below the other:
        for block in `depth` input channels each:                            sums of blocks are added up: they round less
            for k in the block: sums[r][v] += U[k][r] * V[k][v]
            M[r][v] = sums[r][v], added to those of the blocks before

Tiles of results that are left over after whole vectors are few: for each of them, the channels of a tile are the lanes.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Vectors

ARGUMENTS = (
    ("ptr", "U"), ("ptr", "V"), ("ptr", "M"), ("i64", "K"), ("i64", "depth"), ("i64", "count"), ("i64", "v_row"),
    ("i64", "m_row"),
)  # fmt: skip
_AHEAD_BYTES = 4096  # of the weights, each of which is read once, or once a panel


def tile_function(vectors: Vectors, rows: int, columns: int) -> Function:
    """The kernel for `rows` output channels, whose weights lie side by side for every input channel, and `columns` vectors."""
    f = Function(f"winograd_tile_{rows}x{columns}", ARGUMENTS, attributes="noinline")
    size, lanes, cells = vectors.compute_size, vectors.lanes, rows * columns
    m_rows = Rows(f, rows, "%m_row")
    m_step = f.mul("%m_row", rows)
    zeros = [(vectors.type, vectors.zero)] * cells
    start = [("ptr", "%U"), ("ptr", "%M")]
    with f.loop(0, "%count", 1, start, do_while=True, name="tile of output channels") as tile:
        targets = m_rows.bases(tile.carried[1])
        operands = [("ptr", tile.carried[0]), ("ptr", "%V")]
        with f.loop(0, "%K", "%depth", operands, do_while=True, name="block of input channels") as block:
            depth = f.minimum("%depth", f.sub("%K", block.index))
            carried = [*zeros, ("ptr", block.carried[0]), ("ptr", block.carried[1])]
            with f.loop(0, depth, 1, carried, do_while=True, name="k in the block") as k:
                weights, seen = k.carried[cells:]
                v = [vectors.load(f, f.offset(seen, j * lanes * size)) for j in range(columns)]
                vectors.prefetch(f, f.offset(weights, _AHEAD_BYTES), near=True)
                after: list[Value] = []
                for r in range(rows):
                    u = vectors.load_splat(f, f.offset(weights, r * size))
                    after += [vectors.multiply_add(f, u, v[j], k.carried[r * columns + j]) for j in range(columns)]
                f.note(f"sums[{rows}][{columns} x {lanes}] += U[k][rows] * V[k][tiles]")
                k.next = [*after, f.offset(weights, rows * size), f.offset(seen, "%v_row")]
            places = [m_rows.at(targets, r, j * lanes * size) for r in range(rows) for j in range(columns)]
            first = f.compare("eq", block.index, 0)
            sums = _added(f, vectors, first, places, list(k.out[:cells]))
            for place, value in zip(places, sums):
                vectors.store(f, value, place)
            f.note("M[rows][tiles] = sums, or added to")
            block.next = [k.out[cells], k.out[cells + 1]]
        tile.next = [block.out[0], f.offset(tile.carried[1], m_step)]
    return f


def _added(f: Function, vectors: Vectors, first: Value, places: list[str], ends: list[Value]) -> list[Value]:
    """The sums of a block, with those of the blocks before it but where it is the first."""

    def both() -> list[Value]:
        return [vectors.plus(f, vectors.load(f, place), end) for place, end in zip(places, ends)]

    return list(f.choose(first, [vectors.type] * len(ends), lambda: ends, both))


LEFT_ARGUMENTS = (*ARGUMENTS, ("i64", "left"))
_TILES = 4  # of output channels at once


def left_function(vectors: Vectors, rows: int) -> Function:
    """The same for `left` single tiles of results, the first of which V and M point at."""
    f = Function(f"winograd_left_{rows}", LEFT_ARGUMENTS, attributes="noinline")
    size = vectors.compute_size
    u_tile, m_tile = f.mul("%K", rows * size), f.mul("%m_row", rows)
    fours = f.round_down("%count", _TILES)
    start = [("ptr", "%U"), ("ptr", "%M")]
    for tiles, low, high in ((_TILES, 0, fours), (1, fours, "%count")):
        with f.loop(low, high, tiles, start, name=f"{tiles} tiles of output channels") as tile:
            with f.loop(0, "%left", 1, [("ptr", "%V"), ("ptr", tile.carried[1])], name="tile of results") as t:
                _single(f, vectors, rows, tiles, tile.carried[0], t.carried[0], t.carried[1], u_tile, m_tile)
                t.next = [f.offset(p, size) for p in t.carried]
            tile.next = [f.offset(p, f.mul(step, tiles)) for p, step in zip(tile.carried, (u_tile, m_tile))]
        start = [("ptr", str(p)) for p in tile.out]
    return f


def _single(
    f: Function, vectors: Vectors, rows: int, tiles: int, u: str, v: str, m: str, u_tile: Value, m_tile: Value
) -> None:
    """One tile of results and some tiles of output channels."""
    size = vectors.compute_size
    parts = -(-rows // vectors.lanes)  # vectors of a tile's channels
    masks = [None if rows >= (i + 1) * vectors.lanes else vectors.mask(f, rows - i * vectors.lanes) for i in range(parts)]
    cells = tiles * parts
    zeros = [(vectors.type, vectors.zero)] * cells
    sources = [("ptr", f.offset(u, f.mul(u_tile, i))) for i in range(tiles)] + [("ptr", v)]
    with f.loop(0, "%K", "%depth", [*zeros, *sources], do_while=True, name="block of input channels") as block:
        depth = f.minimum("%depth", f.sub("%K", block.index))
        carried = [*zeros, *(("ptr", p) for p in block.carried[cells:])]
        with f.loop(0, depth, 1, carried, do_while=True, name="k in the block") as k:
            weights, seen = k.carried[cells:-1], k.carried[-1]
            value = vectors.load_splat(f, seen)
            after: list[Value] = []
            for i in range(cells):
                place = f.offset(weights[i // parts], i % parts * vectors.lanes * size)
                after.append(vectors.multiply_add(f, vectors.load(f, place, masks[i % parts]), value, k.carried[i]))
            f.note("sums[channels] += U[k][channels] * V[k]")
            k.next = [*after, *(f.offset(p, rows * size) for p in weights), f.offset(seen, "%v_row")]
        block.next = [*(vectors.plus(f, a, b) for a, b in zip(block.carried, k.out[:cells])), *k.out[cells:]]
    row = m
    for i in range(tiles):
        for r in range(rows):
            total = block.out[i * parts + r // vectors.lanes]
            element = f.value(f"extractelement {vectors.type} {total}, i64 {r % vectors.lanes}")
            f.store(element, vectors.scalar, row, size)
            row = f.offset(row, "%m_row")
    f.note("M[channels] = sums")

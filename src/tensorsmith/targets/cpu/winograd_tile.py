"""The register tile of Winograd's products: some output channels at one or two vectors of tiles, for packed weights.

    for each of `count` tiles of output channels, one below the other:
        for block in `depth` input channels each:                            sums of blocks are added up: they round less
            for k in the block: sums[r][v] += U[k][r] * V[k][v]
            M[r][v] = sums[r][v], added to those of the blocks before
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

"""The register tile of Winograd's products: some output channels at one or two vectors of tiles, for packed weights.

    for each of `count` tiles of output channels, one below the other:
        for k in input channels: sums[r][v] += U[k][r] * V[k][v]
        M[r][v] = sums[r][v]
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Vectors

ARGUMENTS = (("ptr", "U"), ("ptr", "V"), ("ptr", "M"), ("i64", "K"), ("i64", "count"), ("i64", "v_row"), ("i64", "m_row"))


def tile_function(vectors: Vectors, rows: int, columns: int) -> Function:
    """The kernel for `rows` output channels, whose weights lie side by side for every input channel, and `columns` vectors."""
    f = Function(f"winograd_tile_{rows}x{columns}", ARGUMENTS, attributes="noinline")
    size, lanes, cells = vectors.compute_size, vectors.lanes, rows * columns
    m_rows = Rows(f, rows, "%m_row")
    m_step = f.mul("%m_row", rows)
    start = [("ptr", "%U"), ("ptr", "%M")]
    with f.loop(0, "%count", 1, start, do_while=True, name="tile of output channels") as tile:
        targets = m_rows.bases(tile.carried[1])
        carried = [(vectors.type, vectors.zero)] * cells + [("ptr", tile.carried[0]), ("ptr", "%V")]
        with f.loop(0, "%K", 1, carried, do_while=True, name="k in input channels") as k:
            weights, seen = k.carried[cells:]
            v = [vectors.load(f, f.offset(seen, j * lanes * size)) for j in range(columns)]
            after: list[Value] = []
            for r in range(rows):
                u = vectors.load_splat(f, f.offset(weights, r * size))
                after += [vectors.multiply_add(f, u, v[j], k.carried[r * columns + j]) for j in range(columns)]
            f.note(f"sums[{rows}][{columns} x {lanes}] += U[k][rows] * V[k][tiles]")
            k.next = [*after, f.offset(weights, rows * size), f.offset(seen, "%v_row")]
        for r in range(rows):
            for j in range(columns):
                vectors.store(f, k.out[r * columns + j], m_rows.at(targets, r, j * lanes * size))
        tile.next = [k.out[cells], f.offset(tile.carried[1], m_step)]
    return f

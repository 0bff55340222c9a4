"""The register tile of the direct convolution: some output channels at one or more vectors of positions.

    sums[r][v] = bias[r]
    for c in channels:  for t in taps:  sums[r][v] += w[r, c, t] * slab[c][t + positions v]
    sums += those of the channels before             sums of blocks of channels are added up: they round less than one sum
    y[r][positions] = function(sums[r]), or the sums are kept for the channels to come

The slab (`conv_blocks`) holds padded input such that position q of a kernel's tap t lies t elements after position q of tap
0, whatever the stride: every tap is one unaligned vector load. Positions run over whole rows of the slab, whose ends may be
no results: vectors over the end of a run of results are stored through a mask.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

# (most rows, vectors of positions): the sums of a tile, its vectors of the slab and a broadcast weight fill the registers.
TILES = {
    "avx512": ((12, 2), (8, 3), (6, 4)),
    "avx2": ((6, 2), (4, 3), (2, 4)),
    "generic": ((4, 2), (2, 4)),
}

ARGUMENTS = (
    ("ptr", "w"),
    ("ptr", "slab"),  # at the tile's first position
    ("ptr", "y"),
    ("ptr", "bias"),
    ("ptr", "before"),  # sums of the channels before, null where these are the first
    ("ptr", "kept"),  # where sums are kept for the next channels, null where these are the last
    ("ptr", "taps"),  # byte offsets of the taps
    ("ptr", "rows"),  # byte offsets of the runs of results, -1 for one that is none
    ("i64", "channels"),
    ("i64", "plane"),  # bytes from channel to channel of the slab
    ("i64", "count"),  # of taps
    ("i64", "w_row"),
    ("i64", "y_row"),
    ("i64", "position"),
    ("i64", "end"),  # of the slab's positions
    ("i64", "pitch"),  # positions from run to run
    ("i64", "width"),  # of a run
)


def tile_name(rows: int, columns: int) -> str:
    """Symbol of the kernel for a number of output channels and of vectors."""
    return f"conv_tile_{rows}x{columns}"


def tile_function(vectors: Vectors, rows: int, columns: int, function: str = "") -> Function:
    """The kernel for `rows` output channels and `columns` vectors of positions, with an epilogue function."""
    f = Function(tile_name(rows, columns), ARGUMENTS, attributes="noinline")
    size, lanes = vectors.compute_size, vectors.lanes
    w_rows, y_rows = Rows(f, rows, "%w_row"), Rows(f, rows, "%y_row")
    has_bias = f.compare("ne", "%bias", "null", "ptr")

    def bias() -> list[Value]:
        return [vectors.load_splat(f, f.offset("%bias", r * size)) for r in range(rows)]

    cells = rows * columns
    zeros = [vectors.zero] * rows
    start = f.choose(has_bias, [vectors.type] * rows, bias, lambda: zeros)
    first = [start[r] for r in range(rows) for _ in range(columns)]
    carried = [(vectors.type, s) for s in first] + [("ptr", p) for p in w_rows.bases("%w")]
    with f.loop(0, "%channels", 1, [*carried, ("ptr", "%slab")], do_while=True, name="c in channels") as c:
        plane = c.carried[-1]
        inner = [(vectors.type, s) for s in c.carried[:cells]] + [("ptr", p) for p in c.carried[cells:-1]]
        with f.loop(0, "%count", 1, inner, do_while=True, name="t in taps") as t:
            bases = t.carried[cells:]
            place = f.offset(plane, f.load("i64", f.offset("%taps", f.mul(t.index, 8)), 8))
            seen = [vectors.load(f, f.offset(place, j * lanes * size)) for j in range(columns)]
            after: list[Value] = []
            for r in range(rows):
                weight = vectors.load_splat(f, w_rows.at(bases, r))
                after += [vectors.multiply_add(f, weight, seen[j], t.carried[r * columns + j]) for j in range(columns)]
            f.note(f"sums[{rows}][{columns} x {lanes}] += w[rows, c, t] * slab[c][t + positions]")
            t.next = [*after, *(f.offset(p, size) for p in bases)]
        c.next = [*t.out, f.offset(plane, "%plane")]
    ends: list[Value] = list(c.out[:cells])

    def added() -> list[Value]:
        before = [vectors.load(f, f.offset("%before", i * lanes * size)) for i in range(cells)]
        return [vectors.plus(f, old, new) for old, new in zip(before, ends)]

    sums: list[Value] = list(f.choose(f.compare("eq", "%before", "null", "ptr"), [vectors.type] * cells, lambda: ends, added))

    def keep() -> None:
        for i, value in enumerate(sums):
            vectors.store(f, value, f.offset("%kept", i * lanes * size))

    def finish() -> None:
        _finish(f, vectors, apply(f, vectors, function, sums), columns, y_rows)

    f.branch(f.compare("ne", "%kept", "null", "ptr"), keep, finish)
    return f


def _finish(f: Function, vectors: Vectors, sums: Sequence[Value], columns: int, y_rows: Rows) -> None:
    """Store results, one run at a time: its first `width` positions are results."""
    size, lanes = vectors.compute_size, vectors.lanes
    last = f.sub(f.minimum(f.add("%position", columns * lanes), "%end"), 1)
    row0, row1 = f.udiv("%position", "%pitch"), f.udiv(last, "%pitch")
    y_bases = y_rows.bases("%y")
    with f.loop(row0, f.add(row1, 1), 1, name="run of results in this tile") as row:
        to = f.load("i64", f.offset("%rows", f.mul(row.index, 8)), 8)
        with f.if_(f.compare("sge", to, 0)):
            begin = f.sub(f.mul(row.index, "%pitch"), "%position")  # of the run, from the tile's first position
            stop = f.minimum(f.add(begin, "%width"), f.sub("%end", "%position"))
            there = f.sub(to, f.mul(begin, size))
            for j in range(columns):
                _store_vectors(f, vectors, sums[j::columns], begin, stop, j, y_rows, y_bases, there)
            f.note("y[rows][run, positions] = sums")


def _store_vectors(
    f: Function, vectors: Vectors, sums: Sequence[Value], begin: Value, stop: Value, column: int, y_rows: Rows,
    y_bases: list[str], there: Value,
) -> None:  # fmt: skip
    """One vector of every row, as far as its positions lie in `begin` until `stop`; whole where masks are dear."""
    size, lanes = vectors.compute_size, vectors.lanes
    low, high = f.sub(begin, column * lanes), f.sub(stop, column * lanes)

    def write(mask: Mask | None) -> None:
        for r, value in enumerate(sums):
            vectors.store(f, value, f.offset(f.offset(y_rows.at(y_bases, r), there), column * lanes * size), mask)

    def in_part() -> None:
        with f.if_(f.value(f"and i1 {f.compare('sgt', high, 0)}, {f.compare('slt', low, lanes)}")):
            write(_between(f, vectors, low, high))

    if vectors.cheap_masked_stores:
        write(_between(f, vectors, low, high))
    else:
        whole = f.value(f"and i1 {f.compare('sle', low, 0)}, {f.compare('sge', high, lanes)}")
        f.branch(whole, lambda: write(None), in_part)


def _between(f: Function, vectors: Vectors, low: Value, high: Value) -> Mask:
    """Lanes from `low` until `high`."""
    before, until = vectors.mask(f, low), vectors.mask(f, high)
    kind = f"<{vectors.lanes} x i1>"
    ones = f"<{', '.join(['i1 1'] * vectors.lanes)}>"
    bits = f.value(f"and {kind} {until.bits}, {f.value(f'xor {kind} {before.bits}, {ones}')}")
    if until.wide is None:
        return Mask(bits)
    integers = f"<{vectors.lanes} x i{64 if vectors.storage_size == 8 else 32}>"
    return Mask(bits, f.value(f"sext {kind} {bits} to {integers}"))

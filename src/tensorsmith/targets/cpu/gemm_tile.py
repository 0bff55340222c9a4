"""The register tile of the matrix multiplication: some rows of C times one or two vectors of columns.

    for each of `count` tiles, one below the other:
        sums[r][v] = bias[v]
        for k:  sums[r][v] += A[r, k] * B[k, v]          A broadcast from memory, B loaded as vectors
        C[r][v] = function(sums[r][v]  (+ C[r][v]))      the sums of blocks of k are added up: they round less than one sum

All sums stay in registers. A is addressed by two run-time strides, so that row-major and transposed blocks are read by
the same code, or, packed by `gemm_pack.pack_left`, by constants; B by a run-time row stride, so that B in place and packed
panels are. Columns past `width` are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.kernels.epilogue import Body
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_epilogue import Extras, apply
from tensorsmith.targets.cpu.gemm_vectors import Vectors
from tensorsmith.targets.cpu.machine import Machine

PANEL_VECTORS = 2

ARGUMENTS = (
    ("ptr", "A"),
    ("ptr", "B"),
    ("ptr", "C"),
    ("i64", "K"),
    ("i64", "count"),
    ("i64", "a_row"),
    ("i64", "a_k"),
    ("i64", "b_row"),
    ("i64", "c_row"),
    ("i64", "width"),
    ("ptr", "bias"),
    ("i64", "flags"),
    ("ptr", "extras"),
    ("i64", "column"),
)
_UNROLL = 4  # steps of k taken together where A's elements lie at constant distances
STRIDED, CONSECUTIVE, PACKED = "strided", "consecutive", "packed"  # how a tile's rows of A lie
ACCUMULATE = 1  # add to what C holds
FINISH = 2  # the sums are complete: apply the function
AHEAD = 4  # the next panel of B follows this one: ask for it, line by line, in the steps of k of all tiles
_LINE = 64


def most_rows(machine: Machine) -> int:
    """Most rows of a tile: 2 * rows sums, 2 vectors of B and a broadcast value fill the registers.

    With 32 registers, 12 (AVX-512, NEON); with 16, 6, or 4 where products need a register of their own (SSE2).
    """
    if machine.registers >= 32:
        return 12
    return 4 if machine.name == "generic" else 6


class Rows:
    """Addresses base + r * stride (a run-time stride) from one pointer per five rows.

    x86 addressing supplies stride times 1, 2 and 4; one register holds three times the stride.
    """

    GROUP = 5

    def __init__(self, f: Function, count: int, stride: str) -> None:
        self._f = f
        self._multiples: list[Value] = [0, stride, *(f.mul(stride, k) for k in range(2, min(count, self.GROUP)))]
        self._step = f.mul(stride, self.GROUP) if count > self.GROUP else 0
        self.groups = -(-count // self.GROUP)

    def bases(self, pointer: str) -> list[str]:
        """One pointer per group of rows, from the first row's."""
        out = [pointer]
        for _ in range(1, self.groups):
            out.append(self._f.offset(out[-1], self._step))
        return out

    def at(self, bases: list[str], row: int, offset: Value = 0) -> str:
        """The address `offset` bytes into `row`."""
        address = self._f.offset(bases[row // self.GROUP], self._multiples[row % self.GROUP])
        return self._f.offset(address, offset)


def tile_name(rows: int, columns: int) -> str:
    """Symbol of the kernel for a number of rows and of column vectors."""
    return f"tile_{rows}x{columns}"


def tile_function(
    vectors: Vectors, rows: int, columns: int, function: str | Body = "", left: str = STRIDED
) -> Function:
    """The kernel for `rows` rows and `columns` (1 or 2) vectors of columns, with an epilogue function.

    left: how A lies. STRIDED: any two strides; CONSECUTIVE: unit stride along k; PACKED: A[r, k] is element k * rows + r of
    its tile, and tiles follow each other; `a_row` is then the bytes of a row, K times the element size.

    The tile's arguments are ARGUMENTS: addresses of A's first row, of B's panel and of C; extents; byte strides; valid
    columns; the bias or null; flags ACCUMULATE, FINISH and AHEAD; for a body the table of its operands and how many bytes of
    C's row lie before the panel. A and B hold the compute type, C and bias the storage type.
    """
    f = Function(tile_name(rows, columns), ARGUMENTS, attributes="noinline")
    packed, size = left == PACKED, vectors.compute_size
    bytes_of_vector = vectors.lanes * vectors.compute_size
    stored_vector = vectors.lanes * vectors.storage_size
    a_rows, c_rows = Rows(f, rows, "%a_row"), Rows(f, rows, "%c_row")
    a_step, c_step = f.mul("%a_row", rows), f.mul("%c_row", rows)
    tail = vectors.mask(f, f.sub("%width", (columns - 1) * vectors.lanes))
    full = f.compare("sge", "%width", columns * vectors.lanes)
    accumulate = f.compare("ne", f.value(f"and i64 %flags, {ACCUMULATE}"), 0)
    finish = f.compare("ne", f.value(f"and i64 %flags, {FINISH}"), 0)

    def edge(column: int) -> bool:
        return column == columns - 1

    def bias_row() -> list[Value]:
        return [
            vectors.load(f, f.offset("%bias", j * stored_vector), tail if edge(j) else None) for j in range(columns)
        ]

    has_bias = f.compare("ne", "%bias", "null", "ptr")
    start = f.choose(has_bias, [vectors.type] * columns, bias_row, lambda: [vectors.zero] * columns)

    # Without AHEAD, lines of the panel in use are asked for: they are there.
    ahead = f.compare("ne", f.value(f"and i64 %flags, {AHEAD}"), 0)
    coming = f.select(ahead, "ptr", f.offset("%B", f.mul("%K", "%b_row")), "%B")
    extras = Extras(f, vectors, function, "%column") if isinstance(function, Body) else None
    with f.loop(0, "%count", 1, [("ptr", "%A"), ("ptr", "%C"), ("ptr", coming)], do_while=True, name="tile") as tiles:
        c_bases = c_rows.bases(tiles.carried[1])
        for r in range(rows):
            for j in range(columns):
                vectors.prefetch(f, c_rows.at(c_bases, r, j * stored_vector))

        cells = rows * columns
        # (A run-time number: with a known one, LLVM keeps a pointer for every row, more than there are registers.)
        several = f.mul("%a_k", _UNROLL)
        bases = [tiles.carried[0]] if packed else a_rows.bases(tiles.carried[0])
        coming = tiles.carried[2]
        masked = vectors.cheap_masks

        def step(sums: Sequence[Value], places: Sequence[str], panel: str) -> list[Value]:
            """The sums after one more k; places: of A's element in every row."""
            b = [
                vectors.load(f, f.offset(panel, j * bytes_of_vector), tail if edge(j) and masked else None, True)
                for j in range(columns)
            ]
            after: list[Value] = []
            for r, place in enumerate(places):
                a = vectors.load_splat(f, place)
                after += [vectors.multiply_add(f, a, b[j], sums[r * columns + j]) for j in range(columns)]
            return after

        def run(
            low: Value, high: Value, steps: int, sums: Sequence[Value], bases: list[str], panel: str, coming: str
        ) -> list[Value]:
            """Sums and pointers after k from low to high."""
            carried = [(vectors.type, s) for s in sums] + [("ptr", p) for p in (*bases, panel, coming)]
            with f.loop(low, high, steps, carried, name="k") as k:
                sums, bases, (panel, coming) = k.carried[:cells], k.carried[cells:-2], k.carried[-2:]
                if steps > 1:
                    vectors.prefetch(f, coming, near=False)
                    coming = f.offset(coming, _LINE)
                for u in range(steps):
                    if packed:
                        places = [f.offset(bases[0], (u * rows + r) * size) for r in range(rows)]
                    else:
                        places = [a_rows.at(bases, r, u * size) for r in range(rows)]
                    sums = step(sums, places, panel)
                    panel = f.offset(panel, "%b_row")
                f.note(f"sums[{rows}][{columns} x {vectors.lanes}] += A[tile rows, k] * B[k, panel]")
                along = steps * size * rows if packed else "%a_k" if steps == 1 else several
                k.next = [*sums, *(f.offset(p, along) for p in bases), panel, coming]
            return k.out

        # (Of 16 bytes, LLVM makes vectors along k, in registers that the sums need.)
        if left == STRIDED or vectors.isa == "generic":
            out = run(0, "%K", 1, start * rows, bases, "%B", coming)
        else:
            even = f.round_down("%K", _UNROLL)
            out = run(0, even, _UNROLL, start * rows, bases, "%B", coming)
            out = run(even, "%K", 1, out[:cells], [str(p) for p in out[cells:-2]], str(out[-2]), str(out[-1]))
        ends = out[:cells]

        def added(c_bases: list[str] = c_bases, ends: list[Value] = ends) -> list[Value]:
            old = [
                vectors.load(f, c_rows.at(c_bases, r, j * stored_vector), tail if edge(j) else None)
                for r in range(rows)
                for j in range(columns)
            ]
            return [vectors.plus(f, x, y) for x, y in zip(old, ends)]

        kinds = [vectors.type] * cells
        sums: list[Value] = list(f.choose(accumulate, kinds, added, lambda: ends))  # noqa: B023
        if function:
            done = list(sums)

            def finished(done: list[Value] = done, c_bases: list[str] = c_bases) -> Sequence[Value]:
                if extras is None:
                    return apply(f, vectors, function, done)
                cells = [(r, j, j * stored_vector) for r in range(rows) for j in range(columns)]
                return extras.apply([
                    (done[r * columns + j], c_rows.at(c_bases, r, along), along, tail if edge(j) else None)
                    for r, j, along in cells
                ])  # fmt: skip

            sums = list(f.choose(finish, kinds, finished, lambda: done))  # noqa: B023
            f.note(f"sums = {function if extras is None else 'body'}(sums)")

        def write(masked: bool, sums: list[Value] = sums, c_bases: list[str] = c_bases) -> None:
            for r in range(rows):
                for j in range(columns):
                    mask = tail if masked and edge(j) else None
                    vectors.store(f, sums[r * columns + j], c_rows.at(c_bases, r, j * stored_vector), mask)

        f.note("C[tile rows, panel] = sums")
        if vectors.cheap_masked_stores:
            write(True)
        else:
            f.branch(full, lambda: write(False), lambda: write(True))
        tiles.next = [f.offset(tiles.carried[0], a_step), f.offset(tiles.carried[1], c_step), out[-1]]
    return f

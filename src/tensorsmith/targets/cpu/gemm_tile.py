"""The register tile of the matrix multiplication: some rows of C times one or two vectors of columns.

    for each of `count` tiles, one below the other:
        sums[r][v] = bias[v]  (+ C[r][v])
        for k:  sums[r][v] += A[r, k] * B[k, v]          A broadcast from memory, B loaded as vectors
        C[r][v] = function(sums[r][v])

All sums stay in registers. A is addressed by two run-time strides, so row-major, transposed and copied blocks are read
by the same code; B by a run-time row stride, so B in place and packed panels are. Columns past `width` are masked.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Most rows of a tile and vectors of a panel: 2 * rows sums, 2 vectors of B and a broadcast value fill the registers.
MAX_ROWS = {"avx512": 12, "avx2": 6, "generic": 4}
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
)
ACCUMULATE = 1  # add to what C holds
FINISH = 2  # the sums are complete: apply the function


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


def tile_function(vectors: Vectors, rows: int, columns: int, function: str = "") -> Function:
    """The kernel for `rows` rows and `columns` (1 or 2) vectors of columns, with an epilogue function.

    The tile's arguments are ARGUMENTS: addresses of A's first row, of B's panel and of C; extents; byte strides; valid
    columns; the bias or null; flags ACCUMULATE and FINISH. A and B hold the compute type, C and bias the storage type.
    """
    f = Function(tile_name(rows, columns), ARGUMENTS, attributes="noinline")
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

    with f.loop(0, "%count", 1, [("ptr", "%A"), ("ptr", "%C")], do_while=True, name="tile") as tiles:
        c_bases = c_rows.bases(tiles.carried[1])
        for r in range(rows):
            for j in range(columns):
                vectors.prefetch(f, c_rows.at(c_bases, r, j * stored_vector))

        def old_sums(c_bases: list[str] = c_bases) -> list[Value]:
            sums: list[Value] = []
            for r in range(rows):
                for j in range(columns):
                    old = vectors.load(f, c_rows.at(c_bases, r, j * stored_vector), tail if edge(j) else None)
                    sums.append(vectors.plus(f, old, start[j]))
            return sums

        cells = rows * columns
        sums: list[Value] = list(f.choose(accumulate, [vectors.type] * cells, old_sums, lambda: start * rows))
        carried = [(vectors.type, s) for s in sums]
        carried += [("ptr", p) for p in a_rows.bases(tiles.carried[0])] + [("ptr", "%B")]
        with f.loop(0, "%K", 1, carried, name="k") as k:
            a_bases, panel = k.carried[cells:-1], k.carried[-1]
            masked = vectors.cheap_masks
            b = [
                vectors.load(f, f.offset(panel, j * bytes_of_vector), tail if edge(j) and masked else None, True)
                for j in range(columns)
            ]
            after: list[Value] = []
            for r in range(rows):
                a = vectors.load_splat(f, a_rows.at(a_bases, r))
                after += [vectors.multiply_add(f, a, b[j], k.carried[r * columns + j]) for j in range(columns)]
            f.note(f"sums[{rows}][{columns} x {vectors.lanes}] += A[tile rows, k] * B[k, panel]")
            k.next = [*after, *(f.offset(p, "%a_k") for p in a_bases), f.offset(panel, "%b_row")]
        sums = list(k.out[:cells])
        if function:
            done = list(sums)
            sums = list(
                f.choose(
                    finish,
                    [vectors.type] * cells,
                    lambda: apply(f, vectors, function, done),
                    lambda: done,  # noqa: B023
                )
            )
            f.note(f"sums = {function}(sums)")

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
        tiles.next = [f.offset(tiles.carried[0], a_step), f.offset(tiles.carried[1], c_step)]
    return f

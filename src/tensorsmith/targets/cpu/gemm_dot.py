"""Not many rows times a transposed B (`x @ w.T`): both operands have unit stride along k, so vectors run along k.

    for columns in blocks that stay in the second-level cache:
        for rows in tiles:
            for columns in groups:
                for k in K step lanes:  sums[r][j] += A[r, k:] * B[k:, j]        nothing is packed
                C[rows, columns] = function(sum of the lanes of sums[r][j] + bias + C)

With one row this is a matrix-vector product at the speed of memory; with many rows packing B pays (`gemm_blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.kernels.epilogue import Body
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_blocks import DRIVER_ARGUMENTS, read_words
from tensorsmith.targets.cpu.gemm_epilogue import Extras, apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

# Most rows of one tile: with 16 registers, more rows would leave too few columns to use each loaded row again.
TILE_ROWS = {"avx512": 8, "avx2": 4, "generic": 4}
WORDS = (
    "K", "N", "big", "small",  # tiles of rows + 1 rows, then tiles of rows rows
    "units", "units_per_chunk", "column_parts", "part_columns", "column_block",
    "a_batch", "a_row", "b_batch", "b_column", "c_batch", "c_row", "accumulate",
)  # fmt: skip

# By number of rows: (columns of a group, vectors along k in one step), as many sums as stay in registers next to the
# operands.
_SHAPES = {
    32: {1: (8, 1), 2: (8, 1), 3: (6, 1), 4: (6, 1), 5: (4, 1), 6: (4, 1), 7: (3, 1), 8: (3, 1)},
    16: {1: (4, 2), 2: (4, 1), 3: (3, 1), 4: (3, 1)},
}


def _shape(rows: int, isa: str, lanes: int) -> tuple[int, int]:
    columns, unroll = _SHAPES[32 if isa == "avx512" else 16][rows]
    return min(columns, lanes), unroll  # the results of a row fit one vector


def group_columns(rows: int, isa: str, lanes: int) -> int:
    """How many columns are multiplied together by tiles of at most `rows` rows."""
    return _shape(rows, isa, lanes)[0]


class _Tile:
    """Emits the multiplication of some rows with a range of columns."""

    def __init__(
        self, f: Function, vectors: Vectors, rows: int, shape: tuple[int, int], w: dict[str, str], function: str | Body,
        prefetch: bool,
    ) -> None:  # fmt: skip
        self.f, self.vectors, self.rows, self.words = f, vectors, rows, w
        self.function, self.prefetch = function, prefetch
        self.group, self.unroll = shape
        self.a_rows, self.c_rows = Rows(f, rows, w["a_row"]), Rows(f, rows, w["c_row"])
        self.b_rows = Rows(f, self.group, w["b_column"])
        self.next_group = f.mul(w["b_column"], self.group)
        self.has_bias = f.compare("ne", "%bias", "null", "ptr")
        self.accumulate = f.compare("ne", w["accumulate"], 0)
        self.runs = f.round_down(w["K"], vectors.lanes * self.unroll)
        self.whole = f.round_down(w["K"], vectors.lanes)
        rest = f.sub(w["K"], self.whole)
        self.tail = vectors.mask(f, rest)
        self.ragged = f.compare("sgt", rest, 0)

    def span(self, low: Value, high: Value, a: str, b: str, c: str) -> None:
        """Columns low to high: a, b, c are A's and C's first rows and B's column 0."""
        f = self.f
        a_bases = self.a_rows.bases(a)
        groups = f.add(low, f.mul(f.value(f"udiv i64 {f.sub(high, low)}, {self.group}"), self.group))
        with f.loop(low, groups, self.group, name=f"j in groups of {self.group} columns") as column:
            self._columns(self.group, column.index, a_bases, b, c)
        if self.group > 1:
            with f.loop(groups, high, 1, name="j in columns left over") as column:
                self._columns(1, column.index, a_bases, b, c)

    def _columns(self, count: int, column: Value, a: list[str], b0: str, c0: str) -> None:
        f, vectors, size = self.f, self.vectors, self.vectors.storage_size
        b = self.b_rows.bases(f.offset(b0, f.mul(column, self.words["b_column"])))[: -(-count // Rows.GROUP)]
        cells = self.rows * count
        pointers: list[Value] = [*a, *b]
        out = self._run(count, 0, self.runs, self.unroll, [vectors.zero] * (cells * self.unroll), pointers, len(a))
        sums, pointers = out[: cells * self.unroll], out[cells * self.unroll :]
        while len(sums) > cells:  # pairwise
            half = len(sums) // (2 * cells) * cells
            joined: list[Value] = [vectors.plus(f, x, y) for x, y in zip(sums[:half], sums[half:])]
            sums = joined + sums[2 * half :]
        if self.unroll > 1:
            out = self._run(count, self.runs, self.whole, 1, sums, pointers, len(a))
            sums, pointers = out[:cells], out[cells:]
        ends = [str(p) for p in pointers]
        done = list(sums)
        kinds = [vectors.type] * cells
        sums = list(
            f.choose(
                self.ragged,
                kinds,
                lambda: self._step(count, ends[: len(a)], ends[len(a) :], done, self.tail),
                lambda: done,
            )
        )
        along = f.mul(column, size)
        self._finish(count, sums, f.offset(c0, along), f.offset("%bias", along), along)

    def _run(
        self, count: int, low: Value, high: Value, each: int, sums: list[Value], pointers: list[Value], split: int
    ) -> list[Value]:
        """Sums and pointers after k from low to high: one set of sums per vector of a step."""
        f, lanes, cells = self.f, self.vectors.lanes, self.rows * count
        carried = [(self.vectors.type, s) for s in sums] + [("ptr", p) for p in pointers]
        with f.loop(low, high, lanes * each, carried, name=f"k in vectors of K, step {each}") as k:
            at = k.carried[cells * each :]
            after: list[Value] = []
            for u in range(each):
                after += self._step(count, at[:split], at[split:], k.carried[u * cells : (u + 1) * cells], None, u)
            f.note(f"sums[{self.rows}][{count}] += A[rows, k..] * B[k.., columns]    {each} x {lanes} of k")
            k.next = [*after, *(f.offset(p, each * lanes * self.vectors.storage_size) for p in at)]
        return k.out

    def _step(
        self, count: int, a: Sequence[str], b: Sequence[str], sums: Sequence[Value], mask: Mask | None, u: int = 0
    ) -> list[Value]:
        """The sums after one more vector along k, `u` vectors after the pointers."""
        f, vectors = self.f, self.vectors
        along = u * vectors.lanes * vectors.storage_size
        if self.prefetch and mask is None:
            # The next group of columns, towards the second-level cache: no hardware prefetch crosses to it.
            for j in range(count):
                vectors.prefetch(f, f.offset(self.b_rows.at(list(b), j, along), self.next_group), near=False)
        left = [vectors.load(f, self.a_rows.at(list(a), r, along), mask) for r in range(self.rows)]
        right = [vectors.load(f, self.b_rows.at(list(b), j, along), mask) for j in range(count)]
        return [
            vectors.multiply_add(f, left[r], right[j], sums[r * count + j])
            for r in range(self.rows)
            for j in range(count)
        ]

    def _finish(self, count: int, sums: list[Value], c: str, bias: str, along: Value) -> None:
        """Add up the lanes, apply the epilogue and store `count` results of every row."""
        f, vectors, lanes = self.f, self.vectors, self.vectors.lanes
        reduced = vectors.sum_lanes(f, sums)
        some = vectors.mask(f, count)
        extras = Extras(f, vectors, self.function, along) if isinstance(self.function, Body) else None
        c_bases = self.c_rows.bases(c)
        kinds = [vectors.type]
        start = f.choose(self.has_bias, kinds, lambda: [vectors.load(f, bias, some)], lambda: [vectors.zero])[0]
        for r in range(self.rows):
            first, last = r * count // lanes, (r * count + count - 1) // lanes
            order = [r * count + j - first * lanes for j in range(count)] + [0] * (lanes - count)
            row = vectors.plus(f, vectors.shuffle(f, reduced[first], reduced[last], order), start)
            address = self.c_rows.at(c_bases, r)

            def added(row: str = row, address: str = address) -> list[Value]:
                return [vectors.plus(f, row, vectors.load(f, address, some))]

            def alone(row: str = row) -> list[Value]:
                return [row]

            row = f.choose(self.accumulate, kinds, added, alone)[0]
            done = apply(f, vectors, self.function, [row]) if extras is None else extras.apply([(row, address, 0, some)])
            vectors.store(f, done[0], address, some)
        f.note("C[rows, columns] = sums over the lanes")


def dot_function(vectors: Vectors, rows: int, more: bool, function: str | Body = "", prefetch: bool = False) -> Function:
    """The whole multiplication, called `dot`: tiles of `rows` rows and, with `more`, of rows + 1; words are WORDS.

    prefetch: for a B that does not fit the caches (it costs some time where B does fit).
    """
    f = Function("dot", DRIVER_ARGUMENTS, attributes="noinline")
    w = read_words(f, WORDS)
    shape = _shape(rows + more, vectors.isa, vectors.lanes)
    tiles = [("big", rows + 1), ("small", rows)] if more else [("small", rows)]
    emitters = [(count, _Tile(f, vectors, height, shape, w, function, prefetch)) for count, height in tiles]
    unit0 = f.mul("%chunk", w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (batch, column part)") as unit:
        batch = f.value(f"udiv i64 {unit.index}, {w['column_parts']}")
        part = f.sub(unit.index, f.mul(batch, w["column_parts"]))
        column0 = f.mul(part, w["part_columns"])
        column1 = f.minimum(f.add(column0, w["part_columns"]), w["N"])
        a0 = f.offset("%A", f.mul(batch, w["a_batch"]))
        b0 = f.offset("%B", f.mul(batch, w["b_batch"]))
        c0 = f.offset("%C", f.mul(batch, w["c_batch"]))
        with f.loop(
            column0, column1, w["column_block"], name="block in columns of the part, step column_block"
        ) as block:
            end = f.minimum(f.add(block.index, w["column_block"]), column1)
            a, c = a0, c0
            for count, tile in emitters:
                with f.loop(0, w[count], 1, [("ptr", a), ("ptr", c)], name=f"i in tiles of {tile.rows} rows") as t:
                    tile.span(block.index, end, t.carried[0], b0, t.carried[1])
                    t.next = [
                        f.offset(t.carried[0], f.mul(w["a_row"], tile.rows)),
                        f.offset(t.carried[1], f.mul(w["c_row"], tile.rows)),
                    ]
                a, c = str(t.out[0]), str(t.out[1])
    return f

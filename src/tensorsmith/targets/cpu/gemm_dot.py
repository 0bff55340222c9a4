"""Few rows times a transposed B (`x @ w.T`): both operands have unit stride along k, so vectors run along k.

    for columns in groups:
        for k in K step lanes:  sums[r][j] += A[r, k:] * B[k:, j]        no packing; B is read exactly once
        C[r, columns] = function(sum of the lanes of sums[r][j] + bias + C)

With one row this is a matrix-vector product at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_blocks import DRIVER_ARGUMENTS, read_words
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

MAX_ROWS = 8
WORDS = (
    "K", "N", "units", "units_per_chunk", "column_parts", "part_columns",
    "a_batch", "a_row", "b_batch", "b_column", "c_batch", "c_row", "accumulate",
)  # fmt: skip

# By number of rows: (columns of a group, vectors along k in one step), as many sums as stay in registers next to the
# operands. Few columns at a time where memory sets the pace: long runs along one row of B suit the hardware's prefetch.
_SHAPES = {
    32: {1: (8, 1), 2: (8, 1), 3: (6, 1), 4: (6, 1), 5: (4, 1), 6: (4, 1), 7: (3, 1), 8: (3, 1)},
    16: {1: (4, 2), 2: (4, 1), 3: (3, 1), 4: (3, 1), 5: (2, 1), 6: (2, 1), 7: (1, 1), 8: (1, 1)},
}


def group_columns(rows: int, isa: str, lanes: int) -> int:
    """How many columns are multiplied together for a number of rows; the results of a row fit one vector."""
    return min(lanes, _SHAPES[32 if isa == "avx512" else 16][rows][0])


def dot_function(vectors: Vectors, rows: int, function: str = "", prefetch: bool = False) -> Function:
    """The whole multiplication for `rows` (1 to 8) rows, called `dot`; words are WORDS, strides in bytes.

    prefetch: for a B that does not fit the caches (it costs some time where B does fit).
    """
    f = Function("dot", DRIVER_ARGUMENTS, attributes="noinline")
    w = read_words(f, WORDS)
    group = group_columns(rows, vectors.isa, vectors.lanes)
    unroll = _SHAPES[32 if vectors.isa == "avx512" else 16][rows][1]
    stored, lanes = vectors.storage_size, vectors.lanes
    a_rows, c_rows = Rows(f, rows, w["a_row"]), Rows(f, rows, w["c_row"])
    b_rows = Rows(f, group, w["b_column"])
    next_group = f.mul(w["b_column"], group)
    runs = f.round_down(w["K"], lanes * unroll)
    whole = f.round_down(w["K"], lanes)
    rest = f.sub(w["K"], whole)
    tail = vectors.mask(f, rest)
    ragged = f.compare("sgt", rest, 0)
    accumulate = f.compare("ne", w["accumulate"], 0)
    has_bias = f.compare("ne", "%bias", "null", "ptr")

    def columns_at(count: int, a: Sequence[str], b0: str, c0: str, bias: str) -> None:
        """`count` columns starting at b0."""
        b = b_rows.bases(b0)[: -(-count // Rows.GROUP)]
        cells = rows * count

        def step(
            a: Sequence[str], b: Sequence[str], sums: Sequence[Value], mask: Mask | None, u: int = 0
        ) -> list[Value]:
            """One vector along k: `u` vectors after the pointers."""
            along = u * lanes * stored
            if prefetch and mask is None:
                # The next group of columns, towards the second-level cache: no hardware prefetch crosses to it.
                for j in range(count):
                    vectors.prefetch(f, f.offset(b_rows.at(list(b), j, along), next_group), near=False)
            left = [vectors.load(f, a_rows.at(list(a), r, along), mask) for r in range(rows)]
            right = [vectors.load(f, b_rows.at(list(b), j, along), mask) for j in range(count)]
            return [
                vectors.multiply_add(f, left[r], right[j], sums[r * count + j])
                for r in range(rows)
                for j in range(count)
            ]

        def run(low: Value, high: Value, vectors_each: int, sums: list[Value], pointers: list[Value]) -> list[Value]:
            """Sums after k from low to high: one set of sums per vector of a step."""
            cells_all = cells * vectors_each
            carried = [(vectors.type, s) for s in sums] + [("ptr", p) for p in pointers]
            with f.loop(low, high, lanes * vectors_each, carried, name="k") as k:
                at = k.carried[cells_all:]
                after: list[Value] = []
                for u in range(vectors_each):
                    after += step(at[: len(a)], at[len(a) :], k.carried[u * cells : (u + 1) * cells], None, u)
                f.note(f"sums[{rows}][{count}] += A[rows, k..] * B[k.., columns] ({vectors_each} x {lanes} of k)")
                k.next = [*after, *(f.offset(p, vectors_each * lanes * stored) for p in at)]
            return k.out

        pointers: list[Value] = [*a, *b]
        out = run(0, runs, unroll, [vectors.zero] * (cells * unroll), pointers)
        sums, pointers = out[: cells * unroll], out[cells * unroll :]
        while len(sums) > cells:  # pairwise
            half = len(sums) // (2 * cells) * cells
            sums = [vectors.plus(f, x, y) for x, y in zip(sums[:half], sums[half:])] + sums[2 * half :]
        out = run(runs, whole, 1, sums, pointers) if unroll > 1 else [*sums, *pointers]
        ends, done = [str(p) for p in out[cells:]], list(out[:cells])
        kinds = [vectors.type] * cells
        done = list(
            f.choose(ragged, kinds, lambda: step(ends[: len(a)], ends[len(a) :], done, tail), lambda: done)
        )
        reduced = vectors.sum_lanes(f, done)
        some = vectors.mask(f, count)
        c_bases = c_rows.bases(c0)
        start = f.choose(has_bias, [vectors.type], lambda: [vectors.load(f, bias, some)], lambda: [vectors.zero])[0]
        for r in range(rows):
            first, last = r * count // lanes, (r * count + count - 1) // lanes
            order = [r * count + j - first * lanes for j in range(count)] + [0] * (lanes - count)
            row = vectors.shuffle(f, reduced[first], reduced[last], order)
            address = c_rows.at(c_bases, r)
            row = vectors.plus(f, row, start)

            def added(row: str = row, address: str = address) -> list[Value]:
                return [vectors.plus(f, row, vectors.load(f, address, some))]

            row = f.choose(accumulate, [vectors.type], added, lambda row=row: [row])[0]  # type: ignore[misc]
            vectors.store(f, apply(f, vectors, function, [row])[0], address, some)
        f.note("C[rows, columns] = sums over the lanes")

    unit0 = f.mul("%chunk", w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit (batch, column part)") as unit:
        batch = f.value(f"udiv i64 {unit.index}, {w['column_parts']}")
        part = f.sub(unit.index, f.mul(batch, w["column_parts"]))
        column0 = f.mul(part, w["part_columns"])
        column1 = f.minimum(f.add(column0, w["part_columns"]), w["N"])
        a0 = f.offset("%A", f.mul(batch, w["a_batch"]))
        b0 = f.offset("%B", f.mul(batch, w["b_batch"]))
        c0 = f.offset("%C", f.mul(batch, w["c_batch"]))
        groups = f.add(column0, f.mul(f.value(f"udiv i64 {f.sub(column1, column0)}, {group}"), group))
        a = a_rows.bases(a0)

        def at(column: Value, b0: str = b0, c0: str = c0) -> tuple[str, str, str]:
            along = f.mul(column, stored)
            return f.offset(b0, f.mul(column, w["b_column"])), f.offset(c0, along), f.offset("%bias", along)

        with f.loop(column0, groups, group, name="columns") as column:
            columns_at(group, a, *at(column.index))
        if group > 1:
            with f.loop(groups, column1, 1, name="column") as column:
                columns_at(1, a, *at(column.index))
    return f

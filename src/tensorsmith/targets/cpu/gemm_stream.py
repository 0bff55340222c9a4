"""Few rows times a large row-major B: B is read once, in the order it lies in memory, and C stays in the cache.

C = bias (or 0, or C)
for k in K step depth:
    for columns in vectors:  C[r, columns] += sum over the block of A[r, k] * B[k, columns]     (rounds less than one sum)
C = function(C)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.kernels.epilogue import Body
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_blocks import DRIVER_ARGUMENTS, read_words
from tensorsmith.targets.cpu.gemm_epilogue import Extras, apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

MAX_ROWS = {"avx512": 16, "avx2": 8, "generic": 8}  # sums of one vector of every row stay in registers
WORDS = (
    "K", "N", "units", "units_per_chunk", "column_parts", "part_columns",
    "a_batch", "a_row", "a_k", "b_batch", "b_k", "c_batch", "c_row", "accumulate",
)  # fmt: skip

# Rows of C -> (rows of B taken at a time, vectors of columns at a time), measured.
_SHAPES = {1: (8, 2), 2: (8, 2), 3: (8, 1), 4: (8, 1), 5: (16, 1), 6: (16, 1), 7: (16, 1), 8: (16, 1),
           **{rows: (16, 1) for rows in range(9, 17)}}  # fmt: skip


def stream_function(vectors: Vectors, rows: int, function: str | Body = "", prefetch: bool = False) -> Function:
    """The whole multiplication for `rows` (1 to 16) rows, called `stream`; words are WORDS, strides in bytes.

    prefetch: ask for the next block of B ahead of time, for a B that does not fit the caches.
    """
    depth, unroll = _SHAPES[rows]
    f = Function("stream", DRIVER_ARGUMENTS, attributes="noinline")
    w = read_words(f, WORDS)
    size, lanes = vectors.compute_size, vectors.lanes
    vector = lanes * size
    block = f.value(f"alloca [{rows * depth} x {vectors.scalar}], align 64")  # A's block, at constant offsets
    b_rows, c_rows = Rows(f, depth, w["b_k"]), Rows(f, rows, w["c_row"])
    a_rows = Rows(f, rows, w["a_row"])
    unit0 = f.mul("%chunk", w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    next_block = f.mul(w["b_k"], depth)
    accumulate = f.compare("ne", w["accumulate"], 0)
    has_bias = f.compare("ne", "%bias", "null", "ptr")
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (batch, column part)") as unit:
        batch = f.value(f"udiv i64 {unit.index}, {w['column_parts']}")
        part = f.sub(unit.index, f.mul(batch, w["column_parts"]))
        column0 = f.mul(part, w["part_columns"])
        columns = f.sub(f.minimum(f.add(column0, w["part_columns"]), w["N"]), column0)
        along = f.mul(column0, size)
        a0 = f.offset("%A", f.mul(batch, w["a_batch"]))
        b0 = f.offset(f.offset("%B", f.mul(batch, w["b_batch"])), along)
        c0 = f.offset(f.offset("%C", f.mul(batch, w["c_batch"])), along)
        bias0 = f.offset("%bias", along)
        whole = f.round_down(columns, lanes)
        tail = vectors.mask(f, f.sub(columns, whole))
        ragged = f.compare("slt", whole, columns)

        def rows_of_c(
            body: Callable[[Value, str, Mask | None], None], c0: str = c0, whole: Value = whole,
            tail: Mask = tail, ragged: str = ragged,
        ) -> None:  # fmt: skip
            """body(column, address in C, mask) for every vector of every row."""
            with f.loop(0, rows, 1, [("ptr", c0)], name="i in rows of C") as row:
                pointer = row.carried[0]
                with f.loop(0, whole, lanes, name="j in vectors of the row") as column:
                    body(column.index, f.offset(pointer, f.mul(column.index, size)), None)
                with f.if_(ragged):
                    body(whole, f.offset(pointer, f.mul(whole, size)), tail)
                row.next = [f.offset(pointer, w["c_row"])]

        def begin(column: Value, address: str, mask: Mask | None, bias0: str = bias0) -> None:
            bias = f.choose(
                has_bias,
                [vectors.type],
                lambda: [vectors.load(f, f.offset(bias0, f.mul(column, size)), mask)],
                lambda: [vectors.zero],
            )[0]
            old = f.choose(
                accumulate, [vectors.type], lambda: [vectors.load(f, address, mask)], lambda: [vectors.zero]
            )[0]
            vectors.store(f, vectors.plus(f, bias, old), address, mask)

        with f.nested("C = bias or 0"):
            rows_of_c(begin)

        def step(
            k: Value, count: int, a0: str = a0, b0: str = b0, c0: str = c0, columns: Value = columns,
            whole: Value = whole, tail: Mask = tail, ragged: str = ragged,
        ) -> None:  # fmt: skip
            """`count` rows of B from k on."""
            a_bases = a_rows.bases(f.offset(a0, f.mul(k, w["a_k"])))
            for r in range(rows):
                address = a_rows.at(a_bases, r)
                for kk in range(count):
                    value = f.load(vectors.scalar, f.offset(address, f.mul(w["a_k"], kk)), size)
                    f.store(value, vectors.scalar, f.offset(block, size * (r * depth + kk)), size)
            b_bases = b_rows.bases(f.offset(b0, f.mul(k, w["b_k"])))[: -(-count // Rows.GROUP)]

            # A's block stays in registers where it fits beside the sums.
            kept = rows * count <= vectors.registers // 2
            splats = [
                vectors.load_splat(f, f.offset(block, size * (r * depth + kk))) if kept else ""
                for r in range(rows)
                for kk in range(count)
            ]

            def sums(b: list[str], c: list[str], number: int, mask: Mask | None) -> None:
                total: list[list[Value]] = [[vectors.zero] * number for _ in range(rows)]
                for kk in range(count):
                    for u in range(number):
                        if mask is None and prefetch and vector * u % 64 == 0:
                            vectors.prefetch(f, f.offset(b_rows.at(b, kk, vector * u), next_block), near=False)
                    row = [vectors.load(f, b_rows.at(b, kk, vector * u), mask) for u in range(number)]
                    for r in range(rows):
                        a = splats[r * count + kk] or vectors.load_splat(f, f.offset(block, size * (r * depth + kk)))
                        total[r] = [vectors.multiply_add(f, a, row[u], total[r][u]) for u in range(number)]
                for r in range(rows):
                    for u in range(number):
                        address = c_rows.at(c, r, vector * u)
                        vectors.store(f, vectors.plus(f, vectors.load(f, address, mask), total[r][u]), address, mask)

            def span(low: Value, high: Value, number: int, pointers: list[str]) -> list[str]:
                carried = [("ptr", p) for p in pointers]
                with f.loop(
                    low, high, number * lanes, carried, name=f"j in columns of the part, step {number} x {lanes}"
                ) as column:
                    sums(column.carried[: len(b_bases)], column.carried[len(b_bases) :], number, None)
                    f.note(f"C[rows, columns] += A[rows, k:k + {count}] @ B[k:k + {count}, columns]")
                    column.next = [f.offset(p, number * vector) for p in column.carried]
                return [str(p) for p in column.out]

            wide = f.round_down(columns, unroll * lanes)
            pointers = span(0, wide, unroll, [*b_bases, *c_rows.bases(c0)])
            if unroll > 1:
                pointers = span(wide, whole, 1, pointers)
            with f.if_(ragged):
                sums(pointers[: len(b_bases)], pointers[len(b_bases) :], 1, tail)

        blocks = f.round_down(w["K"], depth)
        with f.loop(0, blocks, depth, name=f"k in blocks of {depth} rows of B") as k:
            step(k.index, depth)
        with f.loop(blocks, w["K"], 1, name="k in rows of B left over") as k:
            step(k.index, 1)
        if function:

            def end(column: Value, address: str, mask: Mask | None) -> None:
                value = vectors.load(f, address, mask)
                if extras is None:
                    done: Sequence[Value] = apply(f, vectors, function, [value])
                else:
                    done = extras.apply([(value, address, f.mul(column, size), mask)])
                vectors.store(f, done[0], address, mask)

            extras = Extras(f, vectors, function, along) if isinstance(function, Body) else None
            with f.nested(f"C = {function if extras is None else 'body'}(C)"):
                rows_of_c(end)
    return f

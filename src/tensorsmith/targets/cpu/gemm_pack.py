"""Copies that put operands where the register tile reads them well, converting half types to float32 on the way.

* `copy_block`: rows of A (or of a transposed A) to a row stride that does not alias in the cache;
* `pack_rows`: some rows of a panel of B's columns, to rows exactly one panel wide;
* `pack_transposed`: the same from a transposed B (unit stride along k), by transposes in registers.
"""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_tile import PANEL_VECTORS
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

COPY = "copy_block"
PACK_ROWS = "pack_rows"
PACK_TRANSPOSED = "pack_transposed"


def copy_block(vectors: Vectors) -> Function:
    """rows x columns elements (unit column stride) from row stride `source_row` to row stride `target_row` (bytes)."""
    f = Function(
        COPY,
        [("ptr", "source"), ("ptr", "target"), ("i64", "rows"), ("i64", "columns"), ("i64", "source_row"),
         ("i64", "target_row")],
        attributes="noinline",
    )  # fmt: skip
    whole = f.round_down("%columns", vectors.lanes)
    rest = f.sub("%columns", whole)
    tail = vectors.mask(f, rest)
    ragged = f.compare("sgt", rest, 0)
    with f.loop(0, "%rows", 1, [("ptr", "%source"), ("ptr", "%target")], name="row") as row:
        source, target = row.carried

        def move(column: Value, mask: Mask | None, source: str = source, target: str = target) -> None:
            value = vectors.load(f, f.offset(source, f.mul(column, vectors.storage_size)), mask)
            vectors.store(f, value, f.offset(target, f.mul(column, vectors.compute_size)), mask, compute=True)

        with f.loop(0, whole, vectors.lanes, name="column in vectors of the row") as column:
            move(column.index, None)
        with f.if_(ragged):
            move(whole, tail)
        row.next = [f.offset(source, "%source_row"), f.offset(target, "%target_row")]
    return f


def pack_rows(vectors: Vectors) -> Function:
    """K rows (byte stride b_row) of `width` columns to rows of one panel; columns past the width become zero."""
    f = Function(
        PACK_ROWS,
        [("ptr", "B"), ("ptr", "out"), ("i64", "K"), ("i64", "b_row"), ("i64", "width")],
        attributes="noinline",
    )
    lanes, size = vectors.lanes, vectors.compute_size
    masks = [vectors.mask(f, f.sub("%width", j * lanes)) for j in range(PANEL_VECTORS)]
    unroll = 4
    rows = [0, "%b_row", *(f.mul("%b_row", k) for k in range(2, unroll + 1))]

    def copy(count: int, source: str, target: str, masked: bool) -> None:
        for k in range(count):
            for j in range(PANEL_VECTORS):
                address = f.offset(f.offset(source, rows[k]), j * lanes * vectors.storage_size)
                value = vectors.load(f, address, masks[j] if masked else None)
                place = f.offset(target, (k * PANEL_VECTORS + j) * lanes * size)
                vectors.store(f, value, place, compute=True)

    def whole(masked: bool) -> None:
        even = f.round_down("%K", unroll)
        with f.loop(0, even, unroll, [("ptr", "%B"), ("ptr", "%out")]) as k:
            copy(unroll, k.carried[0], k.carried[1], masked)
            k.next = [
                f.offset(k.carried[0], rows[unroll]),
                f.offset(k.carried[1], unroll * PANEL_VECTORS * lanes * size),
            ]
        with f.loop(even, "%K", 1, [("ptr", k.out[0]), ("ptr", k.out[1])]) as k:
            copy(1, k.carried[0], k.carried[1], masked)
            k.next = [f.offset(k.carried[0], rows[1]), f.offset(k.carried[1], PANEL_VECTORS * lanes * size)]

    full = f.compare("sge", "%width", PANEL_VECTORS * lanes)
    f.branch(full, lambda: whole(False), lambda: whole(True))
    return f


def pack_transposed(vectors: Vectors) -> Function:
    """K x `width` elements with unit stride along k and byte stride `b_column` between columns, to rows of one panel.

    Writes a whole number of vectors of k, so `out` must have room for K rounded up to the lane count. What lands past
    the width repeats the last column.
    """
    f = Function(
        PACK_TRANSPOSED,
        [("ptr", "B"), ("ptr", "out"), ("i64", "K"), ("i64", "b_column"), ("i64", "width")],
        attributes="noinline",
    )
    lanes, size = vectors.lanes, vectors.compute_size
    table = f.value(f"alloca [{lanes} x ptr], align 64")
    whole = f.round_down("%K", lanes)
    rest = f.sub("%K", whole)
    tail = vectors.mask(f, rest)
    ragged = f.compare("sgt", rest, 0)
    last = f.sub("%width", 1)
    row_bytes = PANEL_VECTORS * lanes * size
    with f.loop(0, "%width", lanes, name="j in groups of columns") as group:
        # One pointer per column; past the width the last column again, so that nothing else is read.
        for r in range(lanes):
            column = f.minimum(f.add(group.index, r), last)
            f.store(f.offset("%B", f.mul(column, "%b_column")), "ptr", f.offset(table, 8 * r), 8)
        target = f.offset("%out", f.mul(group.index, size))

        def square(k: Value, mask: Mask | None, target: str = target) -> None:
            source = f.mul(k, vectors.storage_size)
            rows = []
            for r in range(lanes):
                column = f.load("ptr", f.offset(table, 8 * r), 8)
                rows.append(vectors.load(f, f.offset(column, source), mask))
            start = f.offset(target, f.mul(k, row_bytes))
            for r, value in enumerate(vectors.transpose(f, rows)):
                vectors.store(f, value, f.offset(start, r * row_bytes), compute=True)

        with f.loop(0, whole, lanes, name="k in vectors of K") as k:
            square(k.index, None)
            f.note("panel[k.., columns] = transpose(B[k.., columns])")
        with f.if_(ragged):
            square(whole, tail)
    return f

"""Copies that put operands where the register tile reads them well, half types as float32 or in pairs (`gemm_pairs`).

* `pack_left`: rows of A, a register tile at a time: all rows of the tile for one k, then for the next;
* `pack_rows`: some rows of B, to panels: rows exactly one panel wide;
* `pack_transposed`: the same from a transposed B (unit stride along k), by transposes in registers.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.gemm_tile import PANEL_VECTORS, Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

PACK_LEFT = "pack_left"
PACK_ROWS = "pack_rows"
PACK_TRANSPOSED = "pack_transposed"
PACK_LEFT_ARGUMENTS = (
    ("ptr", "A"), ("ptr", "out"), ("i64", "big"), ("i64", "small"), ("i64", "base"), ("i64", "K"), ("i64", "a_row"),
    ("i64", "a_k"),
)  # fmt: skip


_LINES = 8  # steps of k that a transposed A is read by: their cache lines serve all tiles
_ROWS = 8  # rows of B read together across the panels (measured)


def left_bytes(lanes: int, size: int, most_rows: int, rows: int, depth: int) -> int:
    """Bytes that `pack_left` writes at most, for `rows` rows of `depth` elements of `size` bytes."""
    spill = _groups(lanes, most_rows) * lanes
    return (rows * (depth + lanes) + spill) * size


def _groups(lanes: int, rows: int) -> int:
    return -(-rows // lanes)


def pack_left(vectors: Vectors, most_rows: int, transposed: bool) -> Function:
    """Rows of A, as `big` tiles of base + 1 rows and `small` tiles of base: element (r, k) of a tile at k * rows + r.

    a_row, a_k: byte strides; the unit stride is along k, or with `transposed` along the rows. Stores are whole vectors in
    the order of the addresses, so that each overwrites what the one before wrote too much; K + lanes rows of a tile lie
    between its start and the next tile's.
    """
    f = Function(PACK_LEFT, PACK_LEFT_ARGUMENTS, attributes="noinline")
    lanes, size = vectors.lanes, vectors.compute_size
    groups = _groups(lanes, most_rows)
    table = None if transposed else f.value(f"alloca [{groups * lanes} x ptr], align 64")
    whole = f.round_down("%K", lanes)
    rest = f.sub("%K", whole)
    tail, ragged = vectors.mask(f, rest), f.compare("sgt", rest, 0)
    total = f.add(f.mul("%big", f.add("%base", 1)), f.mul("%small", "%base"))
    room = f.mul(f.add("%K", lanes), size)
    carried: list[tuple[str, Value]] = [("ptr", "%A"), ("ptr", "%out"), ("i64", 0)]

    def tiles(body: Callable[[str, str, Value, Value], None]) -> None:
        """body(first row, place, rows, rows of the block before) for every tile."""
        with f.loop(0, f.add("%big", "%small"), 1, carried, name="tile") as tile:
            source, target, before = tile.carried
            rows = f.add("%base", f.select(f.compare("slt", tile.index, "%big"), "i64", 1, 0))
            body(source, target, rows, before)
            tile.next = [
                f.offset(source, f.mul(rows, "%a_row")), f.offset(target, f.mul(rows, room)), f.add(before, rows),
            ]  # fmt: skip

    if table is None:
        with f.loop(0, "%K", _LINES, name=f"k in blocks of {_LINES}") as block:
            end = f.minimum(f.add(block.index, _LINES), "%K")

            def lines(source: str, target: str, rows: Value, before: Value, low: Value = block.index) -> None:
                step = f.mul(rows, size)
                masks = [vectors.mask(f, f.sub(rows, g * lanes)) for g in range(groups)]
                start = [("ptr", f.offset(source, f.mul(low, "%a_k"))), ("ptr", f.offset(target, f.mul(low, step)))]

                def copy(masked: bool) -> None:
                    with f.loop(low, end, 1, start, name="k") as k:
                        for g in range(groups):
                            address = f.offset(k.carried[0], g * lanes * vectors.storage_size)
                            value = vectors.load(f, address, masks[g] if masked else None)
                            vectors.store(f, value, f.offset(k.carried[1], g * lanes * size), compute=True)
                        k.next = [f.offset(k.carried[0], "%a_k"), f.offset(k.carried[1], step)]

                # Whole vectors are read where they end inside the rows of the block.
                inside = f.compare("sge", f.sub(total, before), groups * lanes)
                f.branch(inside, lambda: copy(False), lambda: copy(True))

            tiles(lines)
        return f

    def transposes(source: str, target: str, rows: Value, before: Value) -> None:
        step, last = f.mul(rows, size), f.sub(rows, 1)
        for r in range(groups * lanes):  # past the rows the last one again, so that nothing else is read
            f.store(f.offset(source, f.mul(f.minimum(r, last), "%a_row")), "ptr", f.offset(table, 8 * r), 8)

        def squares(k: Value, mask: Mask | None) -> None:
            along = f.mul(k, vectors.storage_size)
            columns = []
            for g in range(groups):
                pointers = [f.load("ptr", f.offset(table, 8 * (g * lanes + r)), 8) for r in range(lanes)]
                columns.append(vectors.transpose(f, [vectors.load(f, f.offset(row, along), mask) for row in pointers]))
            place = f.offset(target, f.mul(k, step))
            for kk in range(lanes):
                for g in range(groups):
                    vectors.store(f, columns[g][kk], f.offset(place, g * lanes * size), compute=True)
                place = f.offset(place, step)

        with f.loop(0, whole, lanes, name="k in vectors of K") as k:
            squares(k.index, None)
            f.note("packed[k.., rows] = transpose(A[rows, k..])")
        with f.if_(ragged):
            squares(whole, tail)

    tiles(transposes)
    return f


def pack_rows(vectors: Vectors) -> Function:
    """K rows (byte stride b_row) of `columns` columns to panels `slot` bytes apart; past the columns a panel is zero.

    Some rows at a time are read across all panels: what lies side by side in memory is read together.
    """
    f = Function(
        PACK_ROWS,
        [("ptr", "B"), ("ptr", "out"), ("i64", "K"), ("i64", "b_row"), ("i64", "columns"), ("i64", "slot")],
        attributes="noinline",
    )
    lanes, size = vectors.lanes, vectors.compute_size
    panel, row = PANEL_VECTORS * lanes, PANEL_VECTORS * lanes * size
    whole = f.round_down("%columns", panel)
    width = f.sub("%columns", whole)
    masks = [vectors.mask(f, f.sub(width, j * lanes)) for j in range(PANEL_VECTORS)]
    ragged = f.compare("sgt", width, 0)
    rows, depth = Rows(f, _ROWS, "%b_row"), vectors.depth

    def strip(low: Value, high: Value, count: int, source: str, target: str) -> tuple[str, str]:
        """`count` rows at a time from low to high; the places after them."""
        with f.loop(low, high, count, [("ptr", source), ("ptr", target)], name=f"k in blocks of {count}") as k:

            def copy(source: str, target: str, masked: bool) -> None:
                bases = rows.bases(source)[: -(-count // Rows.GROUP)]
                for step, r in enumerate(range(0, count, depth)):
                    for j in range(PANEL_VECTORS):
                        along = j * lanes * vectors.storage_size
                        places = [rows.at(bases, k, along) for k in range(r, min(r + depth, count))]
                        value = vectors.load_across(f, places, [masks[j] if masked else None] * depth)
                        vectors.store(f, value, f.offset(target, step * row + j * lanes * size), compute=True)

            with f.loop(0, whole, panel, [("ptr", place) for place in k.carried], name="p in panels") as p:
                copy(p.carried[0], p.carried[1], False)
                f.note("panel[k.., columns] = B[k.., columns]")
                p.next = [f.offset(p.carried[0], panel * vectors.storage_size), f.offset(p.carried[1], "%slot")]
            with f.if_(ragged):
                copy(str(p.out[0]), str(p.out[1]), True)
            k.next = [f.offset(k.carried[0], f.mul("%b_row", count)), f.offset(k.carried[1], -(-count // depth) * row)]
        return str(k.out[0]), str(k.out[1])

    even = f.round_down("%K", _ROWS)
    source, target = strip(0, even, _ROWS, "%B", "%out")
    if depth > 1:
        low, even = even, f.round_down("%K", depth)
        source, target = strip(low, even, depth, source, target)
    source, target = strip(even, "%K", 1, source, target)
    if depth > 1:  # whole vectors of k
        steps = vectors.steps(f, "%K")
        missing = f.value(f"and i64 {f.sub(0, steps)}, {lanes - 1}")
        with f.loop(0, "%columns", panel, [("ptr", target)], name="p in panels") as p:
            with f.loop(0, missing, 1, [("ptr", p.carried[0])], name="k past K") as k:
                for j in range(PANEL_VECTORS):
                    vectors.store(f, vectors.zero, f.offset(k.carried[0], j * lanes * size), compute=True)
                k.next = [f.offset(k.carried[0], row)]
            p.next = [f.offset(p.carried[0], "%slot")]
    return f


def pack_transposed(vectors: Vectors) -> Function:
    """The same from `columns` x K elements with unit stride along k and byte stride `b_column` between columns.

    Writes a whole number of vectors of k, so a slot must have room for K rounded up to the lane count. What lands past
    the columns repeats the last one.
    """
    f = Function(
        PACK_TRANSPOSED,
        [("ptr", "B"), ("ptr", "out"), ("i64", "K"), ("i64", "b_column"), ("i64", "columns"), ("i64", "slot")],
        attributes="noinline",
    )
    lanes, size = vectors.lanes, vectors.compute_size
    table = f.value(f"alloca [{lanes} x ptr], align 64")
    deep = lanes * vectors.depth
    whole = f.round_down("%K", deep)
    rest = f.sub("%K", whole)
    tail = vectors.along_mask(f, rest)
    ragged = f.compare("sgt", rest, 0)
    last = f.sub("%columns", 1)
    row_bytes = PANEL_VECTORS * lanes * size
    with f.loop(0, "%columns", lanes, name="j in groups of columns") as group:
        # One pointer per column; past the columns the last one again, so that nothing else is read.
        for r in range(lanes):
            column = f.minimum(f.add(group.index, r), last)
            f.store(f.offset("%B", f.mul(column, "%b_column")), "ptr", f.offset(table, 8 * r), 8)
        panel = f.udiv(group.index, PANEL_VECTORS * lanes)
        inside = f.urem(group.index, PANEL_VECTORS * lanes)
        target = f.offset("%out", f.add(f.mul(panel, "%slot"), f.mul(inside, size)))

        def square(k: Value, mask: Mask | None, target: str = target) -> None:
            source = f.mul(k, vectors.storage_size)
            rows = []
            for r in range(lanes):
                column = f.load("ptr", f.offset(table, 8 * r), 8)
                rows.append(vectors.load_along(f, f.offset(column, source), mask))
            start = f.offset(target, f.mul(k, row_bytes // vectors.depth))
            for r, value in enumerate(vectors.transpose(f, rows)):
                vectors.store(f, value, f.offset(start, r * row_bytes), compute=True)

        with f.loop(0, whole, deep, name="k in vectors of K") as k:
            square(k.index, None)
            f.note("panel[k.., columns] = transpose(B[k.., columns])")
        with f.if_(ragged):
            square(whole, tail)
    return f

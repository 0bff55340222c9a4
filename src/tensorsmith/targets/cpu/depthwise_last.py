"""The convolution of single channels where these lie last: vectors run along the channels, and planes may be of any size.

    for unit in this chunk:                          (image, R rows of results)
        for tiles of T columns:
            for channels in vectors:
                for rows of x that the tile sees, for taps:     sums[R][T] += w[tap, channels] * x[row, column, channels]
                y[R][T] = function(sums)

Every tap is a load of x where it lies: nothing is copied. Rows outside of x are read from a row of zeros; columns outside
are left out by tiles of their own, at the two ends of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.kernels.epilogue import Body
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.depthwise import rows_seen
from tensorsmith.targets.cpu.gemm_blocks import entry_function, read_words
from tensorsmith.targets.cpu.gemm_epilogue import Extras, apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Mask, Vectors

# Constant words, in order; strides in bytes. After them stand the segments of a row, then those of the last rows of an image
# where these are fewer. A segment is some tiles side by side: address of the tile's function, first column, number of tiles,
# columns of one.
WORDS = (
    "units", "units_per_chunk", "blocks", "outer", "space", "stride", "low", "before", "along", "channels",
    "x_batch", "x_row", "x_column", "y_batch", "y_row", "y_column", "tap", "zeros", "count",
)  # fmt: skip
SEGMENT_WORDS = 4
LAUNCH = ("x", "w", "y", "extras")


@dataclass(frozen=True)
class Tile:
    """Rows and columns of results of a tile, and how many of the columns it sees lie before x and after it."""

    rows: int
    columns: int
    left: int
    right: int


@dataclass(frozen=True)
class Taps:
    """A kernel's extents, its strides and its dilations."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def columns_seen(self, columns: int) -> int:
        """From the first to the last column of x that some columns of results see."""
        return (columns - 1) * self.stride[1] + (self.kernel[1] - 1) * self.dilation[1] + 1


def entry_name(extras: bool) -> str:
    """Symbol of the entry whose launch words are x, w, y and, for a body, the table of its operands."""
    return "depthwise_last_extras" if extras else "depthwise_last"


def entry_functions() -> list[Function]:
    """The entries without and with a body's operands."""
    return [
        entry_function(entry_name(extras), "depthwise_last_blocks", LAUNCH, [*"xwy", *["extras"] * extras])
        for extras in (False, True)
    ]


def tile_function(vectors: Vectors, tile: Tile, taps: Taps, function: str | Body = "") -> Function:
    """The kernel of one kind of tile, over all channels; `rows` is a table of (address, bytes from column to column)."""
    f = Function(
        "depthwise_last_tile",
        [
            ("ptr", "rows"), ("ptr", "w"), ("ptr", "y"), ("i64", "start"), ("i64", "x_column"), ("i64", "tap"),
            ("i64", "y_row"), ("i64", "y_column"), ("i64", "channels"), ("ptr", "extras"),
        ],
        attributes="noinline",
    )  # fmt: skip
    size, lanes = vectors.compute_size, vectors.lanes
    (taps_0, taps_1), (stride_0, stride_1), (apart_0, apart_1) = taps.kernel, taps.stride, taps.dilation
    seen = taps.columns_seen(tile.columns)
    inside = range(tile.left, seen - tile.right)
    x_columns = Rows(f, seen, "%x_column")
    y_rows, y_columns = Rows(f, tile.rows, "%y_row"), Rows(f, tile.columns, "%y_column")
    rows = rows_seen(tile.rows, taps_0, stride_0, apart_0)
    bases = {}
    for row in rows:
        address, apart = f.load("ptr", f.offset("%rows", 16 * row), 8), f.load("i64", f.offset("%rows", 16 * row + 8), 8)
        bases[row] = x_columns.bases(f.offset(address, f.mul("%start", apart)))
    y_bases = y_rows.bases("%y")
    places = [y_columns.bases(y_rows.at(y_bases, r)) for r in range(tile.rows)]
    extras = Extras(f, vectors, function, 0) if isinstance(function, Body) else None
    cells = [(r, t) for r in range(tile.rows) for t in range(tile.columns)]

    def step(channel: Value, mask: Mask | None) -> None:
        along = f.mul(channel, size)
        weights = f.offset("%w", along)
        sums: dict[tuple[int, int], Value] = {}
        for row in rows:
            of_row = {
                j: vectors.load(f, f.offset(x_columns.at(bases[row], j), along), mask)
                for j in inside
                if any((j - l * apart_1) % stride_1 == 0 for l in range(taps_1))
            }
            for r in range(tile.rows):
                tap_0, rest = divmod(row - r * stride_0, apart_0)
                if rest or not 0 <= tap_0 < taps_0:
                    continue
                for l in range(taps_1):
                    weight = vectors.load(f, f.offset(weights, f.mul("%tap", tap_0 * taps_1 + l)), mask)
                    for t in range(tile.columns):
                        value = of_row.get(t * stride_1 + l * apart_1)
                        if value is not None:
                            sums[r, t] = vectors.multiply_add(f, weight, value, sums.get((r, t), vectors.zero))
        done = [sums.get(cell, vectors.zero) for cell in cells]
        targets = [f.offset(y_columns.at(places[r], t), along) for r, t in cells]
        if extras is None:
            results = apply(f, vectors, function, done)
        else:
            results = [*extras.apply([(value, to, along, mask) for value, to in zip(done, targets)])]
        for result, to in zip(results, targets):
            vectors.store(f, result, to, mask)
        f.note(f"y[{tile.rows}][{tile.columns}][{lanes} channels] = function(sum over taps of w * x)")

    whole = f.round_down("%channels", lanes)
    with f.loop(0, whole, lanes, name="channels in vectors") as loop:
        step(loop.index, None)
    rest = f.sub("%channels", whole)
    with f.if_(f.compare("sgt", rest, 0)):
        step(whole, vectors.mask(f, rest))
    return f


def blocks_function(rows: int, taps: Taps) -> Function:
    """The loops around the tiles, called `depthwise_last_blocks`; rows: of a tile."""
    f = Function(
        "depthwise_last_blocks",
        [*(("ptr", name) for name in LAUNCH), ("ptr", "words"), ("i64", "chunk")],
        attributes="noinline",
    )
    w = read_words(f, WORDS)
    seen = rows_seen(rows, taps.kernel[0], taps.stride[0], taps.dilation[0])
    table = f.stack("i64", 2 * (seen[-1] + 1), 16)
    zeros = f.value(f"inttoptr i64 {w['zeros']} to ptr")
    unit0 = f.mul("%chunk", w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (image, rows)") as unit:
        image = f.udiv(unit.index, w["blocks"])
        row = f.mul(f.sub(unit.index, f.mul(image, w["blocks"])), rows)
        x = f.offset("%x", f.sub(f.mul(image, w["x_batch"]), w["before"]))
        y = f.offset("%y", f.add(f.mul(image, w["y_batch"]), f.mul(row, w["y_row"])))
        first = f.sub(f.mul(row, w["stride"]), w["low"])
        for at in seen:
            place = f.add(first, at)
            inside = f.compare("ult", place, w["space"])
            f.store(f.select(inside, "ptr", f.offset(x, f.mul(place, w["x_row"])), zeros), "ptr", f.offset(table, 16 * at), 8)
            f.store(f.select(inside, "i64", w["along"], 0), "i64", f.offset(table, 16 * at + 8), 8)
        segments = f.offset("%words", 8 * len(WORDS))
        last = f.offset(segments, f.mul(w["count"], 8 * SEGMENT_WORDS))
        segments = f.select(f.compare("sle", f.add(row, rows), w["outer"]), "ptr", segments, last)
        with f.loop(0, w["count"], 1, name="segment of the row") as segment:
            entry = f.offset(segments, f.mul(segment.index, 8 * SEGMENT_WORDS))
            function, start, count, columns = (f.word(entry, k) for k in range(SEGMENT_WORDS))
            address = f.value(f"inttoptr i64 {function} to ptr")
            with f.loop(0, count, 1, name="tile") as tile:
                column = f.add(start, f.mul(tile.index, columns))
                f.do(
                    f"call void {address}(ptr {table}, ptr %w, ptr {f.offset(y, f.mul(column, w['y_column']))}, i64 {column}, "
                    f"i64 {w['x_column']}, i64 {w['tap']}, i64 {w['y_row']}, i64 {w['y_column']}, i64 {w['channels']}, "
                    f"ptr %extras)"
                )
    return f

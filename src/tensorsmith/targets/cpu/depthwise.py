"""The convolution of single channels: every result sees one channel of x, as in depthwise convolutions.

    for unit in this chunk:                          (image, channel, part of the rows of results)
        slab = the rows of x that the unit reads: zeros around and between its elements, and the phases of the stride apart
        for results of this channel:                 one, or as many as the channel multiplier says
            for rows step R, for columns step one vector:
                for each column l of the kernel:     the rows of x that R results see, loaded once
                    sums[R] += w[k, l] * rows of x

A kernel of this size has too few products to a result for the tile of `conv_tile`, which loads a vector of x for each of
them. The last rows and the last columns of a part overlap those before, so that whole vectors are stored. Sums run over
columns of the kernel, then over its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.conv_slab import fill_slab
from tensorsmith.targets.cpu.gemm_blocks import entry_function, read_words
from tensorsmith.targets.cpu.gemm_epilogue import apply
from tensorsmith.targets.cpu.gemm_tile import Rows
from tensorsmith.targets.cpu.gemm_vectors import Vectors

# Constant words, in order; strides in bytes. The first ones are those of a slab (`conv_slab`).
WORDS = (
    "channels", "slab_0", "slab_1", "pitch", "plane", "space_0", "space_1", "stride_0", "stride_1", "low_0", "low_1",
    "phases_0", "phases_1", "phases_w", "x_channel", "x_0", "x_1", "x_w", "x_step", "contiguous", "edges",
    "spread_0", "spread_w",
    "units", "units_per_chunk", "parts", "groups", "multiplier", "block", "outer", "width", "step", "reach", "row",
    "places", "x_batch", "x_group", "w_row", "y_batch", "y_channel", "y_0", "dense", "workspace_stride",
)  # fmt: skip

LAUNCH = ("x", "w", "y", "bias", "workspace")
MOST_ROWS = 6  # of a tile


def rows_seen(rows: int, kernel: int, stride: int, dilation: int) -> list[int]:
    """Rows of the slab that some rows of results see."""
    return sorted({r * stride + k * dilation for r in range(rows) for k in range(kernel)})


def entry_name(bias: bool) -> str:
    """Symbol of the entry whose launch words are x, w, y, the bias where there is one, and the workspace."""
    return "depthwise_bias" if bias else "depthwise"


def entry_functions() -> list[Function]:
    """The entries without and with a bias."""
    return [
        entry_function(entry_name(bias), "depthwise_blocks", LAUNCH, [each for each in LAUNCH if bias or each != "bias"])
        for bias in (False, True)
    ]


def tile_function(
    vectors: Vectors, rows: int, kernel: tuple[int, int], stride: int, dilation: int, function: str = ""
) -> Function:
    """`rows` rows of results from the row of the slab that `slab` points at, as wide as the part."""
    f = Function(
        f"depthwise_tile_{rows}",
        [
            ("ptr", "w"), ("ptr", "slab"), ("ptr", "y"), ("ptr", "bias"), ("ptr", "places"), ("i64", "row"), ("i64", "y_row"),
            ("i64", "width"), ("i64", "over"),
        ],
        attributes="noinline",
    )  # fmt: skip
    size, lanes = vectors.compute_size, vectors.lanes
    seen = rows_seen(rows, kernel[0], stride, dilation)
    x_rows, y_rows = Rows(f, seen[-1] + 1, "%row"), Rows(f, rows, "%y_row")
    places = [f.load("i64", f.offset("%places", 8 * l), 8) for l in range(kernel[1])]
    has_bias = f.compare("ne", "%bias", "null", "ptr")
    first = f.choose(has_bias, [vectors.type], lambda: [vectors.load_splat(f, "%bias")], lambda: [vectors.zero])[0]
    last = f.sub("%width", lanes)  # where the last vector begins, if there is a whole one
    whole = f.compare("sge", "%width", lanes)
    with f.loop(0, "%width", lanes, do_while=True, name="columns") as column:
        begin = f.select(whole, "i64", f.minimum(column.index, last), column.index)
        x = f.offset("%slab", f.mul(begin, size))
        sums: list[Value] = [first] * rows
        for l in range(kernel[1]):
            bases = x_rows.bases(f.offset(x, places[l]))
            values = {row: vectors.load(f, x_rows.at(bases, row)) for row in seen}
            for k in range(kernel[0]):
                weight = vectors.load_splat(f, f.offset("%w", (k * kernel[1] + l) * size))
                for r in range(rows):
                    sums[r] = vectors.multiply_add(f, weight, values[r * stride + k * dilation], sums[r])
        f.note(f"sums[{rows}][{lanes}] += w[k, l] * slab[rows of results + k][columns + l]")
        results = apply(f, vectors, function, sums)
        y_bases = y_rows.bases(f.offset("%y", f.mul(begin, size)))

        def write(plain: int, y_bases: list[str] = y_bases, results: Sequence[Value] = results) -> None:
            mask = vectors.mask(f, "%width") if plain < rows else None
            for r in range(rows):
                vectors.store(f, results[r], y_rows.at(y_bases, r), None if r < plain else mask)

        def narrow() -> None:
            # A vector may write over the rows after its own, which are written later.
            f.branch(f.compare("ne", "%over", 0), lambda: write(rows - 1), lambda: write(0))

        f.branch(whole, lambda: write(rows), narrow)
        f.note("y[rows][columns] = function(sums)")
    return f


def blocks_function(vectors: Vectors, rows: int, spread: bool) -> Function:
    """The loops around the tiles of `rows` rows and of one, called `depthwise_blocks`; spread: zeros between elements of x."""
    f = Function(
        "depthwise_blocks", [*(("ptr", name) for name in LAUNCH), ("ptr", "words"), ("i64", "chunk")],
        attributes="noinline",
    )  # fmt: skip
    w = read_words(f, WORDS)
    of_slab = w if spread else {name: word for name, word in w.items() if not name.startswith("spread")}
    size = vectors.compute_size
    slab = f.offset("%workspace", f.mul("%chunk", w["workspace_stride"]))
    edges, places = (f.value(f"inttoptr i64 {w[name]} to ptr") for name in ("edges", "places"))
    has_bias = f.compare("ne", "%bias", "null", "ptr")
    unit0 = f.mul("%chunk", w["units_per_chunk"])
    unit1 = f.minimum(f.add(unit0, w["units_per_chunk"]), w["units"])
    with f.loop(unit0, unit1, 1, name="unit in units of this chunk (image, channel, part)") as unit:
        image_group = f.udiv(unit.index, w["parts"])
        outer0 = f.mul(f.sub(unit.index, f.mul(image_group, w["parts"])), w["block"])
        image = f.udiv(image_group, w["groups"])
        group = f.sub(image_group, f.mul(image, w["groups"]))
        outer = f.minimum(w["block"], f.sub(w["outer"], outer0))
        x = f.offset("%x", f.add(f.mul(image, w["x_batch"]), f.mul(group, w["x_group"])))
        rows_0 = f.add(f.mul(f.sub(outer, 1), w["step"]), w["reach"])
        fill_slab(f, vectors, of_slab, x, slab, edges, f.mul(outer0, w["step"]), rows_0)
        y_unit = f.offset("%y", f.add(f.mul(image, w["y_batch"]), f.mul(outer0, w["y_0"])))
        with f.loop(0, w["multiplier"], 1, name="result of this channel") as result:
            channel = f.add(f.mul(group, w["multiplier"]), result.index)
            weights = f.offset("%w", f.mul(channel, w["w_row"]))
            y = f.offset(y_unit, f.mul(channel, w["y_channel"]))
            bias = f.select(has_bias, "ptr", f.offset("%bias", f.mul(channel, size)), "null")

            def tile(count: int, row: Value, weights: str = weights, y: str = y, bias: str = bias) -> None:
                seen = f.offset(slab, f.mul(f.mul(row, w["step"]), w["row"]))
                f.do(
                    f"call void @depthwise_tile_{count}(ptr {weights}, ptr {seen}, "
                    f"ptr {f.offset(y, f.mul(row, w['y_0']))}, ptr {bias}, ptr {places}, i64 {w['row']}, i64 {w['y_0']}, "
                    f"i64 {w['width']}, i64 {w['dense']})"
                )

            def in_tiles(outer: Value = outer) -> None:
                last = f.sub(outer, rows)
                with f.loop(0, outer, rows, do_while=True, name="rows of the part") as row:
                    tile(rows, f.minimum(row.index, last))

            def one_by_one(outer: Value = outer) -> None:
                with f.loop(0, outer, 1, name="row of the part") as row:
                    tile(1, row.index)

            if rows == 1:
                one_by_one()
            else:
                f.branch(f.compare("sge", outer, rows), in_tiles, one_by_one)
    return f


__all__ = [
    "MOST_ROWS", "WORDS", "blocks_function", "entry_functions", "entry_name", "rows_seen", "tile_function",
]  # fmt: skip

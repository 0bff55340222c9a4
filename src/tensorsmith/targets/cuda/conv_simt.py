"""Implicit products on plain arithmetic units: float32 and float64 (halves in float), register tiles, two buffers.

While a tile of depth is multiplied out of one buffer in shared memory, the next is on its way from memory to registers; it
is put into the other buffer behind the multiplication, so that a tile costs one barrier.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_gather import Gather, GatherText, Tile, gather_of, gather_sizes
from tensorsmith.targets.cuda.conv_split import finishing_launch, partial_bytes
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type, cast_expression

PAD = 4  # elements between rows of a buffer, against conflicts of banks
LEAST_DEPTH = 64  # of a part of the depth
MICROSECONDS_A_STEP = 1.6e-5  # of one row, one column and one step of the depth, where two blocks share a multiprocessor
BYTES_A_MICROSECOND = 2.5e6  # of sums of parts, which are written and read


def simt_launches(
    spec: ConvSpec, properties: DeviceProperties, scratch: int
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launches of a convolution that `conv_gather.fits`, and the bytes of its scratch, which is word `scratch`."""
    tile = tile_of(spec, properties)
    rows, columns, depth = spec.x[0] * spec.positions, spec.w[0] // spec.groups, spec.w[1] * spec.taps
    blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * spec.groups
    splits = _splits(blocks, rows * columns * spec.groups, depth, tile, properties)
    gather = gather_of(spec, splits > 1)
    text, arguments, grid = _text(gather, spec, tile, splits)
    others = len(spec.others)
    if splits == 1:
        words = tuple(Word(i) for i in range(3 + others))
        return (Launch(text, "conv_simt", (grid, 1, 1), (tile.threads, 1, 1), (*words, ErrorWord(), arguments)),), ()
    partial = Word(scratch)
    first = Launch(
        text, "conv_simt", (grid, 1, 1), (tile.threads, 1, 1), (Word(0), Word(1), partial, ErrorWord(), arguments)
    )
    return (first, finishing_launch(spec, splits, partial)), (partial_bytes(spec, splits),)


def _splits(blocks: int, results: int, depth: int, tile: Tile, properties: DeviceProperties) -> int:
    """Into how many parts a depth goes, by the time of waves of blocks, two a multiprocessor, and of adding parts up."""
    best = (0.0, 0)
    for splits in range(1, max(1, min(8 * properties.multiprocessors // blocks, -(-depth // LEAST_DEPTH))) + 1):
        waves = -(-blocks * splits // (2 * properties.multiprocessors))
        time = waves * -(-depth // splits) * tile.rows * tile.columns * MICROSECONDS_A_STEP
        time += (splits > 1) * (4.0 + 8 * splits * results / BYTES_A_MICROSECOND)
        best = (time, splits) if best[1] == 0 or time < best[0] else best
    return best[1]


def tile_of(spec: ConvSpec, properties: DeviceProperties) -> Tile:
    """The tile: as many columns as there are channels, up to 128; fewer rows where there are few blocks."""
    rows, columns = spec.x[0] * spec.positions, spec.w[0] // spec.groups
    if spec.dtype.itemsize == 8:
        return Tile(64, 64, 8) if columns > 32 else Tile(128, 32, 8)
    if columns > 64 and rows > 64 and -(-rows // 128) * -(-columns // 128) * spec.groups >= properties.multiprocessors:
        return Tile(128, 128, 8)
    if columns > 32:
        return Tile(64, 64, 16) if -(-rows // 128) * -(-columns // 64) < properties.multiprocessors else Tile(128, 64, 16)
    return Tile(128, 32, 16) if columns > 16 else Tile(256, 16, 16)


def _text(gather: Gather, spec: ConvSpec, tile: Tile, splits: int) -> tuple[str, Constant, int]:
    struct, arguments, grid = gather_sizes(spec, tile, splits)
    parts = GatherText(gather, tile, 2)
    compute = compute_dtype(gather.dtype)
    number = c_type(compute)
    of_rows, of_columns = _register_tile(tile)
    lanes = tile.columns // of_columns if not gather.y_along_rows else tile.rows // of_rows
    tx, ty = ("column_thread", "row_thread") if not gather.y_along_rows else ("row_thread", "column_thread")
    a_count, b_count = tile.rows * tile.depth // tile.threads, tile.columns * tile.depth // tile.threads
    row_of = _interleaved("row_thread", "i", of_rows, tile.rows)
    column_of = _interleaved("column_thread", "j", of_columns, tile.columns)
    indent = "\n        "
    fma = "fma" if compute.itemsize == 8 else "__fmaf_rn"
    load_a = cast_expression(gather.dtype, compute, "x[row_x[m] + depth_x[slot][k]]")
    load_b = cast_expression(gather.dtype, compute, "w[(first_column + n) * (int)s.w_strides[0] + depth_w[slot][k]]")
    a_place = _placed("m", "k", tile.rows, tile.depth, tile.threads, gather.a_along_rows)
    b_place = _placed("n", "k", tile.columns, tile.depth, tile.threads, gather.b_along_columns)
    kernel = f"""
{struct}

{"" if gather.partial else finished_function(gather.body, gather.dtype, len(gather.others))}

{parts.signature("conv_simt")}
    {indent[:-4].join(parts.tables())}
    __shared__ __align__(16) {number} a_tile[2][{tile.depth}][{tile.rows + PAD}], b_tile[2][{tile.depth}][{tile.columns + PAD}];
    {indent[:-4].join(parts.place_of_block())}
    {indent[:-4].join(parts.row_table())}
    {{
        const int slot = 0, first = first_depth;
        {indent.join(parts.depth_table("slot", "first"))}
    }}
    const int {tx} = threadIdx.x % {lanes}, {ty} = threadIdx.x / {lanes};
    {number} sum[{of_rows}][{of_columns}], a_next[{a_count}], b_next[{b_count}];
    #pragma unroll
    for (int i = 0; i < {of_rows}; i++) {{
        #pragma unroll
        for (int j = 0; j < {of_columns}; j++) sum[i][j] = 0;
    }}
    __syncthreads();
    int slot = 0;
    for (int first = first_depth; ; first += {tile.depth}) {{
        if (first < end_depth) {{
            #pragma unroll
            for (int i = 0; i < {a_count}; i++) {{
                {a_place}
                a_next[i] = 0;
                if ({parts.inside("m", "slot", "k")}) a_next[i] = {load_a};
            }}
            #pragma unroll
            for (int i = 0; i < {b_count}; i++) {{
                {b_place}
                b_next[i] = 0;
                if (first + k < end_depth && first_column + n < columns) b_next[i] = {load_b};
            }}
        }}
        if (first > first_depth) {{
            #pragma unroll
            for (int k = 0; k < {tile.depth}; k++) {{
                __align__(16) {number} a[{of_rows}], b[{of_columns}];
                {_vectors("a", "row_thread", of_rows, tile.rows, compute.itemsize)}
                {_vectors("b", "column_thread", of_columns, tile.columns, compute.itemsize)}
                #pragma unroll
                for (int i = 0; i < {of_rows}; i++) {{
                    #pragma unroll
                    for (int j = 0; j < {of_columns}; j++) sum[i][j] = {fma}(a[i], b[j], sum[i][j]);
                }}
            }}
        }}
        if (first >= end_depth) break;
        #pragma unroll
        for (int i = 0; i < {a_count}; i++) {{
            {a_place}
            a_tile[slot][k][m] = a_next[i];
        }}
        #pragma unroll
        for (int i = 0; i < {b_count}; i++) {{
            {b_place}
            b_tile[slot][k][n] = b_next[i];
        }}
        slot ^= 1;
        {{
            const int next = first + {tile.depth};
            {indent.join(parts.depth_table("slot", "next"))}
        }}
        __syncthreads();
    }}
    #pragma unroll
    for (int i = 0; i < {of_rows}; i++) {{
        const int m = {row_of};
        #pragma unroll
        for (int j = 0; j < {of_columns}; j++) {{
            const int n = {column_of};
            if (first_row + m < rows && first_column + n < columns) {parts.stored("m", "n", "sum[i][j]")}
        }}
    }}
}}
"""
    return with_dependencies(kernel) + "\n" + kernel, arguments, grid


def _vectors(name: str, thread: str, count: int, extent: int, size: int) -> str:
    """Statements that read a thread's rows or columns out of shared memory, 16 bytes at a time."""
    width = min(16 // size, count)
    kind = {(4, 4): "float4", (4, 2): "float2", (8, 2): "double2"}[size, width]
    lines = []
    for i in range(0, count, width):
        place = _interleaved(thread, str(i), count, extent)
        lines.append(f"*({kind}*)&{name}[{i}] = *(const {kind}*)&{name}_tile[slot ^ 1][k][{place}];")
    return "\n                ".join(lines)


def _register_tile(tile: Tile) -> tuple[int, int]:
    """Rows and columns of a thread."""
    results = tile.rows * tile.columns // tile.threads
    columns = {128: 8, 64: 4 if results < 32 else 8, 32: 4, 16: 2}[tile.columns]
    return results // columns, columns


def _placed(along: str, depth: str, extent: int, deep: int, threads: int, outer_fastest: bool) -> str:
    """Which element of a tile the i-th of a thread is."""
    number = f"(int)threadIdx.x + i * {threads}"
    if outer_fastest:
        return f"const int {along} = ({number}) % {extent}, {depth} = ({number}) / {extent};"
    return f"const int {depth} = ({number}) % {deep}, {along} = ({number}) / {deep};"


def _interleaved(thread: str, i: str, count: int, extent: int) -> str:
    """The i-th row or column of a thread: fours that lie apart, so that threads side by side read side by side."""
    if count <= 4:
        return f"{thread} * {count} + {i}"
    return f"{i} / 4 * {extent * 4 // count} + {thread} * 4 + {i} % 4"

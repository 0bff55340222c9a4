"""The end of an implicit product whose depth was split: sums of the parts, in their order, finished and stored."""

from __future__ import annotations

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_gather import GatherText, Tile, gather_of, gather_sizes
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type

TILE = Tile(32, 32, 16)  # of results that a block finishes


def partial_bytes(spec: ConvSpec, splits: int) -> int:
    """Scratch for the sums of all parts."""
    results = spec.x[0] * spec.positions * spec.w[0]
    return splits * results * compute_dtype(spec.dtype).itemsize


def finishing_launch(spec: ConvSpec, splits: int, partial: Word) -> Launch:
    """The launch that adds the parts up; none is read where there are no parts, whose sums are zero.

    Sums lie row by row. Where results do not, a tile of them is turned in shared memory.
    """
    gather = gather_of(spec, partial=False)
    struct, arguments, grid = gather_sizes(spec, TILE, 1, splits)
    text = GatherText(gather, TILE, 1)
    number, others = c_type(compute_dtype(spec.dtype)), len(spec.others)
    indent = "\n    "
    m, n = ("threadIdx.x % 32", "i") if gather.y_along_rows else ("i", "threadIdx.x % 32")
    kernel = f"""
{struct}

{finished_function(spec.body, spec.dtype, others)}

{text.signature("conv_finish", f"const {number}* __restrict__ partial")}
    __shared__ {number} sums[32][33];
    {indent.join(text.tables(of_depth=False))}
    {indent.join(text.place_of_block(reads=False))}
    {indent.join(text.row_table())}
    const long long results = (long long)rows * columns * s.groups;
    #pragma unroll
    for (int i = threadIdx.x / 32; i < 32; i += 8) {{
        const int n = threadIdx.x % 32;
        {number} sum = 0;
        if (first_row + i < rows && first_column + n < columns) {{
            const {number}* const at = partial + (group * rows + first_row + i) * columns + first_column + n;
            #pragma unroll 8
            for (int part = 0; part < (int)s.parts; part++) sum += at[part * results];
        }}
        sums[i][n] = sum;
    }}
    __syncthreads();
    #pragma unroll
    for (int i = threadIdx.x / 32; i < 32; i += 8) {{
        const int m = {m}, n = {n};
        if (first_row + m < rows && first_column + n < columns) {{
            {text.stored("m", "n", "sums[m][n]")}
        }}
    }}
}}
"""
    words = (partial, Word(2), *(Word(3 + k) for k in range(others)))
    source = with_dependencies(kernel) + "\n" + kernel
    return Launch(source, "conv_finish", (grid, 1, 1), (TILE.threads, 1, 1), (*words, ErrorWord(), arguments))

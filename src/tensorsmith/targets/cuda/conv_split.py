"""The end of an implicit product whose depth was split: sums of the parts, in their order, finished and stored."""

from __future__ import annotations

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_gather import GatherText, Tile, gather_of, gather_sizes
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type

TILE = Tile(16, 16, 16)  # of results that a block finishes


def partial_bytes(spec: ConvSpec, splits: int) -> int:
    """Scratch for the sums of all parts."""
    results = spec.x[0] * spec.positions * spec.w[0]
    return splits * results * compute_dtype(spec.dtype).itemsize


def finishing_launch(spec: ConvSpec, splits: int, partial: Word) -> Launch:
    """The launch that adds the parts up."""
    gather = gather_of(spec, partial=False)
    struct, arguments, grid = gather_sizes(spec, TILE, 1, splits)
    text = GatherText(gather, TILE, 1)
    number, others = c_type(compute_dtype(spec.dtype)), len(spec.others)
    indent = "\n    "
    row, column = ("threadIdx.x / 16", "threadIdx.x % 16")[:: -1 if gather.y_along_rows else 1]
    kernel = f"""
{struct}

{finished_function(spec.body, spec.dtype, others)}

{text.signature("conv_finish", f"const {number}* __restrict__ partial")}
    {indent.join(text.tables(of_depth=False))}
    {indent.join(text.place_of_block(reads=False))}
    {indent.join(text.row_table())}
    __syncthreads();
    const int m = {row}, n = {column};
    if (first_row + m >= rows || first_column + n >= columns) return;
    const long long results = (long long)rows * columns * s.groups;
    const {number}* const at = partial + (group * rows + first_row + m) * columns + first_column + n;
    {number} sum = 0;
    #pragma unroll 8
    for (int part = 0; part < (int)s.parts; part++) sum += at[part * results];
    {text.stored("m", "n", "sum")}
}}
"""
    words = (partial, Word(2), *(Word(3 + k) for k in range(others)))
    source = with_dependencies(kernel) + "\n" + kernel
    return Launch(source, "conv_finish", (grid, 1, 1), (TILE.threads, 1, 1), (*words, ErrorWord(), arguments))

"""The product that takes everything: any dtype, any strides, a thread a result, sums in the order of k."""

from __future__ import annotations

import math

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gemm_epilogue import Epilogue, accumulator_type, loaded, stride_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type

ROWS, COLUMNS = 8, 32  # of a block
MOST_BLOCKS = 1 << 20  # blocks stride over the rest


def naive_launch(spec: GemmSpec) -> Launch:
    """One launch of the simple kernel."""
    tiles = math.prod(spec.batch) * -(-spec.M // ROWS) * -(-spec.N // COLUMNS)
    sizes = Constant((spec.M, spec.N, spec.K, *spec.batch, *spec.a, *spec.b, *stride_words(spec)))
    arguments: tuple[Argument, ...] = (*(Word(i) for i in range(3 + len(spec.beside))), ErrorWord(), sizes)
    grid = (min(tiles, MOST_BLOCKS), 1, 1)
    return Launch(_text(spec.dtype, Epilogue.of(spec)), "gemm_naive", grid, (ROWS * COLUMNS, 1, 1), arguments)


def multiply_add(dtype: DType, x: str, y: str, total: str) -> str:
    """x * y + total, rounded once where it is a float."""
    if dtype.kind != "f":
        return f"{x} * {y} + {total}"
    return f"fma({x}, {y}, {total})" if dtype.itemsize == 8 else f"__fmaf_rn({x}, {y}, {total})"


def _text(dtype: DType, epilogue: Epilogue) -> str:
    element, total = c_type(dtype), accumulator_type(dtype)
    a, b = loaded(dtype, "a[k * sizes.a[3]]"), loaded(dtype, "b[k * sizes.b[2]]")
    batch = "\n        ".join(epilogue.batch_lines())
    kernel = f"""
struct Sizes {{
    long long M, N, K, outer, inner;
    long long a[4], b[4];  // strides of batch, batch, rows, columns
    {epilogue.sizes()}
}};

{epilogue.function()}

extern "C" __global__ void __launch_bounds__({ROWS * COLUMNS}) gemm_naive(
    const {element}* __restrict__ A, const {element}* __restrict__ B, {epilogue.parameters()},
    long long* error, const Sizes sizes) {{
    const long long down = (sizes.M + {ROWS - 1}) / {ROWS}, across = (sizes.N + {COLUMNS - 1}) / {COLUMNS};
    const long long tiles = down * across * sizes.outer * sizes.inner;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{
        const long long column = tile % across * {COLUMNS} + threadIdx.x % {COLUMNS};
        const long long row = tile / across % down * {ROWS} + threadIdx.x / {COLUMNS};
        const long long batch = tile / across / down, outer = batch / sizes.inner, inner = batch % sizes.inner;
        if (row >= sizes.M || column >= sizes.N) continue;
        {batch}
        const {element}* const a = A + outer * sizes.a[0] + inner * sizes.a[1] + row * sizes.a[2];
        const {element}* const b = B + outer * sizes.b[0] + inner * sizes.b[1] + column * sizes.b[3];
        {total} sum = 0;
        for (long long k = 0; k < sizes.K; k++) {{
            sum = {multiply_add(dtype, a, b, "sum")};
        }}
        {epilogue.element("sum", "row", "column")}
    }}
}}
"""
    return with_dependencies(kernel) + "\n" + kernel

"""The product that takes everything: any dtype, any strides, a thread a result, sums in the order of k.

Kernels that want aligned operands hold its loop too, for operands that turn out not to be when they are launched.
"""

from __future__ import annotations

import functools

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gemm_epilogue import Epilogue, accumulator_type, loaded, stride_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type

THREADS = 256  # of a block, on results side by side
MOST_BLOCKS = 1 << 20  # blocks stride over the rest
SIZES = """\
    long long M, N, K, outer, inner;  // extents
    long long splits, depth;  // parts that K is in, and the extent of one
    long long a[4], b[4];  // strides of batch, batch, rows, columns"""


def size_words(spec: GemmSpec, splits: int = 1, depth: int | None = None) -> list[int]:
    """The words of SIZES."""
    return [spec.M, spec.N, spec.K, *spec.batch, splits, spec.K if depth is None else depth, *spec.a, *spec.b]


def naive_launch(spec: GemmSpec) -> Launch:
    """One launch of the simple kernel."""
    sizes = Constant((*size_words(spec), *stride_words(spec)))
    arguments: tuple[Argument, ...] = (*(Word(i) for i in range(3 + len(spec.beside))), ErrorWord(), sizes)
    grid = (min(-(-spec.results // THREADS), MOST_BLOCKS), 1, 1)
    return Launch(_text(spec.dtype, Epilogue.of(spec)), "gemm_naive", grid, (THREADS, 1, 1), arguments)


def multiply_add(dtype: DType, x: str, y: str, total: str) -> str:
    """x * y + total, rounded once where it is a float."""
    if dtype.kind != "f":
        return f"{x} * {y} + {total}"
    return f"fma({x}, {y}, {total})" if dtype.itemsize == 8 else f"__fmaf_rn({x}, {y}, {total})"


def any_product(dtype: DType, epilogue: Epilogue) -> str:
    """The text of a function that computes everything, whatever the strides; every thread of the grid calls it."""
    element, total = c_type(dtype), accumulator_type(dtype)
    a, b = loaded(dtype, "a[k * sizes.a[3]]"), loaded(dtype, "b[k * sizes.b[2]]")
    batch = "\n        ".join(epilogue.batch_lines("split"))
    return f"""
__device__ __noinline__ void any_product(
    const {element}* __restrict__ A, const {element}* __restrict__ B, {epilogue.parameters()},
    long long* error, const Sizes& sizes) {{
    const long long results = sizes.M * sizes.N, all = results * sizes.outer * sizes.inner * sizes.splits;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long result = (long long)blockIdx.x * blockDim.x + threadIdx.x; result < all; result += step) {{
        const long long column = result % sizes.N, row = result / sizes.N % sizes.M, batch = result / results;
        const long long inner = batch % sizes.inner, outer = batch / sizes.inner % sizes.outer;
        const long long split = batch / sizes.inner / sizes.outer;
        {batch}
        const {element}* const a = A + outer * sizes.a[0] + inner * sizes.a[1] + row * sizes.a[2];
        const {element}* const b = B + outer * sizes.b[0] + inner * sizes.b[1] + column * sizes.b[3];
        const long long end = (split + 1) * sizes.depth < sizes.K ? (split + 1) * sizes.depth : sizes.K;
        {total} sum = 0;
        for (long long k = split * sizes.depth; k < end; k++) {{
            sum = {multiply_add(dtype, a, b, "sum")};
        }}
        {epilogue.element("sum", "row", "column")}
    }}
}}"""


@functools.cache
def _text(dtype: DType, epilogue: Epilogue) -> str:
    element = c_type(dtype)
    kernel = f"""
struct Sizes {{
{SIZES}
    {epilogue.sizes()}
}};

{epilogue.function()}
{any_product(dtype, epilogue)}

extern "C" __global__ void __launch_bounds__({THREADS}) gemm_naive(
    const {element}* __restrict__ A, const {element}* __restrict__ B, {epilogue.parameters()},
    long long* error, const __grid_constant__ Sizes sizes) {{
    any_product(A, B, {epilogue.arguments()}, error, sizes);
}}
"""
    return with_dependencies(kernel) + "\n" + kernel

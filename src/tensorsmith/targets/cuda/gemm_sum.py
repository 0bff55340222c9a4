"""The sums of parts of K, added up in their order, and what is computed of the result."""

from __future__ import annotations

from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gemm_epilogue import Epilogue, accumulator_type, stride_words
from tensorsmith.targets.cuda.gemm_naive import SIZES, size_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word

THREADS = 256


def sum_launch(spec: GemmSpec, splits: int, partial_word: int) -> Launch:
    """The launch that follows one of a kernel that left `splits` partial sums of every result."""
    sizes = Constant((*size_words(spec, splits), *stride_words(spec)))
    arguments: tuple[Argument, ...] = (
        Word(partial_word), *(Word(2 + i) for i in range(1 + len(spec.beside))), ErrorWord(), sizes,
    )  # fmt: skip
    grid = (min(-(-spec.results // THREADS), 1 << 16), 1, 1)
    return Launch(_text(Epilogue.of(spec)), "gemm_sum", grid, (THREADS, 1, 1), arguments)


def _text(epilogue: Epilogue) -> str:
    total = accumulator_type(epilogue.dtype)
    batch = "\n        ".join(epilogue.batch_lines())
    kernel = f"""
struct Sizes {{
{SIZES}
    {epilogue.sizes()}
}};

{epilogue.function()}

extern "C" __global__ void __launch_bounds__({THREADS}) gemm_sum(
    const {total}* __restrict__ parts, {epilogue.parameters()}, long long* error, const __grid_constant__ Sizes sizes) {{
    const long long results = sizes.M * sizes.N, all = results * sizes.outer * sizes.inner;
    const long long step = (long long)gridDim.x * {THREADS};
    for (long long result = (long long)blockIdx.x * {THREADS} + threadIdx.x; result < all; result += step) {{
        const long long column = result % sizes.N, row = result / sizes.N % sizes.M, batch = result / results;
        const long long inner = batch % sizes.inner, outer = batch / sizes.inner;
        {batch}
        {total} sum = parts[result];
        #pragma unroll 4
        for (long long split = 1; split < sizes.splits; split++) sum += parts[split * all + result];
        {epilogue.element("sum", "row", "column")}
    }}
}}
"""
    return with_dependencies(kernel) + "\n" + kernel

"""The sums of parts of K, added up in their order, and what is computed of the result."""

from __future__ import annotations

import functools

from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gemm_epilogue import Epilogue, accumulator_type, stride_words
from tensorsmith.targets.cuda.gemm_naive import SIZES, size_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word

THREADS = 128


def sum_launch(spec: GemmSpec, splits: int, partial_word: int) -> Launch:
    """The launch that follows one of a kernel that left `splits` partial sums of every result."""
    sizes = Constant((*size_words(spec, splits), *stride_words(spec)))
    arguments: tuple[Argument, ...] = (
        Word(partial_word), *(Word(2 + i) for i in range(1 + len(spec.beside))), ErrorWord(), sizes,
    )  # fmt: skip
    together = 4 if spec.N % 4 == 0 else 1
    blocks = -(-spec.results // (THREADS * together))
    index = "unsigned int" if spec.results * splits < 1 << 31 else "long long"
    text = _text(Epilogue.of(spec), together, index)
    return Launch(text, "gemm_sum", (min(blocks, 1 << 16), 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def _text(epilogue: Epilogue, together: int, index: str) -> str:
    """together: results side by side that a thread has; index: the type in which results are counted."""
    total = accumulator_type(epilogue.dtype)
    batch = "\n        ".join(epilogue.batch_lines())
    each = [epilogue.element(f"sum.at[{i}]", "row", f"(column + {i})" if i else "column") for i in range(together)]
    stores = "\n        ".join(each)
    kernel = f"""
struct Sizes {{
{SIZES}
    {epilogue.sizes()}
}};

struct __align__({together} * sizeof({total})) Sums {{ {total} at[{together}]; }};

{epilogue.function()}

extern "C" __global__ void __launch_bounds__({THREADS}) gemm_sum(
    const Sums* __restrict__ parts, {epilogue.parameters()}, long long* error, const __grid_constant__ Sizes sizes) {{
    const {index} width = sizes.N / {together}, height = sizes.M, batches = sizes.inner;
    const {index} all = width * height * batches * ({index})sizes.outer, step = gridDim.x * {THREADS};
    for ({index} i = blockIdx.x * {THREADS} + threadIdx.x; i < all; i += step) {{
        const {index} line = i / width, batch = line / height;
        const long long column = (i - line * width) * {together}, row = line - batch * height;
        const long long outer = batch / batches, inner = batch - outer * batches;
        {batch}
        Sums sum = parts[i];
        #pragma unroll 4
        for (int split = 1; split < (int)sizes.splits; split++) {{
            const Sums part = parts[split * all + i];
            #pragma unroll
            for (int e = 0; e < {together}; e++) sum.at[e] += part.at[e];
        }}
        {stores}
    }}
}}
"""
    return with_dependencies(kernel) + "\n" + kernel

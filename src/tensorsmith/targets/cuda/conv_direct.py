"""The direct convolution: one thread a result, any dtype, any strides, groups, dilations and zeros between elements."""

from __future__ import annotations

import math
import re

from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.scalars import c_type, cast_expression, memory_type
from tensorsmith.targets.cuda.sizes import sizes_struct

THREADS = 256
MOST_BLOCKS = 1 << 20  # threads stride over the rest


def direct_launch(spec: ConvSpec) -> Launch:
    """The one launch of a direct convolution."""
    struct, sizes, function = direct_function(spec)
    element, others = memory_type(spec.dtype), len(spec.others)
    text = f"""
{struct}

{finished_function(spec.body, spec.dtype, others)}

{function}

extern "C" __global__ void __launch_bounds__({THREADS}) conv_direct(
    const {element}* x, const {element}* w, {element}* y, {_parameters(element, others)}long long* error,
    const __grid_constant__ DirectSizes s) {{
    any_convolution(x, w, y, {"".join(f"o{k}, " for k in range(1, others + 1))}error, s);
}}
"""
    words = tuple(Word(i) for i in range(3 + others))
    grid = (min(MOST_BLOCKS, -(-math.prod(spec.y) // THREADS)), 1, 1)
    return Launch(with_dependencies(text) + "\n" + text, "conv_direct", grid, (THREADS, 1, 1), (*words, ErrorWord(), sizes))


def _parameters(element: str, others: int) -> str:
    return "".join(f"const {element}* o{k}, " for k in range(1, others + 1))


def direct_function(spec: ConvSpec, partial: bool = False) -> tuple[str, Constant, str]:
    """The struct of the direct convolution, its words, and the text of `any_convolution(x, w, y, others..., error, sizes)`.

    All threads of a grid call it. partial: the sums are stored as they are, in the compute dtype.
    """
    rank, others = spec.rank, 0 if partial else len(spec.others)
    struct, sizes = sizes_struct(
        {
            "results": math.prod(spec.y), "inner": spec.w[1], "outer": spec.w[0] // spec.groups, "y": spec.y,
            "kernel": spec.w[2:], "space": spec.x[2:], "x_strides": spec.x_strides, "w_strides": spec.w_strides,
            "y_strides": spec.y_strides, "stride": spec.stride, "low": spec.low, "dilation": spec.dilation,
            "step": spec.step, "starts": spec.starts,
            **{f"other{k}": strides for k, strides in enumerate(spec.others[:others], 1)},
        },
        "DirectSizes",
    )  # fmt: skip
    element = memory_type(spec.dtype)
    stored = c_type(compute_dtype(spec.dtype)) if partial else element
    last = spec.y_strides[1] == 1 and spec.y_strides[-1] != 1
    order = ["n", *(f"p{a}" for a in range(rank)), "o"] if last else ["n", "o", *(f"p{a}" for a in range(rank))]
    axes = ["n", "o", *(f"p{a}" for a in range(rank))]
    lines = ["long long rest = i;"]
    for name in reversed(order[1:]):
        lines.append(f"const long long {name} = rest % s.y[{axes.index(name)}];")
        lines.append(f"rest /= s.y[{axes.index(name)}];")
    lines.append("const long long n = rest;")

    def place(strides: str) -> str:
        return " + ".join(f"{name} * s.{strides}[{axis}]" for axis, name in enumerate(axes))

    loops, at, of_w = [], "", ""
    for a in range(rank):
        loops.append(f"for (long long k{a} = 0; k{a} < s.kernel[{a}]; k{a}++) {{")
        loops.append(f"    long long c{a} = p{a} * s.stride[{a}] + k{a} * s.dilation[{a}] - s.low[{a}];")
        if spec.step[a] != 1:
            loops.append(f"    if (c{a} < 0 || c{a} % s.step[{a}]) continue;")
            loops.append(f"    c{a} /= s.step[{a}];")
        loops.append(f"    if (c{a} < 0 || c{a} >= s.space[{a}]) continue;")
        at += f" + c{a} * s.x_strides[{a + 2}]"
        of_w += f" + k{a} * s.w_strides[{a + 2}]"
    given = [f"o{k}[{place(f'other{k}')}]" for k in range(1, others + 1)]
    moved = "".join(f" o{k} += s.starts[{k + 2}];" for k in range(1, others + 1))
    result = "sum" if partial else f"finished({', '.join([of_sum(spec.dtype, 'sum'), *given, 'error'])})"
    body = "\n        ".join(lines)
    text = f"""__device__ __noinline__ void any_convolution(
    const {element}* x, const {element}* w, {stored}* y, {_parameters(element, others)}long long* error,
    const DirectSizes& s) {{
    x += s.starts[0]; w += s.starts[1];{"" if partial else " y += s.starts[2];"}{moved}
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < s.results; i += threads) {{
        {body}
        const {element}* const image = x + n * s.x_strides[0] + o / s.outer * s.inner * s.x_strides[1];
        const {element}* const kernel = w + o * s.w_strides[0];
        {sum_type(spec.dtype)} sum = 0;
        {" ".join(loops)}
            const {element}* const a = image{at};
            const {element}* const b = kernel{of_w};
            for (long long c = 0; c < s.inner; c++) {{
                {multiply_add(spec.dtype, "a[c * s.x_strides[1]]", "b[c * s.w_strides[1]]")}
            }}
        {"}" * rank}
        y[{place("y_strides")}] = {result};
    }}
}}"""
    return struct, sizes, _in_32_bits(text) if _is_small(spec) else text


def _is_small(spec: ConvSpec) -> bool:
    """Whether every place and coordinate fits in 32 bits, and `long long` stands for nothing else."""
    if not spec.dtype.is_floating_point:
        return False
    places = ((spec.x, spec.x_strides), (spec.w, spec.w_strides), (spec.y, spec.y_strides), *((spec.y, o) for o in spec.others))
    reach = max(p * s + k * d for p, s, k, d in zip(spec.y[2:], spec.stride, spec.w[2:], spec.dilation))
    extents = [sum(max(n - 1, 0) * abs(s) for n, s in zip(shape, strides)) for shape, strides in places]
    return max(*extents, math.prod(spec.y), reach, *map(abs, spec.low)) < 1 << 30


def _in_32_bits(text: str) -> str:
    """The text, of a kernel on floats, with all arithmetic on places in int."""
    head, body = text.split("const long long threads", 1)
    body = re.sub(r"\bs\.(\w+(?:\[\d+\])?)", r"(int)s.\1", body)
    return f"{head}const int threads{body.replace('long long', 'int')}"


def sum_type(dtype: DType) -> str:
    """The C++ type of sums: integers wrap, halves are summed in float."""
    if dtype.kind in "iu":
        return "unsigned long long" if dtype.itemsize == 8 else "unsigned int"
    if dtype.kind != "f":
        raise NotImplementedError(f"convolution of {dtype.name} has no CUDA kernel")
    return c_type(compute_dtype(dtype))


def of_sum(dtype: DType, total: str) -> str:
    """A sum as a value of the compute dtype."""
    return f"({c_type(dtype)}){total}" if dtype.kind in "iu" else total


def multiply_add(dtype: DType, a: str, b: str, total: str = "sum") -> str:
    """The statement that adds a product to a sum; a float is rounded once."""
    if dtype.kind in "iu":
        return f"{total} += ({sum_type(dtype)}){a} * ({sum_type(dtype)}){b};"
    compute = compute_dtype(dtype)
    a, b = cast_expression(dtype, compute, a), cast_expression(dtype, compute, b)
    return f"{total} = {'fma' if compute.itemsize == 8 else '__fmaf_rn'}({a}, {b}, {total});"

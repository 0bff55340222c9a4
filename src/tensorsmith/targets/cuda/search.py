"""Search kernels (`kernels/spec_order.py:SearchSpec`): a thread halves the interval of one value until its place is found.

Values and elements are compared as keys (`order_keys.py`), so a NaN is larger than all numbers and equal to itself.

Words: addresses of sequences, values, result.
"""

from __future__ import annotations

import functools
import math

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_order import SearchSpec
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, Launch, Lowered, Word
from tensorsmith.targets.cuda.order_keys import key_text
from tensorsmith.targets.cuda.walk import THREADS, WALK, blocks_for, walk_words


def lower_search(spec: SearchSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launch of a search. NotImplementedError for dtypes that kernels do not have."""
    properties = properties or DeviceProperties()
    extents, strides = arrange(spec.domain, [spec.sequence, spec.values, spec.result], [2, 1])
    points, halvings = math.prod(extents), max(spec.extent.bit_length(), 1)
    constant = Constant((*walk_words("search", extents, strides), spec.extent))
    grid = (blocks_for(points, properties.multiprocessors), 1, 1)
    arguments = (Word(0), Word(1), Word(2), constant)
    launch = Launch(_text(spec.dtype, spec.right), "kernel_search", grid, (THREADS, 1, 1), arguments)
    moved = points * (spec.dtype.itemsize + 8) + spec.extent * spec.dtype.itemsize
    return Lowered("search", (launch,), 3, (), moved, points * halvings)


@functools.cache
def _text(dtype: DType, right: bool) -> str:
    return f"""{WALK}

{key_text(dtype, False)}
struct Sizes {{ Walk<3> walk; long long extent; }};

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_search(
    const Value* sequences, const Value* values, long long* result, const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS};
    for (long long i = blockIdx.x * (long long){THREADS} + threadIdx.x; i < sizes.walk.points; i += stride) {{
        long long o[3];
        offsets_at(sizes.walk, i, o);
        const Key key = key_of(values[o[1]]);
        long long low = 0, high = sizes.extent;
        while (low < high) {{
            const long long middle = (low + high) >> 1;
            if (key_of(sequences[o[0] + middle]) {"<=" if right else "<"} key) low = middle + 1;
            else high = middle;
        }}
        result[o[2]] = low;
    }}
}}
"""

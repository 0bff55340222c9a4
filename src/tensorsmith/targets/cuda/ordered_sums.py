"""What is joined at shared places, once the points are sorted by them (`scatter_add.py`).

A thread joins a stretch of the sorted points for some columns of the rows. A run of points of one place that lies within a
stretch is written to its place; a run that reaches over ends of stretches leaves its parts, which a second kernel joins in
order. Which points a stretch has depends on the shape alone.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from tensorsmith.core.dtypes import DType, compute_dtype
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_index import IndexSpec
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gather import Meetings, lanes_of
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, Launch, Word
from tensorsmith.targets.cuda.radix_sort import key_type
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, memory_type
from tensorsmith.targets.cuda.walk import THREADS, WALK, blocks_for, walk_words

_STRETCH, _SHORT_STRETCH = 32, 8  # sorted points that a thread joins
_WIDE = 64  # columns from which threads are many in any case
_AT_ONCE = 4  # points that a thread reads together


@dataclass(frozen=True)
class OrderedStructure:
    """What the texts depend on."""

    dtype: DType
    indices: tuple[tuple[DType, bool], ...]
    key_bytes: int = 4
    join: Fn = Fn.ADD
    include_self: bool = True  # whether what stood at a place is joined too
    lanes: int = 1  # columns of a row that a thread adds


def stretch_of(places: Meetings, spec: IndexSpec) -> int:
    """Sorted points that a thread adds: fewer where rows are so narrow that threads would be few."""
    return _STRETCH if math.prod(spec.domain[axis] for axis in places.plain) >= _WIDE else _SHORT_STRETCH


def ordered_sums(
    spec: IndexSpec, places: Meetings, structure: OrderedStructure, second: bool, buffers: tuple[int, int, int],
    properties: DeviceProperties,
) -> Launch:  # fmt: skip
    """Sums of stretches of the sorted points, or (`second`) of the runs that reach over their ends."""
    count, size = len(spec.indices), spec.dtype.itemsize
    axes = sorted([*places.walked, *places.varied])
    extents, plain = arrange(spec.domain, [spec.table.strides, spec.other.strides], [1, 0], axes)
    inner, lanes = 1, 1
    of_points = [spec.other.strides[axis] for axis in axes]
    of_own = [spec.table.strides[axis] for axis in places.varied]
    if plain[0][-1] == plain[1][-1] == 1:
        inner = extents[-1]
        extents, plain = extents[:-1], (plain[0][:-1], plain[1][:-1])
        steps = [index.step for index in spec.indices]
        lanes = lanes_of([inner, *plain[0], *plain[1], *of_points, *of_own, *steps], size)
    structure = replace(structure, lanes=lanes)
    constants = walk_words(spec.name, extents, plain)
    constants += walk_words(spec.name, [spec.domain[axis] for axis in axes], [of_points])
    constants += walk_words(spec.name, [spec.domain[axis] for axis in places.varied], [of_own])
    constants += [*(index.size for index in spec.indices), *(index.step for index in spec.indices)]
    stretch = stretch_of(places, spec)
    stretches = -(-places.points // stretch)
    constants += [places.points, places.varied_points, places.slots, stretch, stretches, inner]
    arguments: tuple[Argument, ...] = (*(Word(k) for k in (0, count + 1, *buffers)), Constant(tuple(constants)))
    threads = stretches * math.prod(extents) * (inner // lanes)
    grid = (blocks_for(threads, properties.multiprocessors), 1, 1)
    name = "kernel_scatter_add_" + ("runs" if second else "stretches")
    return Launch(_text(structure, second), name, grid, (THREADS, 1, 1), arguments)


_SHARED = """struct Sizes {{
    Walk<2> columns;  // of a row but for the innermost axis: offsets in the table and in `other`
    Walk<1> points, own;  // those that are sorted: offsets in `other`; coordinates of their own: offsets in the table
    long long counts[{count}], steps[{count}], sorted, varied, slots, stretch, stretches, inner;
}};
template <typename T, int count> struct __align__(count * sizeof(T) > 16 ? 16 : count * sizeof(T)) Vector {{
    T values[count];
}};

__device__ __noinline__ long long place_of(const Sizes& sizes, long long slot) {{  // rare, and long
    long long own[1];
    offsets_at(sizes.own, slot % sizes.varied, own);
    long long place = own[0], rest = slot / sizes.varied;
    {indices}
    return place;
}}

// Joins a sum to what stands at its place.
template <int lanes>
__device__ __forceinline__ void add_at({element}* place, const Vector<{value}, lanes>& total) {{
    typedef Vector<{element}, lanes> Moved;
    Moved moved = *(const Moved*)place;
    #pragma unroll
    for (int v = 0; v < lanes; v++) {{
        {joined_with_self}
        moved.values[v] = {narrowed};
    }}
    *(Moved*)place = moved;
}}
"""

# A run is written where it ends; its part at the head or the tail of a stretch is left for the second kernel.
_STRETCHES = """typedef Vector<{element}, lanes> Moved;
        const long long first = stretch * sizes.stretch;
        const long long end = first + sizes.stretch < sizes.sorted ? first + sizes.stretch : sizes.sorted;
        {key} run = keys[first];
        bool head = first > 0 && run == keys[first - 1];
        Sum total;
        auto finish = [&](bool tail) {{
            if ((long long)run >= sizes.slots) return;
            if (head) *(Sum*)(partial + (2 * stretch * width + column) * lanes) = total;
            else if (tail) *(Sum*)(partial + ((2 * stretch + 1) * width + column) * lanes) = total;
            else add_at<lanes>(table + place_of(sizes, (long long)run) + o[0], total);
        }};
        for (long long base = first; base < end; base += {at_once}) {{
            {key} key[{at_once}];
            Moved moved[{at_once}];
            #pragma unroll
            for (int u = 0; u < {at_once}; u++) {{
                if (base + u < end) {{
                    long long point[1];
                    offsets_at(sizes.points, positions[base + u], point);
                    key[u] = keys[base + u];
                    moved[u] = *(const Moved*)(other + point[0] + o[1]);
                }}
            }}
            // Each turn takes the first and moves up the others: what ends a run is in the text once.
            #pragma unroll 1
            for (int u = 0; u < {at_once} && base + u < end; u++) {{
                const bool begins = key[0] != run || base + u == first;
                if (key[0] != run) {{
                    finish(false);
                    head = false;
                    run = key[0];
                }}
                #pragma unroll
                for (int v = 0; v < lanes; v++) {{
                    const {value} more = {widened}, before = total.values[v];
                    total.values[v] = begins ? more : {joined};
                }}
                #pragma unroll
                for (int later = 1; later < {at_once}; later++) {{
                    key[later - 1] = key[later];
                    moved[later - 1] = moved[later];
                }}
            }}
        }}
        finish(end < sizes.sorted && keys[end] == run);"""

# A run that began in this stretch and reaches on: its part here, then its parts at the heads of those that follow.
_RUNS = """const long long behind = (stretch + 1) * sizes.stretch;
        if (behind >= sizes.sorted) continue;
        const {key} run = keys[behind - 1];
        if (run != keys[behind] || (long long)run >= sizes.slots) continue;
        if (keys[stretch * sizes.stretch] == run && stretch > 0 && keys[stretch * sizes.stretch - 1] == run) continue;
        Sum total = *(const Sum*)(partial + ((2 * stretch + 1) * width + column) * lanes);
        for (long long next = stretch + 1; next < sizes.stretches && keys[next * sizes.stretch] == run; next++) {{
            const Sum part = *(const Sum*)(partial + (2 * next * width + column) * lanes);
            #pragma unroll
            for (int v = 0; v < lanes; v++) {{
                const {value} more = part.values[v], before = total.values[v];
                total.values[v] = {joined};
            }}
        }}
        add_at<lanes>(table + place_of(sizes, (long long)run) + o[0], total);"""

_SUMS = """template <int lanes>
__device__ __forceinline__ void sums({parameters}, const Sizes& sizes) {{
    typedef Vector<{value}, lanes> Sum;
    const long long of_row = sizes.inner / lanes, width = sizes.columns.points * of_row, count = sizes.stretches * width;
    const long long stride = gridDim.x * (long long){threads};
    for (long long thread = blockIdx.x * (long long){threads} + threadIdx.x; thread < count; thread += stride) {{
        const long long stretch = quotient_of(thread, width), column = thread - stretch * width;
        const long long row = quotient_of(column, of_row), j = (column - row * of_row) * lanes;
        long long o[2];
        offsets_at(sizes.columns, row, o);
        o[0] += j;
        o[1] += j;
        {body}
    }}
}}

extern "C" __global__ void __launch_bounds__({threads}) {name}(
    {parameters}, const __grid_constant__ Sizes sizes) {{
    {call}
}}
"""


@functools.cache
def _text(structure: OrderedStructure, second: bool) -> str:
    count, key, dtype, lanes = len(structure.indices), key_type(structure.key_bytes), structure.dtype, structure.lanes
    compute = compute_dtype(dtype)

    def widened(element: str) -> str:
        return f"({element} != 0)" if dtype.kind == "b" else cast_expression(dtype, compute, element)

    def joined(a: str, b: str) -> str:
        return apply_expression(structure.join, compute, [a, b])

    steps = [f"place += rest % sizes.counts[{k}] * sizes.steps[{k}];\n    rest /= sizes.counts[{k}];" for k in range(count)]
    value, element = c_type(compute), memory_type(dtype)
    before = f"const {value} before = {widened('moved.values[v]')}, more = total.values[v], sum = {joined('before', 'more')};"
    names = {
        "count": count, "key": key, "element": element, "value": value, "indices": "\n    ".join(reversed(steps)),
        "joined_with_self": before if structure.include_self else f"const {value} sum = total.values[v];",
        "narrowed": cast_expression(compute, dtype, "sum"), "joined": joined("before", "more"),
        "widened": widened("moved[0].values[v]"), "at_once": _AT_ONCE, "threads": THREADS,
        "name": "kernel_scatter_add_" + ("runs" if second else "stretches"),
    }  # fmt: skip
    parameters = f"{element}* table, const {element}* other, const {key}* keys, const unsigned int* positions, {value}* partial"
    given = "table, other, keys, positions, partial, sizes"
    call = f"sums<{lanes}>({given});"
    if lanes > 1:
        mask = lanes * dtype.itemsize - 1
        call = (
            f"if ((((unsigned long long)table | (unsigned long long)other) & {mask}) == 0) {call}\n    else sums<1>({given});"
        )
    body = (_RUNS if second else _STRETCHES).format(**names)
    kernel = _SUMS.format(**names, body=body, call=call, parameters=parameters)
    shared = _SHARED.format(**names)
    return "\n\n".join(part for part in (with_dependencies(shared + kernel), WALK, shared + "\n" + kernel) if part)

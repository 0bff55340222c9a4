"""Sums at shared places of many short rows: a block sorts the points that may meet, and joins those that do.

Where every destination row has indices of its own (`scatter_add` along the last axis), rows never meet. A block takes one: its
points are sorted by their places in shared memory, every thread joins a few neighbours, and a run of points that reaches over
several threads is joined in order by the one it began with.
"""

from __future__ import annotations

import functools
import math

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec_index import IndexSpec
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gather import Meetings, place_text
from tensorsmith.targets.cuda.kernel import Argument, Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.order_keys import words_text
from tensorsmith.targets.cuda.ordered_sums import OrderedStructure
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, memory_type
from tensorsmith.targets.cuda.walk import WALK, walk_words

_MOST_POINTS = 4096  # of a row, that shared memory takes
_FEWEST_ROWS = 16  # from which blocks are worth more than a sort of all points together
_MOST_THREADS = 1024


def fits_rows(spec: IndexSpec, places: Meetings) -> bool:
    """Whether rows are short, many, and have indices of their own."""
    meeting = math.prod(spec.domain[axis] for axis in places.walked)
    sizes = math.prod(index.size for index in spec.indices)
    return not places.plain and meeting <= _MOST_POINTS and places.varied_points >= _FEWEST_ROWS and sizes < 0xFFFFFFFF


def scatter_rows(spec: IndexSpec, places: Meetings, structure: OrderedStructure) -> Launch:
    """One launch, a block for every row."""
    points = math.prod(spec.domain[axis] for axis in places.walked)
    padded = max(64, 1 << (points - 1).bit_length())
    threads = min(_MOST_THREADS, padded // 2)
    owners, arguments = owned_places(spec, places, (padded,))
    return Launch(_text(structure), "kernel_scatter_add_rows", (owners, 1, 1), (threads, 1, 1), arguments, padded * 8)


def owned_places(spec: IndexSpec, places: Meetings, more: tuple[int, ...] = ()) -> tuple[int, tuple[Argument, ...]]:
    """How many owners there are, each of the points that may meet at its places, and the arguments of their kernel.

    more: constants behind those of the walks and of the indices.
    """
    columns = [
        spec.table.strides, *(i.operand.strides for i in spec.indices), spec.other.strides, places.numbers(places.indexed)
    ]  # fmt: skip
    first = len(spec.indices) + 1
    extents, strides = arrange(spec.domain, columns, [0, first], places.walked)
    walked = [spec.domain[axis] for axis in places.walked]  # in the order of the domain: so are the sums
    along = [[operand[axis] for axis in places.walked] for operand in columns]
    constants = [*walk_words(spec.name, extents, strides), *walk_words(spec.name, walked, along)]
    constants += [*(index.size for index in spec.indices), *(index.step for index in spec.indices), *more]
    return math.prod(extents), (*(Word(k) for k in range(first + 1)), ErrorWord(), Constant(tuple(constants)))


@functools.cache
def _text(structure: OrderedStructure) -> str:
    count, dtype = len(structure.indices), structure.dtype
    operands, element, compute = count + 3, memory_type(dtype), compute_dtype(dtype)
    value = c_type(compute)
    indices = ", ".join(f"const {c_type(d)}* index{k}" for k, (d, _) in enumerate(structure.indices))

    def widened(text: str) -> str:
        return f"({text} != 0)" if dtype.kind == "b" else cast_expression(dtype, compute, text)

    joined = apply_expression(structure.join, compute, ["a", "b"])
    steps = [f"place += rest % sizes.counts[{k}] * sizes.steps[{k}];\n    rest /= sizes.counts[{k}];" for k in range(count)]
    place = "\n    ".join(reversed(steps))
    with_self = f"join({widened('*place')}, total)" if structure.include_self else "total"
    kernel = f"""struct Sizes {{ Walk<{operands}> own, walked; long long counts[{count}], steps[{count}], padded; }};

__device__ __forceinline__ {value} join({value} a, {value} b) {{
    return {joined};
}}
__device__ long long place_of(const Sizes& sizes, long long slot) {{
    long long place = 0, rest = slot;
    {place}
    return place;
}}
__device__ __forceinline__ void add_at({element}* place, {value} total) {{
    const {value} sum = {with_self};
    *place = {cast_expression(compute, dtype, "sum")};
}}

extern "C" __global__ void __launch_bounds__({_MOST_THREADS}) kernel_scatter_add_rows(
    {element}* table, {indices}, const {element}* other, long long* error, const Sizes sizes) {{
    extern __shared__ __align__(16) char memory[];
    __shared__ {value} heads[{_MOST_THREADS}];  // of the run that began before a thread's points
    const int padded = (int)sizes.padded, points = (int)sizes.walked.points;
    Words words(memory, padded);
    long long row[{operands}], o[{operands}];
    offsets_at(sizes.own, blockIdx.x, row);
    for (int i = threadIdx.x; i < padded; i += blockDim.x) {{
        Key key = 0xffffffffu;
        if (i < points) {{
            offsets_at(sizes.walked, i, o);
            for (int k = 0; k < {operands}; k++) o[k] += row[k];
            {place_text(structure.indices, True)}
            if (inside) key = (Key)slot;
            else *error = {FIRST_POINT} + o[{count + 2}];
        }}
        words.set(i, key, i);
    }}
    bitonic_sort(words, padded, padded);
    auto key_at = [&](int i) {{ return (Key)(words.words[i] >> 32); }};
    const int each = padded / (int)blockDim.x, first = threadIdx.x * each, end = first + each;
    Key run = key_at(first);
    bool head = first > 0 && key_at(first - 1) == run;
    {value} total = ({value})0;
    for (int i = first; i < end; i++) {{
        const Key key = key_at(i);
        if (key != run) {{
            if (head) heads[threadIdx.x] = total;
            else add_at(table + row[0] + place_of(sizes, run), total);
            head = false;
            run = key;
        }}
        if (key == 0xffffffffu) break;
        offsets_at(sizes.walked, words.position(i), o);
        const {value} more = {widened(f"other[row[{count + 1}] + o[{count + 1}]]")};
        total = i == first || key_at(i - 1) != key ? more : join(total, more);
    }}
    if (head) heads[threadIdx.x] = total;
    __syncthreads();
    if (head || run == 0xffffffffu) return;
    for (int next = threadIdx.x + 1; next < (int)blockDim.x && key_at(next * each) == run; next++) {{
        total = join(total, heads[next]);
    }}
    add_at(table + row[0] + place_of(sizes, run), total);
}}
"""
    return "\n\n".join(
        part
        for part in (with_dependencies(kernel), WALK, f"typedef unsigned int Key;\n{words_text(dtypes.int32)}", kernel)
        if part
    )

"""Sums at places that points share, in an order that depends on the indices alone: `IndexSpec` with mode scatter_add.

Products and extremes at shared places are the same with another function.

    owned    few points may meet: a thread owns a place of every walk along the other axes, and adds its points one by one
    sorted   the points are sorted by their places (`radix_sort.py`, stable), so that those of one place are a run. A thread
             adds a stretch of the sorted points for one column of the rows: runs that lie within it are finished, those that
             reach over its ends leave partial sums, which a last kernel adds in order

Half types are summed in float32 and rounded once. Whatever the order of blocks, results are the same bit for bit.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec_index import IndexSpec
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gather import Meetings, memory_type, place_text
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, Lowered, Word
from tensorsmith.targets.cuda.radix_sort import key_type, sort_launches, sort_scratch, sort_words
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression
from tensorsmith.targets.cuda.walk import THREADS, WALK, blocks_for, walk_words

_FEW = 32  # points that may meet, up to which one thread adds them
_STRETCH = 32  # sorted points that a thread adds


@dataclass(frozen=True)
class _Structure:
    """What the texts depend on."""

    dtype: DType
    indices: tuple[tuple[DType, bool], ...]
    key_bytes: int = 4
    join: Fn = Fn.ADD
    include_self: bool = True  # whether what stood at a place is joined too


def lower_scatter_add(spec: IndexSpec, places: Meetings, properties: DeviceProperties) -> Lowered:
    """The launches of sums whose points may meet. NotImplementedError for dtypes that kernels do not have."""
    words = len(spec.indices) + 2
    meeting = math.prod(spec.domain[axis] for axis in places.walked)
    indices = tuple((index.operand.dtype, index.wrap) for index in spec.indices)
    moved = math.prod(spec.domain) * spec.dtype.itemsize * 3 + places.points * 8
    if meeting <= _FEW:
        launch = _owned(spec, places, _Structure(spec.dtype, indices), properties)
        return Lowered(spec.name, (launch,), words, (), moved, math.prod(spec.domain))
    structure = _Structure(spec.dtype, indices, _key_bytes(places))
    return _sorted(spec, places, structure, moved, properties)


def lower_scatter_reduce(spec: IndexSpec, kind: str, include_self: bool, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of products (kind "prod") or extremes ("amax", "amin") in place of sums.

    include_self: whether what stood at a place before is joined too; places without points keep it in any case
    """
    properties, places = properties or DeviceProperties(), Meetings(spec)
    indices = tuple((index.operand.dtype, index.wrap) for index in spec.indices)
    structure = _Structure(spec.dtype, indices, _key_bytes(places), _JOINS[kind], include_self)
    moved = math.prod(spec.domain) * spec.dtype.itemsize * 3 + places.points * 8
    return _sorted(spec, places, structure, moved, properties)


_JOINS = {"prod": Fn.MUL, "amax": Fn.MAXIMUM, "amin": Fn.MINIMUM}


def _key_bytes(places: Meetings) -> int:
    return 4 if places.slots < 0xFFFFFFFF else 8


def _sorted(spec: IndexSpec, places: Meetings, structure: _Structure, moved: int, properties: DeviceProperties) -> Lowered:
    words, key_bytes = len(spec.indices) + 2, structure.key_bytes
    columns = math.prod(spec.domain[axis] for axis in places.plain)
    stretches = -(-places.points // _STRETCH)
    size = _compute(spec.dtype).itemsize
    scratch = (*sort_scratch(1, places.points, key_bytes), 2 * stretches * columns * size)
    sort = sort_words(words)
    launches = [_keys(spec, places, structure, sort.keys[0], properties)]
    sorting, side = sort_launches(1, places.points, key_bytes, places.slots.bit_length(), sort, properties)
    launches += sorting
    last = words + len(scratch) - 1
    for second in (False, True):
        launches.append(_sums(spec, places, structure, second, (sort.keys[side], sort.positions[side], last), properties))
    return Lowered(spec.name, tuple(launches), words, scratch, moved, math.prod(spec.domain))


def _compute(dtype: DType) -> DType:
    return dtypes.float32 if dtype.is_half else dtype


def _owned(spec: IndexSpec, places: Meetings, structure: _Structure, properties: DeviceProperties) -> Launch:
    """A thread adds all points that may meet at its places."""
    columns = [
        spec.table.strides, *(i.operand.strides for i in spec.indices), spec.other.strides, places.numbers(places.indexed)
    ]  # fmt: skip
    first = len(spec.indices) + 1
    extents, strides = arrange(spec.domain, columns, [0, first], places.walked)
    walked = [spec.domain[axis] for axis in places.walked]  # in the order of the domain: so are the sums
    along = [[operand[axis] for axis in places.walked] for operand in columns]
    constants = [*walk_words(spec.name, extents, strides), *walk_words(spec.name, walked, along)]
    constants += [*(index.size for index in spec.indices), *(index.step for index in spec.indices)]
    arguments: tuple[Argument, ...] = (*(Word(k) for k in range(first + 1)), ErrorWord(), Constant(tuple(constants)))
    grid = (blocks_for(math.prod(extents), properties.multiprocessors), 1, 1)
    return Launch(_owned_text(structure), "kernel_scatter_add_owned", grid, (THREADS, 1, 1), arguments)


@functools.cache
def _owned_text(structure: _Structure) -> str:
    count, dtype = len(structure.indices), structure.dtype
    operands, element, compute = count + 3, memory_type(dtype), _compute(dtype)
    indices = ", ".join(f"const {c_type(d)}* index{k}" for k, (d, _) in enumerate(structure.indices))
    kernel = f"""struct Sizes {{ Walk<{operands}> own, walked; long long counts[{count}], steps[{count}]; }};

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_scatter_add_owned(
    {element}* table, {indices}, const {element}* other, long long* error, const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS};
    for (long long i = blockIdx.x * (long long){THREADS} + threadIdx.x; i < sizes.own.points; i += stride) {{
        long long first[{operands}], o[{operands}];
        offsets_at(sizes.own, i, first);
        for (long long j = 0; j < sizes.walked.points; j++) {{
            offsets_at(sizes.walked, j, o);
            for (int k = 0; k < {operands}; k++) o[k] += first[k];
            {place_text(structure.indices, False)}
            if (!inside) {{
                *error = {FIRST_POINT} + o[{count + 2}];
                continue;
            }}
            const {c_type(compute)} total = {cast_expression(dtype, compute, "table[place]")}
                + {cast_expression(dtype, compute, f"other[o[{count + 1}]]")};
            table[place] = {cast_expression(compute, dtype, "total")};
        }}
    }}
}}
"""
    return "\n\n".join(part for part in (with_dependencies(kernel), WALK, kernel) if part)


def _keys(spec: IndexSpec, places: Meetings, structure: _Structure, keys: int, properties: DeviceProperties) -> Launch:
    """The slot of every point; what is out of range comes behind all slots."""
    count = len(spec.indices)
    axes = sorted([*places.walked, *places.varied])
    columns = [(0,) * len(spec.domain), *(i.operand.strides for i in spec.indices), places.numbers(places.varied),
               places.numbers(places.indexed)]  # fmt: skip
    strides = [[operand[axis] for axis in axes] for operand in columns]
    constants = walk_words(spec.name, [spec.domain[axis] for axis in axes], strides)
    constants += [*(index.size for index in spec.indices), *(index.step for index in spec.indices)]
    constants += [places.varied_points, places.slots]
    words = [*(Word(1 + k) for k in range(count)), Word(keys)]
    arguments: tuple[Argument, ...] = (*words, ErrorWord(), Constant(tuple(constants)))
    grid = (blocks_for(places.points, properties.multiprocessors), 1, 1)
    return Launch(_keys_text(structure), "kernel_scatter_add_keys", grid, (THREADS, 1, 1), arguments)


@functools.cache
def _keys_text(structure: _Structure) -> str:
    count, key = len(structure.indices), key_type(structure.key_bytes)
    operands = count + 3
    indices = ", ".join(f"const {c_type(d)}* index{k}" for k, (d, _) in enumerate(structure.indices))
    kernel = f"""struct Sizes {{ Walk<{operands}> walk; long long counts[{count}], steps[{count}], own, slots; }};

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_scatter_add_keys(
    {indices}, {key}* keys, long long* error, const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS};
    for (long long i = blockIdx.x * (long long){THREADS} + threadIdx.x; i < sizes.walk.points; i += stride) {{
        long long o[{operands}];
        offsets_at(sizes.walk, i, o);
        {place_text(structure.indices, True)}
        if (!inside) *error = {FIRST_POINT} + o[{count + 2}];
        keys[i] = ({key})(inside ? slot * sizes.own + o[{count + 1}] : sizes.slots);
    }}
}}
"""
    return f"{WALK}\n\n{kernel}"


def _sums(
    spec: IndexSpec, places: Meetings, structure: _Structure, second: bool, buffers: tuple[int, int, int],
    properties: DeviceProperties,
) -> Launch:  # fmt: skip
    """Sums of stretches of the sorted points, or (`second`) of the runs that reach over their ends."""
    count = len(spec.indices)
    axes = sorted([*places.walked, *places.varied])
    extents = [spec.domain[axis] for axis in places.plain]
    plain = [[operand.strides[axis] for axis in places.plain] for operand in (spec.table, spec.other)]
    constants = walk_words(spec.name, extents, plain)  # columns of the rows
    constants += walk_words(
        spec.name, [spec.domain[axis] for axis in axes], [[spec.other.strides[axis] for axis in axes]]
    )  # fmt: skip
    constants += walk_words(
        spec.name, [spec.domain[axis] for axis in places.varied], [[spec.table.strides[axis] for axis in places.varied]]
    )
    stretches = -(-places.points // _STRETCH)
    constants += [*(index.size for index in spec.indices), *(index.step for index in spec.indices)]
    constants += [places.points, places.varied_points, places.slots, stretches]
    arguments: tuple[Argument, ...] = (*(Word(k) for k in (0, count + 1, *buffers)), Constant(tuple(constants)))
    threads = stretches * math.prod(extents)
    name = "kernel_scatter_add_" + ("runs" if second else "stretches")
    text = _sums_text(structure, second)
    return Launch(text, name, (blocks_for(threads, properties.multiprocessors), 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def _sums_text(structure: _Structure, second: bool) -> str:
    count, key, dtype = len(structure.indices), key_type(structure.key_bytes), structure.dtype
    element, compute = memory_type(dtype), _compute(dtype)
    value = c_type(compute)

    def read(place: str) -> str:
        return f"({place} != 0)" if dtype.kind == "b" else cast_expression(dtype, compute, place)

    def joined(a: str, b: str) -> str:
        return apply_expression(structure.join, compute, [a, b])

    steps = [f"    place += rest % sizes.counts[{k}] * sizes.steps[{k}];\n    rest /= sizes.counts[{k}];" for k in range(count)]
    indices = "\n".join(reversed(steps))
    shared = f"""struct Sizes {{
    Walk<2> columns;  // of a row: offsets in the table and in `other`
    Walk<1> points, own;  // those that are sorted: offsets in `other`; coordinates of their own: offsets in the table
    long long counts[{count}], steps[{count}], sorted, varied, slots, stretches;
}};

__device__ long long place_of(const Sizes& sizes, long long slot) {{
    long long own[1];
    offsets_at(sizes.own, slot % sizes.varied, own);
    long long place = own[0], rest = slot / sizes.varied;
{indices}
    return place;
}}
"""
    with_self = f"const {value} before = {read('table[place]')}, sum = {joined('before', 'total')};"
    added = f"""{with_self if structure.include_self else f"const {value} sum = total;"}
            table[place] = {cast_expression(compute, dtype, "sum")};"""
    if second:
        # A run that began in this stretch and reaches on: its part here, then its parts at the heads of those that follow.
        body = f"""const long long behind = (stretch + 1) * {_STRETCH};
        if (behind >= sizes.sorted) continue;
        const {key} run = keys[behind - 1];
        if (run != keys[behind] || (long long)run >= sizes.slots) continue;
        if (keys[stretch * {_STRETCH}] == run && stretch > 0 && keys[stretch * {_STRETCH} - 1] == run) continue;
        {value} total = partial[(2 * stretch + 1) * width + column];
        for (long long next = stretch + 1; next < sizes.stretches && keys[next * {_STRETCH}] == run; next++) {{
            const {value} more = partial[2 * next * width + column];
            total = {joined("total", "more")};
        }}
        const long long place = place_of(sizes, (long long)run) + o[0];
        {{
            {added}
        }}"""
    else:
        body = f"""const long long first = stretch * {_STRETCH};
        const long long end = first + {_STRETCH} < sizes.sorted ? first + {_STRETCH} : sizes.sorted;
        bool head = first > 0 && keys[first] == keys[first - 1];  // the run began before this stretch
        for (long long i = first; i < end;) {{
            const {key} run = keys[i];
            if ((long long)run >= sizes.slots) break;
            long long point[1];
            offsets_at(sizes.points, positions[i], point);
            {value} total = {read("other[point[0] + o[1]]")};
            for (i++; i < end && keys[i] == run; i++) {{
                offsets_at(sizes.points, positions[i], point);
                const {value} more = {read("other[point[0] + o[1]]")};
                total = {joined("total", "more")};
            }}
            if (head) {{
                partial[2 * stretch * width + column] = total;
            }} else if (i == end && end < sizes.sorted && keys[end] == run) {{
                partial[(2 * stretch + 1) * width + column] = total;
            }} else {{
                const long long place = place_of(sizes, (long long)run) + o[0];
                {added}
            }}
            head = false;
        }}"""
    name = "kernel_scatter_add_" + ("runs" if second else "stretches")
    kernel = f"""extern "C" __global__ void __launch_bounds__({THREADS}) {name}(
    {element}* table, const {element}* other, const {key}* keys, const unsigned int* positions, {value}* partial,
    const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS}, width = sizes.columns.points, count = sizes.stretches * width;
    for (long long thread = blockIdx.x * (long long){THREADS} + threadIdx.x; thread < count; thread += stride) {{
        const long long stretch = quotient_of(thread, width), column = thread - stretch * width;
        long long o[2];
        offsets_at(sizes.columns, column, o);
        {body}
    }}
}}
"""
    return "\n\n".join(part for part in (with_dependencies(kernel), WALK, shared + "\n" + kernel) if part)

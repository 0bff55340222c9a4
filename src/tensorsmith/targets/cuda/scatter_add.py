"""Sums at places that points share, in an order that depends on the indices alone: `IndexSpec` with mode scatter_add.

Products and extremes at shared places are the same with another function.

    owned    few points may meet: a thread owns a place of every walk along the other axes, and adds its points one by one
    rows     rows that never meet, short and many: a block takes one (`scatter_rows.py`)
    sorted   the points are sorted by their places (`radix_sort.py`, stable), so that those of one place are a run. A thread
             adds a stretch of the sorted points for one column of the rows: runs that lie within it are finished, those that
             reach over its ends leave partial sums, which a last kernel adds in order

Half types are summed in float32 and rounded once. Whatever the order of blocks, results are the same bit for bit.
"""

from __future__ import annotations

import functools
import math

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec_index import IndexSpec
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.gather import Meetings, place_text
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, Lowered, Word
from tensorsmith.targets.cuda.order_keys import words_text
from tensorsmith.targets.cuda.ordered_sums import OrderedStructure, ordered_sums, stretch_of
from tensorsmith.targets.cuda.radix_sort import key_type, sort_launches, sort_scratch, sort_words
from tensorsmith.targets.cuda.scalars import c_type, cast_expression, memory_type
from tensorsmith.targets.cuda.scatter_rows import fits_rows, owned_places, scatter_rows
from tensorsmith.targets.cuda.walk import THREADS, WALK, blocks_for, walk_words

_FEW = 32  # points that may meet, up to which one thread adds them
_MOST_IN_BLOCK = 4096  # points that one block sorts


def lower_scatter_add(spec: IndexSpec, places: Meetings, properties: DeviceProperties) -> Lowered:
    """The launches of sums whose points may meet. NotImplementedError for dtypes that kernels do not have."""
    words = len(spec.indices) + 2
    meeting = math.prod(spec.domain[axis] for axis in places.walked)
    indices = tuple((index.operand.dtype, index.wrap) for index in spec.indices)
    if meeting <= _FEW:
        moved = math.prod(spec.domain) * spec.dtype.itemsize * 3 + places.points * 8
        launch = _owned(spec, places, OrderedStructure(spec.dtype, indices), properties)
        return Lowered(spec.name, (launch,), words, (), moved, math.prod(spec.domain))
    structure = OrderedStructure(spec.dtype, indices, _key_bytes(places))
    return _sorted(spec, places, structure, properties)


def lower_scatter_reduce(spec: IndexSpec, kind: str, include_self: bool, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of products (kind "prod") or extremes ("amax", "amin") in place of sums.

    include_self: whether what stood at a place before is joined too; places without points keep it in any case
    """
    properties, places = properties or DeviceProperties(), Meetings(spec)
    indices = tuple((index.operand.dtype, index.wrap) for index in spec.indices)
    structure = OrderedStructure(spec.dtype, indices, _key_bytes(places), _JOINS[kind], include_self)
    return _sorted(spec, places, structure, properties)


_JOINS = {"prod": Fn.MUL, "amax": Fn.MAXIMUM, "amin": Fn.MINIMUM}


def _key_bytes(places: Meetings) -> int:
    return 4 if places.slots < 0xFFFFFFFF else 8


def _sorted(spec: IndexSpec, places: Meetings, structure: OrderedStructure, properties: DeviceProperties) -> Lowered:
    moved = math.prod(spec.domain) * spec.dtype.itemsize * 3 + places.points * 8
    words, key_bytes = len(spec.indices) + 2, structure.key_bytes
    if fits_rows(spec, places):
        launch = scatter_rows(spec, places, structure)
        return Lowered(spec.name, (launch,), words, (), moved, math.prod(spec.domain))
    columns = math.prod(spec.domain[axis] for axis in places.plain)
    partial = 2 * -(-places.points // stretch_of(places, spec)) * columns * compute_dtype(spec.dtype).itemsize
    if places.points <= _MOST_IN_BLOCK and key_bytes == 4:
        scratch: tuple[int, ...] = (places.points * 4, places.points * 4, partial)
        launches = [_sort_in_block(spec, places, structure, words, words + 1)]
        found = (words, words + 1)
    else:
        scratch = (*sort_scratch(1, places.points, key_bytes), partial)
        sort = sort_words(words)
        sorting, side = sort_launches(1, places.points, key_bytes, places.slots.bit_length(), sort, properties)
        launches = [_keys(spec, places, structure, sort.keys[0], properties), *sorting]
        found = (sort.keys[side], sort.positions[side])
    for second in (False, True):
        launches.append(ordered_sums(spec, places, structure, second, (*found, words + len(scratch) - 1), properties))
    return Lowered(spec.name, tuple(launches), words, scratch, moved, math.prod(spec.domain))


def _owned(spec: IndexSpec, places: Meetings, structure: OrderedStructure, properties: DeviceProperties) -> Launch:
    """A thread adds all points that may meet at its places."""
    owners, arguments = owned_places(spec, places)
    grid = (blocks_for(owners, properties.multiprocessors), 1, 1)
    return Launch(_owned_text(structure), "kernel_scatter_add_owned", grid, (THREADS, 1, 1), arguments)


@functools.cache
def _owned_text(structure: OrderedStructure) -> str:
    count, dtype = len(structure.indices), structure.dtype
    operands, element, compute = count + 3, memory_type(dtype), compute_dtype(dtype)
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


def _keys(spec: IndexSpec, places: Meetings, structure: OrderedStructure, keys: int, properties: DeviceProperties) -> Launch:
    """The slot of every point; what is out of range comes behind all slots."""
    count = len(spec.indices)
    words = [*(Word(1 + k) for k in range(count)), Word(keys)]
    arguments: tuple[Argument, ...] = (*words, ErrorWord(), Constant(_points_words(spec, places)))
    grid = (blocks_for(places.points, properties.multiprocessors), 1, 1)
    return Launch(_keys_text(structure), "kernel_scatter_add_keys", grid, (THREADS, 1, 1), arguments)


def _points_words(spec: IndexSpec, places: Meetings) -> tuple[int, ...]:
    """What says the slots of the points: their walk (no table, the indices, own coordinates, positions) and the indices."""
    axes = sorted([*places.walked, *places.varied])
    columns = [(0,) * len(spec.domain), *(i.operand.strides for i in spec.indices), places.numbers(places.varied),
               places.numbers(places.indexed)]  # fmt: skip
    strides = [[operand[axis] for axis in axes] for operand in columns]
    constants = walk_words(spec.name, [spec.domain[axis] for axis in axes], strides)
    constants += [*(index.size for index in spec.indices), *(index.step for index in spec.indices)]
    return (*constants, places.varied_points, places.slots)


@functools.cache
def _keys_text(structure: OrderedStructure) -> str:
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


def _sort_in_block(spec: IndexSpec, places: Meetings, structure: OrderedStructure, keys: int, positions: int) -> Launch:
    """Slots and positions of few points, sorted by one block."""
    padded = max(64, 1 << (places.points - 1).bit_length())
    walk, count = _points_words(spec, places), len(spec.indices)
    arguments: tuple[Argument, ...] = (
        *(Word(1 + k) for k in range(count)), Word(keys), Word(positions), ErrorWord(), Constant((*walk, padded)),
    )  # fmt: skip
    threads = min(1024, padded // 2)
    shared = padded * 8
    return Launch(_block_text(structure), "kernel_scatter_add_sort", (1, 1, 1), (threads, 1, 1), arguments, shared)


@functools.cache
def _block_text(structure: OrderedStructure) -> str:
    count = len(structure.indices)
    operands = count + 3
    indices = ", ".join(f"const {c_type(d)}* index{k}" for k, (d, _) in enumerate(structure.indices))
    return f"""{WALK}

typedef unsigned int Key;
{words_text(dtypes.int32)}
struct Sizes {{ Walk<{operands}> walk; long long counts[{count}], steps[{count}], own, slots, padded; }};

extern "C" __global__ void __launch_bounds__(1024) kernel_scatter_add_sort(
    {indices}, unsigned int* keys, unsigned int* positions, long long* error, const Sizes sizes) {{
    extern __shared__ __align__(16) char memory[];
    const int padded = (int)sizes.padded, points = (int)sizes.walk.points;
    Words words(memory, padded);
    for (int i = threadIdx.x; i < padded; i += blockDim.x) {{
        Key key = 0xffffffffu;
        if (i < points) {{
            long long o[{operands}];
            offsets_at(sizes.walk, i, o);
            {place_text(structure.indices, True)}
            if (!inside) *error = {FIRST_POINT} + o[{count + 2}];
            key = (Key)(inside ? slot * sizes.own + o[{count + 1}] : sizes.slots);
        }}
        words.set(i, key, i);
    }}
    bitonic_sort(words, padded, padded);
    for (int i = threadIdx.x; i < points; i += blockDim.x) {{
        keys[i] = (unsigned int)(words.words[i] >> 32);
        positions[i] = words.position(i);
    }}
}}
"""

"""Kernels of ranks (`kernels/spec_order.py:RankSpec`): sorts, the first k, single ranks.

    block    rows that fit shared memory: a block sorts one, or several short ones (a bitonic network)
    select   the first few of many, or a single rank: a block counts the leading digits of a row's keys until the bucket that
             holds the last wanted rank is small, collects what stands before or in it, and sorts that. Positions are the last
             digits, so that of equal elements the first ones are taken, and no bucket stays large. Where rows are few and
             long, blocks take the first ones of parts of a row, and then one block the first ones of all these
    radix    long rows, sorted in device memory (`radix_sort.py`)

Words: addresses of the source and of the result. Equal elements keep their order.
"""

from __future__ import annotations

import functools
import math

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_order import RankSpec
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, Launch, Lowered, Word
from tensorsmith.targets.cuda.order_keys import key_bits, key_bytes, key_text, word_bytes, words_text
from tensorsmith.targets.cuda.radix_sort import SUM_BEFORE, sort_launches, sort_scratch, sort_words
from tensorsmith.targets.cuda.walk import THREADS, WALK, blocks_for, walk_words

_LONGEST_OF_BLOCK = {4: 4096, 8: 2048}  # elements, by the bytes of a key
_FEWEST_OF_BLOCK = 512  # words that a block sorts: shorter rows lie together
_MOST_SELECTED = 1024
_FEWEST_COLLECTED = 256
_SHORTEST_SELECTED = 512
_SHORTEST_PART = 2048
_AT_ONCE = 4  # elements that a thread loads together
_LONG_ALONE = 1 << 17  # elements of a row that one block alone would take too long for, where there are few


def lower_ranks(spec: RankSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launches. NotImplementedError for dtypes that kernels do not have."""
    properties = properties or DeviceProperties()
    extent = spec.domain[spec.axis]
    if extent >= 1 << 32:
        raise NotImplementedError(f"ranks of {extent} elements: positions have 32 bits")
    extents, strides = arrange(spec.domain, [spec.source, spec.result], [0, 1], (spec.axis,))
    rows = math.prod(extents)
    steps = (spec.source[spec.axis], spec.result[spec.axis])
    walk = walk_words("ranks", extents, strides)
    words: tuple[int, ...] = (*walk, *steps, extent, spec.start, spec.length)
    moved = rows * (extent * spec.dtype.itemsize + spec.length * 8)
    way = _way(spec, rows, properties)
    if way == "select":
        return _selected(spec, rows, words, moved, properties)
    if way == "radix":
        launches, scratch = _radix(spec, rows, words, properties)
        return Lowered("ranks", tuple(launches), 2, scratch, moved, rows * extent)
    padded = max(2, 1 << (extent - 1).bit_length())
    count = max(padded, _FEWEST_OF_BLOCK)
    blocks, threads = -(-rows // (count // padded)), min(1024, count // 2)
    arguments = (Word(0), Word(1), Constant((*words, padded, count)))
    text, shared = _block_text(spec.dtype, spec.descending), count * word_bytes(spec.dtype)
    launch = Launch(text, "kernel_ranks_block", (blocks, 1, 1), (threads, 1, 1), arguments, shared)
    return Lowered("ranks", (launch,), 2, (), moved, rows * extent)


def _selected(spec: RankSpec, rows: int, words: tuple[int, ...], moved: int, properties: DeviceProperties) -> Lowered:
    """One launch, or one over parts of the rows and one over what these found."""
    extent, length = spec.domain[spec.axis], spec.length
    limit = max(_FEWEST_COLLECTED, 1 << (length - 1).bit_length())
    digits = -(-max(1, (extent - 1).bit_length()) // 8)
    shared = limit * word_bytes(spec.dtype)
    parts = _parts(spec, rows, properties)
    scratch = (rows * parts * length * 4,) if parts > 1 else ()
    launches = []
    for stage, blocks, count in (
        [("whole", rows, extent)] if parts == 1 else [("parts", rows * parts, extent // parts), ("found", rows, parts * length)]
    ):
        constant = Constant((*words, limit, digits, parts))
        results = {"whole": (Word(1),), "parts": (Word(2),), "found": (Word(1), Word(2))}[stage]
        threads = 256 if count <= 4096 else 512 if count <= 8192 else 1024
        text, name = _select_text(spec.dtype, spec.descending, stage), f"kernel_ranks_select_{stage}"
        launches.append(Launch(text, name, (blocks, 1, 1), (threads, 1, 1), (Word(0), *results, constant), shared))
    return Lowered("ranks", tuple(launches), 2, scratch, moved, rows * extent)


def _parts(spec: RankSpec, rows: int, properties: DeviceProperties) -> int:
    """Into how many parts rows fall, so that blocks are many and what they find is not more than a part."""
    extent, length = spec.domain[spec.axis], spec.length
    if spec.start > 0:
        return 1
    wanted = -(-2 * properties.multiprocessors // rows)
    parts = min(wanted, extent // max(_SHORTEST_PART, 4 * length), math.isqrt(extent // length))
    return max(1, parts)


def _way(spec: RankSpec, rows: int, properties: DeviceProperties) -> str:
    extent, length = spec.domain[spec.axis], spec.length
    few = length <= _MOST_SELECTED and 4 * length <= extent and (spec.start == 0 or length == 1)
    splits = spec.start == 0 or extent < _LONG_ALONE or rows * 4 >= properties.multiprocessors
    if few and splits and extent > _SHORTEST_SELECTED:
        return "select"
    return "block" if extent <= _LONGEST_OF_BLOCK[key_bytes(spec.dtype)] else "radix"


_SIZES = "struct Sizes {{ Walk<2> walk; long long along[2], extent, start, length{0}; }};"


@functools.cache
def _block_text(dtype: DType, descending: bool) -> str:
    return f"""{WALK}

{key_text(dtype, descending)}
{words_text(dtype)}
{_SIZES.format(", padded, count")}

extern "C" __global__ void __launch_bounds__(1024) kernel_ranks_block(
    const Value* source, long long* result, const Sizes sizes) {{
    extern __shared__ __align__(16) char memory[];
    const int count = (int)sizes.count, padded = (int)sizes.padded, extent = (int)sizes.extent;
    Words words(memory, count);
    const long long first = blockIdx.x * (long long)(count / padded);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {{
        const long long row = first + i / padded;
        const int at = i % padded;
        if (row < sizes.walk.points && at < extent) {{
            long long o[2];
            offsets_at(sizes.walk, row, o);
            words.set(i, key_of(source[o[0] + at * sizes.along[0]]), at);
        }} else {{
            words.set(i, ~(Key)0, 0xffffffffu);  // behind all that there is
        }}
    }}
    bitonic_sort(words, count, padded);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {{
        const long long row = first + i / padded, rank = i % padded - sizes.start;
        if (row < sizes.walk.points && rank >= 0 && rank < sizes.length) {{
            long long o[2];
            offsets_at(sizes.walk, row, o);
            result[o[1] + rank * sizes.along[1]] = words.position(i);
        }}
    }}
}}
"""


@functools.cache
def _select_text(dtype: DType, descending: bool, stage: str) -> str:
    bits = key_bits(dtype)
    result = "unsigned int* result" if stage == "parts" else "long long* result"
    result += ", const unsigned int* given" if stage == "found" else ""
    row = {
        "whole": """const unsigned int low = 0, high = (unsigned int)sizes.extent;
    const long long row = blockIdx.x, step = sizes.along[1];""",
        "parts": """const long long row = blockIdx.x / sizes.parts, part = blockIdx.x % sizes.parts, step = 1;
    const unsigned int low = (unsigned int)(part * sizes.extent / sizes.parts);
    const unsigned int high = (unsigned int)((part + 1) * sizes.extent / sizes.parts);""",
        "found": """const long long row = blockIdx.x, step = sizes.along[1];
    const unsigned int low = 0, high = (unsigned int)(sizes.parts * sizes.length);
    given += row * sizes.parts * sizes.length;""",
    }[stage]
    given = "given" if stage == "found" else "nullptr"
    to = "blockIdx.x * sizes.length" if stage == "parts" else "o[1]"
    return f"""{SUM_BEFORE}

{WALK}

{key_text(dtype, descending)}
{words_text(dtype)}
{_SIZES.format(", limit, digits, parts")}

// The digits of the bucket: all of the key, or its leading ones, then those of the position.
struct Bucket {{
    Key key;
    unsigned int position;
    int level;
    // -1, 0 or 1: whether an element stands before the bucket, in it, or behind it.
    __device__ int compare(Key of_key, unsigned int of_position, int digits) const {{
        if (level == 0) return 0;
        const int shift = level < {bits // 8} ? {bits} - 8 * level : 0;
        const Key here = of_key >> shift, there = key >> shift;
        if (here != there) return here < there ? -1 : 1;
        if (level <= {bits // 8}) return 0;
        const int left = 8 * (digits - (level - {bits // 8}));
        const unsigned int at = of_position >> left, end = position >> left;
        return at == end ? 0 : at < end ? -1 : 1;
    }}
    __device__ unsigned int digit(Key of_key, unsigned int of_position, int digits) const {{
        if (level < {bits // 8}) return (unsigned int)(of_key >> ({bits} - 8 * (level + 1))) & 255;
        return of_position >> (8 * (digits - (level - {bits // 8}) - 1)) & 255;
    }}
    __device__ void append(unsigned int digit, int digits) {{
        if (level < {bits // 8}) key |= (Key)digit << ({bits} - 8 * (level + 1));
        else position |= digit << (8 * (digits - (level - {bits // 8}) - 1));
        level++;
    }}
}};

// Key and position of every element, some loads at a time.
template <typename Act>
__device__ __forceinline__ void for_each(
    const Value* source, long long along, const unsigned int* given, unsigned int low, unsigned int high, Act act) {{
    for (unsigned long long i = low + threadIdx.x; i < high; i += {_AT_ONCE} * blockDim.x) {{
        Value values[{_AT_ONCE}];
        unsigned int positions[{_AT_ONCE}];
        #pragma unroll
        for (int j = 0; j < {_AT_ONCE}; j++) {{
            const unsigned long long at = i + j * blockDim.x;
            if (at < high) {{
                positions[j] = given ? given[at] : (unsigned int)at;
                values[j] = source[positions[j] * along];
            }}
        }}
        #pragma unroll
        for (int j = 0; j < {_AT_ONCE}; j++) {{
            if (i + j * blockDim.x < high) act(key_of(values[j]), positions[j]);
        }}
    }}
}}

extern "C" __global__ void __launch_bounds__(1024) kernel_ranks_select_{stage}(
    const Value* source, {result}, const Sizes sizes) {{
    extern __shared__ __align__(16) char memory[];
    __shared__ unsigned int found[256], chosen[3], collected;
    const int digits = (int)sizes.digits;
    const unsigned int last = (unsigned int)(sizes.start + sizes.length - 1);
    const bool from_first = sizes.start == 0;
    {row}
    long long o[2];
    offsets_at(sizes.walk, row, o);
    source += o[0];
    result += {to};
    Bucket bucket;
    bucket.key = 0;
    bucket.position = 0;
    bucket.level = 0;
    unsigned int before = 0, inside = high - low;
    while ((from_first ? before + inside : inside) > sizes.limit && bucket.level < {bits // 8} + digits) {{
        if (threadIdx.x < 256) found[threadIdx.x] = 0;
        __syncthreads();
        for_each(source, sizes.along[0], {given}, low, high, [&](Key key, unsigned int position) {{
            if (bucket.compare(key, position, digits) == 0) atomicAdd(&found[bucket.digit(key, position, digits)], 1u);
        }});
        __syncthreads();
        unsigned int total;
        const unsigned int count = threadIdx.x < 256 ? found[threadIdx.x] : 0, ahead = before + sum_before(count, total);
        if (count && ahead <= last && last < ahead + count) {{
            chosen[0] = threadIdx.x;
            chosen[1] = ahead;
            chosen[2] = count;
        }}
        __syncthreads();
        bucket.append(chosen[0], digits);
        before = chosen[1];
        inside = chosen[2];
        __syncthreads();
    }}
    Words words(memory, (int)sizes.limit);
    if (threadIdx.x == 0) collected = 0;
    __syncthreads();
    for_each(source, sizes.along[0], {given}, low, high, [&](Key key, unsigned int position) {{
        const int order = bucket.compare(key, position, digits);
        if (order == 0 || (order < 0 && from_first)) words.set((int)atomicAdd(&collected, 1u), key, position);
    }});
    __syncthreads();
    int padded = 2;
    while (padded < (int)collected) padded *= 2;
    for (int i = (int)collected + threadIdx.x; i < padded; i += blockDim.x) words.set(i, ~(Key)0, 0xffffffffu);
    bitonic_sort(words, padded, padded);
    const int first = from_first ? 0 : (int)(sizes.start - before);
    for (int i = threadIdx.x; i < sizes.length; i += blockDim.x) result[i * step] = words.position(first + i);
}}
"""


def _radix(
    spec: RankSpec, rows: int, words: tuple[int, ...], properties: DeviceProperties
) -> tuple[list[Launch], tuple[int, ...]]:
    """Keys, their sort, and the positions of the wanted ranks."""
    extent, size = spec.domain[spec.axis], key_bytes(spec.dtype)
    sort = sort_words(2)
    scratch = sort_scratch(rows, extent, size)
    sorting, side = sort_launches(rows, extent, size, key_bits(spec.dtype), sort, properties)
    blocks = [blocks_for(rows * count, properties.multiprocessors) for count in (extent, spec.length)]
    constant = Constant(words)
    keys = Launch(
        _keys_text(spec.dtype, spec.descending), "kernel_ranks_keys", (blocks[0], 1, 1), (THREADS, 1, 1),
        (Word(0), Word(sort.keys[0]), constant),
    )  # fmt: skip
    positions = Launch(
        _POSITIONS,
        "kernel_ranks_positions",
        (blocks[1], 1, 1),
        (THREADS, 1, 1),
        (Word(sort.positions[side]), Word(1), constant),
    )
    return [keys, *sorting, positions], scratch


@functools.cache
def _keys_text(dtype: DType, descending: bool) -> str:
    return f"""{WALK}

{key_text(dtype, descending)}
{_SIZES.format("")}

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_ranks_keys(
    const Value* source, Key* keys, const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS}, count = sizes.walk.points * sizes.extent;
    for (long long i = blockIdx.x * (long long){THREADS} + threadIdx.x; i < count; i += stride) {{
        const long long row = quotient_of(i, sizes.extent);
        long long o[2];
        offsets_at(sizes.walk, row, o);
        keys[i] = key_of(source[o[0] + (i - row * sizes.extent) * sizes.along[0]]);
    }}
}}
"""


_POSITIONS = f"""{WALK}

{_SIZES.format("")}

extern "C" __global__ void __launch_bounds__({THREADS}) kernel_ranks_positions(
    const unsigned int* positions, long long* result, const Sizes sizes) {{
    const long long stride = gridDim.x * (long long){THREADS}, count = sizes.walk.points * sizes.length;
    for (long long i = blockIdx.x * (long long){THREADS} + threadIdx.x; i < count; i += stride) {{
        const long long row = quotient_of(i, sizes.length), rank = i - row * sizes.length;
        long long o[2];
        offsets_at(sizes.walk, row, o);
        result[o[1] + rank * sizes.along[1]] = positions[row * sizes.extent + sizes.start + rank];
    }}
}}
"""

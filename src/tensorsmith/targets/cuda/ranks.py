"""Kernels of ranks (`kernels/spec_order.py:RankSpec`): sorts, the first k, single ranks.

    block    rows that fit shared memory: a block sorts one, or several short ones (a bitonic network)
    select   the first few of many, or a single rank: a block counts the leading digits of a row's keys until the bucket that
             holds the last wanted rank is small, collects what stands before or in it, and sorts that. Positions are the last
             digits, so that of equal elements the first ones are taken, and no bucket stays large
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
    if way == "radix":
        launches, scratch = _radix(spec, rows, words, properties)
        return Lowered("ranks", tuple(launches), 2, scratch, moved, rows * extent)
    if way == "block":
        padded = max(2, 1 << (extent - 1).bit_length())
        count = max(padded, _FEWEST_OF_BLOCK)
        threads = min(1024, count // 2)
        shared = count * word_bytes(spec.dtype)
        blocks = -(-rows // (count // padded))
        words = (*words, padded, count)
    else:
        limit = max(_FEWEST_COLLECTED, 1 << (spec.length - 1).bit_length())
        position_digits = -(-max(1, (extent - 1).bit_length()) // 8)
        threads = 256 if extent <= 8192 else 1024
        shared, blocks = limit * word_bytes(spec.dtype), rows
        words = (*words, limit, position_digits)
    text, name = (_block_text if way == "block" else _select_text)(spec.dtype, spec.descending), f"kernel_ranks_{way}"
    launch = Launch(text, name, (blocks, 1, 1), (threads, 1, 1), (Word(0), Word(1), Constant(words)), shared)
    return Lowered("ranks", (launch,), 2, (), moved, rows * extent)


def _way(spec: RankSpec, rows: int, properties: DeviceProperties) -> str:
    extent, length = spec.domain[spec.axis], spec.length
    few = length <= _MOST_SELECTED and 4 * length <= extent and (spec.start == 0 or length == 1)
    if few and extent > _SHORTEST_SELECTED and (extent < _LONG_ALONE or rows * 4 >= properties.multiprocessors):
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
def _select_text(dtype: DType, descending: bool) -> str:
    bits = key_bits(dtype)
    return f"""{SUM_BEFORE}

{WALK}

{key_text(dtype, descending)}
{words_text(dtype)}
{_SIZES.format(", limit, digits")}

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

extern "C" __global__ void __launch_bounds__(1024) kernel_ranks_select(
    const Value* source, long long* result, const Sizes sizes) {{
    extern __shared__ __align__(16) char memory[];
    __shared__ unsigned int found[256], chosen[3], collected;
    const int digits = (int)sizes.digits;
    const unsigned int extent = (unsigned int)sizes.extent, last = (unsigned int)(sizes.start + sizes.length - 1);
    const bool from_first = sizes.start == 0;
    long long o[2];
    offsets_at(sizes.walk, blockIdx.x, o);
    source += o[0];
    result += o[1];
    Bucket bucket;
    bucket.key = 0;
    bucket.position = 0;
    bucket.level = 0;
    unsigned int before = 0, inside = extent;
    while ((from_first ? before + inside : inside) > sizes.limit && bucket.level < {bits // 8} + digits) {{
        if (threadIdx.x < 256) found[threadIdx.x] = 0;
        __syncthreads();
        for (unsigned int i = threadIdx.x; i < extent; i += blockDim.x) {{
            const Key key = key_of(source[i * sizes.along[0]]);
            if (bucket.compare(key, i, digits) == 0) atomicAdd(&found[bucket.digit(key, i, digits)], 1u);
        }}
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
    for (unsigned int i = threadIdx.x; i < extent; i += blockDim.x) {{
        const Key key = key_of(source[i * sizes.along[0]]);
        const int order = bucket.compare(key, i, digits);
        if (order == 0 || (order < 0 && from_first)) words.set((int)atomicAdd(&collected, 1u), key, i);
    }}
    __syncthreads();
    int padded = 2;
    while (padded < (int)collected) padded *= 2;
    for (int i = (int)collected + threadIdx.x; i < padded; i += blockDim.x) words.set(i, ~(Key)0, 0xffffffffu);
    bitonic_sort(words, padded, padded);
    const int first = from_first ? 0 : (int)(sizes.start - before);
    for (int i = threadIdx.x; i < sizes.length; i += blockDim.x) result[i * sizes.along[1]] = words.position(first + i);
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

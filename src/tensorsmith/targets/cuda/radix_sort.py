"""Stable sorting of many rows of unsigned keys with their positions: least significant digit first, 8 bits a pass.

A pass over rows of any length is three launches. Tiles of a row are blocks:

    count     how often every digit occurs in every tile
    place     for every digit, how many of it stand in the tiles before (a scan along the tiles), and in the row
    move      a tile is put in order in shared memory, then every run of one digit goes to its place in the row

Keys are 32 or 64 bits; a position is 32 bits and counts within its row. Equal keys keep their order, so the result does not
depend on how blocks run.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, Launch, Word

DIGIT_BITS = 8
_DIGITS = 1 << DIGIT_BITS
_THREADS = 256  # one a digit
_WARPS = _THREADS // 32
_ITEMS = {4: 16, 8: 8}  # keys of a thread, by the size of a key: a tile has to fit into 48 KB
_LONG = 512  # tiles from which a whole block, not a warp, scans the counts of a digit

# Exclusive sums over the threads of a block of 256; all threads have to call it.
SUM_BEFORE = """
__device__ __forceinline__ unsigned int sum_before(unsigned int value, unsigned int& total) {
    __shared__ unsigned int of_warps[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (int)blockDim.x >> 5;
    unsigned int sum = value;
    for (int distance = 1; distance < 32; distance *= 2) {
        const unsigned int other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
    }
    __syncthreads();  // whoever still reads what an earlier call wrote
    if (lane == 31) of_warps[warp] = sum;
    __syncthreads();
    unsigned int before = sum - value;
    total = 0;
    for (int w = 0; w < warps; w++) {
        if (w < warp) before += of_warps[w];
        total += of_warps[w];
    }
    return before;
}""".strip()

_SIZES = "struct Sizes { long long extent, tiles, shift, rows; };"


@dataclass(frozen=True)
class SortWords:
    """The words of the scratch buffers of a sort: two of keys, two of positions, counts of digits, their totals."""

    keys: tuple[int, int]
    positions: tuple[int, int]
    counts: int
    totals: int


def tile_of(key_bytes: int) -> int:
    """How many keys a block puts in order."""
    return _THREADS * _ITEMS[key_bytes]


def sort_scratch(rows: int, extent: int, key_bytes: int) -> tuple[int, ...]:
    """Bytes of the scratch buffers, in the order of `sort_words`."""
    keys, positions = rows * extent * key_bytes, rows * extent * 4
    tiles = -(-extent // tile_of(key_bytes))
    return keys, keys, positions, positions, rows * _DIGITS * tiles * 4, rows * _DIGITS * 4


def sort_words(first: int) -> SortWords:
    """The words of scratch buffers that begin with word `first`."""
    return SortWords((first, first + 1), (first + 2, first + 3), first + 4, first + 5)


def sort_launches(
    rows: int, extent: int, key_bytes: int, bits: int, words: SortWords, properties: DeviceProperties
) -> tuple[list[Launch], int]:
    """Launches that sort every row of `extent` keys by their lowest `bits` bits, and which of the two buffers has the result.

    Keys are given in `keys[0]`; positions need not be: they are 0, 1, ... at first.
    """
    if extent >= 1 << 32:
        raise NotImplementedError(f"sorting rows of {extent} elements: positions have 32 bits")
    tiles = -(-extent // tile_of(key_bytes))
    team = _THREADS if tiles > _LONG else 32
    launches = []
    passes = max(1, math.ceil(bits / DIGIT_BITS))
    for number in range(passes):
        here, there = number % 2, (number + 1) % 2
        sizes = Constant((extent, tiles, number * DIGIT_BITS, rows))
        launches += [
            Launch(
                _count_text(key_bytes), "kernel_radix_count", (rows * tiles, 1, 1), (_THREADS, 1, 1),
                (Word(words.keys[here]), Word(words.counts), sizes),
            ),
            Launch(
                _place_text(team), "kernel_radix_place", (rows * _DIGITS * team // _THREADS, 1, 1), (_THREADS, 1, 1),
                (Word(words.counts), Word(words.totals), sizes),
            ),
            Launch(
                _move_text(key_bytes, number == 0), "kernel_radix_move", (rows * tiles, 1, 1), (_THREADS, 1, 1),
                (
                    Word(words.keys[here]), Word(words.positions[here]), Word(words.counts), Word(words.totals),
                    Word(words.keys[there]), Word(words.positions[there]), sizes,
                ),
            ),
        ]  # fmt: skip
    return launches, passes % 2


def key_type(key_bytes: int) -> str:
    """The C++ type of keys."""
    return "unsigned int" if key_bytes == 4 else "unsigned long long"


@functools.cache
def _count_text(key_bytes: int) -> str:
    return f"""{_SIZES}

extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_radix_count(
    const {key_type(key_bytes)}* keys, unsigned int* counts, const Sizes sizes) {{
    __shared__ unsigned int found[{_DIGITS}];
    found[threadIdx.x] = 0;
    __syncthreads();
    const long long row = blockIdx.x / sizes.tiles, tile = blockIdx.x % sizes.tiles;
    #pragma unroll
    for (int i = 0; i < {_ITEMS[key_bytes]}; i++) {{
        const long long at = tile * {tile_of(key_bytes)} + i * {_THREADS} + threadIdx.x;
        if (at < sizes.extent) atomicAdd(&found[(keys[row * sizes.extent + at] >> sizes.shift) & {_DIGITS - 1}], 1u);
    }}
    __syncthreads();
    counts[(row * {_DIGITS} + threadIdx.x) * sizes.tiles + tile] = found[threadIdx.x];
}}
"""


@functools.cache
def _place_text(team: int) -> str:
    if team == 32:
        scanned = """unsigned int sum = count;
        for (int distance = 1; distance < 32; distance *= 2) {
            const unsigned int other = __shfl_up_sync(0xffffffffu, sum, distance);
            if (member >= distance) sum += other;
        }
        const unsigned int before = sum - count, total = __shfl_sync(0xffffffffu, sum, 31);"""
    else:
        scanned = """unsigned int total;
        const unsigned int before = sum_before(count, total);"""
    return f"""{SUM_BEFORE if team > 32 else ""}
{_SIZES}

extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_radix_place(
    unsigned int* counts, unsigned int* totals, const Sizes sizes) {{
    const int member = threadIdx.x % {team};
    const long long digit = blockIdx.x * {_THREADS // team}ll + threadIdx.x / {team};  // of all rows
    unsigned int* of_digit = counts + digit * sizes.tiles;
    unsigned int running = 0;
    for (long long first = 0; first < sizes.tiles; first += {team}) {{
        const long long tile = first + member;
        const unsigned int count = tile < sizes.tiles ? of_digit[tile] : 0;
        {scanned}
        if (tile < sizes.tiles) of_digit[tile] = running + before;
        running += total;
    }}
    if (member == 0) totals[digit] = running;
}}
"""


@functools.cache
def _move_text(key_bytes: int, first: bool) -> str:
    items, tile, key = _ITEMS[key_bytes], tile_of(key_bytes), key_type(key_bytes)
    position = "(unsigned int)at" if first else "from_positions[row * sizes.extent + at]"
    return f"""{SUM_BEFORE}
{_SIZES}

extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_radix_move(
    const {key}* from_keys, const unsigned int* from_positions, const unsigned int* counts, const unsigned int* totals,
    {key}* to_keys, unsigned int* to_positions, const Sizes sizes) {{
    __shared__ {key} keys[{tile}];
    __shared__ unsigned int positions[{tile}], of_warps[{_WARPS}][{_DIGITS}], local[{_DIGITS}], start[{_DIGITS}];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const long long row = blockIdx.x / sizes.tiles, tile = blockIdx.x % sizes.tiles, base = tile * {tile};
    for (int w = 0; w < {_WARPS}; w++) of_warps[w][threadIdx.x] = 0;
    __syncthreads();
    {key} key[{items}];
    unsigned int rank[{items}];
    #pragma unroll
    for (int i = 0; i < {items}; i++) {{
        const long long at = base + warp * {32 * items} + i * 32 + lane;
        // What lies behind the row has the last digit: it comes after all keys of the tile, and is not written.
        key[i] = at < sizes.extent ? from_keys[row * sizes.extent + at] : ~({key})0;
    }}
    #pragma unroll
    for (int i = 0; i < {items}; i++) {{
        const unsigned int digit = (unsigned int)(key[i] >> sizes.shift) & {_DIGITS - 1};
        unsigned int same = 0xffffffffu;
        #pragma unroll
        for (int bit = 0; bit < {DIGIT_BITS}; bit++) {{
            const unsigned int set = __ballot_sync(0xffffffffu, (digit >> bit) & 1);
            same &= (digit >> bit) & 1 ? set : ~set;
        }}
        const unsigned int ahead = __popc(same & ((1u << lane) - 1)), before = of_warps[warp][digit];
        __syncwarp();
        if (ahead == 0) of_warps[warp][digit] = before + __popc(same);
        __syncwarp();
        rank[i] = before + ahead;
    }}
    __syncthreads();
    unsigned int here = 0, all;
    for (int w = 0; w < {_WARPS}; w++) {{
        const unsigned int count = of_warps[w][threadIdx.x];
        of_warps[w][threadIdx.x] = here;
        here += count;
    }}
    const unsigned int in_tile = sum_before(here, all);
    const unsigned int in_row = sum_before(totals[row * {_DIGITS} + threadIdx.x], all);
    local[threadIdx.x] = in_tile;
    // A key's place in the row is start[digit] plus its place in the tile; the difference may be negative, and wraps.
    start[threadIdx.x] = in_row + counts[(row * {_DIGITS} + threadIdx.x) * sizes.tiles + tile] - in_tile;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < {items}; i++) {{
        const unsigned int digit = (unsigned int)(key[i] >> sizes.shift) & {_DIGITS - 1};
        const unsigned int place = local[digit] + of_warps[warp][digit] + rank[i];
        const long long at = base + warp * {32 * items} + i * 32 + lane;
        keys[place] = key[i];
        if (at < sizes.extent) positions[place] = {position};
    }}
    __syncthreads();
    const long long left = sizes.extent - base;
    const int count = left < {tile} ? (int)left : {tile};
    for (int i = threadIdx.x; i < count; i += {_THREADS}) {{
        const {key} moved = keys[i];
        const unsigned int place = start[(unsigned int)(moved >> sizes.shift) & {_DIGITS - 1}] + i;
        to_keys[row * sizes.extent + place] = moved;
        to_positions[row * sizes.extent + place] = positions[i];
    }}
}}
"""

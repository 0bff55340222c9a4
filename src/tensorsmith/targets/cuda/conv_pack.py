"""Operands of a convolution copied so that tensor maps take them: what their boxes run along lies side by side.

(other, space, channels) is written from whatever strides, in tiles of 32 positions by 32 channels that are turned in shared
memory; a position of up to 8 channels is one thread's. Rows of channels start at multiples of 16 bytes, and are zeros
behind the last channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.targets.cuda.kernel import Launch, Word
from tensorsmith.targets.cuda.sizes import sizes_struct

SIDE = 32  # of a tile
VECTOR = 8  # elements of 16 bytes


def packed_strides(shape: Sequence[int], contiguous: int) -> tuple[int, ...]:
    """Strides of a copy in which axis 0 or 1 is contiguous and the other is outermost."""
    strides = [0] * len(shape)
    strides[contiguous] = 1
    along = -(-shape[contiguous] // VECTOR) * VECTOR
    for axis in (*reversed(range(2, len(shape))), 1 - contiguous):
        strides[axis] = along
        along *= max(shape[axis], 1)
    return tuple(strides)


def packed_bytes(shape: Sequence[int], contiguous: int) -> int:
    """Bytes of the copy, of halves."""
    strides = packed_strides(shape, contiguous)
    return 2 * strides[1 - contiguous] * max(shape[1 - contiguous], 1)


def packing_launch(
    shape: Sequence[int], strides: Sequence[int], start: int, contiguous: int, source: Word, target: Word
) -> Launch:
    """The launch that copies an operand of halves."""
    rank, other = len(shape) - 2, 1 - contiguous
    positions, channels = math.prod(shape[2:]), shape[contiguous]
    along_space = strides[contiguous] != 1
    pitch = -(-channels // VECTOR) * VECTOR
    struct, sizes = sizes_struct(
        {
            "positions": positions, "pixels": positions * shape[other], "channels": channels, "start": start,
            "other": strides[other], "channel": strides[contiguous], "pitch": pitch,
            "down": -(-positions // SIDE), "across": -(-pitch // SIDE), "space": shape[2:], "strides": strides[2:],
        }
    )  # fmt: skip
    place = []
    for a in reversed(range(1, rank)):
        place.append(f"at += rest % (int)s.space[{a}] * s.strides[{a}]; rest /= (int)s.space[{a}];")
    decoded = " ".join([*place, "at += rest * s.strides[0];"])
    if pitch == VECTOR:
        text, grid = _few_channels(struct, decoded), -(-positions * shape[other] // 256)
        return Launch(text, "conv_pack", (grid, 1, 1), (256, 1, 1), (source, target, sizes))
    position, channel = ("threadIdx.x % 32", "i") if along_space else ("i", "threadIdx.x % 32")
    text = f"""
{struct}

extern "C" __global__ void __launch_bounds__(256) conv_pack(const unsigned short* from, unsigned short* to, const Sizes s) {{
    __shared__ unsigned short tile[{SIDE}][{SIDE + 1}];
    unsigned int place = blockIdx.x;
    const int first_channel = place % (unsigned int)s.across * {SIDE}; place /= (unsigned int)s.across;
    const int first_position = place % (unsigned int)s.down * {SIDE}; const long long other = place / (unsigned int)s.down;
    #pragma unroll
    for (int i = threadIdx.x / 32; i < {SIDE}; i += 8) {{
        const int position = first_position + {position}, channel = first_channel + {channel};
        if (position < s.positions && channel < s.pitch) {{
            long long at = s.start + other * s.other + channel * s.channel;
            int rest = position;
            {decoded}
            tile[{channel}][{position}] = channel < s.channels ? from[at] : 0;
        }}
    }}
    __syncthreads();
    #pragma unroll
    for (int i = threadIdx.x / 32; i < {SIDE}; i += 8) {{
        const int position = first_position + i, channel = first_channel + threadIdx.x % 32;
        if (position < s.positions && channel < s.pitch)
            to[(other * s.positions + position) * s.pitch + channel] = tile[threadIdx.x % 32][i];
    }}
}}
"""
    grid = -(-positions // SIDE) * -(-pitch // SIDE) * shape[other]
    return Launch(text, "conv_pack", (grid, 1, 1), (256, 1, 1), (source, target, sizes))


def _few_channels(struct: str, decoded: str) -> str:
    """The text for up to 8 channels: a thread writes all of a position, 16 bytes."""
    return f"""
{struct}

extern "C" __global__ void __launch_bounds__(256) conv_pack(const unsigned short* from, unsigned short* to, const Sizes s) {{
    const long long pixel = blockIdx.x * 256ll + threadIdx.x, other = pixel / s.positions;
    long long at = s.start + other * s.other;
    int rest = (int)(pixel - other * s.positions);
    {decoded}
    unsigned int words[4] = {{0, 0, 0, 0}};
    #pragma unroll
    for (int channel = 0; channel < {VECTOR}; channel++) {{
        if (channel < s.channels && pixel < s.pixels) {{
            words[channel / 2] |= (unsigned int)from[at + channel * s.channel] << (channel % 2 * 16);
        }}
    }}
    if (pixel < s.pixels) *(uint4*)(to + pixel * {VECTOR}) = make_uint4(words[0], words[1], words[2], words[3]);
}}
"""

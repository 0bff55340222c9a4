"""Gradients of weights on Hopper that read every pixel once for all taps, as `conv_halo.py` does.

A block has 64 channels of x and 64 of the gradient, and all taps of the kernel: each of three consumers has a row of taps,
64 x 64 sums a tap. It walks over tiles of two 8 x 8 squares of positions: the patch of x that they see, and the gradients
there. The depth is positions, 16 at a time two rows of a square, so a tap is a shift by some lines here too. Tiles are
shared out among blocks, whose sums another kernel adds up in their order.
"""

from __future__ import annotations

from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_direct import direct_function
from tensorsmith.targets.cuda.conv_halo import SIDE, Squares
from tensorsmith.targets.cuda.conv_maps import BLOCK, Box, by_taps, fits_boxes, map_of_w, maps_of_x, maps_take_w, maps_take_x
from tensorsmith.targets.cuda.conv_split import finishing_launch, partial_bytes
from tensorsmith.targets.cuda.conv_wgmma import LINE, as_partial, other_parts
from tensorsmith.targets.cuda.kernel import Argument, DeviceProperties, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.sizes import sizes_struct
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions

MOST_ROWS = 3  # of taps, one a consumer
MOST_ACROSS = 3  # taps of a consumer
MOST_STAGES = 6


def _squares(spec: ConvSpec) -> Squares:
    """The tile: two squares, one below the other, or of two images."""
    down = 2 if spec.w[2] % (2 * SIDE) == 0 else 1
    return Squares(2 // down, down, 1, BLOCK, False)


def _patch(spec: ConvSpec, squares: Squares) -> tuple[int, int]:
    """Rows and columns of the pixels that a tile sees of an image."""
    reach = [(n - 1) * s for n, s in zip(spec.y[2:], spec.stride)]
    return squares.down * SIDE + reach[0], SIDE + reach[1]


def _stage_parts(spec: ConvSpec, squares: Squares) -> tuple[int, int]:
    """Bytes of a stage: of the patch, and all."""
    high, wide = _patch(spec, squares)
    patch = -(-squares.images * high * wide * LINE // 1024) * 1024
    return patch, patch + squares.count * SIDE * SIDE * LINE


def _stages(spec: ConvSpec, squares: Squares, properties: DeviceProperties) -> int:
    return min(MOST_STAGES, (properties.shared_bytes - 2048) // _stage_parts(spec, squares)[1])


def pays_halo_weight(spec: ConvSpec, properties: DeviceProperties) -> bool:
    """Whether it is the gradient of a small kernel over positions that squares cover."""
    if properties.architecture != "sm_90a" or not fits_boxes(spec) or not by_taps(spec) or spec.rank != 2:
        return False
    if spec.y[2] > MOST_ROWS or spec.y[3] > MOST_ACROSS or spec.positions < 4 or set(spec.dilation) != {1}:
        return False
    if not maps_take_x(spec) or not maps_take_w(spec) or min(spec.x[0], spec.w[0]) < BLOCK // 2:
        return False
    if spec.w[2] % SIDE or spec.w[3] % SIDE:  # beyond an image gradients are zeros, but pixels beside them may be infinite
        return False
    squares = _squares(spec)
    return _stages(spec, squares, properties) >= 2 and max(_patch(spec, squares)) <= 256


def _tiles(spec: ConvSpec, squares: Squares) -> tuple[int, int, int]:
    """Tiles down, across, of images."""
    return -(-spec.w[2] // (squares.down * SIDE)), -(-spec.w[3] // SIDE), -(-spec.w[1] // squares.images)


def halo_weight_launches(
    spec: ConvSpec, properties: DeviceProperties, scratch: int
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launches of a gradient that `pays_halo_weight`; its scratch is word `scratch`."""
    squares = _squares(spec)
    tiles, stages = _tiles(spec, squares), _stages(spec, squares, properties)
    high, wide = _patch(spec, squares)
    blocks, across = -(-spec.x[0] // BLOCK), -(-spec.w[0] // BLOCK)
    chunks = tiles[0] * tiles[1] * tiles[2]
    splits = max(1, min(properties.multiprocessors // (blocks * across), chunks // 2))
    part = -(-chunks // splits)
    splits = -(-chunks // part)
    patch_bytes, stage_bytes = _stage_parts(spec, squares)
    direct_struct, direct_sizes, function = direct_function(as_partial(spec), True)
    struct, sizes = sizes_struct(
        {
            "items": blocks * across * splits, "blocks": blocks, "across": across, "splits": splits, "part": part,
            "chunks": chunks, "tiles": tiles, "channels": spec.x[0], "columns": spec.w[0], "rows": spec.y[0] * spec.positions,
            "y": spec.y[2:], "low": spec.low, "stride": spec.stride, "pitch": wide, "patch": high * wide,
            "box_bytes": squares.images * high * wide * LINE + squares.count * SIDE * SIDE * LINE,
            "patch_bytes": patch_bytes, "stage_bytes": stage_bytes,
        }
    )  # fmt: skip
    maps = [
        *maps_of_x(spec, Box((high, wide), squares.images, tiles), 0),
        map_of_w(spec, Box((squares.down * SIDE, SIDE), squares.images, tiles), BLOCK, 1),
    ]
    arguments: tuple[Argument, ...] = (*maps, Word(0), Word(1), Word(scratch), ErrorWord(), sizes, direct_sizes)
    text = _text(spec, squares, stages, struct, direct_struct, function)
    shared = stages * stage_bytes + 16 * stages + 1024
    first = Launch(text, "conv_halo_weight", (blocks * across * splits, 1, 1), (512, 1, 1), arguments, shared)
    return (first, finishing_launch(spec, splits, Word(scratch))), (partial_bytes(spec, splits),)


def _text(spec: ConvSpec, squares: Squares, stages: int, struct: str, direct_struct: str, function: str) -> str:
    taps = spec.y[3]
    kernel = f"""
#define STAGES {stages}

struct __align__(64) TensorMap {{ unsigned long long opaque[16]; }};
{struct}
{direct_struct}

{function}

extern "C" __global__ void __launch_bounds__(512, 1) conv_halo_weight(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const unsigned short* x, const unsigned short* w, float* y, long long* error,
    const __grid_constant__ Sizes s, const __grid_constant__ DirectSizes direct) {{
    if (((unsigned long long)x | (unsigned long long)w) & 15) {{
        any_convolution(x, w, y, error, direct);
        {other_parts()}
        return;
    }}
    extern __shared__ unsigned char shared[];
    const unsigned int ring = (shared_address(shared) + 1023) & ~1023u;
    const unsigned int barriers = ring + STAGES * (int)s.stage_bytes;  // s: stage s is full; STAGES + s: it is empty
    const int consumers = (int)s.y[0];
    if (threadIdx.x == 0) {{
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(barriers + 8 * stage, 1);
            mbarrier_init(barriers + 8 * (STAGES + stage), consumers);
        }}
        mbarrier_fence();
    }}
    __syncthreads();
    int rest = blockIdx.x;
    const int block = rest % (int)s.blocks; rest /= (int)s.blocks;
    const int column_tile = rest % (int)s.across, split = rest / (int)s.across;
    const int first_chunk = split * (int)s.part, end_chunk = min(first_chunk + (int)s.part, (int)s.chunks);
    int stage = 0;
    if (threadIdx.x < 128) {{
        fewer_registers<40>();
        if (threadIdx.x == 0) {{
            int parity = 1;
            for (int chunk = first_chunk; chunk < end_chunk; chunk++) {{
                const int t1 = chunk % (int)s.tiles[1], t0 = chunk / (int)s.tiles[1] % (int)s.tiles[0];
                const int image = chunk / (int)(s.tiles[0] * s.tiles[1]) * {squares.images};
                const unsigned int a = ring + stage * (int)s.stage_bytes, full = barriers + 8 * stage;
                mbarrier_wait(barriers + 8 * (STAGES + stage), parity);
                mbarrier_arrive_expect(full, (int)s.box_bytes);
                tensor_load_4d(a, &x_map, block * {BLOCK}, t1 * {SIDE} - (int)s.low[1],
                    t0 * {squares.down * SIDE} - (int)s.low[0], image, full);
                tensor_load_4d(a + (int)s.patch_bytes, &w_map, column_tile * {BLOCK}, t1 * {SIDE},
                    t0 * {squares.down * SIDE}, image, full);
                if (++stage == STAGES) {{
                    stage = 0;
                    parity ^= 1;
                }}
            }}
        }}
        return;
    }}
    more_registers<152>();
    const int consumer = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    if (consumer >= consumers) return;
    int parity = 0, before = -1;
    float d[{taps}][32];
    for (int chunk = first_chunk; chunk < end_chunk; chunk++) {{
        mbarrier_wait(barriers + 8 * stage, parity);
        const unsigned int a = ring + stage * (int)s.stage_bytes + consumer * (int)s.stride[0] * (int)s.pitch * {LINE};
        const unsigned int b = ring + stage * (int)s.stage_bytes + (int)s.patch_bytes;
        wgmma_fence();
        #pragma unroll
        for (int square = 0; square < {squares.count}; square++) {{
            const unsigned int corner = a + {_corner(squares)} * {LINE};
            const unsigned long long right = matrix_descriptor(b + square * {SIDE * SIDE * LINE}, {BLOCK * LINE}, 1024);
            #pragma unroll
            for (int tap = 0; tap < {taps}; tap++) {{
                #pragma unroll
                for (int j = 0; j < 4; j++) {{
                    const unsigned int line = tap * (int)s.stride[1] + 2 * j * (int)s.pitch;
                    const unsigned long long left = matrix_descriptor(corner + line * {LINE}, 0, (int)s.pitch * {LINE});
                    wgmma_n64_{spec.dtype.name}<1, 1>(d[tap], left, right + 128 * j, before >= 0 || square > 0 || j > 0);
                }}
            }}
        }}
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0 && threadIdx.x % 128 == 0) mbarrier_arrive(barriers + 8 * (STAGES + before));
        before = stage;
        if (++stage == STAGES) {{
            stage = 0;
            parity ^= 1;
        }}
    }}
    wgmma_wait<0>();
    float* const sums = y + split * s.rows * s.columns;
    #pragma unroll
    for (int tap = 0; tap < {taps}; tap++) {{
        settle(d[tap]);
        #pragma unroll
        for (int h = 0; h < 2; h++) {{
            const int channel = block * {BLOCK} + warp * 16 + lane / 4 + 8 * h;
            if (channel >= (int)s.channels) continue;
            const long long at = ((consumer * {taps} + tap) * s.channels + channel) * s.columns;
            #pragma unroll
            for (int j = 0; j < 8; j++) {{
                const int column = column_tile * {BLOCK} + 8 * j + lane % 4 * 2;
                if (column < (int)s.columns) sums[at + column] = d[tap][4 * j + 2 * h];
                if (column + 1 < (int)s.columns) sums[at + column + 1] = d[tap][4 * j + 2 * h + 1];
            }}
        }}
    }}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel


def _corner(squares: Squares) -> str:
    """The line of a patch at which a square begins."""
    if squares.down == 1:
        return "square * (int)s.patch"
    return f"square * {SIDE} * (int)s.pitch"

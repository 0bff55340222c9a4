"""Convolutions on Hopper that read every pixel once for all taps: a patch of an image with its border stays in shared memory.

An implicit product reads a pixel anew for every tap, which the level-2 cache does not keep up with where channels are few.
Here a tile is some 8 x 8 squares of positions; the patch that they see, 64 channels of it, is one box of a tensor map. Row r
of a square is line (r / 8) pitch + r % 8 of the patch, and a tap is a shift by some lines: so the 64 rows that tensor cores
multiply at once are groups of 8 lines with one stride, wherever the tap begins. Weights of a tap come through a ring of
their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_direct import direct_function
from tensorsmith.targets.cuda.conv_gather import gather_of
from tensorsmith.targets.cuda.conv_maps import (
    BLOCK,
    Box,
    b_across,
    by_taps,
    fits_boxes,
    map_of_w,
    map_of_x,
    maps_take_w,
    maps_take_x,
)
from tensorsmith.targets.cuda.conv_stores import code, store_lines, stores_vectors
from tensorsmith.targets.cuda.conv_tiles import BOXES, Structure, WgmmaTile
from tensorsmith.targets.cuda.epilogue import finished_function
from tensorsmith.targets.cuda.kernel import Argument, DeviceProperties, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.sizes import sizes_struct
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions
from tensorsmith.targets.cuda.wgmma_ring import LINE

SIDE = 8  # of a square of positions
PATCHES = 2  # stages of the ring of patches
MOST_STAGES = 8  # of the ring of weights


@dataclass(frozen=True)
class Squares:
    """A tile: squares along images, down and across; columns; alternating: a consumer has a tile of its own."""

    images: int
    down: int
    across: int
    columns: int
    alternating: bool

    @property
    def count(self) -> int:
        """Squares of a tile."""
        return self.images * self.down * self.across

    def patch(self, spec: ConvSpec) -> tuple[int, int]:
        """Extents of the patch of an image: rows and columns of pixels."""
        reach = [(k - 1) * d for k, d in zip(spec.w[2:], spec.dilation)]
        return self.down * SIDE + reach[0], self.across * SIDE + reach[1]

    def patch_bytes(self, spec: ConvSpec) -> int:
        """Bytes of a stage of patches."""
        high, wide = self.patch(spec)
        return -(-self.images * high * wide * LINE // 1024) * 1024

    def stages(self, spec: ConvSpec, properties: DeviceProperties) -> int:
        """Stages of weights that fit."""
        left = properties.shared_bytes - PATCHES * self.patch_bytes(spec) - BOXES - 1024 - 512
        return min(MOST_STAGES, left // (self.columns * LINE))


def squares_of(spec: ConvSpec) -> Squares:
    """The tile: 256 positions, or 128 where there are 256 columns; half of them a consumer's, or all."""
    columns = 64 if spec.w[0] <= 64 else 128
    high, wide = (-(-n // SIDE) for n in spec.y[2:])
    across = 2 if wide > 1 else 1
    down = 2 if high > 1 else 1
    return Squares(4 // (across * down), down, across, columns, columns == 64)


def pays_halo(spec: ConvSpec, properties: DeviceProperties) -> bool:
    """Whether patches are used often enough, and there are tiles for all multiprocessors."""
    if properties.architecture != "sm_90a" or not fits_boxes(spec) or by_taps(spec) or spec.rank != 2 or spec.groups != 1:
        return False
    if set(spec.stride) != {1} or spec.taps < 4 or not maps_take_x(spec) or not maps_take_w(spec) or spec.w[1] < BLOCK // 2:
        return False
    squares = squares_of(spec)
    tiles, filled = _tiles(spec, squares)
    if squares.stages(spec, properties) < 3 or max(squares.patch(spec)) > 256:
        return False
    return filled >= 0.7 and tiles * -(-spec.w[0] // squares.columns) >= properties.multiprocessors


def _tiles(spec: ConvSpec, squares: Squares) -> tuple[int, float]:
    """Tiles of positions, and the share of them that is results."""
    each = (squares.images, squares.down * SIDE, squares.across * SIDE)
    count, all_of = 1, 1
    for n, extent in zip((spec.y[0], *spec.y[2:]), each):
        count *= -(-n // extent)
        all_of *= n
    return count, all_of / (count * each[0] * each[1] * each[2])


def halo_launches(
    spec: ConvSpec, properties: DeviceProperties, squares: Squares | None = None
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:  # fmt: skip
    """The launch of a convolution that `pays_halo`; it needs no scratch."""
    squares = squares or squares_of(spec)
    stages = squares.stages(spec, properties)
    high, wide = squares.patch(spec)
    each = (squares.down * SIDE, squares.across * SIDE)
    tiles = [*(-(-n // extent) for n, extent in zip(spec.y[2:], each)), -(-spec.y[0] // squares.images)]
    box = Box((high, wide), squares.images, tuple(tiles))
    across, blocks = -(-spec.w[0] // squares.columns), -(-spec.w[1] // BLOCK)
    items = across * tiles[0] * tiles[1] * tiles[2]
    gather = gather_of(spec, False)
    rows = 64 * (squares.count if squares.alternating else squares.count // 2)
    structure = Structure(
        spec.dtype, spec.rank, WgmmaTile(rows, squares.columns, squares.alternating, stages), False, b_across(spec),
        (False, False), 1, gather.body, gather.others, False, True, stores_vectors(spec),
    )  # fmt: skip
    direct_struct, direct_sizes, function = direct_function(spec)
    struct, sizes = sizes_struct(
        {
            "items": items, "across": across, "blocks": blocks, "columns": spec.w[0], "batch": spec.y[0], "tiles": tiles,
            "y": spec.y[2:], "kernel": spec.w[2:], "backwards": [int(s < 0) for s in spec.w_strides[2:]], "low": spec.low,
            "dilation": spec.dilation, "pitch": wide, "patch": high * wide, "patch_bytes": squares.images * high * wide * LINE,
            "stage_bytes": squares.patch_bytes(spec), "y_strides": spec.y_strides, "starts": spec.starts,
            **{f"o{k}_strides": strides for k, strides in enumerate(spec.others, 1)},
        }
    )  # fmt: skip
    arguments: tuple[Argument, ...] = (
        map_of_x(spec, box), map_of_w(spec, box, squares.columns, 1), Word(0), Word(1), Word(2),
        *(Word(3 + k) for k in range(len(spec.others))), ErrorWord(), sizes, direct_sizes,
    )  # fmt: skip
    shared = PATCHES * squares.patch_bytes(spec) + stages * squares.columns * LINE + BOXES + 512 + 1024
    text = _text(structure, squares, struct, direct_struct, function)
    grid = min(items, properties.multiprocessors)
    return (Launch(text, "conv_halo", (grid, 1, 1), (384, 1, 1), arguments, shared),), ()


def _text(s: Structure, squares: Squares, struct: str, direct_struct: str, function: str) -> str:
    tile, others = s.tile, range(1, len(s.others) + 1)
    parameters = "".join(f"const unsigned short* o{k}, " for k in others)
    count = tile.rows // 64  # squares of a consumer
    own = "turn == consumer" if tile.alternating else "true"
    releases = 1 if tile.alternating else 2
    turns = "barriers + 8 * (2 * STAGES + 2 * PATCHES + {0})"
    mine, other = turns.format("consumer"), turns.format("1 - consumer")
    first_square = "0" if tile.alternating else f"consumer * {count}"
    step_b = 128 if s.b_across else 2
    kernel = f"""
#define COLUMNS {tile.columns}
#define STAGES {tile.stages}
#define PATCHES {PATCHES}

struct __align__(64) TensorMap {{ unsigned long long opaque[16]; }};
{struct}
{direct_struct}

{finished_function(s.body, s.dtype, len(s.others))}

{function}

extern "C" __global__ void __launch_bounds__(384, 1) conv_halo(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const unsigned short* x, const unsigned short* w, unsigned short* y, {parameters}long long* error,
    const __grid_constant__ Sizes s, const __grid_constant__ DirectSizes direct) {{
    if (((unsigned long long)x | (unsigned long long)w) & 15) {{
        any_convolution(x, w, y, {"".join(f"o{k}, " for k in others)}error, direct);
        return;
    }}
    extern __shared__ unsigned char shared[];
    const unsigned int ring = (shared_address(shared) + 1023) & ~1023u;  // patches, then weights
    unsigned char* const memory = shared + (ring - shared_address(shared));
    const unsigned int weights = PATCHES * (int)s.stage_bytes, boxes = weights + STAGES * COLUMNS * {LINE};
    const unsigned int barriers = ring + boxes + {BOXES}, of_patches = barriers + 8 * 2 * STAGES;
    // Barrier s: weights of stage s are there; STAGES + s: they are used; the same of patches; then the consumers' turns.
    if (threadIdx.x == 0) {{
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(barriers + 8 * stage, 1);
            mbarrier_init(barriers + 8 * (STAGES + stage), {releases});
        }}
        for (int patch = 0; patch < PATCHES; patch++) {{
            mbarrier_init(of_patches + 8 * patch, 1);
            mbarrier_init(of_patches + 8 * (PATCHES + patch), {releases});
        }}
        {f"for (int i = 0; i < 2; i++) mbarrier_init({turns.format('i')}, 1);" if tile.alternating else ""}
        mbarrier_fence();
    }}
    __syncthreads();
    const int items = (int)s.items, columns = (int)s.columns, blocks = (int)s.blocks, group = 0;
    const int taps = (int)(s.kernel[0] * s.kernel[1]);
    if (threadIdx.x < 128) {{
        fewer_registers<40>();
        if (threadIdx.x == 0) {{  // patches
            int stage = 0, parity = 1;
            for (int item = blockIdx.x; item < items; item += gridDim.x) {{
                {code(_item(), 16)}
                for (int block = 0; block < blocks; block++) {{
                    mbarrier_wait(of_patches + 8 * (PATCHES + stage), parity);
                    mbarrier_arrive_expect(of_patches + 8 * stage, (int)s.patch_bytes);
                    tensor_load_4d(ring + stage * (int)s.stage_bytes, &x_map, block * {BLOCK},
                        t1 * {squares.across * SIDE} - (int)s.low[1], t0 * {squares.down * SIDE} - (int)s.low[0],
                        t_image * {squares.images}, of_patches + 8 * stage);
                    if (++stage == PATCHES) {{
                        stage = 0;
                        parity ^= 1;
                    }}
                }}
            }}
        }} else if (threadIdx.x == 32) {{  // weights
            int stage = 0, parity = 1;
            for (int item = blockIdx.x; item < items; item += gridDim.x) {{
                const int column_tile = item % (int)s.across;
                for (int block = 0; block < blocks; block++) {{
                    for (int k0 = 0; k0 < (int)s.kernel[0]; k0++) {{
                        for (int k1 = 0; k1 < (int)s.kernel[1]; k1++) {{
                            const unsigned int b = ring + weights + stage * COLUMNS * {LINE}, full = barriers + 8 * stage;
                            mbarrier_wait(barriers + 8 * (STAGES + stage), parity);
                            mbarrier_arrive_expect(full, COLUMNS * {LINE});
                            {code(_weights(s), 28)}
                            if (++stage == STAGES) {{
                                stage = 0;
                                parity ^= 1;
                            }}
                        }}
                    }}
                }}
            }}
        }}
    }} else {{
        more_registers<232>();
        const int consumer = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        const unsigned int box = boxes + (consumer * 4 + warp) * {16 * LINE};
        int stage = 0, parity = 0, patch = 0, patch_parity = 0, turn = 0{", mine = 0" if tile.alternating else ""};
        float d[{count}][COLUMNS / 2];
        for (int item = blockIdx.x; item < items; item += gridDim.x, turn ^= 1) {{
            {code(_item(), 12)}
            if (!({own})) {{  // the other consumer's: step over its stages
                const int passed = stage + blocks * taps, passed_patches = patch + blocks;
                parity ^= passed / STAGES & 1;
                stage = passed % STAGES;
                patch_parity ^= passed_patches / PATCHES & 1;
                patch = passed_patches % PATCHES;
                continue;
            }}
            {f"mbarrier_wait({mine}, (mine++ + 1 - consumer) & 1);" if tile.alternating else ""}
            int before = -1, patch_before = -1;
            for (int block = 0; block < blocks; block++) {{
                mbarrier_wait(of_patches + 8 * patch, patch_parity);
                for (int k0 = 0; k0 < (int)s.kernel[0]; k0++) {{
                    for (int k1 = 0; k1 < (int)s.kernel[1]; k1++) {{
                        mbarrier_wait(barriers + 8 * stage, parity);
                        const int shift = k0 * (int)s.dilation[0] * (int)s.pitch + k1 * (int)s.dilation[1];
                        const unsigned int a = ring + patch * (int)s.stage_bytes + shift * {LINE};
                        const unsigned long long right =
                            matrix_descriptor(ring + weights + stage * COLUMNS * {LINE}, {BLOCK * LINE}, 1024);
                        wgmma_fence();
                        #pragma unroll
                        for (int i = 0; i < {count}; i++) {{
                            const int square = {first_square} + i, line = {_line_of_square(squares)};
                            const unsigned long long left = matrix_descriptor(a + line * {LINE}, 0, (int)s.pitch * {LINE});
                            #pragma unroll
                            for (int j = 0; j < 4; j++) {{
                                wgmma_n{tile.columns}_{s.dtype.name}<0, {int(s.b_across)}>(
                                    d[i], left + 2 * j, right + {step_b} * j, before >= 0 || j > 0);
                            }}
                        }}
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (threadIdx.x % 128 == 0) {{
                            if (before >= 0) mbarrier_arrive(barriers + 8 * (STAGES + before));
                            if (patch_before >= 0) mbarrier_arrive(of_patches + 8 * (PATCHES + patch_before));
                        }}
                        before = stage;
                        patch_before = -1;
                        if (++stage == STAGES) {{
                            stage = 0;
                            parity ^= 1;
                        }}
                    }}
                }}
                patch_before = patch;
                if (++patch == PATCHES) {{
                    patch = 0;
                    patch_parity ^= 1;
                }}
            }}
            {f"if (threadIdx.x % 128 == 0) mbarrier_arrive({other});" if tile.alternating else ""}
            wgmma_wait<0>();
            if (threadIdx.x % 128 == 0) {{
                mbarrier_arrive(barriers + 8 * (STAGES + before));
                mbarrier_arrive(of_patches + 8 * (PATCHES + patch_before));
            }}
            #pragma unroll
            for (int i = 0; i < {count}; i++) settle(d[i]);
            const int first_column = column_tile * COLUMNS;
            #pragma unroll
            for (int i = 0; i < {count}; i++) {{
                const int square = {first_square} + i, r = warp * 16 + lane % 16;
                {code(_place(s, squares), 16)}
{store_lines(s)}
            }}
        }}
    }}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel


def _item() -> list[str]:
    """The tile of an item."""
    return [
        "int rest = item;",
        "const int column_tile = rest % (int)s.across; rest /= (int)s.across;",
        "const int t1 = rest % (int)s.tiles[1]; rest /= (int)s.tiles[1];",
        "const int t0 = rest % (int)s.tiles[0], t_image = rest / (int)s.tiles[0];",
    ]


def _weights(s: Structure) -> list[str]:
    """The copies of 64 channels of a tap."""
    tap = "s.backwards[1] ? (int)s.kernel[1] - 1 - k1 : k1, s.backwards[0] ? (int)s.kernel[0] - 1 - k0 : k0"
    if not s.b_across:
        return [f"tensor_load_4d(b, &w_map, block * {BLOCK}, {tap}, column_tile * COLUMNS, full);"]
    column = f"column_tile * COLUMNS + i * {BLOCK}"
    return [
        f"for (int i = 0; i < {s.tile.columns // BLOCK}; i++)",
        f"    tensor_load_4d(b + i * {BLOCK * LINE}, &w_map, {column}, {tap}, block * {BLOCK}, full);",
    ]


def _parts_of_square(squares: Squares) -> tuple[str, str, str]:
    """Image, row and column of a square in its tile."""
    inside = squares.down * squares.across
    return f"square / {inside}", f"square % {inside} / {squares.across}", f"square % {squares.across}"


def _line_of_square(squares: Squares) -> str:
    """The line of a patch at which a square begins."""
    image, row, column = _parts_of_square(squares)
    return f"{image} * (int)s.patch + {row} * {SIDE} * (int)s.pitch + {column} * {SIDE}"


def _place(s: Structure, squares: Squares) -> list[str]:
    """Where the results of row r of a square go: elements from y, -1 outside; and where the others of the body lie."""
    image, row, column = _parts_of_square(squares)
    lines = [
        f"const int image = t_image * {squares.images} + {image};",
        f"const int p0 = t0 * {squares.down * SIDE} + ({row}) * {SIDE} + r / {SIDE};",
        f"const int p1 = t1 * {squares.across * SIDE} + ({column}) * {SIDE} + r % {SIDE};",
        "const bool valid = image < (int)s.batch && p0 < (int)s.y[0] && p1 < (int)s.y[1];",
    ]
    places = {"y_strides": "place", **{f"o{k}_strides": f"place{k}" for k, kind in enumerate(s.others, 1) if not kind}}
    for strides, name in places.items():
        at = f"image * (int)s.{strides}[0] + p0 * (int)s.{strides}[2] + p1 * (int)s.{strides}[3]"
        lines.append(f"const int {name} = valid ? {at} : -1;")
    return lines

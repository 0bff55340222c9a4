"""Products on Hopper's tensor cores: tensor maps bring tiles into shared memory, warpgroups multiply them from there.

A block stays on its multiprocessor and takes tile after tile. One warpgroup, the producer, has copies under way into a ring
of stages; the consumers multiply what has arrived and give stages back. Either two consumers share a tile, half of its rows
each, or each has a tile of its own ("alternating"): they take turns in multiplying, and one computes what is stored of its
results meanwhile.

Operands may lie along K or across it (rows of A, columns of B side by side); extents past the end read as zeros. Results
leave through shared memory and tensor maps, 64 columns of a warp's 16 rows at a time, or straight from registers where C
does not fit a tensor map. An operand at an address that tensor maps do not take is found out in the kernel, which then
computes without them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tensorsmith.core.dtypes import DType, float32
from tensorsmith.kernels.spec_gemm import GemmSpec, Strides
from tensorsmith.targets.cuda.gemm_epilogue import Epilogue, partial_stride_words, stride_words
from tensorsmith.targets.cuda.gemm_naive import SIZES, any_product, size_words
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, TensorMap, Word
from tensorsmith.targets.cuda.scalars import c_type
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions
from tensorsmith.targets.cuda.wgmma_ring import BOX, LINE, products_of_ring

LARGEST_COORDINATE = 2**31 - 512


@dataclass(frozen=True)
class WgmmaTile:
    """How the work is cut.

    rows:        64 or 128, of a consumer
    columns:     64, 128, 192 or 256, of a tile
    consumers:   warpgroups that multiply
    alternating: each consumer has a tile of its own
    stages:      of the ring
    group:       rows of tiles that are walked together, for the level-2 cache
    """

    rows: int = 64
    columns: int = 256
    consumers: int = 2
    alternating: bool = False
    stages: int = 4
    group: int = 8

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.rows if self.alternating else self.rows * self.consumers

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (1 + self.consumers)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage of the ring."""
        return (self.tile_rows + self.columns) * LINE

    def shared_bytes(self, through_shared: bool) -> int:
        """Dynamic shared memory of a block: the ring, two boxes of results for every warp, barriers, alignment."""
        boxes = self.consumers * 4 * 2 * 16 * LINE if through_shared else 0
        return self.stages * self.stage_bytes + boxes + 16 * self.stages + 16 + 1024


@dataclass(frozen=True)
class _Structure:
    """What the text of a kernel depends on."""

    dtype: DType
    tile: WgmmaTile
    a_across: bool  # rows of A lie side by side
    b_across: bool  # columns of B lie side by side
    batched: bool
    split: bool
    through_shared: bool
    epilogue: Epilogue


def piece(dtype: DType) -> int:
    """Elements of 16 bytes, of which strides of tensor maps are multiples."""
    return 16 // dtype.itemsize


def along(dtype: DType, strides: Strides, k: int) -> bool:
    """Whether an operand, strides given as (batch, batch, rows, k), lies along K as a tensor map takes it."""
    return (strides[3] == 1 or k == 1) and strides[2] % piece(dtype) == 0


def across(dtype: DType, strides: Strides, rows: int) -> bool:
    """Whether its rows lie side by side, which tensor cores take of 16-bit types."""
    return dtype.is_half and (strides[2] == 1 or rows == 1) and strides[3] % piece(dtype) == 0


def multiplies(spec: GemmSpec) -> bool:
    """Whether tensor cores have the dtype, and coordinates of tensor maps the extents."""
    largest = max(spec.M, spec.N, spec.K, *spec.batch)
    return (spec.dtype.is_half or (spec.dtype is float32 and spec.allow_tf32)) and 0 < spec.K and largest <= LARGEST_COORDINATE


def takes(dtype: DType, strides: Strides, rows: int, k: int) -> bool:
    """Whether an operand, strides given as (batch, batch, rows, k), fits a tensor map."""
    if any(stride % piece(dtype) or stride >= 1 << 36 for stride in strides[:2]):
        return False
    return along(dtype, strides, k) or across(dtype, strides, rows)


def by_k(strides: Strides) -> Strides:
    """B's strides as (batch, batch, columns, k)."""
    outer, inner, k, column = strides
    return outer, inner, column, k


def fits(spec: GemmSpec) -> bool:
    """Whether the kernel takes a product: operands that fit tensor maps, of types that tensor cores have."""
    if not multiplies(spec):
        return False
    return takes(spec.dtype, spec.a, spec.M, spec.K) and takes(spec.dtype, by_k(spec.b), spec.N, spec.K)


def stores_through_maps(spec: GemmSpec) -> bool:
    """Whether C fits a tensor map: rows of 16-bit elements at multiples of 16 bytes."""
    outer, inner, row, column = spec.c
    return spec.dtype.is_half and column == 1 and not any(stride % 8 for stride in (outer, inner, row))


def wgmma_launch(
    spec: GemmSpec, tile: WgmmaTile, properties: DeviceProperties, splits: int = 1, depth: int = 0, partial_word: int = 0
) -> Launch:
    """The launch of a kernel for a spec that `fits`.

    splits, depth: parts that K is in and the extent of one (whole lines); partial_word: where their sums go
    """
    if not fits(spec):
        raise ValueError(f"operands that fit no tensor map: {spec.dtype.name}, strides {spec.a} and {spec.b}")
    b = by_k(spec.b)
    split = splits > 1
    through_shared = not split and stores_through_maps(spec)
    structure = _Structure(
        spec.dtype, tile, not along(spec.dtype, spec.a, spec.K), not along(spec.dtype, b, spec.K), spec.batch != (1, 1), split,
        through_shared, Epilogue.of_partial_sums(spec) if split else Epilogue.of(spec),
    )  # fmt: skip
    items = -(-spec.M // tile.tile_rows) * -(-spec.N // tile.columns) * math.prod(spec.batch) * splits
    flags = [int(stride != 0) for strides in (spec.a, spec.b) for stride in strides[:2]]
    strides = partial_stride_words(spec) if split else stride_words(spec)
    sizes = Constant((*size_words(spec, splits, depth or spec.K), *strides, *flags, tile.group))
    maps: list[Argument] = [
        _map(spec.dtype, 0, spec.a, spec.M, spec.K, spec.batch, structure.a_across, tile.tile_rows),
        _map(spec.dtype, 1, b, spec.N, spec.K, spec.batch, structure.b_across, tile.columns),
    ]
    if through_shared:
        maps.append(_tensor_map(spec.dtype, 2, spec.N, spec.M, spec.c[2], spec.c, spec.batch, (64, 16)))
    results: list[Argument] = [Word(partial_word)] if split else [Word(2 + i) for i in range(1 + len(spec.beside))]
    grid = min(items, properties.multiprocessors)
    return Launch(
        _text(structure), "gemm_wgmma", (grid, 1, 1), (tile.threads, 1, 1),
        (*maps, Word(0), Word(1), *results, ErrorWord(), sizes), tile.shared_bytes(through_shared),
    )  # fmt: skip


def _map(
    dtype: DType, word: int, strides: Strides, rows: int, k: int, batch: tuple[int, int], is_across: bool, tile: int
) -> TensorMap:
    """An operand, strides given as (batch, batch, rows, k)."""
    if is_across:
        return _tensor_map(dtype, word, rows, k, strides[3], strides, batch, (64, BOX))
    return _tensor_map(dtype, word, k, rows, strides[2], strides, batch, (LINE // dtype.itemsize, tile))


def _tensor_map(
    dtype: DType, word: int, inner: int, outer: int, stride: int, strides: Strides, batch: tuple[int, int],
    box: tuple[int, int],
) -> TensorMap:  # fmt: skip
    """A map over lines of `inner` elements, `stride` apart; batch axes that share memory have extent 1."""
    size = dtype.itemsize
    shape, steps = [inner, outer], [stride * size if outer > 1 else _aligned(inner * size)]
    if batch != (1, 1):
        for axis in (1, 0):
            shared = strides[axis] == 0
            shape.append(1 if shared else batch[axis])
            steps.append(_aligned(shape[-2] * steps[-1]) if shared else strides[axis] * size)
        box = (*box, 1, 1)  # type: ignore[assignment]
    return TensorMap(word, "TFLOAT32" if dtype is float32 else dtype.name.upper(), tuple(shape), tuple(steps), box, tested=True)


def _aligned(nbytes: int) -> int:
    """A stride that nothing is read by, but that a tensor map accepts."""
    return min(-(-nbytes // 16) * 16, 1 << 36)


@functools.cache
def _text(s: _Structure) -> str:
    tile, element, epilogue = s.tile, c_type(s.dtype), s.epilogue
    rank, per_line = 4 if s.batched else 2, LINE // s.dtype.itemsize
    where = ", inner * (int)sizes.a_inner, outer * (int)sizes.a_outer" if s.batched else ""
    where_b = where.replace("a_", "b_")
    where_c = ", inner, outer" if s.batched else ""
    load = f"tensor_load_{rank}d"
    if s.a_across:
        load_a = f"""for (int i = 0; i < ROWS / {BOX}; i++)
                        {load}(a + i * {BOX * LINE}, &map_a, m * ROWS + i * {BOX}, k * {per_line}{where}, full);"""
    else:
        load_a = f"{load}(a, &map_a, k * {per_line}, m * ROWS{where}, full);"
    if s.b_across:
        load_b = f"""for (int i = 0; i < COLUMNS / {BOX}; i++)
                        {load}(b + i * {BOX * LINE}, &map_b, n * COLUMNS + i * {BOX}, k * {per_line}{where_b}, full);"""
    else:
        load_b = f"{load}(b, &map_b, k * {per_line}, n * COLUMNS{where_b}, full);"
    maps = "const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, "
    maps += "const __grid_constant__ TensorMap map_c, " if s.through_shared else ""
    registers = ("fewer_registers<40>();", "more_registers<232>();") if tile.consumers == 2 else ("", "")
    decode = f"""int tile_of = item % tiles, batch = item / tiles;
            {"const int split = batch / (int)(sizes.inner * sizes.outer);" if s.split else ""}
            const int inner = batch % (int)sizes.inner, outer = batch / (int)sizes.inner % (int)sizes.outer;
            int m, n;
            place_of_tile(tile_of, down, across, (int)sizes.group, m, n);
            const int first = {f"split * (int)(sizes.depth / {per_line})" if s.split else "0"};
            const int last = {f"min(first + (int)(sizes.depth / {per_line}), lines)" if s.split else "lines"};"""
    multiply = products_of_ring(
        tile.rows, tile.tile_rows, tile.alternating, _instruction(s), s.a_across, s.b_across, "first", "last"
    )
    warp_rows = f"consumer * {tile.rows}" if not tile.alternating else "0"
    batch_lines = "\n                ".join(epilogue.batch_lines("split" if s.split else ""))
    kernel = f"""
#define ROWS {tile.tile_rows}
#define COLUMNS {tile.columns}
#define STAGES {tile.stages}
#define STAGE_BYTES {tile.stage_bytes}

struct __align__(64) TensorMap {{ unsigned long long opaque[16]; }};

struct Sizes {{
{SIZES}
    {epilogue.sizes()}
    long long a_outer, a_inner, b_outer, b_inner;  // 1 where batches have operands of their own
    long long group;
}};

{epilogue.function()}
{any_product(s.dtype, epilogue)}

// Tiles in groups of some rows, walked column by column, so that few of B's columns are read at a time.
__device__ __forceinline__ void place_of_tile(int tile, int down, int across, int group, int& m, int& n) {{
    const int each = group * across, first = tile / each * group, rows = min(group, down - first), rest = tile % each;
    m = first + rest % rows;
    n = rest / rows;
}}

extern "C" __global__ void __launch_bounds__({tile.threads}, 1) gemm_wgmma(
    {maps}
    const {element}* __restrict__ A, const {element}* __restrict__ B, {epilogue.parameters()},
    long long* error, const __grid_constant__ Sizes sizes) {{
    if ((((unsigned long long)A | (unsigned long long)B) & 15) | {epilogue.misaligned(s.through_shared)}) {{
        any_product(A, B, {epilogue.arguments()}, error, sizes);
        return;
    }}
    extern __shared__ unsigned char shared[];
    const unsigned int ring = (shared_address(shared) + 1023) & ~1023u;
    const unsigned int boxes = ring + STAGES * STAGE_BYTES;
    const unsigned int barriers = boxes{f" + {tile.consumers * 4 * 2 * 16 * LINE}" if s.through_shared else ""};
    if (threadIdx.x == 0) {{
        for (int stage = 0; stage < STAGES; stage++) {{
            mbarrier_init(barriers + 8 * stage, 1);
            mbarrier_init(barriers + 8 * (STAGES + stage), {1 if tile.alternating else tile.consumers});
        }}
        {"for (int i = 0; i < 2; i++) mbarrier_init(barriers + 8 * (2 * STAGES + i), 1);" if tile.alternating else ""}
        mbarrier_fence();
    }}
    __syncthreads();
    const int down = (int)((sizes.M + ROWS - 1) / ROWS), across = (int)((sizes.N + COLUMNS - 1) / COLUMNS);
    const int lines = (int)((sizes.K + {per_line - 1}) / {per_line});
    const int tiles = down * across, items = tiles * (int)(sizes.outer * sizes.inner * sizes.splits);
    if (threadIdx.x < 128) {{
        {registers[0]}
        if (threadIdx.x == 0) {{
            int stage = 0, parity = 1;
            for (int item = blockIdx.x; item < items; item += gridDim.x) {{
            {decode}
                for (int k = first; k < last; k++) {{
                    const unsigned int a = ring + stage * STAGE_BYTES, b = a + ROWS * {LINE}, full = barriers + 8 * stage;
                    mbarrier_wait(barriers + 8 * (STAGES + stage), parity);
                    mbarrier_arrive_expect(full, STAGE_BYTES);
                    {load_a}
                    {load_b}
                    if (++stage == STAGES) {{
                        stage = 0;
                        parity ^= 1;
                    }}
                }}
            }}
        }}
    }} else {{
        {registers[1]}
        const int consumer = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        int stage = 0, parity = 0, turn = 0{", mine = 0" if tile.alternating else ""};
        float d[{tile.rows // 64}][COLUMNS / 2];
        {"unsigned int stores = 0;" if s.through_shared else ""}
        for (int item = blockIdx.x; item < items; item += gridDim.x, turn ^= 1) {{
            {decode}
            {multiply}
            {{
                {batch_lines}
                #pragma unroll
                for (int i = 0; i < {tile.rows // 64}; i++) {{
                    const int top = m * ROWS + {warp_rows} + i * 64 + warp * 16;
{_stores(s, where_c)}
                }}
            }}
        }}
        {"tensor_store_wait_read<0>();" if s.through_shared else ""}
    }}
}}
"""
    return with_tensor_core_functions(kernel) + "\n" + kernel


def _instruction(s: _Structure) -> str:
    """The function that multiplies 64 rows by the tile's columns, 32 bytes along K."""
    if s.dtype is float32:
        return f"wgmma_n{s.tile.columns}_tf32"
    return f"wgmma_n{s.tile.columns}_{s.dtype.name}<{int(s.a_across)}, {int(s.b_across)}>"


def _stores(s: _Structure, where_c: str) -> str:
    """The lines that store 16 rows of a warp, of which the first is `top`."""
    epilogue = s.epilogue
    first, second = "d[i][4 * j + 2 * h]", "d[i][4 * j + 2 * h + 1]"
    guard = "const bool inside = row < sizes.M && column < sizes.N, inside1 = inside && column + 1 < sizes.N;"
    if not s.through_shared:
        body = [*epilogue.pair_lines((first, second), "row", "column"), *epilogue.store_pair_lines("row", "column")]
        lines = "\n                                ".join(body)
        return f"""\
                    #pragma unroll
                    for (int j = 0; j < COLUMNS / 8; j++) {{
                        #pragma unroll
                        for (int h = 0; h < 2; h++) {{
                            const long long row = top + lane / 4 + 8 * h, column = n * COLUMNS + 8 * j + lane % 4 * 2;
                            {guard}
                            {{
                                {lines}
                            }}
                        }}
                    }}"""
    lines = "\n                                    ".join(epilogue.pair_lines((first, second), "row", "column"))
    if epilogue.count == 0:
        guard = ""
    return f"""\
                    #pragma unroll
                    for (int part = 0; part < COLUMNS / 64; part++) {{
                        // Two boxes in turn: the one written now was read by the copy before the last.
                        const unsigned int box = boxes + ((consumer * 4 + warp) * 2 + (stores++ & 1)) * {16 * LINE};
                        if (lane == 0) tensor_store_wait_read<1>();
                        __syncwarp();
                        #pragma unroll
                        for (int q = 0; q < 4; q++) {{  // 16 columns: four matrices of 8 x 8
                            unsigned int pair[2][2];
                            #pragma unroll
                            for (int c = 0; c < 2; c++) {{
                                const int j = part * 8 + q * 2 + c;
                                #pragma unroll
                                for (int h = 0; h < 2; h++) {{
                                    const long long row = top + lane / 4 + 8 * h, column = n * COLUMNS + 8 * j + lane % 4 * 2;
                                    {guard}
                                    {lines}
                                    pair[c][h] = {epilogue.packed("x0", "x1")};
                                }}
                            }}
                            // Lane l has the address of row l % 16 of the matrices on the left, or from 16 on, the right.
                            const unsigned int line = lane % 16, piece = q * 2 + lane / 16;
                            stmatrix_x4(box + line * {LINE} + ((piece ^ (line & 7)) * 16),
                                pair[0][0], pair[0][1], pair[1][0], pair[1][1]);
                        }}
                        fence_async_shared();
                        __syncwarp();
                        if (lane == 0) {{
                            tensor_store_{4 if s.batched else 2}d(&map_c, n * COLUMNS + part * 64, top{where_c}, box);
                            tensor_store_commit();
                        }}
                    }}"""



"""Tiles of convolutions on Hopper's tensor cores, and which of them should take least time."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.epilogue import Body
from tensorsmith.kernels.spec_conv import ConvSpec
from tensorsmith.targets.cuda.conv_maps import BLOCK, Box, box_of, by_taps
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.wgmma_ring import LINE

TILES = ((128, 64, True), (128, 128, True), (64, 192, False), (64, 256, False))  # rows of a consumer, columns, alternating
# Microseconds, as measured on an H200: of a tile 64 deep, by its columns; of what begins and ends a tile; of what ends a
# depth in parts, beside the bytes of sums, which are written and read.
CHUNK_TIME = {64: 0.30, 128: 0.41, 192: 0.56, 256: 0.70}
TILE_TIME, SPLIT_TIME, BYTES_A_MICROSECOND = 1.0, 4.0, 2.5e6
BOXES = 2 * 4 * 16 * LINE  # bytes in which the warps of two consumers lay out 16 rows of 64 results


@dataclass(frozen=True)
class WgmmaTile:
    """rows: 64 or 128, of a consumer; columns: 64, 128, 192 or 256; alternating: tiles of their own; stages of the ring."""

    rows: int
    columns: int
    alternating: bool
    stages: int

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.rows if self.alternating else 2 * self.rows

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: 64 deep."""
        return (self.tile_rows + self.columns) * LINE

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the ring, room for results, barriers, alignment."""
        return self.stages * self.stage_bytes + BOXES + 16 * self.stages + 16 + 1024


@dataclass(frozen=True)
class Structure:
    """What the text depends on."""

    dtype: DType
    rank: int
    tile: WgmmaTile
    by_taps: bool
    b_across: bool  # columns of B lie side by side
    strided: tuple[bool, ...]  # per axis, whether positions of a box lie apart in x
    maps: int
    body: Body | None
    others: tuple[str, ...]
    partial: bool
    filled: bool  # whether boxes fill their tiles of depth
    vectors: bool  # whether rows of results are stored in pieces of 16 bytes


def tile_of(rows: int, columns: int, alternating: bool, properties: DeviceProperties) -> WgmmaTile:
    """A tile with as many stages as fit."""
    stage = ((rows if alternating else 2 * rows) + columns) * LINE
    return WgmmaTile(rows, columns, alternating, min(8, (properties.shared_bytes - BOXES - 1024 - 256) // stage))


@dataclass(frozen=True)
class Work:
    """How a tile cuts a convolution: boxes of positions, blocks of channels, tiles across, down, in all; depth in chunks."""

    box: Box
    blocks: int
    across: int
    down: int
    items: int
    chunks: int


def work_of(spec: ConvSpec, tile: WgmmaTile) -> Work:
    """The work of a convolution in tiles."""
    taps = by_taps(spec)
    box = box_of(spec.w[2:], spec.w[1], BLOCK, True) if taps else box_of(spec.y[2:], spec.y[0], tile.tile_rows, False)
    blocks = -(-(spec.x[0] if taps else spec.w[1]) // BLOCK)
    across = -(-spec.w[0] // spec.groups // tile.columns)
    down = -(-spec.positions * blocks * BLOCK // tile.tile_rows) if taps else box.count
    return Work(box, blocks, across, down, across * down * spec.groups, box.count if taps else spec.taps * blocks)


def choice(spec: ConvSpec, properties: DeviceProperties) -> tuple[WgmmaTile, int]:
    """The tile, and into how many parts the depth is split: what should take least time."""
    columns, results = spec.w[0] // spec.groups, spec.x[0] * spec.positions * spec.w[0]
    best: tuple[float, WgmmaTile, int] | None = None
    for rows, wide, alternating in TILES:
        if wide > 64 and wide - 64 >= columns:
            continue
        tile = tile_of(rows, wide, alternating, properties)
        work = work_of(spec, tile)
        most = min(4 * properties.multiprocessors // work.items, work.chunks // 4) if spec.groups == 1 else 1
        for splits in range(1, max(most, 1) + 1):
            part = -(-work.chunks // splits)
            waves = -(-work.items * splits // properties.multiprocessors)
            time = waves * (part * CHUNK_TIME[wide] + TILE_TIME)
            if splits > 1:
                time += SPLIT_TIME + 8 * splits * results / BYTES_A_MICROSECOND
            if best is None or time < best[0]:
                best = time, tile, splits
    assert best is not None
    return best[1], best[2]

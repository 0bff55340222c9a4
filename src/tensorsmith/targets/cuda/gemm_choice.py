"""Which kernel, tile and parts of K a product gets: a model of the time, in cycles of a multiprocessor, over a short table.

    time = once + waves * (steps along K * cycles of a step + cycles between tiles) + what parts of K cost

A wave is a tile on every multiprocessor. The figures are fitted to measurements (H200; each is within about 10 % of these);
where they are wrong a product is slower, not wrong. A choice depends on the shape, the kind of kernel and the number of
multiprocessors alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensorsmith.core.dtypes import float32
from tensorsmith.kernels.spec_gemm import GemmSpec
from tensorsmith.targets.cuda import gemm_mma, gemm_tiled, gemm_wgmma
from tensorsmith.targets.cuda.gemm_mma import MmaTile
from tensorsmith.targets.cuda.gemm_tiled import Tile
from tensorsmith.targets.cuda.gemm_wgmma import WgmmaTile
from tensorsmith.targets.cuda.kernel import DeviceProperties


@dataclass(frozen=True)
class Choice:
    """A kernel (its tile says which; None is the simple one), and the parts of K: how many, of which extent."""

    tile: WgmmaTile | MmaTile | Tile | None
    splits: int = 1
    depth: int = 0


@dataclass(frozen=True)
class Row:
    """A tile with its rows and columns, the extent along K of a step, cycles of a step, between tiles, and once."""

    tile: WgmmaTile | MmaTile | Tile
    rows: int
    columns: int
    step: int
    cycles: float
    between: float
    once: float


WGMMA = (
    Row(WgmmaTile(128, 128, 2, True, 6), 128, 128, 64, 560, 300, 3500),
    Row(WgmmaTile(64, 256, 2, stages=4), 128, 256, 64, 1140, 2500, 2500),
    Row(WgmmaTile(64, 128, 2, True, 6), 64, 128, 64, 372, 300, 4300),
    Row(WgmmaTile(64, 64, 1, stages=8), 64, 64, 64, 300, 700, 3400),
)
WGMMA_TF32 = tuple(replace(row, step=32) for row in WGMMA)  # half the rate, and half the elements of a line
MMA = (
    Row(MmaTile(128, 128, 2, 4, 4), 128, 128, 32, 800, 1000, 2500),
    Row(MmaTile(64, 64, 2, 2, 4), 64, 64, 32, 250, 500, 2500),
)
TF32 = (Row(Tile(2, 2), 128, 128, 16, 1340, 1000, 2500),)  # by warps
TILED: dict[int, tuple[Row, ...]] = {  # by bytes of an element
    4: (
        Row(Tile(2, 2), 128, 128, 16, 3000, 1000, 3000),
        Row(Tile(1, 1, 4), 64, 64, 16, 1100, 500, 3000),
        Row(Tile(1, 1, 4, 8, 32), 32, 32, 32, 800, 500, 3000),
    ),
    8: (Row(Tile(2, 2), 64, 64, 16, 1800, 1000, 3000), Row(Tile(1, 1), 32, 32, 16, 700, 500, 2000)),
}

MOST_PARTS = 8  # of a cluster
EXCHANGE_CYCLES, EXCHANGED = 800, 8  # of their exchange: in any case, and elements in a cycle
MOST_SPLITS = 32
SPLIT_CYCLES = 6000  # of the launch that adds up
SPLIT_BYTES = 1200  # of partial sums, written and read, in a cycle
FEW_RESULTS = 16  # rows and columns up to which every thread computes one result
SHALLOW = 64
LEAST_COPIED, LEAST_FLOPS_COPIED = 64, 1 << 29  # extents and work from which operands are copied for tensor maps


def choose(spec: GemmSpec, properties: DeviceProperties) -> Choice:
    """The kernel and tile for a product."""
    rows = _rows(spec, properties)
    tiny = max(spec.M, spec.N) <= FEW_RESULTS and spec.K <= SHALLOW
    if not rows or tiny:
        return Choice(None)
    best, least = Choice(None), math.inf
    for row in rows:
        clusters = isinstance(row.tile, Tile) and properties.capability >= (9, 0)
        for splits in _splits(spec, row.step, clusters) if _tiles(spec, row) <= properties.multiprocessors else (1,):
            choice, cycles = _timed(spec, properties, row, splits, clusters and splits <= MOST_PARTS)
            if cycles < least:
                best, least = choice, cycles
    return best


def is_worth_copying(spec: GemmSpec, properties: DeviceProperties) -> bool:
    """Whether tensor cores of Hopper multiply copies sooner than another kernel the operands where they lie."""
    if properties.architecture != "sm_90a" or not gemm_wgmma.multiplies(spec) or gemm_wgmma.fits(spec):
        return False
    return min(spec.M, spec.N, spec.K) >= LEAST_COPIED and spec.flops >= LEAST_FLOPS_COPIED


def candidates(spec: GemmSpec, properties: DeviceProperties, most: int = 12) -> list[Choice]:
    """What may be fastest, the likely first: tiles and parts of K by their modelled time, and other orders of large tiles."""
    rows = _rows(spec, properties)
    timed: dict[Choice, float] = {}
    for row in rows:
        clusters = isinstance(row.tile, Tile) and properties.capability >= (9, 0)
        for splits in _splits(spec, row.step, clusters) if _tiles(spec, row) <= properties.multiprocessors else (1,):
            for in_cluster in (True, False) if clusters and 1 < splits <= MOST_PARTS else (False,):
                choice, cycles = _timed(spec, properties, row, splits, in_cluster)
                timed[choice] = cycles
                if isinstance(row.tile, WgmmaTile) and splits == 1 and _tiles(spec, row) > properties.multiprocessors:
                    timed[Choice(replace(row.tile, group=16))] = cycles * 1.01
    found = sorted(timed, key=lambda choice: timed[choice])[:most]
    return found or [Choice(None)]


def _rows(spec: GemmSpec, properties: DeviceProperties) -> tuple[Row, ...]:
    """The tiles of the fastest kernel that takes a product."""
    if properties.architecture == "sm_90a" and gemm_wgmma.fits(spec):
        return WGMMA if spec.dtype.is_half else WGMMA_TF32
    if properties.capability >= (8, 0) and gemm_mma.fits(spec):
        return MMA
    if not gemm_tiled.fits(spec):
        return ()
    if spec.allow_tf32 and spec.dtype is float32 and properties.capability >= (8, 0):
        return (*TF32, *TILED[4][1:])  # small tiles are in float32: what is allowed need not be done
    return TILED[spec.dtype.itemsize]


def _tiles(spec: GemmSpec, row: Row) -> int:
    """How many tiles the results are."""
    return -(-spec.M // row.rows) * -(-spec.N // row.columns) * math.prod(spec.batch)


def _splits(spec: GemmSpec, step: int, clusters: bool) -> Iterator[int]:
    """Numbers of parts of K, each of at least 8 steps; of at least one where the blocks of a cluster have them."""
    yield 1
    splits = 2
    while splits <= MOST_SPLITS and spec.K >= splits * step * (1 if clusters and splits <= MOST_PARTS else 8):
        yield splits
        splits *= 2


def _timed(
    spec: GemmSpec, properties: DeviceProperties, row: Row, splits: int, in_cluster: bool
) -> tuple[Choice, float]:
    """A choice and its cycles; in_cluster: the blocks of a cluster have the parts of K."""
    steps = max(1, -(-spec.K // row.step))
    each = -(-steps // splits)
    if not in_cluster:
        splits = max(1, -(-steps // each))  # parts that are not empty
    waves = -(-_tiles(spec, row) * splits // properties.multiprocessors)
    total = row.once + waves * (each * row.cycles + row.between)
    if in_cluster and splits > 1:
        assert isinstance(row.tile, Tile)
        total += waves * (EXCHANGE_CYCLES + row.rows * row.columns / EXCHANGED)
        return Choice(replace(row.tile, parts=splits), splits, each * row.step), total
    if splits > 1:
        size = 8 if spec.dtype.itemsize == 8 else 4
        total += SPLIT_CYCLES + 2 * spec.results * splits * size / SPLIT_BYTES
    return Choice(row.tile, splits, each * row.step if splits > 1 else 0), total

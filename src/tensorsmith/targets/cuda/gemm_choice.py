"""Which kernel, tile and parts of K a product gets: a model of the time, in cycles of a multiprocessor, over a short table.

    time = waves * (steps along K * cycles of a step + cycles to begin and end a tile) + what parts of K cost

A wave is a tile on every multiprocessor. The figures are measured (H200); where they are wrong a product is slower, not
wrong. A choice depends on the shape, the kind of kernel and the number of multiprocessors alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

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


# tile, rows and columns of it, extent along K of a step, cycles of a step, cycles to begin and end
_Row = tuple[WgmmaTile | MmaTile | Tile, int, int, int, float, float]

WGMMA: tuple[_Row, ...] = (
    (WgmmaTile(64, 256, 2, stages=4), 128, 256, 64, 1024, 3500),
    (WgmmaTile(64, 128, 2, stages=6), 128, 128, 64, 680, 2500),
    (WgmmaTile(64, 64, 2, stages=8), 128, 64, 64, 510, 2000),
    (WgmmaTile(64, 64, 1, stages=8), 64, 64, 64, 400, 1500),
)
MMA: tuple[_Row, ...] = (
    (MmaTile(128, 128, 2, 4, 4), 128, 128, 32, 600, 2500),
    (MmaTile(64, 64, 2, 2, 4), 64, 64, 32, 250, 1500),
)
TF32: tuple[_Row, ...] = ((Tile(2, 2), 128, 128, 16, 560, 2500),)
TILED: dict[int, tuple[_Row, ...]] = {  # by bytes of an element
    4: ((Tile(2, 2), 128, 128, 16, 2300, 3000), (Tile(1, 1), 64, 64, 16, 800, 2000)),
    8: ((Tile(2, 2), 64, 64, 16, 1400, 3000), (Tile(1, 1), 32, 32, 16, 600, 2000)),
}

MOST_SPLITS = 32
SPLIT_CYCLES = 4000  # of the launch that adds up
SPLIT_BYTES = 1200  # of partial sums, written and read, in a cycle
FEW_RESULTS = 16  # rows and columns up to which every thread computes one result
SHALLOW = 64


def choose(spec: GemmSpec, properties: DeviceProperties) -> Choice:
    """The kernel and tile for a product."""
    rows = _rows(spec, properties)
    tiny = max(spec.M, spec.N) <= FEW_RESULTS and spec.K <= SHALLOW
    if not rows or tiny:
        return Choice(None)
    best, least = Choice(None), math.inf
    for row in rows:
        for splits in _splits(spec, row[3]):
            choice, cycles = _timed(spec, properties, row, splits)
            if cycles < least:
                best, least = choice, cycles
    return best


def _rows(spec: GemmSpec, properties: DeviceProperties) -> tuple[_Row, ...]:
    """The tiles of the fastest kernel that takes a product."""
    if properties.architecture == "sm_90a" and gemm_wgmma.fits(spec):
        return WGMMA
    if properties.capability >= (8, 0) and gemm_mma.fits(spec):
        return MMA
    if not gemm_tiled.fits(spec):
        return ()
    if spec.allow_tf32 and spec.dtype is float32 and properties.capability >= (8, 0):
        return TF32
    return TILED[spec.dtype.itemsize]


def _splits(spec: GemmSpec, step: int) -> Iterator[int]:
    """Numbers of parts of K, each of at least 8 steps."""
    yield 1
    splits = 2
    while splits <= MOST_SPLITS and spec.K >= splits * 8 * step:
        yield splits
        splits *= 2


def _timed(spec: GemmSpec, properties: DeviceProperties, row: _Row, splits: int) -> tuple[Choice, float]:
    """A choice and its cycles."""
    tile, rows, columns, step, cycles, more = row
    steps = max(1, -(-spec.K // step))
    each = -(-steps // splits)
    splits = max(1, -(-steps // each))  # parts that are not empty
    tiles = -(-spec.M // rows) * -(-spec.N // columns) * math.prod(spec.batch) * splits
    waves = -(-tiles // properties.multiprocessors)
    total = waves * (each * cycles + more)
    if splits > 1:
        size = 8 if spec.dtype.itemsize == 8 else 4
        total += SPLIT_CYCLES + 2 * spec.results * splits * size / SPLIT_BYTES
    return Choice(tile, splits, each * step if splits > 1 else 0), total

"""How the convolution of single channels that lie last (`depthwise_last`) is cut: into tiles, rows of tiles and chunks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.core.views import Strided
from tensorsmith.kernels.epilogue import EXTRAS, Body
from tensorsmith.targets.cpu.conv import ConvKernel
from tensorsmith.targets.cpu.depthwise_last import (
    WORDS,
    Taps,
    Tile,
    blocks_function,
    entry_functions,
    entry_name,
    tile_function,
)
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine

_CHUNK_FLOPS = 1 << 20
_MOST_CHUNKS = 32
_COLUMNS = 4  # of a tile
_ROWS = 2  # of a tile where there are 32 registers, else one


class DepthwiseLastKernels(Kernels):
    """The compiled pieces for one dtype on one machine."""

    def tile_of(self, tile: Tile, taps: Taps, function: str | Body) -> Piece:
        """One kind of tile."""
        return self._piece(("depthwise last", tile, taps, function), lambda v: [tile_function(v, tile, taps, function)])

    def loops(self, rows: int, taps: Taps) -> Piece:
        """The loops around tiles of some rows."""
        return self._piece(("depthwise last", rows, taps), lambda v: [blocks_function(rows, taps), *entry_functions()])


@functools.cache
def depthwise_last_kernels(dtype: DType, machine: Machine) -> DepthwiseLastKernels:
    """The pieces for a dtype and machine."""
    return DepthwiseLastKernels(dtype, machine)


def segments_of(width: int, space: int, low: int, taps: Taps) -> list[tuple[Tile, int, int]]:
    """The tiles of a row of results as (tile, its rows left open; first column; how many of it side by side)."""
    tiles = -(-width // _COLUMNS)
    base, more = divmod(width, tiles)
    found: list[tuple[Tile, int, int]] = []
    start = 0
    for number in range(tiles):
        columns = base + (number < more)
        first = start * taps.stride[1] - low
        left = max(0, -first)
        right = max(0, first + taps.columns_seen(columns) - space)
        tile = Tile(0, columns, left, right)
        if found and found[-1][0] == tile:
            found[-1] = tile, found[-1][1], found[-1][2] + 1
        else:
            found.append((tile, start, 1))
        start += columns
    return found


def plan_depthwise_last(
    dtype: DType, x: Strided, y: Strided, tap: int, taps: Taps, low: Sequence[int], function: str | Body = "",
    machine: Machine | None = None,
) -> ConvKernel:  # fmt: skip
    """Plan it; x and y: how they are seen as (N, C, H, W), with stride 1 along the channels.

    tap: elements from tap to tap of w, whose channels lie last too. function: what is computed of the results: "" for
    nothing, "relu" or a body.
    """
    pieces = depthwise_last_kernels(dtype, machine or default_machine())
    size = pieces.storage_size
    batch, channels, height, width = y.shape
    rows = min(height, _ROWS if pieces.machine.registers >= 32 else 1)
    blocks, last = -(-height // rows), height % rows
    units = batch * blocks
    flops = 2 * batch * channels * height * width * taps.kernel[0] * taps.kernel[1]
    wanted = max(1, min(units, _MOST_CHUNKS, flops // _CHUNK_FLOPS))
    units_per_chunk = -(-units // wanted)
    parts = segments_of(width, x.shape[3], low[1], taps)
    used: list[Piece] = []

    def segment_words(of_rows: int) -> list[int]:
        words: list[int] = []
        for tile, start, count in parts:
            piece = pieces.tile_of(Tile(of_rows, tile.columns, tile.left, tile.right), taps, function)
            used.append(piece)
            words += [next(iter(piece.addresses.values())), start, count, tile.columns]
        return words

    segments = segment_words(rows) + (segment_words(last) if last else [])
    widest = max(taps.columns_seen(tile.columns) for tile, _, _ in parts)
    zeros = np.zeros(widest * channels, dtype=dtype.numpy)
    loops = pieces.loops(rows, taps)
    x_batch, _, x_row, x_column = (s * size for s in x.strides)
    y_batch, _, y_row, y_column = (s * size for s in y.strides)
    words = {
        "units": units, "units_per_chunk": units_per_chunk, "blocks": blocks, "outer": height, "space": x.shape[2],
        "stride": taps.stride[0], "low": low[0], "before": low[1] * x_column, "along": taps.stride[1] * x_column,
        "channels": channels, "x_batch": x_batch, "x_row": x_row, "x_column": x_column, "y_batch": y_batch, "y_row": y_row,
        "y_column": y_column, "tap": tap * size, "zeros": zeros.ctypes.data, "count": len(parts),
    }  # fmt: skip
    extras = isinstance(function, Body)
    return ConvKernel(
        function_address=loops.addresses[entry_name(extras)],
        chunks=-(-units // units_per_chunk),
        constants=(*(words[name] for name in WORDS), *segments),
        launch_order=("x", "w", "y", *(EXTRAS if extras else ())),
        workspace_bytes=0,
        flops=flops,
        pieces=(loops, *{id(piece): piece for piece in used}.values()),
        tables=(zeros,),
    )

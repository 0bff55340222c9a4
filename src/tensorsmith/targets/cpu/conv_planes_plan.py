"""How the gradient of a weight is cut where planes are taken as they lie (`conv_planes`), and where they can be."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.conv import ConvKernel
from tensorsmith.targets.cpu.conv_dot import tile_function, totals_of_tile
from tensorsmith.targets.cpu.conv_dot_plan import dot_problem, plan_dot
from tensorsmith.targets.cpu.conv_planes import ENTRY, WORDS, planes_function, tile_of
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine

_POSITIONS = 1024  # of a slab, about: planes of both operands stay in the first-level cache
_WIDEST = 2 * _POSITIONS
_SLAB_BYTES = 256 << 10  # of x: stays in the second-level cache
_CHUNK_FLOPS = 4e6
_MOST_CHUNKS = 32
_WANTED = 4  # chunks, for several threads


class PlanesKernels(Kernels):
    """The compiled pieces for one dtype on one machine."""

    def planes(self, tile: tuple[int, int]) -> Piece:
        """Tile and loops."""
        return self._piece(("conv planes", tile), lambda v: [tile_function(v, tile), planes_function(v, tile)])


@functools.cache
def planes_kernels(dtype: DType, machine: Machine) -> PlanesKernels:
    """The pieces for a dtype and machine."""
    return PlanesKernels(dtype, machine)


def takes_planes(
    x_shape: Sequence[int], g_shape: Sequence[int], attrs: dict[str, Any], x: Sequence[int], g: Sequence[int]
) -> bool:
    """Whether rows of x and g are as long, follow each other and meet element by element.

    x_shape, g_shape: of the operands of the node, (C / groups, groups N, *S) and (O, N, *P); attrs: of the node; x, g: strides.
    """
    width = x_shape[-1]
    if len(x_shape) > 4 or set(attrs["dilation"]) != {1} or g_shape[-1] != width or width > _WIDEST:
        return False
    return all(
        strides[-1] == 1 and (len(shape) == 3 or strides[2] == width or shape[2] == 1)
        for shape, strides in ((x_shape, x), (g_shape, g))
    )


def plan_weight_gradient(
    dtype: DType, x_shape: Sequence[int], g_shape: Sequence[int], taps: Sequence[int], attrs: dict[str, Any],
    x: Sequence[int], g: Sequence[int], y: Sequence[int],
) -> ConvKernel:  # fmt: skip
    """Plan the gradient of a weight on this machine: on whole planes where they can be taken, else on slabs of rows."""
    if takes_planes(x_shape, g_shape, attrs, x, g):
        return plan_planes(dtype, x_shape, g_shape, taps, attrs, x, g, y)
    described, others = dot_problem(x_shape, g_shape, taps, attrs, x, g)
    return plan_dot(dtype, described, others, y, taps)


def plan_planes(
    dtype: DType, x_shape: Sequence[int], g_shape: Sequence[int], taps: Sequence[int], attrs: dict[str, Any],
    x: Sequence[int], g: Sequence[int], y: Sequence[int], machine: Machine | None = None,
) -> ConvKernel:  # fmt: skip
    """Plan the gradient of a weight in float32 or float64 (see `takes_planes`); taps: extents of the result, y: its strides."""
    pieces = planes_kernels(dtype, machine or default_machine())
    size, lanes = pieces.storage_size, pieces.lanes
    groups, images, width = attrs["groups"], g_shape[1], x_shape[-1]
    inner, outer = x_shape[0], g_shape[0] // groups
    space, rows = (1, 1) if len(taps) == 1 else (x_shape[2], g_shape[2])
    (kernel_rows, reach, low), (tap_count, tap_reach, tap_low) = _axes(taps, attrs)
    beyond = (kernel_rows - 1) * reach

    block = max(1, min(rows, _POSITIONS // width))
    parts = -(-rows // block)
    block = -(-rows // parts)
    moved = (tap_count - 1) * tap_reach - tap_low  # how far the copy of the last tap lies before its place
    front = _up(max(0, moved), lanes)
    positions = _up(block * width, lanes)
    jump = front + _up(max((block + beyond) * width + max(0, tap_low), positions + beyond * width) + lanes, lanes)
    together = max(1, min(images, _POSITIONS // positions)) if parts == 1 else 1
    together = -(-images // -(-images // together))
    copy = together * jump * size

    flops = 2 * images * rows * width * groups * outer * inner * kernel_rows * tap_count
    wanted = max(1, -(-min(_WANTED, int(flops / _CHUNK_FLOPS)) // groups))
    channel_blocks, outer_blocks = _blocks(inner, outer, tap_count, -(-inner * tap_count * copy // _SLAB_BYTES), wanted)
    channel_block = -(-inner // channel_blocks)
    channel_blocks = -(-inner // channel_block)
    columns = channel_block * kernel_rows * tap_count
    tile = tile_of(pieces.machine.name, outer, columns)
    row_tiles = -(-outer // tile[0])
    tiles_of_block = -(-row_tiles // min(row_tiles, outer_blocks))
    outer_block = tiles_of_block * tile[0]
    outer_blocks = -(-outer // outer_block)
    units = groups * outer_blocks * channel_blocks
    chunks = max(1, min(units, _MOST_CHUNKS, int(flops / _CHUNK_FLOPS)))
    units_per_chunk = -(-units // chunks)
    chunks = -(-units // units_per_chunk)

    at = np.arange(_up(max(space, block + beyond) * width, lanes)) % width
    seen = np.array([at - t * tap_reach + tap_low for t in range(tap_count)])
    masks = -((seen >= 0) & (seen < width)).astype(f"i{size}")
    taps_of_copies = [(t, r) for t in range(tap_count) for r in range(kernel_rows)]
    places = [(c * tap_count + t) * copy + (front + r * reach * width) * size
              for c in range(channel_block) for t, r in taps_of_copies]  # fmt: skip
    places += places[-1:] * tile[1]
    y_row = y[2] if len(taps) == 2 else 0
    to = [(c * y[0] + r * y_row + t * y[-1]) * size for c in range(inner) for t, r in taps_of_copies]
    tables = (masks, np.array(places, dtype=np.int64), np.array(to, dtype=np.int64))

    g_offset = _up(channel_block * tap_count * copy + 2 * lanes * size, 64)
    totals_offset = g_offset + _up(tile[0] * copy + lanes * size, 64)
    totals = tiles_of_block * -(-columns // tile[1]) * totals_of_tile(lanes, tile) * size
    zero_bytes = _up(totals_offset + totals, 64)
    workspace_stride = zero_bytes + 64
    words = {
        "units": units, "units_per_chunk": units_per_chunk, "outer_blocks": outer_blocks, "outer_block": outer_block,
        "channel_blocks": channel_blocks, "channel_block": channel_block, "outer": outer, "inner": inner, "images": images,
        "together": together, "parts": parts, "block": block, "rows": rows, "space": space, "beyond": beyond, "low": low,
        "width": width, "front": front * size, "copy": copy, "jump": jump * size, "taps": len(taps_of_copies),
        "copies": tap_count, "reach": tap_reach, "low_w": tap_low, "masks": tables[0].ctypes.data,
        "masks_of_copy": masks.strides[0], "places": tables[1].ctypes.data, "to": tables[2].ctypes.data,
        "y_group": y[1] * outer * size, "y_outer": y[1] * size, "x_group": x[1] * images * size, "x_channel": x[0] * size,
        "x_image": x[1] * size, "g_group": g[0] * outer * size, "g_outer": g[0] * size, "g_image": g[1] * size,
        "g_offset": g_offset, "totals_offset": totals_offset, "zero_bytes": zero_bytes, "workspace_stride": workspace_stride,
    }  # fmt: skip
    piece = pieces.planes(tile)
    return ConvKernel(
        function_address=piece.addresses[ENTRY],
        chunks=chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=("x", "w", "y", "workspace"),
        workspace_bytes=workspace_stride * chunks,
        flops=flops,
        pieces=(piece,),
        tables=tables,
    )


def _axes(taps: Sequence[int], attrs: dict[str, Any]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Taps, dilation and padding of the rows and of the last axis, of the convolution whose weight's gradient it is."""
    axes = list(zip(taps, attrs["stride"], attrs["low"]))
    return (axes[0] if len(axes) == 2 else (1, 1, 0)), axes[-1]


def _blocks(inner: int, outer: int, taps: int, least: int, wanted: int) -> tuple[int, int]:
    """Blocks of input channels, `least` at least, and of output channels, `wanted` together, that copy least.

    Each block of output channels copies x for every tap of the last axis, each block of input channels copies g.
    """
    least = min(least, inner)
    ways = [(n, -(-wanted // n)) for n in range(least, max(least, min(inner, wanted)) + 1)]
    return min(ways, key=lambda way: way[1] * inner * taps + way[0] * outer)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple

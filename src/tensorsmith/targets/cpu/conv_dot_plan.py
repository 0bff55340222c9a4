"""How the convolution of `conv_dot` is cut: the gradient of a weight, summed over images and positions.

Units are groups and blocks of input channels; each sums over all images in their order, so that nothing depends on the
number of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu.conv import ConvKernel, Problem, row_edges, tap_places
from tensorsmith.targets.cpu.conv_dot import ENTRY, WORDS, blocks_function, tile_function, tile_of, totals_of_tile
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine

_POSITIONS = 1024  # of a slab: some rows of both operands stay in the first-level cache
_SLAB_BYTES = 256 << 10
_CHUNK_FLOPS = 4e6
_MOST_CHUNKS = 32


class DotKernels(Kernels):
    """The compiled pieces for one dtype on one machine."""

    def dot_pieces(self, tile: tuple[int, int]) -> Piece:
        """Tile and loops."""
        return self._piece(("conv dot", tile), lambda v: [tile_function(v, tile), blocks_function(v, tile)])


@functools.cache
def dot_kernels(dtype: DType, machine: Machine) -> DotKernels:
    """The pieces for a dtype and machine."""
    return DotKernels(dtype, machine)


def dot_problem(
    x_shape: Sequence[int], g_shape: Sequence[int], taps: Sequence[int], attrs: dict[str, Any], x: Sequence[int],
    g: Sequence[int],
) -> tuple[Problem, tuple[int, ...]]:  # fmt: skip
    """The problem in words of the convolution whose weight's gradient it is, and the strides of g.

    x_shape, g_shape: of the operands of the node, (C / groups, groups N, *S) and (O, N, *P); taps: extents of its result;
    attrs: of the node, whose stride is the dilation, and whose dilation the stride; x, g: strides.
    """
    rank = len(taps)
    groups, images = attrs["groups"], g_shape[1]
    space, out, kernel = list(x_shape[2:]), list(g_shape[2:]), list(taps)
    stride, low, dilation = list(attrs["dilation"]), list(attrs["low"]), list(attrs["stride"])
    x_space, g_space = list(x[2:]), list(g[2:])
    x_image, g_image = x[1], g[1]
    count = images
    row = out[-1] + (kernel[-1] - 1) * dilation[-1]
    if rank == 1 or (rank == 2 and out[0] * row < _POSITIONS):  # images side by side
        for values, first in ((space, images), (out, images), (kernel, 1), (stride, 1), (low, 0), (dilation, 1)):
            values.insert(0, first)
        x_space.insert(0, x_image)
        g_space.insert(0, g_image)
        count, x_image, g_image = 1, 0, 0
    if len(space) == 2:
        for values, only in ((space, 1), (out, 1), (kernel, 1), (stride, 1), (low, 0), (dilation, 1)):
            values.insert(1, only)
        x_space.insert(1, 0)
        g_space.insert(1, 0)
    p = Problem(
        count, groups, x_shape[0], g_shape[0] // groups, tuple(space), tuple(kernel), tuple(out), tuple(stride), tuple(low),
        tuple(dilation), (x_image, x[0], *x_space), (), 0,
    )  # fmt: skip
    return p, (x[1] * images, g_image, g[0], *g_space)


def plan_dot(
    dtype: DType, p: Problem, others: Sequence[int], y: Sequence[int], taps: Sequence[int], machine: Machine | None = None
) -> ConvKernel:
    """Plan the gradient of a weight in float32 or float64.

    others: strides of a group of x, and of g: image, output channel, axes 0, 1, w
    y: strides of the result (C / groups, O, *taps); taps: its extents
    """
    pieces = dot_kernels(dtype, machine or default_machine())
    size, lanes = pieces.storage_size, pieces.lanes
    tile = tile_of(pieces.machine.name, p.outer, p.inner, math.prod(p.kernel))
    tile_rows, tile_columns = tile
    x_group, g_image, g_outer, *g_space = others
    spans = [(k - 1) * d for k, d in zip(p.kernel, p.dilation)]
    phases = [min(s, span + 1) for s, span in zip(p.stride, spans)]
    slab_1, pitch = (n + span // s for n, span, s in zip(p.out[1:], spans[1:], p.stride[1:]))
    block = max(1, min(p.out[0], _POSITIONS // (slab_1 * pitch)))
    parts = -(-p.out[0] // block)
    block = -(-p.out[0] // parts)  # no rows of zeros but in the last part
    slab_0 = block + spans[0] // p.stride[0]
    plane = math.prod(phases) * slab_0 * slab_1 * pitch * size
    positions = -(-block * slab_1 * pitch // lanes) * lanes
    g_plane = positions * size
    run = -(-p.out[1] * pitch // lanes) * lanes
    runs = block if p.out[1] < slab_1 and run <= slab_1 * pitch else 1  # apart, without the rows of axis 1 that are no results

    tap_count = math.prod(p.kernel)
    channel_block = max(1, min(p.inner, _SLAB_BYTES // plane))
    flops = 2 * p.batch * math.prod(p.out) * p.groups * p.outer * p.inner * tap_count
    wanted = min(_MOST_CHUNKS, int(flops / _CHUNK_FLOPS), 4)
    if p.groups < wanted:  # blocks for several threads
        channel_block = min(channel_block, -(-p.inner // -(-wanted // p.groups)))
    channel_blocks = -(-p.inner // channel_block)
    units = p.groups * channel_blocks
    chunks = max(1, min(units, _MOST_CHUNKS, int(flops / _CHUNK_FLOPS)))
    units_per_chunk = -(-units // chunks)
    chunks = -(-units // units_per_chunk)

    columns = channel_block * tap_count
    row_tiles = -(-p.outer // tile_rows)
    own = tap_places(p, phases, (slab_0, slab_1, pitch), (False,) * 3)
    places = [c * plane + tap * size for c in range(channel_block) for tap in own]
    places += places[-1:] * tile_columns
    kernel_places = [int(sum(i * s for i, s in zip(k, y[2:]))) for k in np.ndindex(*taps)]
    to = [(c * y[0] + k) * size for c in range(p.inner) for k in kernel_places]
    edges = row_edges(p.space[2], p.stride[2], p.low[2], phases[2], pitch)
    tables = tuple(np.array(values, dtype=np.int64) for values in (places, to, edges, [0, p.out[2], 0]))

    slack = 2 * lanes * size
    g_offset = -(-(channel_block * plane + slack + positions * size) // 64) * 64
    totals_offset = g_offset + -(-(row_tiles * tile_rows * g_plane + slack) // 64) * 64
    totals = -(-columns // tile_columns) * row_tiles * totals_of_tile(lanes, tile) * size
    zero_bytes = -(-(totals_offset + totals) // (lanes * size)) * lanes * size
    workspace_stride = -(-zero_bytes // 64) * 64 + 64
    of_x = {
        "slab_0": slab_0, "slab_1": slab_1, "pitch": pitch, "plane": plane, "space_0": p.space[0], "space_1": p.space[1],
        "stride_0": p.stride[0], "stride_1": p.stride[1], "low_0": p.low[0], "low_1": p.low[1], "phases_0": phases[0],
        "phases_1": phases[1], "phases_w": phases[2], "x_channel": p.x[1] * size, "x_0": p.x[2] * size,
        "x_1": p.x[3] * size, "x_w": p.x[4] * size, "x_step": p.x[4] * p.stride[2] * size,
        "contiguous": int(p.x[4] * p.stride[2] == 1), "edges": tables[2].ctypes.data, "x_image": p.x[0] * size,
        "x_group": x_group * size,
    }  # fmt: skip
    of_g = {
        "slab_0": block, "slab_1": slab_1, "pitch": pitch, "plane": g_plane, "space_0": p.out[0], "space_1": p.out[1],
        "stride_0": 1, "stride_1": 1, "low_0": 0, "low_1": 0, "phases_0": 1, "phases_1": 1, "phases_w": 1,
        "x_channel": g_outer * size, "x_0": g_space[0] * size, "x_1": g_space[1] * size, "x_w": g_space[2] * size,
        "x_step": g_space[2] * size, "contiguous": int(g_space[2] == 1), "edges": tables[3].ctypes.data,
        "x_image": g_image * size, "x_group": g_outer * p.outer * size,
    }  # fmt: skip
    words = {
        "units": units, "units_per_chunk": units_per_chunk, "channel_blocks": channel_blocks, "channel_block": channel_block,
        "inner": p.inner, "outer": p.outer, "images": p.batch, "parts": parts, "block": block, "taps": tap_count,
        "columns": columns, "places": tables[0].ctypes.data, "y_channel": tables[1].ctypes.data,
        "y_group": y[1] * p.outer * size, "y_outer": y[1] * size, "runs": runs, "run": run * size,
        "jump": slab_1 * pitch * size, "row_tiles": row_tiles,
        "g_offset": g_offset, "totals_offset": totals_offset, "zero_bytes": zero_bytes, "workspace_stride": workspace_stride,
        **{f"x_{name}": value for name, value in of_x.items()}, **{f"g_{name}": value for name, value in of_g.items()},
    }  # fmt: skip
    piece = pieces.dot_pieces(tile)
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


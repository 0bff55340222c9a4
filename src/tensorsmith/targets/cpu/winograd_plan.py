"""Where Winograd's convolution pays, and how it is cut."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu import gemm_epilogue
from tensorsmith.targets.cpu.conv import ConvKernel, row_edges
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.winograd import POINTS, WORDS, loops_function

_BLOCK_BYTES = 13 << 17  # of V and M together: about a point of each is in the nearest caches at a time
_CHUNK_FLOPS = 4e6
_MOST_CHUNKS = 16  # each has a workspace of its own


class WinogradKernels(Kernels):
    """The compiled pieces for one dtype on one machine."""

    def loops(self, bias: bool, function: str) -> Piece:
        """The whole convolution with an epilogue."""
        return self._piece(("winograd", bias, function), lambda v: [loops_function(v, bias, function)])


@functools.cache
def winograd_kernels(dtype: DType, machine: Machine) -> WinogradKernels:
    """The pieces for a dtype and machine."""
    return WinogradKernels(dtype, machine)


def plan_winograd(
    dtype: DType, x_shape: Sequence[int], y_shape: Sequence[int], low: Sequence[int], x: Sequence[int], y: Sequence[int],
    epilogue: str | None = None, machine: Machine | None = None,
) -> ConvKernel:  # fmt: skip
    """Plan y (N, O, H, W) of x (N, C, H, W) and U (16, O, C); x, y: strides; the rows of y lie contiguously."""
    has_bias, function = gemm_epilogue.parse(epilogue)
    pieces = winograd_kernels(dtype, machine or default_machine())
    size, panel = pieces.storage_size, pieces.panel
    batch, channels, *space = x_shape
    out_channels, height, width = y_shape[1:]
    across, down = -(-width // 2), -(-height // 2)  # tiles
    pitch = across + 1
    most = max(1, _BLOCK_BYTES // (POINTS * (channels + out_channels) * size * pitch))
    flops = 2 * batch * height * width * out_channels * channels * 9
    wanted = max(1, min(_MOST_CHUNKS, int(flops / _CHUNK_FLOPS)) // batch)
    most = max(1, min(most, -(-down // min(wanted, 4))))
    vectors = lambda rows: -(-rows * pitch // pieces.lanes)
    block = min(range(1, most + 1), key=lambda n: (down // n * vectors(n) + vectors(down % n), -n))
    parts = -(-down // block)
    slab_0 = block + 1
    plane = 4 * slab_0 * pitch * size
    padded = -(-block * pitch // panel) * panel
    units = batch * parts
    chunks = max(1, min(units, _MOST_CHUNKS, int(flops / _CHUNK_FLOPS)))
    units_per_chunk = -(-units // chunks)
    chunks = -(-units // units_per_chunk)
    tiles = -(-out_channels // pieces.max_rows)
    base, extra = divmod(out_channels, tiles)
    edges = np.array(row_edges(space[1], 2, low[1], 2, pitch), dtype=np.int64)
    slack = 4 * panel * size
    up = lambda n: -(-n // 64) * 64
    v_offset = up(channels * plane + slack)
    m_offset = v_offset + up(POINTS * channels * padded * size + slack)
    workspace_stride = m_offset + up(POINTS * out_channels * padded * size + slack) + 64
    tile_pieces: dict[str, Piece] = {}
    for name, rows in (("small", base), ("big", base + 1)):
        if name == "small" or extra:
            tile_pieces |= {name: pieces.tile(rows, 2, ""), f"{name}_narrow": pieces.tile(rows, 1, "")}
    of_x = {
        "slab_0": slab_0, "slab_1": 1, "pitch": pitch, "plane": plane, "space_0": space[0], "space_1": 1, "stride_0": 2,
        "stride_1": 1, "low_0": low[0], "low_1": 0, "phases_0": 2, "phases_1": 1, "phases_w": 2, "x_channel": x[1] * size,
        "x_0": x[2] * size, "x_1": 0, "x_w": x[3] * size, "x_step": 2 * x[3] * size, "contiguous": 0,
        "edges": edges.ctypes.data, "x_image": x[0] * size, "x_group": 0,
    }  # fmt: skip
    words: dict[str, Any] = {
        "units": units, "units_per_chunk": units_per_chunk, "parts": parts, "block": block, "outer": down,
        "channels": channels, "out_channels": out_channels, "padded": padded, "width": across,
        "height_out": height, "width_out": width, "y_batch": y[0] * size, "y_channel": y[1] * size, "y_0": y[2] * size,
        "v_offset": v_offset, "m_offset": m_offset, "workspace_stride": workspace_stride, "tiles": tiles, "extra": extra,
        "base": base, **{f"x_{name}": value for name, value in of_x.items()},
        **{
            name: next(iter(tile_pieces[name].addresses.values())) if name in tile_pieces else 0
            for name in ("big", "small", "big_narrow", "small_narrow")
        },
    }  # fmt: skip
    loops = pieces.loops(has_bias, function)
    return ConvKernel(
        function_address=loops.addresses[loops.functions[0].name],
        chunks=chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=("x", "w", "y", *(["bias"] if has_bias else []), "workspace"),
        workspace_bytes=workspace_stride * chunks,
        flops=flops,
        pieces=(loops, *tile_pieces.values()),
        tables=(edges,),
    )

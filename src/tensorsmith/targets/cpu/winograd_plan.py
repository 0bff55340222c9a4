"""How a Winograd convolution and the transform of its weights are cut, and the words their kernels are launched with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.ir.winograd import FORMS, Form
from tensorsmith.targets.cpu import gemm_epilogue
from tensorsmith.targets.cpu.conv import ConvKernel
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.gemm_tile import PANEL_VECTORS, most_rows
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.pool import native_pool
from tensorsmith.targets.cpu.winograd import DONE, WORDS, loops_function
from tensorsmith.targets.cpu.winograd_tile import left_function, tile_function
from tensorsmith.targets.cpu.winograd_weight import WORDS as WEIGHT_WORDS, weight_function

_BLOCK_BYTES = 400 << 10  # of V and M together: most of a second-level cache
_GROUP_BYTES = 256 << 10  # of M alone
_LEAST_PANELS = 2  # of a unit, which reads all weights
_MOST_SHARED_PANELS = 8  # of a unit of one group
_FEW_UNITS = 8  # below it they do not share out evenly among threads
_DEPTH = 96  # products of one sum
_LEAST_DEPTH_OF_LEFT = 32  # input channels from which few tiles by themselves are cheaper than a vector of them
_CHUNK_FLOPS = 4e6
_MOST_CHUNKS = 32
_WEIGHTS_PER_CHUNK = 1 << 12  # kernels


class WinogradKernels(Kernels):
    """The compiled pieces for one dtype on one machine."""

    def loops(self, form: Form, bias: bool, function: str) -> Piece:
        """The whole convolution with an epilogue."""
        return self._piece(("winograd", form, bias, function), lambda v: [loops_function(v, form, bias, function)])

    def weight(self, form: Form, base: int, extra: bool, kept: bool) -> Piece:
        """The transform of weights for tiles of base and perhaps base + 1 output channels."""
        return self._piece(("weight", form, base, extra, kept), lambda v: [weight_function(v, form, base, extra, kept)])

    def left(self, rows: int) -> Piece:
        """The products of single tiles of results."""
        return self._piece(("left", rows), lambda v: [left_function(v, rows)])

    def product(self, rows: int, columns: int) -> Piece:
        """The register tile of the products."""
        return self._piece(("product", rows, columns), lambda v: [tile_function(v, rows, columns)])


@functools.cache
def winograd_kernels(dtype: DType, machine: Machine) -> WinogradKernels:
    """The pieces for a dtype and machine."""
    return WinogradKernels(dtype, machine)


def product_tiles(out_channels: int, machine: Machine) -> tuple[int, int, int]:
    """Register tiles of output channels, channels of the smaller ones, and how many tiles have one more."""
    tiles = -(-out_channels // most_rows(machine))
    return tiles, *divmod(out_channels, tiles)


def _blocks(count: int, most: int, panel: int) -> tuple[int, int]:
    """Tiles of a block, in whole panels, and how many blocks, where one has at most `most`."""
    block = -(-count // (-(-count // most) * panel)) * panel
    return block, -(-count // block)


def _spread(stride: int, parts: int) -> int:
    """The stride made longer so that `parts` lines of a cache that lie so far apart fall into sets of their own."""
    wanted = -(-(4096 // parts) // 64) * 64 | 64
    return stride + (wanted - stride) % 4096


def plan_winograd(
    dtype: DType, outputs: int, x_shape: Sequence[int], y_shape: Sequence[int], low: Sequence[int], x: Sequence[int],
    y: Sequence[int], epilogue: str | None = None, machine: Machine | None = None,
) -> ConvKernel:  # fmt: skip
    """Plan y (N, O, H, W) of x (N, C, H, W) by F(outputs, 3) with the weights of `plan_weight`.

    x, y: strides, in elements; their rows lie contiguously.
    """
    form = FORMS[outputs]
    has_bias, function = gemm_epilogue.parse(epilogue)
    pieces = winograd_kernels(dtype, machine or default_machine())
    size, lanes, panel, m = pieces.storage_size, pieces.lanes, pieces.panel, form.outputs
    batch, channels, *space = x_shape
    out_channels, height, width = y_shape[1:]
    across, down = -(-width // m), -(-height // m)
    count = batch * across * down  # tiles
    rows_tiles, base, extra = product_tiles(out_channels, pieces.machine)
    tile_bytes = form.products * (channels + out_channels) * size
    flops = 2 * batch * height * width * out_channels * channels * 9
    wanted = max(1, min(_MOST_CHUNKS, int(flops / _CHUNK_FLOPS)))
    block, blocks = _blocks(count, max(_LEAST_PANELS, _BLOCK_BYTES // (tile_bytes * panel)) * panel, panel)
    shared = blocks < min(_FEW_UNITS, wanted)
    if shared:
        block, blocks = _blocks(count, _MOST_SHARED_PANELS * panel, panel)
    groups = -(-form.products * out_channels * block * size // _GROUP_BYTES)
    if shared:
        groups = max(groups, -(-min(_FEW_UNITS, wanted) // blocks))
    groups = min(groups, rows_tiles)
    group_channels = -(-rows_tiles // groups) * (base + (1 if extra else 0))
    units = blocks * groups if shared else blocks
    units_per_chunk = -(-units // min(units, wanted))
    shares = min(_FEW_UNITS, channels) if shared else 0
    share_channels = -(-channels // max(1, shares))
    shares = -(-channels // share_channels) if shared else 0
    chunks = shares + -(-units // units_per_chunk)
    up = lambda n: -(-n // 64) * 64
    pitch = -(-((across if shared else min(across, block)) + 1) // lanes) * lanes + lanes
    v_row, m_row = ((blocks if shared else 1) * block + lanes) * size, block * size
    v_point, m_point = (_spread(n, form.products) for n in (channels * v_row, group_channels * m_row))
    slack = 64 + panel * size
    v_bytes = up(form.products * v_point + slack)
    v_offset = up(form.side * m * pitch * size + slack)
    m_offset = v_offset + (0 if shared else v_bytes)
    workspace_stride = m_offset + up(form.products * m_point + slack) + 64
    inside = np.zeros(m * (across + 1 + 2 * lanes), np.int32)
    inside[max(low[1], 0) : max(space[1] + low[1], 0)] = -1
    left = count % lanes if count % lanes <= lanes // 4 and channels >= _LEAST_DEPTH_OF_LEFT else 0
    tile_pieces: dict[str, Piece] = {}
    for name, rows in (("small", base), ("big", base + 1)):
        if name == "small" or extra:
            tile_pieces |= {name: pieces.product(rows, PANEL_VECTORS), f"{name}_narrow": pieces.product(rows, 1)}
            if left:
                tile_pieces[f"left_{name}"] = pieces.left(rows)
    words: dict[str, Any] = {
        "units": units, "units_per_chunk": units_per_chunk, "block": block, "tiles": count, "across": across, "down": down,
        "channels": channels, "out_channels": out_channels, "height": space[0], "width": space[1], "height_out": height,
        "width_out": width, "low_0": low[0], "low_1": low[1], "x_batch": x[0] * size, "x_channel": x[1] * size,
        "x_0": x[2] * size, "y_batch": y[0] * size, "y_channel": y[1] * size, "y_0": y[2] * size,
        "inside": inside.ctypes.data, "pitch": pitch, "v_offset": v_offset, "v_row": v_row, "v_point": v_point,
        "m_offset": m_offset, "m_row": m_row, "m_point": m_point, "workspace_stride": workspace_stride,
        "u_point": out_channels * channels * size, "rows_tiles": rows_tiles, "base": base, "extra": extra,
        "groups": groups, "unit_groups": 1 if shared else groups, "block_units": groups if shared else 1,
        "depth": -(-channels // -(-channels // _DEPTH)), "shares": shares, "share_channels": share_channels,
        "shared_bytes": v_bytes if shared else 0, "wait": native_pool().wait if shared else 0, "left": left, DONE: 0,
        **{
            name: next(iter(tile_pieces[name].addresses.values())) if name in tile_pieces else 0
            for name in ("big", "small", "big_narrow", "small_narrow", "left_big", "left_small")
        },
    }  # fmt: skip
    loops = pieces.loops(form, has_bias, function)
    return ConvKernel(
        function_address=loops.addresses[loops.functions[0].name],
        chunks=chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=("x", "w", "y", *(["bias"] if has_bias else []), "workspace"),
        workspace_bytes=(v_bytes if shared else 0) + workspace_stride * 2 * chunks,
        flops=flops,
        pieces=(loops, *tile_pieces.values()),
        tables=(inside,),
        leading=shares,
        shared_bytes=v_bytes if shared else 0,
        worker_bytes=workspace_stride,
    )


def kept_bytes(outputs: int, out_channels: int, channels: int, itemsize: int) -> int:
    """Memory of weights that are kept from run to run, zeros at first: U, a copy of w, and a word a tile."""
    return out_channels * channels * (FORMS[outputs].products + 9) * itemsize + 8 * out_channels + 64


def plan_weight(
    dtype: DType, outputs: int, w_shape: Sequence[int], w: Sequence[int], kept: bool = False, *,
    machine: Machine | None = None,
) -> ConvKernel:  # fmt: skip
    """Plan U, (outputs + 2)^2 times as many elements as w (O, C, 3, 3) has kernels; w: any strides, in elements.

    kept: U is left as it is where w has not changed; it lies in `kept_bytes`, and output channels of w contiguously.
    """
    form = FORMS[outputs]
    pieces = winograd_kernels(dtype, machine or default_machine())
    size = pieces.storage_size
    out_channels, channels = w_shape[:2]
    tiles, base, extra = product_tiles(out_channels, pieces.machine)
    chunks = max(1, min(tiles, _MOST_CHUNKS, out_channels * channels // _WEIGHTS_PER_CHUNK))
    tiles_per_chunk = -(-tiles // chunks)
    chunks = -(-tiles // tiles_per_chunk)
    words = {
        "tiles_per_chunk": tiles_per_chunk, "tiles": tiles, "base": base, "extra": extra, "channels": channels,
        "u_point": out_channels * channels * size, **dict(zip(("w_out", "w_in", "w_0", "w_1"), (n * size for n in w))),
        "row": 9 * channels, "copy": form.products * out_channels * channels * size,
        "marks": -(-(form.products + 9) * out_channels * channels * size // 8) * 8,
    }  # fmt: skip
    piece = pieces.weight(form, base, extra > 0, kept)
    return ConvKernel(
        function_address=next(iter(piece.addresses.values())),
        chunks=chunks,
        constants=tuple(words[name] for name in WEIGHT_WORDS),
        launch_order=("w", "u"),
        workspace_bytes=0,
        flops=out_channels * channels * form.products * 6,
        pieces=(piece,),
        tables=(),
    )

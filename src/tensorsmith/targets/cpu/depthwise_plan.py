"""How the convolution of single channels (`depthwise`) is cut: planes of x, or parts of them, that the nearest cache holds."""

from __future__ import annotations

import functools

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu import gemm_epilogue
from tensorsmith.targets.cpu.build import Function
from tensorsmith.targets.cpu.conv import ConvKernel, Problem, row_edges
from tensorsmith.targets.cpu.depthwise import (
    MOST_ROWS,
    WORDS,
    blocks_function,
    entry_functions,
    entry_name,
    rows_seen,
    tile_function,
)
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.gemm_vectors import Vectors
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine

_SLAB_BYTES = 20 << 10
_CHUNK_WORK = 1 << 17  # vectors of sums and of the slab
_MOST_CHUNKS = 32


class DepthwiseKernels(Kernels):
    """The compiled pieces for one dtype on one machine."""

    def depthwise(
        self, rows: int, kernel: tuple[int, int], stride: int, dilation: int, function: str, spread: bool
    ) -> Piece:
        """Tiles of some rows and of one, and the loops."""

        def write(v: Vectors) -> list[Function]:
            tiles = [tile_function(v, count, kernel, stride, dilation, function) for count in sorted({1, rows})]
            return [*tiles, blocks_function(v, rows, spread), *entry_functions()]

        return self._piece(("depthwise", rows, kernel, stride, dilation, function, spread), write)


@functools.cache
def depthwise_kernels(dtype: DType, machine: Machine) -> DepthwiseKernels:
    """The pieces for a dtype and machine."""
    return DepthwiseKernels(dtype, machine)


def _rows(p: Problem, block: int, registers: int) -> int:
    """Rows of a tile: the least work for the `block` rows of a part, as far as registers reach."""

    def cost(rows: int) -> float:
        seen = len(rows_seen(rows, p.kernel[0], p.stride[0], p.dilation[0]))
        return -(-block // rows) * (rows * p.kernel[0] + 0.6 * (seen + p.kernel[0]) + 1)

    fits = [
        rows for rows in range(1, min(MOST_ROWS, block) + 1)
        if rows + len(rows_seen(rows, p.kernel[0], p.stride[0], p.dilation[0])) < registers
    ]  # fmt: skip
    return min(fits, key=cost, default=1)


def plan_depthwise(
    dtype: DType, p: Problem, epilogue: str | None = None, machine: Machine | None = None, spread: tuple[int, int] = (1, 1)
) -> ConvKernel:
    """Plan the convolution of single channels; epilogue: None, "bias", "relu" or "bias_relu".

    spread: places that an element of x has along the axes 0 and w, zeros between them; only where the stride is 1.
    """
    assert spread == (1, 1) or p.stride == (1, 1, 1)
    has_bias, function = gemm_epilogue.parse(epilogue)
    pieces = depthwise_kernels(dtype, machine or default_machine())
    size, lanes = pieces.storage_size, pieces.lanes
    (step, _, stride_w), (spaced, _, spaced_w) = p.stride, p.dilation
    height, width = p.out[0], p.out[2]
    reach, span = (p.kernel[0] - 1) * spaced + 1, (p.kernel[2] - 1) * spaced_w
    phases = min(stride_w, span + 1)
    pitch = width + span // stride_w

    within = _SLAB_BYTES // (phases * pitch * size)  # rows of the slab
    block = min(height, max(1, (within - reach) // step + 1, MOST_ROWS if height > MOST_ROWS else 1))
    vectors = -(-pitch // lanes)
    work = p.batch * p.groups * height * vectors * (p.outer * p.kernel[0] * p.kernel[2] + 4 * phases)
    wanted = max(1, min(_MOST_CHUNKS, work // _CHUNK_WORK))
    parts = -(-height // block)
    if p.batch * p.groups * parts < wanted:  # parts for several threads
        parts = min(max(1, height // MOST_ROWS), -(-wanted // (p.batch * p.groups)))
    block = -(-height // parts)
    parts = -(-height // block)
    rows = _rows(p, block, pieces.machine.registers)
    slab_0 = (block - 1) * step + reach
    plane = phases * slab_0 * pitch * size
    units = p.batch * p.groups * parts
    chunks = max(1, min(units, wanted))
    units_per_chunk = -(-units // chunks)
    chunks = -(-units // units_per_chunk)

    places = [(l * spaced_w % stride_w * slab_0 * pitch + l * spaced_w // stride_w) * size for l in range(p.kernel[2])]
    edges = row_edges(p.space[2], stride_w, p.low[2], phases, pitch)
    if spread[1] > 1:  # the first element at a place of the row, the end of the elements, and which one is first
        start = max(0, -(p.low[2] // spread[1]))
        first = min(start * spread[1] + p.low[2], pitch)
        stop = min((p.space[2] - 1) * spread[1] + p.low[2] + 1, pitch)
        edges = [first, max(first, stop), start]
    tables = tuple(np.array(values, dtype=np.int64) for values in (places, edges))
    slack = 4 * lanes * size  # rows are read and written past their ends
    workspace_stride = -(-(plane + slack) // 64) * 64 + 64
    words = {
        "channels": 1, "slab_0": slab_0, "slab_1": 1, "pitch": pitch, "plane": plane, "space_0": p.space[0], "space_1": 1,
        "stride_0": 1, "stride_1": 1, "low_0": p.low[0], "low_1": 0, "phases_0": 1, "phases_1": 1,
        "phases_w": phases,
        "x_channel": 0, "x_0": p.x[2] * size, "x_1": 0, "x_w": p.x[4] * size, "x_step": p.x[4] * stride_w * size,
        "contiguous": int(p.x[4] * stride_w == 1), "edges": tables[1].ctypes.data,
        "spread_0": spread[0], "spread_w": spread[1],
        "units": units, "units_per_chunk": units_per_chunk, "parts": parts, "groups": p.groups, "multiplier": p.outer,
        "block": block, "outer": height, "width": width, "step": step, "reach": reach, "row": pitch * size,
        "places": tables[0].ctypes.data, "x_batch": p.x[0] * size, "x_group": p.x[1] * size, "w_row": p.w_row * size,
        "y_batch": p.y[0] * size, "y_channel": p.y[1] * size, "y_0": p.y[2] * size,
        "dense": int(p.y[2] == width and 2 * width >= lanes), "workspace_stride": workspace_stride,
    }  # fmt: skip
    piece = pieces.depthwise(rows, (p.kernel[0], p.kernel[2]), step, spaced, function, spread != (1, 1))
    return ConvKernel(
        function_address=piece.addresses[entry_name(has_bias)],
        chunks=chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=("x", "w", "y", *(["bias"] if has_bias else []), "workspace"),
        workspace_bytes=workspace_stride * chunks,
        flops=p.flops,
        pieces=(piece,),
        tables=tables,
    )


__all__ = ["plan_depthwise"]

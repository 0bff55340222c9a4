"""Direct convolution on the CPU: how the work is cut, and the words its kernel is launched with.

    y[n, o, p] = function(bias[o] + sum over c, k of x[n, c, p stride + k dilation - low] w[o, c, k])

`plan_conv` is arithmetic on shapes and strides only; sizes are run-time words of the kernels. x may lie in any strides, the
kernels of w and the rows of y contiguously. The partition depends on the shape alone, and with it the order of every sum:
channels, then taps, in blocks of channels; for positions left over after whole vectors (`conv_left`) lane by lane.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.targets.cpu import gemm_epilogue
from tensorsmith.targets.cpu.build import format_lines
from tensorsmith.targets.cpu.conv_blocks import DONE, WORDS, blocks_function, entry_functions, entry_name
from tensorsmith.targets.cpu.conv_left import left_function, most_left
from tensorsmith.targets.cpu.conv_tile import TILES, tile_function
from tensorsmith.targets.cpu.gemm_kernels import Kernels, Piece
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.pool import native_pool

_SLAB_BYTES = 384 << 10  # stays in the second-level cache beside the weights
_SMALL_SLAB_BYTES = 64 << 10  # an image below it shares a slab with others
_WEIGHT_BYTES = 256 << 10  # weights that are read for every panel
_KEPT_BYTES = 128 << 10  # sums over some of the channels
_LEAST_TILES = 4  # that share a panel of the slab
_DEPTH = 128  # products of a sum, about, whose weights and vectors of the slab the first-level cache holds
_FEW_PANELS = 5  # up to which weights pass through the caches, and longer rows of them pass faster
_CHUNK_FLOPS = 4e6
_MOST_CHUNKS = 32  # each has a slab of its own
_FEW_UNITS = 8  # below it they do not share out evenly among threads


@dataclass(frozen=True)
class ConvKernel:
    """A planned convolution, ready for a recipe.

    function_address, chunks, constants: as a Recipe takes them
    launch_order: names of the launch words
    tables: arrays whose addresses are among the constants
    leading: how many of the chunks, the first ones, others wait for; those may run in any order after them
    worker_bytes: of the workspace, behind `shared_bytes`, the share of each worker; 0 where each chunk has one
    """

    function_address: int
    chunks: int
    constants: tuple[int, ...]
    launch_order: tuple[str, ...]
    workspace_bytes: int
    flops: int
    pieces: tuple[Piece, ...] = field(repr=False)
    tables: tuple[np.ndarray, ...] = field(repr=False)
    leading: int = 0
    shared_bytes: int = 0
    worker_bytes: int = 0

    def touched(self, threads: int) -> int:
        """The bytes at the start of the workspace that so many threads touch."""
        return min(self.shared_bytes + self.worker_bytes * threads or self.workspace_bytes, self.workspace_bytes)

    @property
    def loops(self) -> str:
        """The loop structure, outermost piece first."""
        structures = [(f.name, f.structure) for piece in self.pieces for f in piece.functions if f.structure]
        return "\n".join(f"{name}:\n{format_lines(structure, 1)}" for name, structure in structures)

    @property
    def text(self) -> str:
        """The LLVM text of every piece."""
        return "\n".join(piece.text for piece in self.pieces)


class ConvKernels(Kernels):
    """Pieces of the direct convolution for one dtype on one machine."""

    def conv_tile(self, rows: int, columns: int, function: str) -> Piece:
        """The register tile of some output channels and vectors of positions."""
        return self._piece(("conv", rows, columns, function), lambda v: [tile_function(v, rows, columns, function)])

    def conv_left(self, positions: int, function: str) -> Piece:
        """The sums of positions that are left over."""
        return self._piece(("conv left", positions, function), lambda v: [left_function(v, positions, function)])

    def conv_blocks(self) -> Piece:
        """The loops and their entries."""
        return self._piece(("conv blocks",), lambda v: [blocks_function(v), *entry_functions()])


@functools.cache
def conv_kernels(dtype: DType, machine: Machine) -> ConvKernels:
    """The pieces for a dtype and machine."""
    return ConvKernels(dtype, machine)


@dataclass(frozen=True)
class Problem:
    """A convolution over axes (0, 1, w); strides in elements.

    space, kernel, out: extents; stride, low, dilation: per axis
    x: strides (batch, channel, 0, 1, w); y: strides (batch, channel, 0, 1); w_row: of an output channel
    """

    batch: int
    groups: int
    inner: int  # input channels of a group
    outer: int  # output channels of a group
    space: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    dilation: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]
    w_row: int

    @property
    def flops(self) -> int:
        positions = self.out[0] * self.out[1] * self.out[2] * self.batch
        return 2 * positions * self.groups * self.outer * self.inner * self.kernel[0] * self.kernel[1] * self.kernel[2]


def problem(
    x_shape: Sequence[int], w_shape: Sequence[int], out: Sequence[int], attrs: dict[str, Any], x: Sequence[int],
    w_row: int, y: Sequence[int], itemsize: int, side_by_side: bool = True,
) -> Problem:  # fmt: skip
    """The convolution of some rank as one over (0, 1, w). x, y: strides of the operand and the result, in elements.

    What axis 0 is: the depth of three axes; the height of an image; the image, where images have one axis, or two and are
    small (and `side_by_side`).
    """
    rank = len(out)
    batch, channels = x_shape[:2]
    groups = attrs["groups"]
    space, kernel, result = list(x_shape[2:]), list(w_shape[2:]), list(out)
    stride, low, dilation = list(attrs["stride"]), list(attrs["low"]), list(attrs["dilation"])
    small = channels // groups * (space[0] + kernel[0]) * (space[-1] + kernel[-1]) * itemsize <= _SMALL_SLAB_BYTES
    x_space, y_space, x_batch, y_batch = list(x[2:]), list(y[2:]), x[0], y[0]
    if rank == 1 or (rank == 2 and small and side_by_side):
        for values, first in ((space, batch), (kernel, 1), (result, batch), (stride, 1), (low, 0), (dilation, 1)):
            values.insert(0, first)
        x_space.insert(0, x_batch)
        y_space.insert(0, y_batch)
        batch, x_batch, y_batch = 1, 0, 0
    if len(space) == 2:
        for values, only in ((space, 1), (kernel, 1), (result, 1), (stride, 1), (low, 0), (dilation, 1)):
            values.insert(1, only)
        x_space.insert(1, 0)
        y_space.insert(1, 0)
    assert len(space) == 3
    return Problem(
        batch, groups, channels // groups, w_shape[0] // groups, tuple(space), tuple(kernel), tuple(result), tuple(stride),
        tuple(low), tuple(dilation), (x_batch, x[1], *x_space), (y_batch, y[1], *y_space[:2]), w_row,
    )  # fmt: skip


def tap_places(p: Problem, phases: Sequence[int], slab: Sequence[int], copied: Sequence[bool]) -> list[int]:
    """For every tap, how many elements of the slab it lies after tap 0. copied: whether an axis has a copy for each tap."""
    places = []
    for k in itertools.product(*(range(n) for n in p.kernel)):
        reach = [i * d for i, d in zip(k, p.dilation)]
        place = 0
        for i, at, s, count, copy in zip(k, reach, p.stride, phases, copied):
            place = place * count + (i if copy else at % s)
        for at, s, extent, copy in zip(reach, p.stride, slab, copied):
            place = place * extent + (0 if copy else at // s)
        places.append(place)
    return places


def row_edges(space: int, stride: int, low: int, phases: int, pitch: int, apart: int = 1) -> list[int]:
    """For every phase: the first position of a slab's row inside x, the end of those, and where in x the first one lies.

    apart: elements of x from phase to phase.
    """
    edges = []
    for phase in range(0, phases * apart, apart):
        first = min(max(0, -((phase - low) // stride)), pitch)
        stop = min(pitch, (space - 1 + low - phase) // stride + 1)
        edges += [first, max(first, stop), first * stride + phase - low]
    return edges


@dataclass(frozen=True)
class _Slab:
    """How slabs lie: phases and extents per axis, but for the rows of axis 0, of which a part has some more than results."""

    copied: tuple[bool, bool, bool]
    phases: tuple[int, int, int]
    slab_1: int
    pitch: int
    beyond: int

    def row_bytes(self, p: Problem, size: int) -> int:
        """Of a row of axis 0, all channels and phases."""
        return p.inner * self.phases[0] * self.phases[1] * self.phases[2] * self.slab_1 * self.pitch * size

    def most_rows(self, p: Problem, size: int) -> int:
        """Rows of axis 0 of a part, as caches have them."""
        return min(p.out[0], max(1, _SLAB_BYTES // self.row_bytes(p, size) - self.beyond))

    def behind(self, p: Problem) -> int:
        """Positions of a row of axis 0 after its last result."""
        return (self.slab_1 - p.out[1]) * self.pitch + self.pitch - p.out[2]

    def left(self, p: Problem, rows: int, lanes: int) -> tuple[int, int]:
        """Whole vectors of a part of so many rows, and the positions that are left over and computed by themselves."""
        positions = rows * self.slab_1 * self.pitch - self.behind(p)
        left = positions % lanes
        run = p.out[2] if self.pitch > p.out[2] or self.slab_1 > p.out[1] else p.out[1] * p.out[2]
        if left > min(most_left(lanes, p.inner * math.prod(p.kernel)), run) or positions < lanes:
            left = 0
        return -(-(positions - left) // lanes), left

    def cost(self, p: Problem, block: int, lanes: int, size: int) -> float:
        """Cycles, about, of all parts of `block` rows: of filling slabs, of sums, of stores over the ends of runs."""
        whole, last = divmod(p.out[0], block)
        parts = [(whole, block), (1, last)] if last else [(whole, block)]
        rows = self.phases[0] * self.phases[1] * self.phases[2] * self.slab_1
        row = p.inner * rows * (25 + 3 * self.pitch / lanes)
        run = p.out[2] if self.pitch > p.out[2] else p.out[1] * p.out[2]
        total = 0.0
        for count, height in parts:
            vectors, left = self.left(p, height, lanes)
            sums = p.inner * p.kernel[0] * p.kernel[1] * p.kernel[2] * (vectors + 2 * left / lanes)
            stores = vectors * (1 + 24 * min(1, lanes / run)) + 16 * left
            total += count * ((height + self.beyond) * row + p.outer * (sums + stores))
        return total


def _slabs(p: Problem, lanes: int, size: int) -> tuple[_Slab, int]:
    """The cheapest way to lay slabs out, phases of strides or a copy for every tap along the last axes, and rows of a part."""
    spans = [(k - 1) * d for k, d in zip(p.kernel, p.dilation)]

    def slab(copied: tuple[bool, bool, bool]) -> _Slab:
        phases = [k if copy else min(s, span + 1) for k, s, span, copy in zip(p.kernel, p.stride, spans, copied)]
        extents = [n if copy else n + span // s for n, span, s, copy in zip(p.out, spans, p.stride, copied)]
        return _Slab(copied, (phases[0], phases[1], phases[2]), extents[1], extents[2], spans[0] // p.stride[0])

    ways = [slab((False, *copied)) for copied in ((False, False), (False, True), (True, True))]
    choices = []
    for way in ways:
        most = way.most_rows(p, size)
        least = -(-most // 2) if way.beyond else 1  # parts that share no rows may be small
        choices += [(way.cost(p, block, lanes, size), -block, way) for block in range(least, most + 1)]
    _, block, way = min(choices, key=lambda choice: choice[:2])
    return way, -block


def _loads(outer: int, most: int, columns: int) -> float:
    """Loads to a multiply-add, about, where `outer` output channels fall into tiles of at most `most` rows."""
    rows = outer / -(-outer // most)
    return (rows + columns + 1) / (rows * columns)


def plan_conv(
    dtype: DType, p: Problem, epilogue: str | None = None, machine: Machine | None = None
) -> ConvKernel:
    """Plan the convolution of a dtype (float32 or float64); epilogue: None, "bias", "relu" or "bias_relu"."""
    if dtype.kind != "f" or dtype.is_half:
        raise NotImplementedError(f"the direct convolution of {dtype.name} is not implemented on the CPU")
    has_bias, function = gemm_epilogue.parse(epilogue)
    pieces = conv_kernels(dtype, machine or default_machine())
    size, lanes = pieces.storage_size, pieces.lanes
    way, block = _slabs(p, lanes, size)
    phases, slab_1, pitch, beyond = way.phases, way.slab_1, way.pitch, way.beyond
    parts = -(-p.out[0] // block)
    slab_0 = block + beyond
    phase = slab_0 * slab_1 * pitch

    vectors, left = way.left(p, block, lanes)
    _, last_left = way.left(p, p.out[0] - (parts - 1) * block, lanes)
    most, columns = min(TILES[pieces.machine.name], key=lambda tile: _loads(p.outer, *tile))
    tiles = -(-p.outer // most)
    base, extra = divmod(p.outer, tiles)

    slabs = p.batch * p.groups * parts
    wanted = max(1, min(_MOST_CHUNKS, int(p.flops / _CHUNK_FLOPS)))
    shared = slabs < min(_FEW_UNITS, wanted)
    out_parts = min(tiles, -(-min(_FEW_UNITS, wanted) // slabs)) if shared else 1
    units = slabs * out_parts
    units_per_chunk = -(-units // min(units, wanted))
    share_channels = -(-p.inner // _FEW_UNITS) if shared else p.inner
    shares = -(-p.inner // share_channels) if shared else 0
    chunks = shares + -(-units // units_per_chunk)
    plane = phases[0] * phases[1] * phases[2] * phase * size
    if shared:  # whose last rows write past their ends, while another share writes the next ones
        plane += 2 * lanes * size
    tap_count = p.kernel[0] * p.kernel[1] * p.kernel[2]
    panel = columns * lanes
    panels = -(-vectors // columns)
    depth = _DEPTH if panels >= _FEW_PANELS else 3 * _DEPTH
    channel_block = -(-p.inner // max(1, min(p.inner, round(p.inner * tap_count / depth))))
    kept_tile = -(-p.outer // tiles) * panel * size
    block_tiles = _WEIGHT_BYTES // (channel_block * tap_count * most * size)
    if channel_block < p.inner:
        block_tiles = min(block_tiles, _KEPT_BYTES // (panels * kept_tile))
    block_tiles = min(tiles, max(_LEAST_TILES, block_tiles))
    kept_bytes = (panels + 2) * block_tiles * kept_tile if channel_block < p.inner else 0

    taps = [n * size for n in tap_places(p, phases, (slab_0, slab_1, pitch), way.copied)]
    run_pitch, run = pitch, p.out[2]
    rows = [a * p.y[2] + b * p.y[3] if b < p.out[1] else -1 for a in range(block) for b in range(slab_1)]
    if run == run_pitch and (p.out[1] == 1 or p.y[3] == run):  # rows of axis 1 follow each other
        run_pitch, run = slab_1 * run, p.out[1] * run
        rows = [a * p.y[2] for a in range(block)]
        if run == run_pitch and p.y[2] == run:
            run_pitch, run, rows = block * run, block * run, [0]
    rows = [n if n < 0 else n * size for n in rows]
    apart_1, apart_w = (p.dilation[axis] if way.copied[axis] else 1 for axis in (1, 2))
    edges = row_edges(p.space[2], p.stride[2], p.low[2], phases[2], pitch, apart_w)
    tables = tuple(np.array(values, dtype=np.int64) for values in (taps, rows, edges))

    tile_pieces: dict[str, Piece] = {}
    for name, count in (("small", base), ("big", base + 1)):
        if name == "small" or extra:
            for kind, across in (("wide", columns), ("middle", 2), ("narrow", 1)):
                tile_pieces[f"{name}_{kind}"] = pieces.conv_tile(count, across, function)
    driver = pieces.conv_blocks()
    slack = 2 * columns * lanes * size  # tiles read, and rows are written, past their ends
    up = lambda n: -(-n // 64) * 64
    slab_bytes = up(p.inner * plane + slack)
    kept = 0 if shared else slab_bytes
    windows = kept + up(kept_bytes) + 64
    workspace_stride = windows + up(p.inner * tap_count * max(left, last_left) * size) + 64
    shared_bytes = slabs * slab_bytes if shared else 0
    left_pieces = {count: pieces.conv_left(count, function) for count in {left, last_left} if count}
    left_functions = {count: next(iter(piece.addresses.values())) for count, piece in left_pieces.items()}
    words = {
        "units": units, "units_per_chunk": units_per_chunk, "parts": parts, "groups": p.groups, "block": block,
        "outer": p.out[0], "channels": p.inner, "slab_0": slab_0, "slab_1": slab_1, "pitch": pitch, "plane": plane,
        "behind": way.behind(p), "run_pitch": run_pitch, "run": run,
        "space_0": p.space[0], "space_1": p.space[1], "stride_0": p.stride[0], "stride_1": p.stride[1],
        "low_0": p.low[0], "low_1": p.low[1], "phases_0": phases[0], "phases_1": phases[1], "apart_1": apart_1,
        "phases_w": phases[2], "x_batch": p.x[0] * size, "x_group": p.x[1] * p.inner * size,
        "x_channel": p.x[1] * size, "x_0": p.x[2] * size, "x_1": p.x[3] * size, "x_w": p.x[4] * size,
        "x_step": p.x[4] * p.stride[2] * size, "contiguous": int(p.x[4] * p.stride[2] == 1),
        "edges": tables[2].ctypes.data, "taps": tables[0].ctypes.data, "tap_count": len(taps),
        "rows": tables[1].ctypes.data, "w_group": p.w_row * p.outer * size, "w_row": p.w_row * size,
        "y_batch": p.y[0] * size, "y_group": p.y[1] * p.outer * size, "y_row": p.y[1] * size, "y_0": p.y[2] * size,
        "tiles": tiles, "base": base, "extra": extra, "block_tiles": block_tiles, "columns": columns, "panel": panel,
        "channel_block": channel_block, "kept": kept, "kept_tile": kept_tile,
        "workspace_stride": workspace_stride, "out_parts": out_parts, "shares": shares, "share_channels": share_channels,
        "share_slabs": slabs, "slab_bytes": slab_bytes, "shared_bytes": shared_bytes,
        "wait": native_pool().wait if shared else 0, "left": left, "last_left": last_left, "windows": windows,
        "left_function": left_functions.get(left, 0), "last_left_function": left_functions.get(last_left, 0), DONE: 0,
        **{
            name: tile_pieces[name].addresses[tile_pieces[name].functions[0].name] if name in tile_pieces else 0
            for name in WORDS[-7:-1]
        },
    }  # fmt: skip
    return ConvKernel(
        function_address=driver.addresses[entry_name(has_bias)],
        chunks=chunks,
        constants=tuple(words[name] for name in WORDS),
        launch_order=("x", "w", "y", *(["bias"] if has_bias else []), "workspace"),
        workspace_bytes=shared_bytes + workspace_stride * chunks,
        flops=p.flops,
        pieces=(driver, *tile_pieces.values(), *left_pieces.values()),
        tables=tables,
        leading=shares,
    )


__all__ = ["ConvKernel", "Problem", "conv_kernels", "plan_conv", "problem"]

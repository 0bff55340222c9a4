"""Recurrent layers on the CPU: which kernel, and the words it is launched with.

`plan_recurrent` is arithmetic on shapes and strides; kernels are compiled when the first call asks for them and depend on
dtype and cell alone. Into how many chunks the batch falls depends on the shape only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensorsmith.core.views import Strided
from tensorsmith.ir.recurrent import GATES, Runs, gradients, results, steps
from tensorsmith.targets.cpu import recurrent_backward, recurrent_forward
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.gemm_kernels import Kernels, kernels
from tensorsmith.targets.cpu.lower import CompiledKernel, LoweredKernel
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.recurrent_product import RecurrentStructure, product_function, tile_words
from tensorsmith.targets.cpu.tiled_kernel import compile_with_product, round_up

_CHUNK_FLOPS = 4e6
_CHUNK_ROWS = 8  # at least: each chunk packs and reads the weights for itself
_CHUNK_ROWS_OF_LARGE = 16  # where they do not fit a second-level cache
_LARGE_BYTES = 1 << 19
_MOST_CHUNKS = 8
_LINE = 64

_kernels: CompiledOnce[tuple[RecurrentStructure, Machine], CompiledKernel] = CompiledOnce()


@dataclass(frozen=True)
class LayerSizes:
    """The steps of a layer and the size of its state."""

    runs: Runs
    reverse: bool
    hidden: int

    @property
    def batch(self) -> int:
        return self.runs[0][1]

    @property
    def rows(self) -> int:
        return sum(length * count for length, count in self.runs)


def _compile(structure: RecurrentStructure, pieces: Kernels) -> CompiledKernel:
    direction = recurrent_backward if structure.backward else recurrent_forward
    function = direction.build(structure, pieces, f"kernel_{structure.mode}{'_backward' if structure.backward else ''}")
    words = len(direction.launch_words(structure))
    return compile_with_product(product_function(pieces), function, words, pieces.machine)


@functools.lru_cache(maxsize=64)
def _table(runs: Runs, reverse: bool) -> np.ndarray:
    return np.array(steps(runs, reverse), np.int64)


def _tiles(pieces: Kernels, sizes: LayerSizes, per_chunk: int, columns: int) -> dict[str, int]:
    """Addresses of the tiles that some step of some chunk asks for."""
    words = dict.fromkeys(tile_words(pieces), 0)
    counts = {min(count, start + per_chunk) - start for _, count in sizes.runs for start in range(0, count, per_chunk)}
    left = columns % pieces.panel
    narrow = 0 < left <= pieces.lanes
    wide = columns >= pieces.panel or left > pieces.lanes
    for count in counts:
        tiles = math.ceil(count / pieces.max_rows)
        height, more = divmod(count, tiles)
        for rows in (height, height + 1) if more else (height,):
            if wide:
                (words[f"wide_{rows}"],) = pieces.tile(rows, 2, "").addresses.values()
            if narrow:
                (words[f"narrow_{rows}"],) = pieces.tile(rows, 1, "").addresses.values()
    return words


def _starts(shapes: Mapping[str, tuple[int, int]], prefix: str, size: int) -> dict[str, int]:
    """Byte offsets of the results in a flat value."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[prefix + name] = start
        start += math.prod(shape) * size
    return found


def plan_recurrent(
    structure: RecurrentStructure, sizes: LayerSizes, operands: Mapping[str, Strided], machine: Machine | None = None
) -> tuple[LoweredKernel, object]:
    """The kernel and its words, and what has to live as long as they are used.

    operands: by the names of the launch, as they lie, strides in elements, consecutive along a row.
    """
    pieces = kernels(structure.dtype, machine or default_machine())
    kernel = _kernels.get((structure, pieces.machine), lambda: _compile(structure, pieces))
    mode, hidden, batch, size = structure.mode, sizes.hidden, sizes.batch, pieces.storage_size
    wide = GATES[mode] * hidden
    flops = 2 * sizes.rows * wide * hidden
    fewest = _CHUNK_ROWS if wide * hidden * size <= _LARGE_BYTES else _CHUNK_ROWS_OF_LARGE
    wanted = max(1, min(_MOST_CHUNKS, batch // fewest, int(flops / _CHUNK_FLOPS)))
    per_chunk = math.ceil(batch / wanted)
    chunks = math.ceil(batch / per_chunk)
    depth, columns = (wide, hidden) if structure.backward else (hidden, wide)
    slot = round_up(depth, pieces.lanes) * pieces.panel * size
    packed = round_up(math.ceil(columns / pieces.panel) * slot, _LINE) + _LINE
    p_row = round_up(wide * size, _LINE) + _LINE
    table = _table(sizes.runs, sizes.reverse)
    words = {
        "batch": batch, "hidden": hidden, "steps": len(table), "table": table.ctypes.data, "per_chunk": per_chunk,
        "slot": slot, "w_row": operands["w"].strides[0] * size, "at_p": packed, "p_row": p_row,
        "space": packed + (0 if structure.backward else per_chunk * p_row + _LINE),
    }  # fmt: skip
    (words["pack_transposed"],) = pieces.pack(True).addresses.values()
    (words["pack_rows"],) = pieces.pack(False).addresses.values()
    for name in ("gates", "grad", "grad_hidden", "grad_cell", "hidden", "cell"):
        words[f"{name}_row"] = operands[name].strides[0] * size if name in operands else 0
    kept = results(mode, structure.keep, sizes.rows, batch, hidden)
    found = gradients(mode, sizes.rows, batch, hidden) if structure.backward else kept
    words |= _starts(found, "at_", size) | _starts(kept, "kept_", size)
    direction = recurrent_backward if structure.backward else recurrent_forward
    constants = [words.get(name, 0) for name in direction.WORDS]
    constants += _tiles(pieces, sizes, per_chunk, columns).values()
    moved = size * (hidden * wide + sum(math.prod(shape) for shape in (*found.values(), (sizes.rows, wide))))
    return LoweredKernel(kernel, chunks, constants, words["space"] * chunks, moved, flops), table

"""Attention on the CPU: which kernel, and the words it is launched with.

`plan_attention` is arithmetic on shapes and strides; kernels are compiled when the first call asks for them and depend on
dtype, causality and kind of mask alone. Into how many chunks the work falls depends on the shape only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorsmith.core.dtypes import bool_
from tensorsmith.core.views import Strided
from tensorsmith.ir.dropout import limit, whole_groups
from tensorsmith.targets.cpu import attention_backward, attention_forward
from tensorsmith.targets.cpu.attention_blocks import COLUMNS, ROWS, TILES, AttentionStructure, launch_words, product_function
from tensorsmith.targets.cpu.build import Function
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.gemm_kernels import Kernels, kernels
from tensorsmith.targets.cpu.lower import CompiledKernel, LoweredKernel
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.tiled_kernel import compile_with_product, round_up

_CHUNK_FLOPS = 4e6
_MOST_CHUNKS = 32  # each has a workspace of its own
_LINE = 64
_SHORT = 1024  # queries, up to which half as many of them make a block where causal


@dataclass(frozen=True)
class AttentionSizes:
    """batch: outer * inner products of (L, E) with (S, E), and values (S, F)."""

    outer: int
    inner: int
    L: int
    S: int
    E: int
    F: int

    @property
    def batch(self) -> int:
        return self.outer * self.inner


_kernels: CompiledOnce[tuple[AttentionStructure, Machine], CompiledKernel] = CompiledOnce()


def _compile(structure: AttentionStructure, pieces: Kernels) -> CompiledKernel:
    direction = attention_backward if structure.backward else attention_forward
    name = "kernel_attention_backward" if structure.backward else "kernel_attention"
    function: Function = direction.build(structure, pieces, name)
    words = len(launch_words(structure, direction.OPERANDS))
    return compile_with_product(product_function(pieces), function, words, pieces.machine)


def _tiles(pieces: Kernels, sizes: AttentionSizes) -> dict[str, int]:
    """Addresses of the tiles: of whole ones, and of what is left of the queries and of the keys."""
    found = dict.fromkeys(TILES, 0)
    counts = {"": pieces.max_rows, "query_": sizes.L % pieces.max_rows, "key_": sizes.S % pieces.max_rows}
    for kind, rows in counts.items():
        if rows:
            for name, columns in (("wide", 2), ("narrow", 1)):
                (found[kind + name],) = pieces.tile(rows, columns, "").addresses.values()
    return found


def _spaces(pieces: Kernels, sizes: AttentionSizes, structure: AttentionStructure) -> dict[str, int]:
    """Where the parts of a chunk's workspace start, and its size; and bytes of packed panels."""
    size, panel, lanes = pieces.storage_size, pieces.panel, pieces.lanes
    row = panel * size
    panels = {"S": COLUMNS // panel, "E": math.ceil(sizes.E / panel), "F": math.ceil(sizes.F / panel)}
    transposed = {"E": round_up(sizes.E, lanes) * row, "F": round_up(sizes.F, lanes) * row}
    block = ROWS * COLUMNS * size
    parts: dict[str, int]
    if structure.backward:
        words = {"slot_kt": transposed["E"], "slot_vt": transposed["F"], "slot_keys": COLUMNS * row, "slot_queries": ROWS * row}
        parts = {
            "at_p": block, "at_ds": block, "at_kt": panels["S"] * transposed["E"], "at_vt": panels["S"] * transposed["F"],
            "at_k": panels["E"] * COLUMNS * row, "at_g": panels["F"] * ROWS * row, "at_q": panels["E"] * ROWS * row,
        }  # fmt: skip
    else:
        words = {"slot_k": transposed["E"], "slot_v": COLUMNS * row}
        parts = {
            "at_scores": block, "at_stats": 2 * ROWS * size, "at_k": panels["S"] * transposed["E"],
            "at_v": panels["F"] * COLUMNS * row,
        }  # fmt: skip
    if structure.dropout:
        parts["at_kept"] = COLUMNS * size
    start = 0
    for name, length in parts.items():
        words[name] = start
        start += round_up(length, _LINE) + _LINE
    return {**words, "space": start}


def _rows(pieces: Kernels, sizes: AttentionSizes, structure: AttentionStructure) -> int:
    """Queries of a block: fewer where much of a causal block would be keys that its queries do not see."""
    few = ROWS // 2
    return few if structure.causal and sizes.L <= _SHORT and few % pieces.max_rows == 0 else ROWS


def plan_attention(
    structure: AttentionStructure, sizes: AttentionSizes, scale: float, operands: Mapping[str, Strided],
    beside: bool = False, dropout: float = 0.0, machine: Machine | None = None,
) -> LoweredKernel:  # fmt: skip
    """The kernel and its words.

    operands: by name (q, k, v, mask and streams; backward also g, lse and delta), each as (outer, inner, rows, columns),
    strides in elements: of k, v and g, and backward of q, consecutive along the columns; of the mask that or 0.
    beside: results have the inner products of a row side by side.
    """
    pieces = kernels(structure.dtype, machine or default_machine())
    kernel = _kernels.get((structure, pieces.machine), lambda: _compile(structure, pieces))
    rows = _rows(pieces, sizes, structure)
    blocks = math.ceil(sizes.L / rows)
    units = sizes.batch * (1 if structure.backward else blocks)
    pairs = sizes.batch * sizes.L * sizes.S // (2 if structure.causal else 1)
    flops = pairs * (2 * (3 * sizes.E + 2 * sizes.F) if structure.backward else 2 * (sizes.E + sizes.F))
    wanted = max(1, min(_MOST_CHUNKS, units, math.ceil(flops / _CHUNK_FLOPS)))
    per_chunk = math.ceil(units / wanted)
    chunks = math.ceil(units / per_chunk)
    space = _spaces(pieces, sizes, structure)
    size = pieces.storage_size
    scale_bits, factor_bits = struct.unpack("<2q", struct.pack("<2d", scale, 1.0 / (1.0 - dropout)))
    words: dict[str, int] = {
        "scale": scale_bits, "factor": factor_bits, "limit": limit(dropout), "row_words": whole_groups(sizes.S), "at_kept": 0,
        "units": units, "units_per_chunk": per_chunk, "rows": rows, "blocks": blocks, "inner": sizes.inner,
        "beside": sizes.inner if beside else 1,
        "batch": sizes.batch, "L": sizes.L, "S": sizes.S, "E": sizes.E, "F": sizes.F, **space, **_tiles(pieces, sizes),
    }  # fmt: skip
    (words["pack_transposed"],) = pieces.pack(True).addresses.values()
    (words["pack_rows"],) = pieces.pack(False).addresses.values()
    for name in ("q", "k", "v", "g", "lse", "delta", "mask", "streams"):
        step = {"mask": 1 if structure.mask == "bool" else size, "streams": 8}.get(name, size)
        strides: Sequence[int] = operands[name].strides if name in operands else (0, 0, 0, 0)
        for level, stride in zip(("outer", "inner", "row"), strides):
            words[f"{name}_{level}"] = stride * step
    words["q_k"] = operands["q"].strides[3] * size
    direction = attention_backward if structure.backward else attention_forward
    constants = [words[name] for name in direction.WORDS]
    moved = size * sizes.batch * (sizes.L + sizes.S) * (sizes.E + sizes.F)
    return LoweredKernel(kernel, chunks, constants, space["space"] * chunks, moved, flops)


def mask_kind(dtype: object) -> str:
    """How a kernel reads a mask of this dtype."""
    return "bool" if dtype is bool_ else "float"

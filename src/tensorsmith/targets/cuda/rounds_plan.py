"""How kernels are laid out whose blocks stay and take row after row (`row_rounds.py`), with sums over the rows or without.

A thread holds its part of a row as it lies in memory, its part of the next row, and one state for each of its columns and
sums; what all rows share is in shared memory. So rows that would be one warp's by themselves may be several warps' here. As
many blocks are launched as the card holds at once, and none gets fewer rows than pay for its partial results.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical
from tensorsmith.targets.cuda import row_plan
from tensorsmith.targets.cuda.index_plan import fits_int, reach
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.row_plan import LONGEST_BLOCK, LONGEST_CHAIN, STATIC_SHARED, RowPlan
from tensorsmith.targets.cuda.row_tile import WARP, RowTile

ROUNDS_BLOCK = 128  # threads of a block whose rows have fewer
OTHER_REGISTERS = 40  # of a thread, beside what it holds of rows and sums: with fewer, texts of norms spill
MOST_HELD = 96  # registers for that
FEWEST_THREADS = 384  # of a multiprocessor
LONGEST_LAST_BLOCK = 512


# Whether the next row is asked for before one is reduced, what is preferred first: by `row_plan.py: VARIANT`, and with sums.
ROUNDS = {"rounds": (False,), "ahead": (True, False)}
PREFERRED = (True, False)


def rounds_plan(canonical: Canonical, properties: DeviceProperties, aheads: tuple[bool, ...] = PREFERRED) -> RowPlan | str:
    """The layout of a kernel whose blocks take row after row; a string says why it has none."""
    if canonical.reduce_extent <= 1 or canonical.slab_extent > 1:
        return "the rows are no single axis of several elements"
    if row_plan.packs_are_rows(canonical):
        return "neighbours in memory are of different rows"
    rows = math.prod(canonical.extents)
    width = row_plan.inner_width(canonical)
    units = canonical.reduce_extent // width
    common = row_plan.common_to_rows(canonical)
    if not _of_rows(canonical, common):
        return "nothing is read along the rows"
    base = RowTile(True, width, 1, 1, 1, True, False, False, len(canonical.extents), False, keep=False, rounds=True)
    # Fewer threads come first, also without a row ahead: a row then costs fewer instructions, which is what limits halves.
    for lanes, ahead in itertools.product(_lanes(units), aheads):
        unroll, across = math.ceil(units / lanes), max(1, ROUNDS_BLOCK // lanes)
        threads, held = lanes * across, unroll * _held(canonical, width, ahead, common)
        if held > min(MOST_HELD, properties.registers // threads - OTHER_REGISTERS):
            continue
        tile = replace(base, lanes=lanes, across=across, unroll=unroll, ahead=ahead, shared=common)
        shared = _shared_bytes(canonical, tile)
        if unroll <= row_plan.most_unrolled(canonical, width) and shared <= STATIC_SHARED:
            registers = min(255, -(-(held + OTHER_REGISTERS) // 8) * 8)
            resident = min(properties.registers // (registers * threads), properties.threads // threads)
            resident = max(1, min(resident, properties.shared_bytes_a_multiprocessor // (shared + 1024)))
            if resident * threads >= FEWEST_THREADS:
                return _spread(canonical, replace(tile, blocks=resident), rows, units, properties)
    return "the rows are too long for the registers and shared memory of a block"


def _lanes(units: int) -> list[int]:
    least = min(WARP, row_plan.power_of_two(units))
    return [least << k for k in range(LONGEST_BLOCK.bit_length()) if least << k <= LONGEST_BLOCK and (k == 0 or units > WARP)]


def _of_rows(canonical: Canonical, common: tuple[int, ...]) -> list[int]:
    """Inputs of which every row has its own elements."""
    structure = canonical.structure
    return [k for k in range(len(structure.inputs)) if structure.along[k] and k not in common]


def _held(canonical: Canonical, width: int, ahead: bool, common: tuple[int, ...]) -> int:
    """Registers of one unit of a row."""
    structure = canonical.structure
    words = row_plan.held_words(structure, width, structure.along, False, common)
    words += sum(width * -(-structure.body[p].dtype.itemsize // 4) for p, _ in structure.summed)
    if ahead:
        for k in _of_rows(canonical, common):
            words += -(-structure.inputs[k].itemsize * (width if structure.along[k] == 1 else 1) // 4)
    return words


def _shared_bytes(canonical: Canonical, tile: RowTile) -> int:
    structure = canonical.structure
    columns = tile.lanes * tile.unroll * tile.width
    common = sum(columns * structure.inputs[k].itemsize for k in tile.shared)
    if tile.across == 1:
        return common + 1024
    return common + sum(tile.threads * tile.width * structure.body[p].dtype.itemsize for p, _ in structure.summed) + 1024


def _spread(canonical: Canonical, tile: RowTile, rows: int, units: int, properties: DeviceProperties) -> RowPlan | str:
    """Rows over blocks: the same number for each, if they are enough."""
    least = max(2, 2 * len(canonical.structure.summed))  # rows of a thread that pay for what the block leaves
    turns = max(least, math.ceil(rows / (tile.across * tile.blocks * properties.multiprocessors)))
    turns = min(turns, LONGEST_CHAIN)
    blocks = math.ceil(rows / (tile.across * turns))
    if 2 * blocks < properties.multiprocessors:
        return "the rows are too few for blocks that take several"
    found = RowPlan((tile,), 1, rows, units, units, blocks)
    spans = [
        reach(canonical.extents, strides) + reach([canonical.reduce_extent], [canonical.reduce_strides[k]])
        for k, strides in enumerate(canonical.strides)
    ]
    narrow = fits_int(rows + (blocks + 1) * tile.across, units + 2 * tile.lanes * tile.unroll, *spans)
    return replace(found, tiles=(replace(tile, exact=units == tile.lanes * tile.unroll, narrow=narrow),))


def partial_results(canonical: Canonical, found: RowPlan) -> list[int]:
    """Bytes of the partial results of every sum."""
    structure = canonical.structure
    return [found.blocks * canonical.reduce_extent * structure.body[p].dtype.itemsize for p, _ in structure.summed]


def joining_plan(canonical: Canonical) -> RowPlan:
    """The layout of a kernel that joins a few partial results a column: one launch of many threads."""
    columns, parts = math.prod(canonical.extents), canonical.reduce_extent
    across = min(16, row_plan.power_of_two(columns))
    lanes = min(LONGEST_LAST_BLOCK // across, max(WARP // across, row_plan.power_of_two(parts)))
    unroll = max(1, min(8, parts // lanes))
    tile = RowTile(False, 1, lanes, across, unroll, False, False, False, len(canonical.extents), False)
    return row_plan.finished(canonical, RowPlan((tile,), 1, columns, parts, parts))

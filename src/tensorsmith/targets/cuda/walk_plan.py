"""How kernels with reductions are laid out whose columns are too long for a block (`row_walk.py`).

The blocks of a group share a stretch of neighbouring columns: each holds some of its rows in registers. A group is as many
blocks as a stretch needs, and there are as many groups as the card holds blocks at once; each walks over its share of the
stretches. What a block reads of the others are their states, more bytes the narrower its share of the rows is: a wide stretch
reads memory in longer pieces, a narrow one leaves more rows to a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.kernels.levels import find_levels
from tensorsmith.targets.cuda import row_plan
from tensorsmith.targets.cuda.body import PLACES, state_dtype
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.rescaled_sums import rescaled_sums
from tensorsmith.targets.cuda.row_plan import BLOCK, HELD_COLUMNS, RowPlan
from tensorsmith.targets.cuda.row_tile import WARP, RowTile, passes

BLOCKS = 2  # of a multiprocessor: one works while the other waits
STRETCH_BYTES = (128, 64)  # of a row, best first
COPIED_BYTES = (4, 8, 16)  # what one asynchronous copy can have
LEAST_TURNS = 2  # with fewer there is nothing to read ahead
STATES_SHARE = 8  # states that a block joins may be one byte in so many that it moves
LEAST_USED = 0.8  # of the blocks, in the mean over all turns
_STATIC_BYTES = 8 << 10  # of a block, for states that meet in shared memory


def walk_plan(canonical: Canonical, properties: DeviceProperties) -> RowPlan | str:
    """The layout of a kernel whose blocks walk over columns together; a string says why it has none."""
    structure = canonical.structure
    levels, sums = rescaled_sums(structure, find_levels(structure))
    read = row_plan.moving_inputs(canonical)
    if properties.capability < (8, 0):
        return "the card has no asynchronous copies"
    if not row_plan.packs_are_rows(canonical):
        return "neighbours in memory are of the same row"
    if structure.summed or sum(1 for roots in passes(structure, levels) if roots) < 2:
        return "one pass reads the elements"
    width = row_plan.outer_width(canonical)
    packs = [structure.inputs[k].itemsize * (width if structure.inner[k] == 1 else 1) for k in read]
    if any(structure.inner[k] == 2 for k in read) or not all(min(pack, 16) in COPIED_BYTES for pack in packs):
        return "packs that asynchronous copies do not have"
    columns = math.prod(canonical.extents) // width
    units = canonical.reduce_extent * canonical.slab_extent
    held = row_plan.held_words(structure, width, structure.inner, False)
    cap = min(row_plan.most_unrolled(canonical, width), HELD_COLUMNS // held)
    shared = properties.shared_bytes_a_multiprocessor // BLOCKS - 1024 - _STATIC_BYTES
    cap = min(cap, shared // (BLOCK * sum(packs))) if packs else 0
    if cap < 1:
        return "a step is too large for the registers of a thread"
    state = sum(_state_bytes(structure, p, p in sums) for level in levels.reduces for p in level)
    moved = BLOCK * cap * (sum(packs) + _stored_bytes(canonical, width))
    for stretch in STRETCH_BYTES:
        across = max(1, stretch // max(packs))
        lanes = BLOCK // across
        parts = math.ceil(units / (lanes * cap))
        stretches = math.ceil(columns / across)
        groups = min(BLOCKS * properties.multiprocessors // parts, stretches)
        if across > WARP or not groups or parts * across * width * state * STATES_SHARE > moved:
            continue
        turns = math.ceil(stretches / groups)
        groups = math.ceil(stretches / turns)
        used = stretches * parts / (turns * BLOCKS * properties.multiprocessors)
        if turns < LEAST_TURNS or used < LEAST_USED or _static_bytes(structure, lanes, across, width, state) > _STATIC_BYTES:
            continue
        unroll = math.ceil(math.ceil(units / parts) / lanes)
        tile = RowTile(
            False, width, lanes, across, unroll, True, False, False, len(canonical.extents), canonical.slab_extent > 1,
            keep=False, blocks=BLOCKS, walks=True,
        )  # fmt: skip
        found = RowPlan((tile,), parts, columns, units, lanes * unroll, groups=groups)
        return replace(found, tiles=row_plan.finished(canonical, found).tiles)
    return "too few columns, or too long ones, for the blocks that a card holds at once"


def place_starts(structure: Structure, tile: RowTile, read: Sequence[int]) -> list[int]:
    """Where in shared memory the places of each operand that is read ahead begin; at last the bytes of all."""
    found = [0]
    for k in read:
        pack = structure.inputs[k].itemsize * (tile.width if structure.inner[k] == 1 else 1)
        found.append(found[-1] + -(-pack * tile.unroll * tile.threads // 16) * 16)
    return found


def counts(canonical: Canonical, found: RowPlan) -> int:
    """How many counts of arrived blocks there are: one for each pass with REDUCEs over a stretch."""
    levels, _ = rescaled_sums(canonical.structure, find_levels(canonical.structure))
    return math.ceil(found.points / found.tiles[0].across) * sum(1 for reduces in levels.reduces if reduces)


def _state_bytes(structure: Structure, position: int, with_sum: bool) -> int:
    instr = structure.body[position]
    size = state_dtype(structure, instr).itemsize
    return size + (8 if instr.reduction in PLACES else 0) + (size if with_sum else 0)


def _stored_bytes(canonical: Canonical, width: int) -> int:
    structure = canonical.structure
    return sum(d.itemsize * width for d, row in zip(structure.outputs, structure.rows) if not row)


def _static_bytes(structure: Structure, lanes: int, across: int, width: int, state: int) -> int:
    """Shared memory of states: the lanes of a block are joined once for the block and once for its group."""
    return 2 * (lanes // max(1, min(lanes, WARP // across))) * across * width * state

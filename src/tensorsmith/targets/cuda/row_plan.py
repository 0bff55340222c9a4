"""How kernels with reductions are laid out on a device: direction of packs, threads of a row, registers, parts, passes.

    registers   the row is read once and stays in registers from pass to pass, in one block or in the blocks of a cluster
    walking     columns too long for a block are in the registers of several, which stay and take the next (`walk_plan.py`)
    again       the row is too long for that: every pass reads it (a single pass needs it once anyhow)
    parts       too few rows to fill the card, or sums so long that they would lose digits: several blocks share a row, a
                launch for every pass

Blocks that stay and take row after row, as sums over the rows want them, are laid out by `rounds_plan.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.kernels.levels import Levels, find_levels
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cuda.body import PLACES, body_cost, needed_for, state_dtype
from tensorsmith.targets.cuda.index_plan import division_words, fits_int, pack_width, reach
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties
from tensorsmith.targets.cuda.rescaled_sums import rescaled_sums
from tensorsmith.targets.cuda.row_tile import WARP, RowTile, kept_values, passes
from tensorsmith.targets.cuda.sizes import sizes_struct

# How kernels along rows that several threads hold go about it; sums over the rows always come in rounds (`rounds_plan.py`).
#   held    a block for its rows, which holds what one pass reads of what all rows share
#   shared  the same, but each pass reads that from a cache
#   rounds  blocks stay and take row after row; ahead: and ask for the next before they reduce one
VARIANT = "held"

BLOCK = 256
LONGEST_BLOCK = 512
HELD_WORDS = 48  # of a row, in the registers of a thread: more threads with less hide latency better
HELD_COLUMNS = 64  # the same of an outer kernel, whose rows are seldom short: half of what a thread of a block of 512 can have
IN_FLIGHT = 64  # bytes that a thread asks for at once where it does not hold the row
LONGEST_CHAIN = 1024  # values that one state takes in after each other
LARGEST_CLUSTER = 8
STATIC_SHARED = 48 << 10
MOST_INSTRUCTIONS = 3000  # of a pass, unrolled
_COMPARISON_COST = 60  # of a step of argmax: instructions, and registers that are no use to others
COLUMNS_BYTES = 64  # of a step that neighbouring threads of a resident outer kernel read together, at least
LONGEST_COLUMNS_BLOCK = 256  # of such a kernel: two on a multiprocessor, one reads while the other waits for its cluster


_levels = functools.lru_cache(maxsize=2048)(find_levels)


@dataclass(frozen=True)
class RowPlan:
    """The launches of a kernel with reductions.

    tiles: one for a kernel of one launch, else one for every pass; parts: blocks that share a row; points: rows, or packs of
    them; units: of a row; chunk: of a part; blocks: that stay and take row after row (`rounds_plan.py`), 0 where none do;
    groups: of walking blocks (`walk_plan.py`)
    """

    tiles: tuple[RowTile, ...]
    parts: int
    points: int
    units: int
    chunk: int
    blocks: int = 0
    groups: int = 0

    def grid(self, tile: RowTile, stores_along: bool) -> tuple[int, int, int]:
        """Blocks of one launch."""
        if tile.walks:
            return (self.groups, self.parts, 1)
        if self.blocks:
            return (self.blocks, 1, 1)
        last = tile.stage is not None and tile is self.tiles[-1]
        return (math.ceil(self.points / tile.across), 1 if last and not stores_along else self.parts, 1)


def plan(canonical: Canonical, properties: DeviceProperties) -> RowPlan:
    """The layout of a kernel with reductions on a device."""
    levels = _levels(canonical.structure)
    inner = not packs_are_rows(canonical)
    width = inner_width(canonical) if inner else outer_width(canonical)
    points = math.prod(canonical.extents) // (1 if inner else width)
    units = canonical.reduce_extent * canonical.slab_extent // (width if inner else 1)
    base = RowTile(
        inner, width, 1, 1, 1, False, False, False, len(canonical.extents), canonical.slab_extent > 1,
    )  # fmt: skip
    make = _inner if inner else _outer
    found = make(canonical, levels, base, points, units, properties)
    return finished(canonical, found)


def finished(canonical: Canonical, found: RowPlan) -> RowPlan:
    """The layout with what follows from it: see `_finished`."""
    return replace(found, tiles=tuple(_finished(canonical, tile, found) for tile in found.tiles))


def _finished(canonical: Canonical, tile: RowTile, found: RowPlan) -> RowTile:
    """The tile with the width of its indices, and whether all its threads have all their units."""
    per_block = tile.lanes * tile.unroll
    if tile.resident:
        exact = found.units == per_block * found.parts
    else:
        exact = found.units % found.parts == 0 and found.chunk % per_block == 0 and found.units == found.chunk * found.parts
    spans = [
        reach(canonical.extents, strides)
        + reach([canonical.reduce_extent], [canonical.reduce_strides[k]])
        + reach([canonical.slab_extent], [canonical.slab_strides[k] if canonical.slab_strides else 0])
        for k, strides in enumerate(canonical.strides)
    ]
    narrow = fits_int(found.points + tile.across, found.units + found.chunk + 2 * per_block, *spans)
    return replace(tile, exact=exact, narrow=narrow)


# ------------------------------------------------------------------------------------------------------------- packs


def packs_are_rows(canonical: Canonical) -> bool:
    """Whether neighbours in memory are of different rows rather than of one."""
    structure = canonical.structure
    if math.prod(canonical.extents) == 1:
        return False
    weights = [0, 0]
    for k in _moving(canonical):
        size = structure.operand_dtypes[k].itemsize
        size *= math.prod(extent for extent, stride in zip(canonical.extents, canonical.strides[k]) if stride)
        weights[0] += size * (structure.along[k] == 1)
        weights[1] += size * (structure.inner[k] == 1 and structure.along[k] != 1)
    return weights[1] > weights[0]


def _moving(canonical: Canonical) -> list[int]:
    """Operands in memory that move along the row."""
    structure = canonical.structure
    memory = [k for k in range(structure.operand_count) if not structure.is_coordinate(k)]
    return [k for k in memory if structure.along[k] or (structure.slabs and structure.slabs[k])]


def inner_width(canonical: Canonical) -> int:
    structure = canonical.structure
    packed = [k for k in _moving(canonical) if structure.along[k] == 1]
    divides = [canonical.reduce_extent]
    for k in packed:
        divides += [abs(s) for s, extent in zip(canonical.strides[k], canonical.extents) if extent > 1]
        divides += [abs(canonical.slab_strides[k])] if canonical.slab_strides else []
    return _limited(canonical, pack_width([structure.operand_dtypes[k].itemsize for k in packed], divides))


def outer_width(canonical: Canonical) -> int:
    structure = canonical.structure
    packed = [k for k in range(structure.operand_count) if structure.inner[k] == 1 and not structure.is_coordinate(k)]
    divides = [canonical.extents[-1]]
    for k in packed:
        divides += map(abs, canonical.strides[k][:-1])
        divides.append(abs(canonical.reduce_strides[k]))
        divides += [abs(canonical.slab_strides[k])] if canonical.slab_strides else []
    return _limited(canonical, pack_width([structure.operand_dtypes[k].itemsize for k in packed], divides))


def _limited(canonical: Canonical, width: int) -> int:
    places = any(instr.reduction in PLACES for instr in canonical.structure.body)
    while width > 1 and (width * body_cost(canonical.structure.body) > MOST_INSTRUCTIONS // 2 or places and width > 4):
        width //= 2
    return width


# ------------------------------------------------------------------------------------------------- what a row weighs


def moving_inputs(canonical: Canonical) -> list[int]:
    """Inputs in memory that move along the row."""
    return [k for k in _moving(canonical) if k < len(canonical.structure.inputs)]


def _read_bytes(canonical: Canonical, width: int, classes: tuple[int, ...]) -> int:
    """Bytes of a unit."""
    inputs = canonical.structure.inputs
    return sum(inputs[k].itemsize * (width if classes[k] else 1) for k in moving_inputs(canonical))


@functools.lru_cache(maxsize=2048)
def held_words(
    structure: Structure, width: int, classes: tuple[int, ...], keep: bool, shared: tuple[int, ...] = ()
) -> int:
    """Registers that a unit takes at most, between passes that share it; keep: with its expensive values; shared: not held."""
    levels = _levels(structure)
    kept = kept_values(structure, levels) if keep else ()
    work = passes(structure, levels)
    most, available = 1, set[int]()
    for number in range(len(work)):
        later = set[int]()
        have = set(available)
        for roots in work[number:]:
            fresh = needed_for(structure, roots, have)
            later |= fresh | (set(roots) & available)
            later |= {a for p in fresh for a in structure.body[p].args} & available
            have |= fresh & set(kept)
        loads = {structure.body[p].index for p in later if structure.body[p].kind is Kind.LOAD and levels.varies[p]}
        loads -= set(shared)
        least = 4 if keep else 1  # halves are likely to be held as floats, unless there is no room
        words = sum(-(-max(least, structure.inputs[k].itemsize) * (width if classes[k] else 1) // 4) for k in loads)
        words += sum(width * -(-structure.body[p].dtype.itemsize // 4) for p in later & available)
        most = max(most, words)
        available |= needed_for(structure, work[number], available) & set(kept)
    return most


def element_passes(canonical: Canonical, levels: Levels) -> int:
    """How many passes read the elements."""
    return sum(1 for roots in passes(canonical.structure, levels) if roots)


def power_of_two(value: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(value - 1, 0).bit_length()


def most_unrolled(canonical: Canonical, width: int) -> int:
    body = canonical.structure.body
    compared = sum(_COMPARISON_COST for instr in body if instr.reduction in PLACES)
    return max(1, MOST_INSTRUCTIONS // (width * max(4, body_cost(body) + compared)))


def _residences(canonical: Canonical, levels: Levels, properties: DeviceProperties) -> list[tuple[int, bool]]:
    """Ways to hold a row in registers, best first: blocks that share it, and whether expensive values are kept beside it."""
    clusters = [1] if properties.capability < (9, 0) else [1, 2, 4, LARGEST_CLUSTER]
    keeps = [True, False] if kept_values(canonical.structure, levels) else [True]
    return [(cluster, keep) for cluster in clusters for keep in keeps]


# -------------------------------------------------------------------------------------------------------------- inner


def _inner(
    canonical: Canonical, levels: Levels, base: RowTile, rows: int, units: int, properties: DeviceProperties
) -> RowPlan:
    along = canonical.structure.along
    most = most_unrolled(canonical, base.width)
    if element_passes(canonical, levels) > 1:
        shared = common_to_rows(canonical) if VARIANT == "shared" else _shared_by_rows(canonical, levels)
        for cluster, keep in _residences(canonical, levels, properties):
            cap = min(most, max(1, HELD_WORDS // held_words(canonical.structure, base.width, along, keep, shared)))
            lanes = _lanes(math.ceil(units / cluster), cap)
            if lanes <= LONGEST_BLOCK:
                tile = replace(base, lanes=lanes, resident=True, cluster=cluster, keep=keep)
                tile = _rows_of_block(tile, rows, properties)
                tile = replace(tile, unroll=math.ceil(units / (lanes * cluster)), shared=shared)
                return RowPlan((tile,), cluster, rows, units, tile.lanes * tile.unroll)
    unroll = min(most, 8, max(1, IN_FLIGHT // max(1, _read_bytes(canonical, base.width, along))))
    lanes = min(LONGEST_BLOCK, _lanes(units, unroll))
    tile = _rows_of_block(replace(base, lanes=lanes, unroll=min(unroll, math.ceil(units / lanes))), rows, properties)
    return _in_parts(canonical, levels, tile, rows, units, properties)


def common_to_rows(canonical: Canonical) -> tuple[int, ...]:
    """Inputs along the row that all rows share."""
    structure = canonical.structure
    if canonical.extents == (1,):
        return ()
    return tuple([k for k in range(len(structure.inputs)) if structure.along[k] and not any(canonical.strides[k])])


def _shared_by_rows(canonical: Canonical, levels: Levels) -> tuple[int, ...]:
    """Those of them that several passes read: caches have them, registers need not."""
    structure = canonical.structure
    found = []
    for k in common_to_rows(canonical):
        loads = {p for p, instr in enumerate(structure.body) if instr.kind is Kind.LOAD and instr.index == k}
        reading = sum(bool(loads & needed_for(structure, roots)) for roots in passes(structure, levels))
        if reading > 1:
            found.append(k)
    return tuple(found)


def _lanes(units: int, cap: int) -> int:
    """Threads of a row with at most `cap` units each: as many as there are units, up to a warp, before any takes two."""
    if units <= WARP:
        return power_of_two(units)
    return max(WARP, power_of_two(math.ceil(units / cap)))


def _rows_of_block(tile: RowTile, rows: int, properties: DeviceProperties) -> RowTile:
    """Short rows share a block: all threads of a row are in one warp."""
    if tile.lanes > WARP:
        return replace(tile, across=1)
    block = BLOCK if rows * tile.lanes >= BLOCK * properties.multiprocessors else 128
    return replace(tile, across=block // tile.lanes)


# -------------------------------------------------------------------------------------------------------------- outer


def _outer(
    canonical: Canonical, levels: Levels, base: RowTile, columns: int, units: int, properties: DeviceProperties
) -> RowPlan:
    structure = canonical.structure
    most = most_unrolled(canonical, base.width)
    narrowest = min((structure.operand_dtypes[k].itemsize for k in _moving(canonical)), default=4)
    if element_passes(canonical, levels) > 1:
        least = min(power_of_two(columns), max(1, COLUMNS_BYTES // (base.width * narrowest)))
        for cluster, keep in _residences(canonical, levels, properties):
            cap = min(most, max(1, HELD_COLUMNS // held_words(structure, base.width, structure.inner, keep)))
            per_block = math.ceil(units / cluster)
            lanes = max(power_of_two(math.ceil(per_block / cap)), max(1, WARP // least))
            if lanes * least > LONGEST_COLUMNS_BLOCK:
                continue
            across = least
            while across < WARP and lanes * across < BLOCK and across < columns:
                across *= 2
            if lanes * across < WARP:
                lanes = WARP // across
            tile = replace(base, lanes=lanes, across=across, resident=True, cluster=cluster, keep=keep)
            tile = replace(tile, unroll=math.ceil(per_block / lanes))
            if _shared_bytes(canonical, levels, tile) <= STATIC_SHARED:
                return RowPlan((tile,), cluster, columns, units, tile.lanes * tile.unroll)
    read = max(1, _read_bytes(canonical, base.width, structure.inner))
    unroll = min(most, 8, max(1, 2 * IN_FLIGHT // read), power_of_two(units))
    across = min(WARP, power_of_two(columns))
    lanes = max(WARP // across, min(BLOCK // across, power_of_two(math.ceil(units / unroll))))
    tile = replace(base, lanes=lanes, across=across, unroll=unroll)
    while _shared_bytes(canonical, levels, tile) > STATIC_SHARED and tile.lanes > WARP // across:
        tile = replace(tile, lanes=tile.lanes // 2)
    return _in_parts(canonical, levels, tile, columns, units, properties)


def _reduces(levels: Levels) -> Iterable[int]:
    return [p for level in levels.reduces for p in level]


def _shared_bytes(canonical: Canonical, levels: Levels, tile: RowTile) -> int:
    """Shared memory of an outer block's states."""
    total = 0
    groups = tile.lanes // tile.lanes_of_warp
    for p in _reduces(levels):
        instr = canonical.structure.body[p]
        size = state_dtype(canonical.structure, instr).itemsize + (8 if instr.reduction in PLACES else 0)
        total += size * tile.width * tile.across * (groups + (tile.cluster > 1)) + 32
    return total


# -------------------------------------------------------------------------------------------------------------- parts


def _in_parts(
    canonical: Canonical, levels: Levels, tile: RowTile, points: int, units: int, properties: DeviceProperties
) -> RowPlan:
    """Blocks that share rows where there are few; one launch if a block has a row for itself."""
    classes = canonical.structure.along if tile.inner else canonical.structure.inner
    per_loop = tile.lanes * tile.unroll
    blocks = math.ceil(points / tile.across)
    levels, sums = rescaled_sums(canonical.structure, levels)
    words = tile.width * _state_words(canonical) + tile.unroll * _read_bytes(canonical, tile.width, classes) // 4
    words += len(sums) * tile.width * (tile.unroll + 1)
    resident = (1536 if words <= 24 else 1024 if words <= 48 else 512) // tile.threads
    tile = replace(tile, blocks=max(1, min(resident, properties.threads // tile.threads)))
    wanted = tile.blocks * properties.multiprocessors  # all at once: a block more would take as long again
    parts = wanted // blocks if blocks < 2 * properties.multiprocessors else 1
    parts = max(min(parts, units // per_loop), math.ceil(units / (tile.lanes * LONGEST_CHAIN)), 1)
    if parts == 1:
        return RowPlan((tile,), 1, points, units, units)
    chunk = math.ceil(math.ceil(units / parts) / per_loop) * per_loop
    parts = math.ceil(units / chunk)
    if parts == 1:
        return RowPlan((tile,), 1, points, units, units)
    stages = [number for number, reduces in enumerate(levels.reduces) if reduces]
    last = replace(tile, stage=levels.count)
    if not canonical.structure.values_along and not tile.inner:  # only joins parts: many lanes, in many blocks
        lanes = min(WARP, max(1, power_of_two(parts)))
        last = replace(last, lanes=lanes, across=BLOCK // lanes, blocks=1)
    tiles = [*(replace(tile, stage=stage) for stage in stages), last]
    return RowPlan(tuple(tiles), parts, points, units, chunk)


def _state_words(canonical: Canonical) -> int:
    """Registers of the states of one element of a pack."""
    structure = canonical.structure
    found = [instr for instr in structure.body if instr.kind is Kind.REDUCE]
    return sum(-(-state_dtype(structure, i).itemsize // 4) + 2 * (i.reduction in PLACES) for i in found)


def scratch(canonical: Canonical, found: RowPlan) -> list[int]:
    """Bytes of the scratch buffers of a kernel in parts: one for the states of every REDUCE, another for its places."""
    if found.tiles[0].stage is None and not found.groups:
        return []
    structure = canonical.structure
    rows = math.prod(canonical.extents)
    sizes = []
    levels, sums = rescaled_sums(structure, _levels(structure))
    for p in _reduces(levels):
        instr = structure.body[p]
        sizes.append(rows * found.parts * state_dtype(structure, instr).itemsize)
        if instr.reduction in PLACES:
            sizes.append(rows * found.parts * 8)
        if p in sums:
            sizes.append(sizes[-1])
    return sizes


def sizes(canonical: Canonical, found: RowPlan, tile: RowTile) -> tuple[str, Constant]:
    """The struct `Sizes`: its declaration and words."""
    extents, width = list(canonical.extents), tile.width
    steps: list[int] = []
    for strides in canonical.strides:
        steps += strides if tile.inner else [*strides[:-1], strides[-1] * width]
    if not tile.inner:
        extents[-1] //= width
    along = [stride * (width if tile.inner else 1) for stride in canonical.reduce_strides]
    within = canonical.reduce_strides if tile.inner else [strides[-1] for strides in canonical.strides]
    values: dict[str, int | float | list[int] | tuple[int, ...]] = {
        "points": found.points, "units": found.units, "chunk": found.chunk, "parts": found.parts,
        "divisors": division_words(extents, tile.narrow), "extents": extents, "inner": within, "along": along,
    }  # fmt: skip
    if tile.slabs:
        slab_units = found.units // canonical.slab_extent
        values |= {
            "slab_units": slab_units,
            "slab_divisor": division_words([slab_units], tile.narrow)[0],
            "from_slab": canonical.slab_strides,
        }
    values["steps"] = steps
    text, words = sizes_struct(values)
    return text.replace(f"steps[{len(steps)}]", f"steps[{len(canonical.strides)}][{tile.rank}]"), words


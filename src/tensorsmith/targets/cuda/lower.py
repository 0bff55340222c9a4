"""KernelSpec -> launches of CUDA kernels: the entry of the CUDA target for fused kernels, the twin of `targets/cpu/lower.py`.

The words of a run are the addresses of inputs, then of outputs, then the run-time scalars, as `kernels/spec.py` says.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical, Structure, canonicalize, numbers_apart
from tensorsmith.kernels.spec import KernelSpec, Kind
from tensorsmith.targets.cuda import pointwise, row_plan, row_walk, transpose, walk_plan
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, Lowered, Word
from tensorsmith.targets.cuda.rounds_plan import ROUNDS, rounds_plan
from tensorsmith.targets.cuda.row_rounds import RoundsText
from tensorsmith.targets.cuda.row_text import RowText
from tensorsmith.targets.cuda.row_tile import RowTile

MAX_AXES = 12  # kept axes that do not merge: the most that structs of sizes are made for


def lower(spec: KernelSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of a spec on a device of these properties (an H200's where none are given).

    Raises:
        NotImplementedError: the spec needs what no CUDA schedule offers yet.
    """
    properties = properties or DeviceProperties()
    canonical = canonicalize(spec)
    structure, numbers = numbers_apart(canonical.structure)
    canonical = replace(canonical, structure=structure)
    if len(canonical.extents) > MAX_AXES:
        axes = len(canonical.extents)
        raise NotImplementedError(f"{spec.name}: {axes} axes that do not merge, at most {MAX_AXES} fit")
    words = len(spec.inputs) + len(spec.stores) + len(spec.params)
    given: tuple[Argument, ...] = (*(Word(index) for index in range(words)), *(Constant((n,)) for n in numbers))
    name = "kernel_" + re.sub(r"\W", "_", spec.name)  # the prefix keeps away from CUDA's own names (max, exp)
    scratch: tuple[int, ...] = ()
    if not spec.reduce_axes:
        launches: tuple[Launch, ...] = (_pointwise(canonical, name, given, properties),)
    else:
        launches, scratch = _rows(canonical, name, given, words, properties)
    moved, flops = counts(canonical)
    return Lowered(spec.name, launches, words, scratch, moved, flops)


def _pointwise(canonical: Canonical, name: str, given: tuple[Argument, ...], properties: DeviceProperties) -> Launch:
    axis = transpose.tile_axis(canonical)
    if axis is not None:
        turned = transpose.turned(canonical, axis)
        square = transpose.choose(turned)
        if square is not None:
            declared, sizes = transpose.sizes(turned, square)
            source = _transpose_text(turned.structure, square, name, declared)
            grid = (transpose.grid(turned, square), 1, 1)
            return Launch(source, name, grid, (transpose.BLOCK, 1, 1), (*given, ErrorWord(), sizes))
    tile = pointwise.choose(canonical, properties)
    declared, sizes = pointwise.sizes(canonical, tile)
    source = _pointwise_text(canonical.structure, tile, name, declared)
    blocks = pointwise.grid(canonical, tile)
    return Launch(source, name, (blocks, 1, 1), (tile.block, 1, 1), (*given, ErrorWord(), sizes))


def _rows(
    canonical: Canonical, name: str, given: tuple[Argument, ...], words: int, properties: DeviceProperties
) -> tuple[tuple[Launch, ...], tuple[int, ...]]:
    """Launches and scratch of a kernel with reductions."""
    found = _layout(canonical, properties)
    scratch = tuple(row_plan.scratch(canonical, found))
    buffers = tuple(Word(words + index) for index in range(len(scratch)))
    launches = []
    if found.groups:
        counts = walk_plan.counts(canonical, found)
        scratch = (*scratch, 4 * counts)
        buffers = (*buffers, Word(words + len(buffers)))
        launches.append(row_walk.clearing(name, words + len(buffers) - 1, counts))
    for tile in found.tiles:
        declared, sizes = row_plan.sizes(canonical, found, tile)
        source = row_text(canonical.structure, tile, name, declared)
        grid = found.grid(tile, bool(canonical.structure.values_along))
        arguments = (*given, *buffers, ErrorWord(), sizes)
        ahead = walk_plan.place_starts(canonical.structure, tile, row_plan.moving_inputs(canonical))[-1] if tile.walks else 0
        cluster = (1, tile.cluster, 1)
        launches.append(Launch(source, name, grid, tile.block, arguments, ahead, cluster, together=tile.walks))
    return tuple(launches), scratch


def _layout(canonical: Canonical, properties: DeviceProperties) -> row_plan.RowPlan:
    found = row_plan.plan(canonical, properties)
    aheads = ROUNDS.get(row_plan.VARIANT)
    if aheads and found.parts == 1 and found.tiles[0].inner and found.tiles[0].resident:
        rounds = rounds_plan(canonical, properties, aheads)
        return found if isinstance(rounds, str) else rounds
    if not found.tiles[0].inner and (found.tiles[0].cluster > 1 or not found.tiles[0].resident):
        walking = walk_plan.walk_plan(canonical, properties)
        return found if isinstance(walking, str) else walking
    return found


# Texts are kept: another shape of a structure under the same tile is the same text.
_kept = functools.lru_cache(maxsize=2048)
_pointwise_text = _kept(pointwise.text)
_transpose_text = _kept(transpose.text)


@_kept
def row_text(structure: Structure, tile: RowTile, name: str, sizes_text: str) -> str:
    """The text of a kernel with reductions."""
    kind = RoundsText if tile.rounds else row_walk.WalkText if tile.walks else RowText
    return kind(structure, tile, name, sizes_text).source()


def counts(canonical: Canonical) -> tuple[int, int]:
    """Bytes read and written (each operand's distinct elements once) and scalar operations."""
    computed = sum(1 for instr in canonical.structure.body if instr.kind in (Kind.APPLY, Kind.REDUCE, Kind.RANDOM))
    return canonical.bytes_moved, canonical.points * computed

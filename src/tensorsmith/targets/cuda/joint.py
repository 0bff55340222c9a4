"""JointSpec -> launches: blocks that go through the rows and leave partial sums, then a small kernel that joins these."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical, canonicalize, numbers_apart
from tensorsmith.kernels.halves import widened
from tensorsmith.kernels.joint import JointSpec
from tensorsmith.targets.cuda import row_plan
from tensorsmith.targets.cuda.kernel import Argument, Constant, DeviceProperties, ErrorWord, Launch, Lowered, Word
from tensorsmith.targets.cuda.lower import MAX_AXES, counts, row_text
from tensorsmith.targets.cuda.rounds_plan import joining_plan, partial_results, rounds_plan
from tensorsmith.targets.cuda.row_plan import RowPlan

Found = tuple[Canonical, tuple[float, ...], RowPlan]


def lower_joint(spec: JointSpec, properties: DeviceProperties | None = None) -> Lowered:
    """The launches of a kernel along rows with sums over them; NotImplementedError where `refusal` has a reason.

    Words: those of the rows (inputs, outputs, scalars), then those of the ends without the partial results.
    """
    found = _found(spec, properties or DeviceProperties())
    if isinstance(found, str):
        raise NotImplementedError(f"{spec.name}: {found}")
    canonical, numbers, plan = found
    rows, ends = spec.rows, spec.joining(plan.blocks)
    at = len(rows.inputs) + len(rows.stores) + len(rows.params)
    sums, count = len(spec.summed), len(ends.inputs) + len(ends.stores) + len(ends.params)
    words = at + count - sums
    scratch = tuple(Word(words + index) for index in range(sums))
    given: tuple[Argument, ...] = (*(Word(k) for k in range(at)), *(Constant((n,)) for n in numbers), *scratch)
    first = _launch(canonical, plan, rows.name, given)
    joining = canonicalize(ends)
    structure, numbers = numbers_apart(joining.structure)
    joining = replace(joining, structure=structure)
    given = (*scratch, *(Word(k) for k in range(at, words)), *(Constant((n,)) for n in numbers))
    last = _launch(joining, joining_plan(joining), ends.name, given)
    moved, flops = counts(canonical)
    more = joining.bytes_moved - sum(partial_results(canonical, plan))
    return Lowered(spec.name, (first, last), words, tuple(partial_results(canonical, plan)), moved + more, flops)


def refusal(spec: JointSpec, properties: DeviceProperties) -> str:
    """Why two kernels serve better than one; "" where one does."""
    found = _found(spec, properties)
    return found if isinstance(found, str) else ""


def _launch(canonical: Canonical, plan: RowPlan, name: str, given: tuple[Argument, ...]) -> Launch:
    (tile,) = plan.tiles
    declared, sizes = row_plan.sizes(canonical, plan, tile)
    name = "kernel_" + re.sub(r"\W", "_", name)
    source = row_text(canonical.structure, tile, name, declared)
    return Launch(source, name, plan.grid(tile, True), tile.block, (*given, ErrorWord(), sizes))


@functools.lru_cache(maxsize=256)
def _found(spec: JointSpec, properties: DeviceProperties) -> Found | str:
    if widened(spec.rows) is not spec.rows:
        return "it computes on halves"
    canonical = canonicalize(spec.rows)
    structure, numbers = numbers_apart(replace(canonical.structure, summed=spec.summed))
    canonical = replace(canonical, structure=structure)
    if len(canonical.extents) > MAX_AXES:
        return f"{len(canonical.extents)} axes that do not merge"
    plan = rounds_plan(canonical, properties)
    return plan if isinstance(plan, str) else (canonical, numbers, plan)

"""The inner row schedule: row kernels whose reduce axis has the smallest strides.

Taken: whatever no other row schedule is better at, softmax, layer norm and their gradients over the last axis above all.
Fast because each pass over a row reads consecutive vectors into several independent accumulators, whose lanes are
combined at the end of a pass only, and because an expensive value that a later pass needs again (softmax: exp) is stored
to an output or, in rows of up to MOST_KEPT elements, to the stack, and not computed twice.

    for each row
      for each pass:  for vectors of the row: accumulate, or compute and store
                      combine the lanes, compute what the next pass needs of the row

Constant words: extent (reduce axis), rows, block, axes, then each operand's byte stride along the reduce axis, then the
odometer's table. Chunk c handles the rows [c * block, (c + 1) * block).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.targets.cpu.access import Axis, vector_loop
from tensorsmith.targets.cpu.body import KernelText, cone, from_memory, instruction_cost, memory_element, to_memory
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.chunks import chunk_count, point_nanoseconds
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.passes import Passes, kept_value, plan_passes, roots_of_pass
from tensorsmith.targets.cpu.reduction import Reduction, merge_sets
from tensorsmith.targets.cpu.vector import size_of

_HEADER = 4
MOST_KEPT = 4096  # elements of a row of which a value is kept on the stack


def keeps(canonical: Canonical) -> bool:
    """Whether a row is short enough, and has a value expensive enough, to keep that value on the stack."""
    if canonical.reduce_extent > MOST_KEPT:
        return False
    passes = plan_passes(canonical.structure)
    return passes.stash is None and kept_value(canonical.structure, passes) is not None


def build(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The kernel function of a row structure and its number of launch words."""
    return _build(structure, machine, name, keep=False)


def build_kept(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The same, with a value of the row kept on the stack."""
    return _build(structure, machine, name, keep=True)


def _build(structure: Structure, machine: Machine, name: str, keep: bool) -> tuple[Function, int]:
    kernel = KernelText(structure, machine, name)
    f = kernel.function
    chunk = f.value("zext i32 %chunk to i64")
    extent, rows, block, axes = (kernel.constant_word(k) for k in range(_HEADER))
    strides: dict[int, Value] = {
        k: kernel.constant_word(_HEADER + k) for k, kind in enumerate(structure.along) if kind == 2
    }
    axis_table = f.offset("%args", 8 * (kernel.launch_words + 1 + _HEADER + kernel.structure.operand_count))
    odometer = Odometer(f, axis_table, axes, kernel.structure.operand_count)
    first = f.mul(chunk, block)
    passes = plan_passes(structure)
    kept = _Kept(kernel, passes) if keep else None
    with odometer.walk(first, f.minimum(rows, f.add(first, block)), "rows") as offsets:
        axis = Axis(kernel, structure.along, offsets, strides, structure.pairs_along)
        _InnerRow(kernel, passes, axis, extent, kept).emit()
    return f, kernel.launch_words


def _unrolling(kernel: KernelText, positions: list[int], reduces: Sequence[Reduction]) -> int:
    """Vectors per step: many where a sum waits for memory only, few of a long body or of gathers."""
    cost = sum(instruction_cost(kernel.structure.body[p]) for p in positions)
    paired = {k for pair in kernel.structure.pairs_along for k in pair}
    if cost > 45 or any(kind == 2 and k not in paired for k, kind in enumerate(kernel.structure.along)):
        return 1
    if cost <= 4 and all(r.kind == "sum" for r in reduces):
        return 8
    return 4 if cost <= 30 and len(reduces) <= 2 else 2


class _Kept:
    """Stack memory for the kept value of a row."""

    def __init__(self, kernel: KernelText, passes: Passes) -> None:
        found = kept_value(kernel.structure, passes)
        assert found is not None
        self.position, self.number = found
        self.kernel = kernel
        dtype = kernel.structure.body[self.position].dtype
        self.dtype = dtype
        self.element = memory_element(dtype)
        self.pointer = kernel.function.stack(self.element, MOST_KEPT + kernel.lanes.count, 64)

    def _place(self, index: Value) -> str:
        return self.kernel.function.offset(self.pointer, self.kernel.function.mul(index, size_of(self.element)))

    def load(self, index: Value) -> str:
        """The values at positions index, index + 1, ..."""
        lanes = self.kernel.lanes
        return from_memory(lanes, self.dtype, lanes.load(self.element, self._place(index)))

    def store(self, index: Value, value: str) -> None:
        """Keep the values at positions index, index + 1, ...; whole vectors, also at the row's end."""
        lanes = self.kernel.lanes
        lanes.store(self.element, to_memory(lanes, self.dtype, value), self._place(index))


class _InnerRow:
    """Emits all passes of one row."""

    def __init__(self, kernel: KernelText, passes: Passes, axis: Axis, extent: Value, kept: _Kept | None) -> None:
        self.kernel = kernel
        self.passes = passes
        self.axis = axis
        self.extent = extent
        self.kept = kept
        self.row_values = kernel.values(axis.broadcast, lambda c: axis.coordinate(c, 0), kernel.uniform, None)

    def emit(self) -> None:
        """The passes, then the row outputs."""
        kernel, structure = self.kernel, self.kernel.structure
        for number in range(self.passes.count):
            self._pass(number)
        for output, (value, is_row) in enumerate(zip(structure.values, structure.rows)):
            if is_row:
                dtype = structure.outputs[output]
                raw = to_memory(kernel.lanes, dtype, self.row_values.of(value))
                element = memory_element(dtype)
                pointer = self.axis.pointers[kernel.structure.first_output + output]
                assert pointer is not None
                kernel.function.store(kernel.lanes.extract(element, raw), element, pointer, size_of(element))

    def _pass(self, number: int) -> None:
        """One pass: everything that does not vary and is due, then the loop, then the reductions' results."""
        kernel, passes, body = self.kernel, self.passes, self.kernel.structure.body
        structure, axis, stash, kept = kernel.structure, self.axis, passes.stash, self.kept
        for position in range(len(body)):
            if not passes.varies[position] and passes.depth[position] <= number:
                self.row_values.of(position)
        known = dict(self.row_values.values)
        last = number == passes.count - 1
        reduces = passes.reduces[number]
        reductions = [Reduction(body[r], body[body[r].args[0]].dtype, kernel.lanes) for r in reduces]

        def step(index: Value, mask: str | None, carried: list[str]) -> list[str]:
            have = dict(known)
            if stash is not None and number > stash[2]:
                have[stash[0]] = axis.load_output(stash[1], index, mask)
            if kept is not None and number > kept.number:
                have[kept.position] = kept.load(index)
            values = kernel.values(lambda k: axis.load(k, index, mask), lambda c: axis.coordinate(c, index), have, mask)
            following: list[str] = []
            place = 0
            for r, reduction in zip(reduces, reductions):
                width = len(reduction.kinds)
                value = values.of(body[r].args[0])
                state = carried[place : place + width]
                following += reduction.include(kernel.context(mask), state, value, reduction.positions(index))
                place += width
            if stash is not None and number == stash[2]:
                axis.store(stash[1], values.of(stash[0]), index, mask)
            if kept is not None and number == kept.number:
                kept.store(index, values.of(kept.position))
            if last:
                results = {o: values.of(v) for o, v in enumerate(structure.values) if not structure.rows[o]}
                axis.store_all(results, index, mask)
            return following

        carried = [pair for r in reductions for pair in zip(r.kinds, r.initial())]
        roots = roots_of_pass(structure, passes, number)
        unroll = _unrolling(kernel, cone(body, roots, known), reductions)

        def merge(sets: list[list[str]]) -> list[str]:
            return merge_sets(reductions, sets)

        results = vector_loop(kernel, 0, self.extent, unroll, step, carried, merge, f"the row, pass {number + 1}")
        place = 0
        for r, reduction in zip(reduces, reductions):
            width = len(reduction.kinds)
            state = reduction.across(results[place : place + width])
            self.row_values.values[r] = reduction.finish(kernel.context(), state)
            place += width


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words and the number of chunks."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    rows = math.prod(extents)
    wanted = chunk_count(rows * (canonical.reduce_extent * point_nanoseconds(structure) + 20.0))
    block = math.ceil(rows / min(wanted, rows))
    along = [s * size for s, size in zip(canonical.reduce_strides, sizes)]
    strides = [[s * size for s in operand] for operand, size in zip(canonical.strides, sizes)]
    return [canonical.reduce_extent, rows, block, len(extents), *along, *table(extents, strides)], math.ceil(
        rows / block
    )

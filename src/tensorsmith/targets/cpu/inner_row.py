"""The inner row schedule: row kernels whose reduce axis has the smallest strides.

Taken: whatever no other row schedule is better at, softmax, layer norm and their gradients over the last axis above all.
Fast because each pass over a row reads consecutive vectors into several independent accumulators, whose lanes are
combined at the end of a pass only, and because an expensive value that a later pass needs again (softmax: exp) is stored
to an output or, in rows of up to MOST_KEPT elements, to the stack, and not computed twice.

    for each row
      for each pass:  for vectors of the row: accumulate, or compute and store
                      combine the lanes, compute what the next pass needs of the row

A row over two reduced axes (a channel: over the batch and over space) lies in slabs, and every pass goes through all of
them. Its sums are taken by blocks of slabs, of at least LEAST_SUMMED elements, and then added up, which keeps their errors
small:

      for each pass:  for blocks of slabs:  for slabs of the block:  for vectors of the slab: ...
                                            add the block's sums to the row's

Constant words: extent (reduce axis), rows, block, axes, then each operand's byte stride along the reduce axis, then (with
slabs) slabs, slabs of a block and each operand's byte stride from slab to slab, then the odometer's table. Chunk c handles
the rows [c * block, (c + 1) * block).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cpu.access import Axis, vector_loop, vector_sets
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
LEAST_SUMMED = 4096  # elements of a block of slabs


def keeps(canonical: Canonical) -> bool:
    """Whether a row is short enough, and has a value expensive enough, to keep that value on the stack."""
    if canonical.reduce_extent > MOST_KEPT or canonical.slab_strides:
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
    operands = structure.operand_count
    slabs = _Slabs(kernel, _HEADER + operands) if structure.slabs else None
    words = _HEADER + operands + (2 + operands if slabs else 0)
    odometer = Odometer(f, f.offset("%args", 8 * (kernel.first_constant + words)), axes, operands)
    first = f.mul(chunk, block)
    passes = plan_passes(structure)
    kept = _Kept(kernel, passes) if keep else None
    with odometer.walk(first, f.minimum(rows, f.add(first, block)), "rows") as offsets:
        _InnerRow(kernel, passes, offsets, strides, extent, kept, slabs).emit()
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


class _Slabs:
    """How many slabs a row has, how many of them make a block, and each operand's byte stride from one to the next."""

    def __init__(self, kernel: KernelText, first_word: int) -> None:
        self.extent = kernel.constant_word(first_word)
        self.block = kernel.constant_word(first_word + 1)
        self.strides = {
            k: kernel.constant_word(first_word + 2 + k) for k, moves in enumerate(kernel.structure.slabs) if moves
        }


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

    def __init__(
        self, kernel: KernelText, passes: Passes, offsets: Sequence[Value], strides: dict[int, Value], extent: Value,
        kept: _Kept | None, slabs: _Slabs | None,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.passes = passes
        self.offsets = offsets
        self.strides = strides
        self.axis = axis = self._axis(offsets)
        self.extent = extent
        self.kept = kept
        self.slabs = slabs
        self.row_values = kernel.values(axis.broadcast, lambda c: axis.coordinate(c, 0), kernel.uniform, None)

    def _axis(self, offsets: Sequence[Value]) -> Axis:
        structure = self.kernel.structure
        return Axis(self.kernel, structure.along, offsets, self.strides, structure.pairs_along)

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
        structure, stash, kept = kernel.structure, passes.stash, self.kept
        for position in range(len(body)):
            if not passes.varies[position] and passes.depth[position] <= number:
                self.row_values.of(position)
        known = dict(self.row_values.values)
        last = number == passes.count - 1
        reduces = passes.reduces[number]
        reductions = [Reduction(body[r], body[body[r].args[0]].dtype, kernel.lanes) for r in reduces]

        def step(
            axis: Axis, known: Mapping[int, str], index: Value, mask: str | None, carried: list[str]
        ) -> list[str]:
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

        title = f"pass {number + 1}"
        if self.slabs is None:
            over_row = partial(step, self.axis, known)
            results = vector_loop(kernel, 0, self.extent, unroll, over_row, carried, merge, f"the row, {title}")
        else:
            results = merge(self._over_slabs(self.slabs, roots, known, unroll, step, carried, merge, title))
        place = 0
        for r, reduction in zip(reduces, reductions):
            width = len(reduction.kinds)
            state = reduction.across(results[place : place + width])
            self.row_values.values[r] = reduction.finish(kernel.context(), state)
            place += width


    def _over_slabs(
        self, slabs: _Slabs, roots: Sequence[int], known: dict[int, str], unroll: int, step: Callable[..., list[str]],
        carried: Sequence[tuple[str, str]], merge: Callable[[list[list[str]]], list[str]], title: str,
    ) -> list[list[str]]:  # fmt: skip
        """One pass over all slabs of the row; the sets of carried values at its end."""
        kernel, f = self.kernel, self.kernel.function
        kinds = [kind for kind, _ in carried]
        fixed = self._fixed_in_slab(roots, known)
        start = [value for _, value in carried] * unroll

        def apart(values: Sequence[Value]) -> list[list[str]]:
            return [[str(v) for v in values[u * len(kinds) : (u + 1) * len(kinds)]] for u in range(unroll)]

        with f.loop(0, slabs.extent, slabs.block, list(zip(kinds * unroll, start)), name=f"blocks of slabs, {title}") as block:
            high = f.minimum(slabs.extent, f.add(block.index, slabs.block))
            with f.loop(block.index, high, 1, list(zip(kinds * unroll, start)), name="slabs") as slab:
                axis = self._axis([
                    f.add(offset, f.mul(slab.index, slabs.strides[k])) if k in slabs.strides else offset
                    for k, offset in enumerate(self.offsets)
                ])  # fmt: skip
                values = kernel.values(axis.broadcast, lambda c: axis.coordinate(c, 0), known, None)
                for position in fixed:
                    values.of(position)
                over_slab = partial(step, axis, values.values)
                sets = vector_sets(
                    kernel, 0, self.extent, apart(slab.carried), kinds, over_slab, None, f"the slab, {title}"
                )
                slab.next = [value for one in sets for value in one]
            block.next = [value for pair in zip(apart(block.carried), apart(slab.out)) for value in merge(list(pair))]
        return apart(block.out)

    def _fixed_in_slab(self, roots: Sequence[int], known: Mapping[int, str]) -> list[int]:
        """What a pass needs that varies from slab to slab only, and is therefore computed once a slab."""
        structure = self.kernel.structure
        moving: set[int] = set()
        fixed = []
        for position in cone(structure.body, roots, known):
            instr = structure.body[position]
            if instr.kind in (Kind.LOAD, Kind.INDEX):
                operand = instr.index + (structure.first_coordinate if instr.kind is Kind.INDEX else 0)
                moves = structure.along[operand] != 0
            else:
                moves = instr.kind is Kind.RANDOM or any(a in moving for a in instr.args)
            if moves:
                moving.add(position)
            else:
                fixed.append(position)
        return fixed


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words and the number of chunks."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    rows, slabs = math.prod(extents), canonical.slab_extent
    wanted = chunk_count(rows * (slabs * (canonical.reduce_extent * point_nanoseconds(structure) + 5.0) + 15.0))
    block = math.ceil(rows / min(wanted, rows))
    along = [s * size for s, size in zip(canonical.reduce_strides, sizes)]
    strides = [[s * size for s in operand] for operand, size in zip(canonical.strides, sizes)]
    words = [canonical.reduce_extent, rows, block, len(extents), *along]
    if canonical.slab_strides:
        words += [slabs, max(1, LEAST_SUMMED // canonical.reduce_extent)]
        words += [s * size for s, size in zip(canonical.slab_strides, sizes)]
    return [*words, *table(extents, strides)], math.ceil(rows / block)

"""The outer row schedule: vectors along a kept axis, a loop over the reduce axis, accumulators of a strip on the stack.

Taken: row kernels in which another axis than the reduced one has the smaller strides (sums over the first axis of a
matrix, the bias gradient, softmax over channels). Fast because memory is read in its own order: every lane is a row of
its own, so nothing is ever combined across lanes, and a strip is narrow enough to stay in the cache from pass to pass.

    for each outer row
      for each strip of columns
        for each pass:  for slabs, where two axes are reduced:
                        for rows of the reduce axis (several at a time):  for vectors of the strip: accumulate
                        for vectors of the strip: finish the reductions, compute the values that later passes need

Constant words: n (columns), extent (reduce axis), strip, parts, block, outer, rows, axes, then each operand's byte
stride along the columns, then along the reduce axis, then (with slabs) how many there are and each operand's byte stride
from one to the next, then the odometer's table. Chunk c handles part c % parts of the
columns ([part * block, (part + 1) * block) of n) in the outer rows [c // parts * rows, ...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cpu.access import Axis, vector_loop
from tensorsmith.targets.cpu.body import KernelText, cone, instruction_cost, memory_element
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.chunks import chunk_count, point_nanoseconds
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.passes import Passes, plan_passes, roots_of_pass
from tensorsmith.targets.cpu.reduction import Reduction
from tensorsmith.targets.cpu.vector import size_of

_HEADER = 8
MOST_COLUMNS = 512  # columns of a strip; the stack holds this many of every accumulator and kept value
_SUM_BLOCK = 128  # rows added up before the sum joins the running total: keeps rounding errors of long sums small
_CACHE_BYTES = 256 * 1024  # what several passes over a strip should stay within


class Strip:
    """Stack memory for a strip: one array per accumulator and per kept value."""

    def __init__(self, kernel: KernelText) -> None:
        self.kernel = kernel
        self.arrays: dict[object, tuple[str, str]] = {}

    def reserve(self, key: object, element: str) -> None:
        """An array of elements under `key`; call it in the entry block."""
        in_memory = "i8" if element == "i1" else element
        pointer = self.kernel.function.stack(in_memory, MOST_COLUMNS + self.kernel.lanes.count, 64)
        self.arrays[key] = (element, pointer)

    def load(self, key: object, index: Value) -> str:
        """The vector at columns index, index + 1, ... of the strip."""
        element, pointer = self.arrays[key]
        lanes, f = self.kernel.lanes, self.kernel.function
        in_memory = "i8" if element == "i1" else element
        value = lanes.load(in_memory, f.offset(pointer, f.mul(index, size_of(in_memory))))
        return lanes.compare("ne", "i8", value, lanes.constant("i8", 0)) if element == "i1" else value

    def store(self, key: object, value: str, index: Value) -> None:
        """Write the vector at columns index, index + 1, ... of the strip."""
        element, pointer = self.arrays[key]
        lanes, f = self.kernel.lanes, self.kernel.function
        in_memory = "i8" if element == "i1" else element
        if element == "i1":
            value = lanes.convert("zext", "i1", "i8", value)
        lanes.store(in_memory, value, f.offset(pointer, f.mul(index, size_of(in_memory))))


class OuterRow:
    """Emits the schedule for one kernel."""

    def __init__(self, structure: Structure, machine: Machine, name: str) -> None:
        self.structure = structure
        self.passes: Passes = plan_passes(structure)
        self.kernel = KernelText(structure, machine, name)
        body, lanes = structure.body, self.kernel.lanes
        self.reductions = {
            p: Reduction(instr, body[instr.args[0]].dtype, lanes)
            for p, instr in enumerate(body)
            if instr.kind is Kind.REDUCE
        }
        self.kept = self._kept_values()
        self.strip = Strip(self.kernel)
        for position, reduction in self.reductions.items():
            self.strip.reserve((position, 0), reduction.element)
            if reduction.positional:
                self.strip.reserve((position, 1), reduction.position)
            if reduction.rounds:
                self.strip.reserve((position, "total"), reduction.element)
        for position in self.kept:
            dtype = body[position].dtype
            self.strip.reserve(position, "i1" if dtype.kind == "b" else memory_element(dtype))

    def _kept_values(self) -> list[int]:
        """Values constant along the reduce axis, computed once per column: REDUCEs and what follows from them."""
        body, passes = self.structure.body, self.passes
        return [
            p
            for p, instr in enumerate(body)
            if not passes.varies[p] and p not in self.kernel.uniform and instr.kind not in (Kind.LOAD, Kind.INDEX)
        ]

    def build(self) -> Function:
        """The whole kernel."""
        kernel, f = self.kernel, self.kernel.function
        structure, operands = self.structure, kernel.structure.operand_count
        chunk = f.value("zext i32 %chunk to i64")
        n, extent, strip, parts, block, outer, rows, axes = (kernel.constant_word(k) for k in range(_HEADER))
        self.extent = extent
        self.inner_strides: dict[int, Value] = {
            k: kernel.constant_word(_HEADER + k) for k in range(operands) if structure.inner[k] != 0
        }
        self.reduce_strides: dict[int, Value] = {
            k: kernel.constant_word(_HEADER + operands + k) for k in range(operands) if structure.along[k] != 0
        }
        words = _HEADER + 2 * operands
        self.slab_strides: dict[int, Value] = {}
        if structure.slabs:
            self.slabs = kernel.constant_word(words)
            self.slab_strides = {k: kernel.constant_word(words + 1 + k) for k in range(operands) if structure.slabs[k]}
            words += 1 + operands
        low = f.mul(f.urem(chunk, parts), block)
        high = f.minimum(n, f.add(low, block))
        first = f.mul(f.udiv(chunk, parts), rows)
        last = f.minimum(outer, f.add(first, rows))
        axis_table = f.offset("%args", 8 * (kernel.first_constant + words))
        odometer = Odometer(f, axis_table, axes, operands)
        with (
            odometer.walk(first, last, "rows of the outer axes") as offsets,
            f.loop(low, high, strip, name="strips of columns") as columns,
        ):
            width = f.minimum(f.sub(high, columns.index), strip)
            start = [
                f.add(offset, f.mul(columns.index, self.inner_strides[k])) if k in self.inner_strides else offset
                for k, offset in enumerate(offsets)
            ]
            self._strip(start, width)
        return f

    def _strip(self, offsets: Sequence[Value], width: Value) -> None:
        """All passes of one strip whose first column has the given operand offsets."""
        passes = self.passes
        for number in range(passes.count + 1):
            self._between(number, offsets, width)
            if number < passes.count:
                self._slabs(number, offsets, width)

    def _axis(self, offsets: Sequence[Value]) -> Axis:
        return Axis(self.kernel, self.structure.inner, offsets, self.inner_strides, self.structure.pairs)

    def _between(self, number: int, offsets: Sequence[Value], width: Value) -> None:
        """Before pass `number` (or after the last): finish reductions, compute kept values, start accumulators."""
        kernel, structure, passes, strip = self.kernel, self.structure, self.passes, self.strip
        due = [p for p in self.kept if passes.depth[p] == number]
        final = number == passes.count
        rows = [(o, v) for o, (v, is_row) in enumerate(zip(structure.values, structure.rows)) if is_row and final]
        starting = [] if final else passes.reduces[number]
        if not (due or rows or starting):
            return
        axis = self._axis(offsets)

        def step(index: Value, mask: str | None, carried: list[str]) -> list[str]:
            have = dict(kernel.uniform)
            for position in due:
                if position in self.reductions:
                    reduction = self.reductions[position]
                    state = [strip.load((position, k), index) for k in range(len(reduction.kinds))]
                    if reduction.rounds:
                        state = [strip.load((position, "total"), index)]
                    have[position] = reduction.finish(kernel.context(mask), state)
            earlier = [p for p in self.kept if passes.depth[p] < number]
            wanted = due + [v for _, v in rows]
            needed = set(cone(structure.body, wanted, set(have) | set(earlier)))
            for position in earlier:
                if position in wanted or any(position in structure.body[p].args for p in needed):
                    have[position] = strip.load(position, index)
            values = kernel.values(lambda k: axis.load(k, index, mask), lambda c: axis.coordinate(c, index), have, mask)
            for position in due:
                strip.store(position, values.of(position), index)
            for output, value in rows:
                axis.store(output, values.of(value), index, mask)
            for position in starting:
                reduction = self.reductions[position]
                for k, start in enumerate(reduction.initial()):
                    strip.store((position, k), start, index)
                if reduction.rounds:
                    strip.store((position, "total"), reduction.initial()[0], index)
            return []

        vector_loop(
            kernel, 0, width, 1, step, title=f"columns, {'last values' if final else f'before pass {number + 1}'}"
        )

    def _slabs(self, number: int, offsets: Sequence[Value], width: Value) -> None:
        """Pass `number` over every slab."""
        if not self.structure.slabs:
            self._pass(number, offsets, width)
            return
        f = self.kernel.function
        with f.loop(0, self.slabs, 1, name="slabs") as slab:
            moved = [
                f.add(offset, f.mul(slab.index, self.slab_strides[k])) if k in self.slab_strides else offset
                for k, offset in enumerate(offsets)
            ]
            self._pass(number, moved, width)

    def _pass(self, number: int, offsets: Sequence[Value], width: Value) -> None:
        """Pass `number` over the reduce axis: groups of rows, then the rows left."""
        f = self.kernel.function
        roots = roots_of_pass(self.structure, self.passes, number)
        positions = cone(self.structure.body, roots, set(self.kept) | set(self.kernel.uniform))
        cost = sum(instruction_cost(self.structure.body[p]) for p in positions)
        group = 1 if cost > 45 or 2 in self.structure.inner else 4 if cost <= 30 else 2
        rounding = [p for p in self.passes.reduces[number] if self.reductions[p].rounds]
        if not rounding:
            self._groups(number, 0, self.extent, group, offsets, width)
            return
        with f.loop(0, self.extent, _SUM_BLOCK, name=f"blocks of {_SUM_BLOCK} rows") as block:
            high = f.minimum(self.extent, f.add(block.index, _SUM_BLOCK))
            self._groups(number, block.index, high, group, offsets, width)

            def flush(index: Value, mask: str | None, carried: list[str]) -> list[str]:
                for position in rounding:
                    reduction = self.reductions[position]
                    total, part = (self.strip.load((position, key), index) for key in ("total", 0))
                    self.strip.store((position, "total"), reduction.combine([total], [part])[0], index)
                    self.strip.store((position, 0), reduction.initial()[0], index)
                return []

            vector_loop(self.kernel, 0, width, 1, flush, title="the strip: add the block to the total")

    def _groups(self, number: int, low: Value, high: Value, group: int, offsets: Sequence[Value], width: Value) -> None:
        f = self.kernel.function
        done = f.add(low, f.round_down(f.sub(high, low), group))
        self._rows(number, low, done, group, offsets, width)
        if group > 1:
            self._rows(number, done, high, 1, offsets, width)

    def _rows(self, number: int, low: Value, high: Value, group: int, offsets: Sequence[Value], width: Value) -> None:
        kernel, structure, passes = self.kernel, self.structure, self.passes
        f, body, strip = kernel.function, structure.body, self.strip
        stash = passes.stash
        with f.loop(low, high, group, name=f"{group} rows of the reduce axis, pass {number + 1}") as rows:
            axes = []
            for u in range(group):
                row = f.add(rows.index, u)
                axes.append(
                    self._axis([
                        f.add(offset, f.mul(row, self.reduce_strides[k])) if k in self.reduce_strides else offset
                        for k, offset in enumerate(offsets)
                    ])
                )  # fmt: skip

            def step(index: Value, mask: str | None, carried: list[str]) -> list[str]:
                context = kernel.context(mask)
                roots = roots_of_pass(structure, passes, number)
                available = set(self.kept) | set(kernel.uniform)
                held = {stash[0]} if stash is not None and number > stash[2] else set()
                needed = set(cone(body, roots, available | held))
                used = {a for p in needed for a in body[p].args} | set(roots)
                have = dict(kernel.uniform)
                have.update({p: strip.load(p, index) for p in self.kept if p in used})
                # What does not vary along the reduce axis is loaded once for the group.
                shared = kernel.values(
                    lambda k: axes[0].load(k, index, mask), lambda c: axes[0].coordinate(c, index), have, mask
                )
                for position in sorted(needed):
                    if not passes.varies[position]:
                        shared.of(position)
                states = {
                    p: [strip.load((p, k), index) for k in range(len(self.reductions[p].kinds))]
                    for p in passes.reduces[number]
                }
                for u, axis in enumerate(axes):
                    known = dict(shared.values)
                    if number == 0 and mask is None:
                        self._ask_ahead(axis, index, group)
                    if held:
                        assert stash is not None
                        known[stash[0]] = axis.load_output(stash[1], index, mask)
                    values = kernel.values(
                        lambda k: axis.load(k, index, mask),  # noqa: B023 - called within this iteration
                        lambda c: axis.coordinate(c, index),  # noqa: B023
                        known,
                        mask,
                    )
                    for p in passes.reduces[number]:
                        reduction = self.reductions[p]
                        lane_rows = ""
                        if reduction.positional:
                            row = f.add(rows.index, u)
                            kind = reduction.position
                            narrow = row if kind == "i64" else f.value(f"trunc i64 {row} to i32")
                            lane_rows = kernel.lanes.splat(kind, narrow)
                        states[p] = reduction.include(context, states[p], values.of(body[p].args[0]), lane_rows)
                    if stash is not None and number == stash[2]:
                        axis.store(stash[1], values.of(stash[0]), index, mask)
                    if number == passes.count - 1:
                        results = {o: values.of(v) for o, v in enumerate(structure.values) if not structure.rows[o]}
                        axis.store_all(results, index, mask)
                for p, state in states.items():
                    for k, value in enumerate(state):
                        strip.store((p, k), value, index)
                return []

            vector_loop(kernel, 0, width, 1, step, title="the strip")


    def _ask_ahead(self, axis: Axis, index: Value, group: int) -> None:
        """Ask for what the next group of rows reads at the same columns: rows are too short for the machine to see it."""
        structure, f = self.structure, self.kernel.function
        for k in range(len(structure.inputs)):
            if structure.inner[k] == 1 and structure.along[k] != 0:
                ahead = f.offset(axis.address(k, index), f.mul(self.reduce_strides[k], group))
                f.call("void", "llvm.prefetch.p0", ("ptr", ahead), ("i32", 0), ("i32", 3), ("i32", 1))


def fits(canonical: Canonical) -> bool:
    """Whether fewer of the operands that vary have gaps along the innermost kept axis than along the reduce axis."""
    structure = canonical.structure
    gaps_along = gaps_inner = 0
    paired, paired_along = ({k for pair in pairs for k in pair} for pairs in (structure.pairs, structure.pairs_along))
    for k, (kept, reduced) in enumerate(zip(structure.inner, structure.along)):
        if structure.is_coordinate(k) or reduced == 0:
            continue
        gaps_along += reduced == 2 and k not in paired_along
        gaps_inner += kept == 2 and k not in paired
    return gaps_inner < gaps_along and canonical.extents[-1] > 1


def build(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The kernel function of a row structure reduced along an outer axis, and its number of launch words."""
    emitter = OuterRow(structure, machine, name)
    return emitter.build(), emitter.kernel.launch_words


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words and the number of chunks."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    n, outer, extent = extents[-1], math.prod(extents[:-1]), canonical.reduce_extent
    wanted = chunk_count(n * outer * extent * canonical.slab_extent * point_nanoseconds(structure))
    parts = min(math.ceil(wanted / outer), max(1, n // 128)) if outer < wanted else 1
    block = -(-math.ceil(n / parts) // 64) * 64
    parts = math.ceil(n / block)
    rows = math.ceil(outer / max(1, min(outer, wanted // parts)))
    # Several passes should find the strip in the cache again, if strips of at least 64 columns can.
    strip = MOST_COLUMNS
    moving = sum(size for size, stride in zip(sizes, canonical.reduce_strides) if stride)
    bytes_of_column = canonical.slab_extent * extent * moving
    while strip > 64 and strip * bytes_of_column > _CACHE_BYTES and _several(structure):
        strip //= 2
    along_columns = [operand[-1] * size for operand, size in zip(canonical.strides, sizes)]
    along_rows = [s * size for s, size in zip(canonical.reduce_strides, sizes)]
    slabs = [canonical.slab_extent, *[s * size for s, size in zip(canonical.slab_strides, sizes)]] if structure.slabs else []
    outer_table = table(
        extents[:-1], [[s * size for s in operand[:-1]] for operand, size in zip(canonical.strides, sizes)]
    )
    words = [n, extent, strip, parts, block, outer, rows, len(extents) - 1, *along_columns, *along_rows, *slabs, *outer_table]
    return words, parts * math.ceil(outer / rows)


def _several(structure: Structure) -> bool:
    """Whether a kernel goes over its data more than once."""
    return sum(1 for i in structure.body if i.kind is Kind.REDUCE) > 1 or not all(structure.rows)

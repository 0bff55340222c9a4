"""The narrow schedule: pointwise kernels over many rows of few elements, as flat vectors over the rows.

Taken: at least 64 rows of at most 24 elements (256 where an input only repeats) with outputs that leave no gaps. Fast
because no row ends in a vector that is mostly empty: the outputs are walked as one axis of rows * n elements. An input that
is not consecutive in the same way, a bias of n elements or a column of one value a row, is written to the stack first, row
after row, so that it is read in the same flat vectors:

    (N, 3) + (3,):  the bias repeated for a block of rows, once        (N, 3) * (N, 1):  each value three times, per block

Constant words: n, m (rows), rows of a block, parts, rows of a part, outer, outer rows of a chunk, axes, then each
operand's byte stride along the row, then from row to row, then the odometer's table. Chunk c handles part c % parts of the
m rows in the outer rows [c // parts * rows, ...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.targets.cpu.access import Axis, vector_loop
from tensorsmith.targets.cpu.body import KernelText, from_memory, memory_element
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.chunks import chunk_count, point_nanoseconds
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.pointwise import unrolling
from tensorsmith.targets.cpu.vector import size_of

_HEADER = 8
_ELEMENTS = 1024  # of a block, on the stack for every input that is spread
_MOST_COLUMNS = 24  # elements of a row; beyond, whole vectors of a row are as good
_MOST_REPEATED = 256  # the same where nothing but rows that repeat is spread: they are written once
_LEAST_ROWS = 64

FLAT, REPEATED, SPREAD = 1, 0, 2  # how an operand goes from row to row


def narrow(canonical: Canonical) -> Canonical | None:
    """The canonical form with how each operand goes from row to row as `along`, where this schedule pays."""
    structure, extents = canonical.structure, canonical.extents
    if not structure.outer or structure.coordinates or extents[-1] > _MOST_REPEATED or extents[-2] < _LEAST_ROWS:
        return None
    n = extents[-1]
    ways = []
    for operand in canonical.strides:
        flat = operand[-1] == 1 and operand[-2] == n
        ways.append(FLAT if flat else REPEATED if operand[-2] == 0 else SPREAD)
    if any(way != FLAT for way in ways[len(structure.inputs) :]) or (SPREAD in ways and n > _MOST_COLUMNS):
        return None
    if any(way == SPREAD and kind == 2 for way, kind in zip(ways, structure.inner)):
        return None  # nothing but gaps: the long axis is the better one
    return replace(canonical, structure=replace(structure, along=tuple(ways), outer=False))


def build(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The kernel function of a narrow structure and its number of launch words."""
    emitter = _Narrow(structure, machine, name)
    emitter.build()
    return emitter.kernel.function, emitter.kernel.launch_words


class _Narrow:
    """Emits the schedule for one kernel."""

    def __init__(self, structure: Structure, machine: Machine, name: str) -> None:
        self.structure = structure
        self.kernel = KernelText(structure, machine, name)
        f, lanes = self.kernel.function, self.kernel.lanes
        self.buffers = {
            k: f.stack(memory_element(dtype), _ELEMENTS + 2 * lanes.count, 64)
            for k, dtype in enumerate(structure.inputs)
            if structure.along[k] != FLAT
        }

    def build(self) -> None:
        """The whole kernel."""
        kernel, f, operands = self.kernel, self.kernel.function, self.structure.operand_count
        chunk = f.value("zext i32 %chunk to i64")
        self.n, m, block, parts, part, outer, rows, axes = (kernel.constant_word(k) for k in range(_HEADER))
        self.inner: dict[int, Value] = {k: kernel.constant_word(_HEADER + k) for k in range(operands)}
        self.across: dict[int, Value] = {k: kernel.constant_word(_HEADER + operands + k) for k in range(operands)}
        low = f.mul(f.urem(chunk, parts), part)
        high = f.minimum(m, f.add(low, part))
        first = f.mul(f.udiv(chunk, parts), rows)
        last = f.minimum(outer, f.add(first, rows))
        axis_table = f.offset("%args", 8 * (kernel.first_constant + _HEADER + 2 * operands))
        odometer = Odometer(f, axis_table, axes, operands)
        with odometer.walk(first, last, "rows of the outer axes") as offsets:
            for k in self.buffers:
                if self.structure.along[k] == REPEATED:
                    self._spread(k, offsets[k], f.minimum(block, f.sub(high, low)))
            with f.loop(low, high, block, name="blocks of rows") as rows_of_block:
                start = [f.add(o, f.mul(rows_of_block.index, self.across[k])) for k, o in enumerate(offsets)]
                self._block(start, f.minimum(block, f.sub(high, rows_of_block.index)))

    def _spread(self, k: int, offset: Value, rows: Value) -> None:
        """Write `rows` rows of an input to the stack, one after another; vectors may write past a row's end."""
        kernel, f, lanes = self.kernel, self.kernel.function, self.kernel.lanes
        element = memory_element(self.structure.inputs[k])
        base = kernel.base(k)
        assert base is not None
        first, size = f.offset(base, offset), size_of(element)
        with f.loop(0, rows, 1, name=f"rows of input {k} to the stack") as row:
            source = f.offset(first, f.mul(row.index, self.across[k]))
            target = f.offset(self.buffers[k], f.mul(f.mul(row.index, self.n), size))
            with f.loop(0, self.n, lanes.count, do_while=True) as column:
                if self.structure.inner[k] == 0:
                    value = lanes.splat(element, f.load(element, source, size))
                else:
                    mask = lanes.below(f.sub(self.n, column.index))
                    place = f.offset(source, f.mul(column.index, self.inner[k]))
                    if self.structure.inner[k] == 1:
                        value = lanes.load(element, place, mask)
                    else:
                        value = lanes.gather(element, place, str(self.inner[k]), mask)
                lanes.store(element, value, f.offset(target, f.mul(column.index, size)))

    def _block(self, offsets: Sequence[Value], rows: Value) -> None:
        """All elements of some rows, as flat vectors."""
        kernel, f, structure = self.kernel, self.kernel.function, self.structure
        lanes = kernel.lanes
        for k in self.buffers:
            if structure.along[k] == SPREAD:
                self._spread(k, offsets[k], rows)
        axis = Axis(kernel, (1,) * kernel.structure.operand_count, offsets, {})

        def step(index: Value, mask: str | None, carried: list[str]) -> list[str]:
            def load(k: int) -> str:
                if k not in self.buffers:
                    return axis.load(k, index, mask)
                element = memory_element(structure.inputs[k])
                place = f.offset(self.buffers[k], f.mul(index, size_of(element)))
                return from_memory(lanes, structure.inputs[k], lanes.load(element, place))

            values = kernel.values(load, lambda c: axis.coordinate(c, index), kernel.uniform, mask)
            results = [values.of(value) for value in structure.values]
            for output, result in enumerate(results):
                axis.store(output, result, index, mask)
            return []

        vector_loop(kernel, 0, f.mul(rows, self.n), unrolling(kernel, ()), step, title="the rows as one")


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words and the number of chunks; `canonical` as `narrow` returns it."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    n, m, outer = extents[-1], extents[-2], math.prod(extents[:-2])
    wanted = chunk_count(math.prod(extents) * point_nanoseconds(structure))
    parts = min(math.ceil(wanted / outer), max(1, m // _LEAST_ROWS)) if outer < wanted else 1
    part = math.ceil(m / parts)
    parts = math.ceil(m / part)
    rows = math.ceil(outer / max(1, min(outer, wanted // parts)))
    inner = [operand[-1] * size for operand, size in zip(canonical.strides, sizes)]
    across = [operand[-2] * size for operand, size in zip(canonical.strides, sizes)]
    outer_table = table(
        extents[:-2], [[s * size for s in operand[:-2]] for operand, size in zip(canonical.strides, sizes)]
    )
    words = [n, m, max(1, _ELEMENTS // n), parts, part, outer, rows, len(extents) - 2, *inner, *across, *outer_table]
    return words, parts * math.ceil(outer / rows)

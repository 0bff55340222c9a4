"""The short row schedule: many rows of few elements, one lane a row.

Taken: row kernels of up to some 40 elements a row (64 for argmax and argmin) in memory order, at least 8 rows of them
(softmax over ten classes, norms over small heads). Fast because reductions need no sums over lanes then, and no lane idles
where a row is shorter than a vector. What lies along the rows in memory is brought into columns through the stack, a group
of columns at a time:

    for each outer row
      for tiles of as many rows as lanes
        for groups of columns: load 16 bytes of every row, transpose in registers, keep the columns
        for each pass:  for columns: accumulate in registers, or compute
        for groups of columns: transpose back, store

The last group of a row overlaps the one before it, and the rows left over are moved element by element, so nothing is
read or written outside the operands. A tile is read before it is written: an output may be an input (exactly).

Constant words: extent (reduce axis), n (rows), parts, block, outer, rows, axes, then each operand's byte stride along the
rows, then along the reduce axis, then the odometer's table. Chunk c handles part c % parts of the rows
([part * block, (part + 1) * block) of n) in the outer rows [c // parts * rows, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorsmith.kernels.canonical import Canonical, Structure
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cpu.access import Axis
from tensorsmith.targets.cpu.body import KernelText, cone, from_memory, instruction_cost, memory_element, to_memory
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.chunks import chunk_count, point_nanoseconds
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.passes import kept_value, plan_passes, roots_of_pass
from tensorsmith.targets.cpu.reduction import Reduction, merge_sets
from tensorsmith.targets.cpu.transpose import join, transpose_pieces
from tensorsmith.targets.cpu.vector import size_of

_HEADER = 7
MOST_COLUMNS = 64  # elements of a row; the stack holds so many columns of every operand brought there
_MOST_MOVED = 40  # the same where vectors along the rows are not much work: positions are, in the end, lane by lane
_LEAST_ROWS = 8
_PADDING = 5  # columns that keep those of several operands from falling into the same places of the cache


def fits(canonical: Canonical) -> bool:
    """Whether a kernel has short rows and enough of them."""
    structure = canonical.structure
    positional = any(instr.reduction in ("argmax", "argmin") for instr in structure.body)
    most = MOST_COLUMNS if positional and all(structure.rows) else _MOST_MOVED
    if structure.slabs:
        return False
    return 1 < canonical.reduce_extent <= most and canonical.extents[-1] >= _LEAST_ROWS


def build(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The kernel function of a row structure with short rows, and its number of launch words."""
    emitter = _ShortRow(structure, machine, name)
    emitter.build()
    return emitter.kernel.function, emitter.kernel.launch_words


class _Columns:
    """Stack memory for the columns of a tile: `MOST_COLUMNS` vectors."""

    def __init__(self, kernel: KernelText, element: str) -> None:
        self.kernel = kernel
        self.element = "i8" if element == "i1" else element
        self.truth = element == "i1"
        self.bytes = kernel.lanes.count * size_of(self.element)
        self.pointer = kernel.function.stack(self.element, (MOST_COLUMNS + _PADDING) * kernel.lanes.count, 64)

    def place(self, column: Value) -> str:
        """Address of a column."""
        f = self.kernel.function
        return f.offset(self.pointer, f.mul(column, self.bytes))

    def load(self, column: Value) -> str:
        """A column."""
        lanes = self.kernel.lanes
        value = lanes.load(self.element, self.place(column))
        return lanes.compare("ne", "i8", value, lanes.constant("i8", 0)) if self.truth else value

    def store(self, column: Value, value: str) -> None:
        """Keep a column."""
        lanes = self.kernel.lanes
        if self.truth:
            value = lanes.convert("zext", "i1", "i8", value)
        lanes.store(self.element, value, self.place(column))


class _ShortRow:
    """Emits the schedule for one kernel."""

    def __init__(self, structure: Structure, machine: Machine, name: str) -> None:
        self.structure = structure
        self.passes = plan_passes(structure)
        self.kernel = KernelText(structure, machine, name)
        body, lanes, kernel = structure.body, self.kernel.lanes, self.kernel
        self.reductions = {
            p: Reduction(instr, body[instr.args[0]].dtype, lanes)
            for p, instr in enumerate(body)
            if instr.kind is Kind.REDUCE
        }
        # Operands that have gaps from row to row are brought to the stack; the others are vectors as they lie.
        self.moved = {
            k: _Columns(kernel, memory_element(kernel.operand_dtype(k)))
            for k in range(kernel.structure.operand_count)
            if kernel.base(k) is not None and structure.inner[k] == 2 and structure.along[k] != 0
        }
        self.kept = kept_value(structure, self.passes)
        if self.kept is not None:
            dtype = body[self.kept[0]].dtype
            self.kept_columns = _Columns(kernel, "i1" if dtype.kind == "b" else memory_element(dtype))

    def build(self) -> None:
        """The whole kernel."""
        kernel, f = self.kernel, self.kernel.function
        structure, operands = self.structure, kernel.structure.operand_count
        chunk = f.value("zext i32 %chunk to i64")
        self.extent, n, parts, block, outer, rows, axes = (kernel.constant_word(k) for k in range(_HEADER))
        self.inner: dict[int, Value] = {
            k: kernel.constant_word(_HEADER + k) for k in range(operands) if structure.inner[k] != 0
        }
        self.along: dict[int, Value] = {
            k: kernel.constant_word(_HEADER + operands + k) for k in range(operands) if structure.along[k] != 0
        }
        low = f.mul(f.urem(chunk, parts), block)
        high = f.minimum(n, f.add(low, block))
        first = f.mul(f.udiv(chunk, parts), rows)
        last = f.minimum(outer, f.add(first, rows))
        axis_table = f.offset("%args", 8 * (kernel.first_constant + _HEADER + 2 * operands))
        odometer = Odometer(f, axis_table, axes, operands)
        count = kernel.lanes.count
        with (
            odometer.walk(first, last, "rows of the outer axes") as offsets,
            f.loop(low, high, count, name=f"tiles of {count} rows") as tile,
        ):
            start = [
                f.add(offset, f.mul(tile.index, self.inner[k])) if k in self.inner else offset
                for k, offset in enumerate(offsets)
            ]
            self._tile(start, f.minimum(f.sub(high, tile.index), count))

    def _tile(self, offsets: Sequence[Value], rows: Value) -> None:
        """Bring the inputs, run the passes, take the outputs back; `rows` of the lanes count."""
        kernel, structure, passes = self.kernel, self.structure, self.passes
        f, lanes = kernel.function, kernel.lanes
        mask = lanes.below(rows)
        whole = f.compare("eq", rows, lanes.count)
        for k, columns in self.moved.items():
            if k < len(structure.inputs):
                self._bring(k, columns, offsets[k], rows, whole)
        axis = Axis(kernel, structure.inner, offsets, self.inner)
        self.row_values = kernel.values(
            lambda k: axis.load(k, 0, mask), lambda c: axis.coordinate(c, 0), kernel.uniform, mask
        )
        for number in range(passes.count):
            self._pass(number, offsets, mask)
        for output, (value, is_row) in enumerate(zip(structure.values, structure.rows)):
            if is_row:
                axis.store(output, self.row_values.of(value), 0, mask)
        for k, columns in self.moved.items():
            if k >= kernel.structure.first_output:
                self._take_back(k, columns, offsets[k], rows, whole)

    # Between rows and columns ----------------------------------------------------------------------------------------

    def _groups(self, operand: int, columns: _Columns) -> int:
        """How many columns are transposed together: 16 bytes of a row."""
        piece = min(16 // size_of(columns.element), self.kernel.lanes.count)
        return piece if self.structure.along[operand] == 1 else 1

    def _move(
        self, k: int, columns: _Columns, offset: Value, rows: Value, whole: str,
        group: Callable[[str, Value, int], None], column: Callable[[str, Value], None],
        element: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        """Groups of columns where the tile is whole and the rows are long enough, else columns, else elements."""
        f, piece = self.kernel.function, self._groups(k, columns)
        base = self.kernel.base(k)
        assert base is not None
        start = f.offset(base, offset)

        def grouped() -> None:
            ended = f.round_down(self.extent, piece)
            with f.loop(0, ended, piece, name=f"groups of {piece} columns") as loop:
                group(start, loop.index, piece)
            with f.if_(f.compare("slt", ended, self.extent)):
                group(start, f.sub(self.extent, piece), piece)

        def single() -> None:
            with f.loop(0, self.extent, 1, name="columns") as loop:
                column(f.offset(start, f.mul(loop.index, self.along[k])), loop.index)

        def wide() -> None:
            if piece == 1:
                single()
            else:
                f.branch(f.compare("sge", self.extent, piece), grouped, single)

        def ragged() -> None:
            with (
                f.loop(0, rows, 1, name="rows left over") as row,
                f.loop(0, self.extent, 1, name="columns") as loop,
            ):
                outside = f.offset(f.offset(start, f.mul(row.index, self.inner[k])), f.mul(loop.index, self.along[k]))
                element(outside, f.offset(columns.place(loop.index), f.mul(row.index, size_of(columns.element))))

        f.branch(whole, wide, ragged)

    def _row_pieces(self, start: str, column: Value, k: int, columns: _Columns) -> list[str]:
        """Addresses of one column in all rows of a tile."""
        f = self.kernel.function
        first = f.offset(start, f.mul(column, size_of(columns.element)))
        stride = self.inner[k]
        steps = [f.mul(stride, u) for u in range(1, 4)]
        addresses = []
        for base in range(0, self.kernel.lanes.count, 4):
            addresses.append(first)
            addresses += [f.offset(first, step) for step in steps]
            if base + 4 < self.kernel.lanes.count:
                first = f.offset(first, f.mul(stride, 4))
        return addresses[: self.kernel.lanes.count]

    def _bring(self, k: int, columns: _Columns, offset: Value, rows: Value, whole: str) -> None:
        """An input's rows of this tile, as columns on the stack."""
        f, lanes, element = self.kernel.function, self.kernel.lanes, columns.element

        def group(start: str, column: Value, piece: int) -> None:
            addresses = self._row_pieces(start, column, k, columns)
            kind = f"<{piece} x {element}>"
            loaded = [f.load(kind, address, size_of(element)) for address in addresses]
            joined = [join(lanes, element, loaded[u::piece], piece) for u in range(piece)]
            for u, value in enumerate(transpose_pieces(lanes, element, joined, piece)):
                lanes.store(element, value, columns.place(f.add(column, u)))

        def column(pointer: str, index: Value) -> None:
            lanes.store(element, lanes.gather(element, pointer, str(self.inner[k])), columns.place(index))

        def one(outside: str, inside: str) -> None:
            f.store(f.load(element, outside, size_of(element)), element, inside, size_of(element))

        self._move(k, columns, offset, rows, whole, group, column, one)

    def _take_back(self, k: int, columns: _Columns, offset: Value, rows: Value, whole: str) -> None:
        """An output's columns on the stack, as rows of this tile."""
        f, lanes, element = self.kernel.function, self.kernel.lanes, columns.element
        count = lanes.count

        def group(start: str, column: Value, piece: int) -> None:
            addresses = self._row_pieces(start, column, k, columns)
            loaded = [lanes.load(element, columns.place(f.add(column, u))) for u in range(piece)]
            turned = transpose_pieces(lanes, element, loaded, piece)
            kind, vector = f"<{piece} x {element}>", lanes.type(element)
            for row, address in enumerate(addresses):
                value = turned[row % piece]
                if piece < count:
                    order = ", ".join(f"i32 {row // piece * piece + u}" for u in range(piece))
                    value = f.value(f"shufflevector {vector} {value}, {vector} poison, <{piece} x i32> <{order}>")
                f.store(value, kind, address, size_of(element))

        def column(pointer: str, index: Value) -> None:
            lanes.scatter(element, lanes.load(element, columns.place(index)), pointer, str(self.inner[k]))

        def one(outside: str, inside: str) -> None:
            f.store(f.load(element, inside, size_of(element)), element, outside, size_of(element))

        self._move(k, columns, offset, rows, whole, group, column, one)

    # Passes ----------------------------------------------------------------------------------------------------------

    def _pass(self, number: int, offsets: Sequence[Value], mask: str) -> None:
        """One pass over the columns: what does not vary along the row first, then the loop, then the results."""
        kernel, structure, passes = self.kernel, self.structure, self.passes
        f, body = kernel.function, structure.body
        for position in range(len(body)):
            if not passes.varies[position] and passes.depth[position] <= number:
                self.row_values.of(position)
        known = dict(self.row_values.values)
        last = number == passes.count - 1
        reduces = passes.reduces[number]
        reductions = [self.reductions[r] for r in reduces]
        kept_now = self.kept is not None and number == self.kept[1]
        kept_before = self.kept is not None and number > self.kept[1]

        def step(column: Value, carried: Sequence[str]) -> list[str]:
            have = dict(known)
            if kept_before:
                assert self.kept is not None
                have[self.kept[0]] = self.kept_columns.load(column)
            axis = Axis(
                kernel,
                structure.inner,
                [f.add(o, f.mul(column, self.along[k])) if k in self.along else o for k, o in enumerate(offsets)],
                self.inner,
            )

            def load(k: int) -> str:
                columns = self.moved.get(k)
                if columns is None:
                    return axis.load(k, 0, mask)
                value = kernel.lanes.load(columns.element, columns.place(column))
                return from_memory(kernel.lanes, structure.inputs[k], value)

            values = kernel.values(load, lambda c: axis.coordinate(c, 0), have, mask)
            following: list[str] = []
            place = 0
            for r, reduction in zip(reduces, reductions):
                width = len(reduction.kinds)
                state = carried[place : place + width]
                position = ""
                if reduction.positional:
                    kind = reduction.position
                    narrow = column if kind == "i64" else f.value(f"trunc i64 {f.add(column, 0)} to i32")
                    position = kernel.lanes.splat(kind, narrow)
                following += reduction.include(kernel.context(), state, values.of(body[r].args[0]), position)
                place += width
            if kept_now:
                assert self.kept is not None
                self.kept_columns.store(column, values.of(self.kept[0]))
            if last:
                results = [(o, values.of(v)) for o, v in enumerate(structure.values) if not structure.rows[o]]
                for output, result in results:
                    k = kernel.structure.first_output + output
                    if k in self.moved:
                        raw = to_memory(kernel.lanes, structure.outputs[output], result)
                        kernel.lanes.store(self.moved[k].element, raw, self.moved[k].place(column))
                    else:
                        axis.store(output, result, 0, mask)
            return following

        carried = [pair for r in reductions for pair in zip(r.kinds, r.initial())]
        positions = cone(body, roots_of_pass(structure, passes, number), known)
        unroll = self._unrolling(sum(instruction_cost(body[p]) for p in positions))
        sets = len(carried)
        end = f.round_down(self.extent, unroll)
        with f.loop(0, end, unroll, carried * unroll, name=f"{unroll} columns, pass {number + 1}") as loop:
            following: list[Value] = []
            for u in range(unroll):
                following += step(f.add(loop.index, u), loop.carried[u * sets : (u + 1) * sets])
            loop.next = following
        state = merge_sets(reductions, [[str(v) for v in loop.out[u * sets : (u + 1) * sets]] for u in range(unroll)])
        if unroll > 1:
            kinds = [kind for kind, _ in carried]
            with f.loop(end, self.extent, 1, list(zip(kinds, state)), name="columns left over") as rest:
                rest.next = list(step(rest.index, rest.carried))
            state = [str(v) for v in rest.out]
        place = 0
        for r, reduction in zip(reduces, reductions):
            width = len(reduction.kinds)
            self.row_values.values[r] = reduction.finish(kernel.context(mask), state[place : place + width])
            place += width

    def _unrolling(self, cost: int) -> int:
        return 4 if cost <= 6 else 2 if cost <= 16 else 1


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words and the number of chunks."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    n, outer, extent = extents[-1], math.prod(extents[:-1]), canonical.reduce_extent
    wanted = chunk_count(n * outer * (extent * point_nanoseconds(structure) + 2.0))
    parts = min(math.ceil(wanted / outer), max(1, n // 64)) if outer < wanted else 1
    block = -(-math.ceil(n / parts) // 64) * 64
    parts = math.ceil(n / block)
    rows = math.ceil(outer / max(1, min(outer, wanted // parts)))
    along_rows = [operand[-1] * size for operand, size in zip(canonical.strides, sizes)]
    along_columns = [s * size for s, size in zip(canonical.reduce_strides, sizes)]
    outer_table = table(
        extents[:-1], [[s * size for s in operand[:-1]] for operand, size in zip(canonical.strides, sizes)]
    )
    words = [extent, n, parts, block, outer, rows, len(extents) - 1, *along_rows, *along_columns, *outer_table]
    return words, parts * math.ceil(outer / rows)

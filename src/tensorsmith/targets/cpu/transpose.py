"""The tiled schedule: pointwise kernels in which an input is consecutive along another axis than the outputs.

Taken: short bodies (a transposed copy, the sum of a matrix and a transposed one) over two axes of at least 8 elements. Fast
because every cache line is read and written whole: such inputs are read in square tiles along their own consecutive axis
(the tile axis) and transposed in registers; everything else is read and written along the innermost axis as usual. What
does not fill a tile goes through strided reads.

    for each outer row:  for blocks of the tile axis:  for tiles of the innermost axis:  for tiles of the block

Constant words: n (innermost axis), m (tile axis), parts, block, outer, rows, axes, then each operand's byte stride
along the innermost axis, then along the tile axis, then the odometer's table. Chunk c handles part c % parts of the
tile axis ([part * block, (part + 1) * block) of m) in the outer rows [c // parts * rows, ...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical, Structure, stride_class
from tensorsmith.targets.cpu.access import Axis, vector_loop
from tensorsmith.targets.cpu.body import KernelText, from_memory, instruction_cost, lane_count, memory_element
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.chunks import chunk_count, point_nanoseconds
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.vector import Lanes

_HEADER = 7
_BLOCK = 64  # elements of the tile axis walked per tile of the innermost axis
_MOST_COST = 16  # the body is written once per row of a tile: only short ones are worth it
_LEAST_EXTENT = 8


def tile_axis(canonical: Canonical) -> int | None:
    """The axis along which a strided input is consecutive, where the tiled schedule pays; None elsewhere."""
    structure = canonical.structure
    consecutive = all(k == 1 for k in structure.inner[structure.first_output :])
    if not structure.outer or canonical.extents[-1] < _LEAST_EXTENT or not consecutive:
        return None
    if sum(instruction_cost(i) for i in structure.body) > _MOST_COST:
        return None
    for k in range(len(structure.inputs)):
        if structure.inner[k] == 2 and 1 in canonical.strides[k]:
            axis = canonical.strides[k].index(1)
            if canonical.extents[axis] >= _LEAST_EXTENT:
                return axis
    return None


def tiled(canonical: Canonical, axis: int) -> Canonical:
    """The canonical form with the tile axis next to the innermost one and its stride classes as `along`."""
    order = [a for a in range(len(canonical.extents) - 1) if a != axis] + [axis, len(canonical.extents) - 1]
    strides = tuple(tuple(operand[a] for a in order) for operand in canonical.strides)
    along = tuple(stride_class(operand[-2]) for operand in strides)
    structure = replace(canonical.structure, along=along, outer=False, pairs=())
    return Canonical(structure, tuple(canonical.extents[a] for a in order), strides, 0, ())


def transpose_tile(lanes: Lanes, element: str, rows: Sequence[str]) -> list[str]:
    """As many vectors as lanes, transposed by log2(lanes) rounds of pairwise shuffles."""
    count, vector = lanes.count, lanes.type(element)
    current = list(rows)
    distance = count // 2
    while distance:
        following = list(current)
        for i in range(count):
            if i & distance:
                continue
            a, b = current[i], current[i | distance]
            low = [count + (k ^ distance) if k & distance else k for k in range(count)]
            high = [count + k if k & distance else k | distance for k in range(count)]
            for place, picks in ((i, low), (i | distance, high)):
                order = ", ".join(f"i32 {p}" for p in picks)
                following[place] = lanes.function.value(
                    f"shufflevector {vector} {a}, {vector} {b}, <{count} x i32> <{order}>"
                )
        current = following
        distance //= 2
    return current


def join(lanes: Lanes, element: str, parts: Sequence[str], piece: int) -> str:
    """Vectors of `piece` elements, one after another, as one vector."""
    current, width = list(parts), piece
    while len(current) > 1:
        order = ", ".join(f"i32 {k}" for k in range(2 * width))
        kind = f"<{width} x {element}>"
        current = [
            lanes.function.value(f"shufflevector {kind} {a}, {kind} {b}, <{2 * width} x i32> <{order}>")
            for a, b in zip(current[::2], current[1::2])
        ]
        width *= 2
    return current[0]


def transpose_pieces(lanes: Lanes, element: str, vectors: Sequence[str], piece: int) -> list[str]:
    """`piece` vectors, every run of `piece` lanes transposed on its own, by the interleaving of halves.

    Element v of run r in vector u goes to element u of run r in vector v. The halves of each run are interleaved, which is
    the cheap shuffle of every instruction set, doubling the length that moves as one.
    """
    count, vector = lanes.count, lanes.type(element)
    current = list(vectors)
    length = 1
    while length < piece:
        following = list(current)
        for i in range(piece):
            if i & length:
                continue
            for place, half in ((i, 0), (i | length, piece // 2)):
                picks = [
                    source + run + half + at + k
                    for run in range(0, count, piece)
                    for at in range(0, piece // 2, length)
                    for source in (0, count)
                    for k in range(length)
                ]
                order = ", ".join(f"i32 {p}" for p in picks)
                following[place] = lanes.function.value(
                    f"shufflevector {vector} {current[i]}, {vector} {current[i | length]}, <{count} x i32> <{order}>"
                )
        current = following
        length *= 2
    return [current[k] for k in _interleaved(piece)]


def _interleaved(piece: int) -> list[int]:
    """Where `transpose_pieces` leaves each element of a run: followed through its interleavings."""
    state = [[(u, k) for k in range(piece)] for u in range(piece)]
    length = 1
    while length < piece:
        following = list(state)
        for i in range(piece):
            if not i & length:
                both = (state[i], state[i | length])
                for place, half in ((i, 0), (i | length, piece // 2)):
                    following[place] = [
                        source[half + at + k]
                        for at in range(0, piece // 2, length)
                        for source in both
                        for k in range(length)
                    ]
        state = following
        length *= 2
    places = {vector[0][1]: u for u, vector in enumerate(state)}
    assert all(vector == [(u, vector[0][1]) for u in range(piece)] for vector in state), "not a transposition"
    return [places[v] for v in range(piece)]


def build(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The kernel function of a tiled structure and its number of launch words."""
    kernel = KernelText(structure, machine, name, lanes=min(16, lane_count(structure, machine)))
    f, operands = kernel.function, kernel.structure.operand_count
    chunk = f.value("zext i32 %chunk to i64")
    n, m, parts, block, outer, rows, axes = (kernel.constant_word(k) for k in range(_HEADER))
    inner = {k: kernel.constant_word(_HEADER + k) for k in range(operands) if structure.inner[k] == 2}
    across = {k: kernel.constant_word(_HEADER + operands + k) for k in range(operands) if structure.along[k] != 0}
    low = f.mul(f.urem(chunk, parts), block)
    high = f.minimum(m, f.add(low, block))
    first = f.mul(f.udiv(chunk, parts), rows)
    last = f.minimum(outer, f.add(first, rows))
    axis_table = f.offset("%args", 8 * (kernel.first_constant + _HEADER + 2 * operands))
    odometer = Odometer(f, axis_table, axes, operands)
    tiles = _Tiles(kernel, inner, across)
    with odometer.walk(first, last, "rows of the outer axes") as offsets:
        tiles.region(offsets, low, high, n)
    return f, kernel.launch_words


class _Tiles:
    """Emits one outer row: a rectangle of the tile axis by the innermost axis."""

    def __init__(self, kernel: KernelText, inner: dict[int, Value], across: dict[int, Value]) -> None:
        self.kernel = kernel
        self.inner = inner
        self.across = across
        structure = kernel.structure
        self.turned = [k for k in range(len(structure.inputs)) if structure.inner[k] == 2 and structure.along[k] == 1]

    def region(self, offsets: Sequence[Value], low: Value, high: Value, n: Value) -> None:
        """Rows low..high of the tile axis, the whole innermost axis."""
        f, count = self.kernel.function, self.kernel.lanes.count
        full_rows = f.add(low, f.round_down(f.sub(high, low), count))
        full_columns = f.round_down(n, count)
        with f.loop(low, full_rows, _BLOCK, name="blocks of the tile axis") as block:
            end = f.minimum(full_rows, f.add(block.index, _BLOCK))
            with (
                f.loop(0, full_columns, count, name="tiles of the innermost axis") as columns,
                f.loop(block.index, end, count, name=f"{count} x {count} tiles") as rows,
            ):
                self._tile(offsets, rows.index, columns.index)
        self._strided(offsets, low, full_rows, full_columns, n, "rows beside the tiles")
        self._strided(offsets, full_rows, high, 0, n, "rows below the tiles")

    def _row_offsets(self, offsets: Sequence[Value], row: Value) -> list[Value]:
        f = self.kernel.function
        return [f.add(o, f.mul(row, self.across[k])) if k in self.across else o for k, o in enumerate(offsets)]

    def _tile(self, offsets: Sequence[Value], row: Value, column: Value) -> None:
        kernel, f, structure = self.kernel, self.kernel.function, self.kernel.structure
        lanes = kernel.lanes
        start = self._row_offsets(offsets, row)
        turned: dict[int, list[str]] = {}
        for k in self.turned:
            element = memory_element(structure.inputs[k])
            pointer = f.offset(f.offset(kernel.inputs[k], start[k]), f.mul(column, self.inner[k]))
            loaded = []
            for _ in range(lanes.count):
                loaded.append(lanes.load(element, pointer))
                pointer = f.offset(pointer, self.inner[k])
            turned[k] = transpose_tile(lanes, element, loaded)
        for u in range(lanes.count):
            here = start if u == 0 else [
                f.add(o, f.mul(u, self.across[k])) if k in self.across else o for k, o in enumerate(start)
            ]  # fmt: skip
            axis = Axis(kernel, structure.inner, here, self.inner)
            self._point(axis, column, None, {k: rows[u] for k, rows in turned.items()})

    def _strided(self, offsets: Sequence[Value], low: Value, high: Value, first: Value, n: Value, title: str) -> None:
        f = self.kernel.function
        with f.loop(low, high, 1, name=title) as rows:
            axis = Axis(self.kernel, self.kernel.structure.inner, self._row_offsets(offsets, rows.index), self.inner)

            def step(index: Value, mask: str | None, carried: list[str]) -> list[str]:
                self._point(axis, index, mask, {})
                return []

            vector_loop(self.kernel, first, n, 1, step, title="the innermost axis")

    def _point(self, axis: Axis, index: Value, mask: str | None, turned: dict[int, str]) -> None:
        """One vector of points: compute and store."""
        kernel, structure = self.kernel, self.kernel.structure

        def load(k: int) -> str:
            if k in turned:
                return from_memory(kernel.lanes, structure.inputs[k], turned[k])
            return axis.load(k, index, mask)

        values = kernel.values(load, lambda c: axis.coordinate(c, index), kernel.uniform, mask)
        results = [values.of(value) for value in structure.values]
        for output, result in enumerate(results):
            axis.store(output, result, index, mask)


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words and the number of chunks; `canonical` as `tiled` returns it."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    n, m, outer = extents[-1], extents[-2], math.prod(extents[:-2])
    wanted = chunk_count(2 * math.prod(extents) * point_nanoseconds(structure))
    parts = min(math.ceil(wanted / outer), max(1, m // _BLOCK)) if outer < wanted else 1
    block = -(-math.ceil(m / parts) // _BLOCK) * _BLOCK
    parts = math.ceil(m / block)
    rows = math.ceil(outer / max(1, min(outer, wanted // parts)))
    inner = [operand[-1] * size for operand, size in zip(canonical.strides, sizes)]
    across = [operand[-2] * size for operand, size in zip(canonical.strides, sizes)]
    outer_table = table(
        extents[:-2], [[s * size for s in operand[:-2]] for operand, size in zip(canonical.strides, sizes)]
    )
    return [n, m, parts, block, outer, rows, len(extents) - 2, *inner, *across, *outer_table], parts * math.ceil(
        outer / rows
    )

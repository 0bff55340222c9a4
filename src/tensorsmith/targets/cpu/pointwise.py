"""Pointwise schedules: flat (one axis) and nested (vectors along the innermost axis, an odometer over the others).

Taken: every kernel without a reduction that neither the tiled schedule (`transpose.py`) nor the narrow one takes. Fast
because memory is passed over once however long the body is, in whole vectors of consecutive elements, several at a time
where the body is short.

Each vector is loaded, computed and stored before the next one is stored to, so an output may be an input (exactly).

Constant words: n, block, parts, outer, rows, axes, then each operand's byte stride along the innermost axis, then the
odometer's table. Chunk c handles part c % parts of the innermost axis ([part * block, (part + 1) * block) of n) in the
rows [c // parts * rows, ...) of `outer`. The flat schedule has the words n and block and the strides only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensorsmith.kernels.canonical import Canonical, Structure, stride_class
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cpu.access import Axis, vector_loop
from tensorsmith.targets.cpu.body import KernelText, varying_free
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.chunks import chunk_count, point_nanoseconds
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.odometer import Odometer, table

_SHORT, _LONG = 8, 32  # extents for which the innermost axis is exchanged
_FLAT_HEADER = 2
_NESTED_HEADER = 6


def unrolling(kernel: KernelText, classes: tuple[int, ...]) -> int:
    """Vectors per step of the main loop: several of a cheap body, two while their text stays short, one of gathers."""
    if 2 in classes or kernel.cost > 150:
        return 1
    return 4 if kernel.cost <= 12 else 2


def long_axis_inside(canonical: Canonical) -> Canonical:
    """The same kernel with a long axis innermost, where the outputs' own is short and an input is strided on it.

    (H * W, 3) <- (3, H * W) is better written in strides of 3 than read three elements at a time.
    """
    structure, extents = canonical.structure, canonical.extents
    if extents[-1] >= _SHORT or 2 not in structure.inner[: len(structure.inputs)]:
        return canonical
    for k, kind in enumerate(structure.inner[: len(structure.inputs)]):
        if kind != 2 or 1 not in canonical.strides[k]:
            continue
        axis = canonical.strides[k].index(1)
        if extents[axis] < _LONG:
            continue
        order = [a for a in range(len(extents)) if a != axis] + [axis]
        strides = tuple(tuple(operand[a] for a in order) for operand in canonical.strides)
        inner = tuple(stride_class(operand[-1]) for operand in strides)
        return Canonical(replace(structure, inner=inner, pairs=()), tuple(extents[a] for a in order), strides, 0, ())
    return canonical


def build(structure: Structure, machine: Machine, name: str) -> tuple[Function, int]:
    """The kernel function of a pointwise structure and its number of launch words."""
    kernel = KernelText(structure, machine, name)
    f = kernel.function
    chunk = f.value("zext i32 %chunk to i64")
    n, block = kernel.constant_word(0), kernel.constant_word(1)
    header = _NESTED_HEADER if structure.outer else _FLAT_HEADER
    strides: dict[int, Value] = {
        k: kernel.constant_word(header + k) for k, kind in enumerate(structure.inner) if kind == 2
    }
    if not structure.outer:
        low = f.mul(chunk, block)
        _row(kernel, strides, [0] * kernel.structure.operand_count, low, f.minimum(n, f.add(low, block)))
        return f, kernel.launch_words
    parts, outer, rows, axes = (kernel.constant_word(k) for k in range(2, 6))
    low = f.mul(f.urem(chunk, parts), block)
    high = f.minimum(n, f.add(low, block))
    first = f.mul(f.udiv(chunk, parts), rows)
    last = f.minimum(outer, f.add(first, rows))
    axis_table = f.offset("%args", 8 * (kernel.first_constant + header + kernel.structure.operand_count))
    odometer = Odometer(f, axis_table, axes, kernel.structure.operand_count)
    with odometer.walk(first, last, "rows of the outer axes") as offsets:
        _row(kernel, strides, offsets, low, high)
    return f, kernel.launch_words


def _row(kernel: KernelText, strides: dict[int, Value], offsets: list, low: Value, high: Value) -> None:
    """The innermost axis from low to high."""
    structure = kernel.structure
    axis = Axis(kernel, structure.inner, offsets, strides, structure.pairs)

    def stays(kind: Kind, index: int) -> bool:
        if kind is Kind.LOAD:
            return structure.inner[index] == 0
        if kind is Kind.INDEX:
            return structure.inner[structure.first_coordinate + index] == 0
        return kind in (Kind.CONST, Kind.PARAM)

    known = dict(kernel.uniform)
    invariant = kernel.values(axis.broadcast, lambda c: axis.coordinate(c, 0), known, None)
    for position in varying_free(structure.body, lambda instr: stays(instr.kind, instr.index)):
        invariant.of(position)
    known = invariant.values

    def step(index: Value, mask: str | None, carried: list[str]) -> list[str]:
        values = kernel.values(lambda k: axis.load(k, index, mask), lambda c: axis.coordinate(c, index), known, mask)
        axis.store_all({o: values.of(value) for o, value in enumerate(structure.values)}, index, mask)
        return []

    paired = {k for pair in structure.pairs for k in pair}
    classes = tuple(kind for k, kind in enumerate(structure.inner) if k not in paired)
    vector_loop(kernel, low, high, unrolling(kernel, classes), step, title="the innermost axis")


def constants(canonical: Canonical) -> tuple[list[int], int]:
    """The constant words of a pointwise kernel and its number of chunks."""
    structure, extents = canonical.structure, canonical.extents
    sizes = structure.operand_sizes
    n = extents[-1]
    inner = [operand[-1] * size for operand, size in zip(canonical.strides, sizes)]
    cost = point_nanoseconds(structure)
    wanted = chunk_count(math.prod(extents) * cost)
    if not structure.outer:
        block = _round_up(math.ceil(n / wanted), 64)
        return [n, block, *inner], math.ceil(n / block)
    outer = math.prod(extents[:-1])
    parts = 1
    if outer < wanted and n >= 4096:  # few long rows: split the rows themselves
        parts = min(math.ceil(wanted / outer), n // 2048)
    block = _round_up(math.ceil(n / parts), 64)
    parts = math.ceil(n / block)
    rows = math.ceil(outer / max(1, min(outer, wanted // parts)))
    outer_table = table(
        extents[:-1], [[s * size for s in operand[:-1]] for operand, size in zip(canonical.strides, sizes)]
    )
    words = [n, block, parts, outer, rows, len(extents) - 1, *inner, *outer_table]
    return words, parts * math.ceil(outer / rows)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

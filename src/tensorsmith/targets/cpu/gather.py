"""Gather and scatter kernels (`kernels/spec_index.py`): whole rows as vectors, or single elements.

    rows      no index varies along the innermost axis and both sides are consecutive there: the indices are read once
              per row, which is moved (or added) as vectors
    vectors   indices and `other` are consecutive: indices are checked a vector at a time, elements moved without a branch
    elements  anything else: one element at a time

A scatter's chunks own disjoint destinations: blocks of an axis along which the table has a stride. Constant words: n,
block, parts, outer, rows, axes, then size and byte step of each index, then every operand's byte stride along the
innermost axis, then the odometer's table. Operands: table, indices, other, and the index position as a coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec_index import IndexSpec
from tensorsmith.targets.cpu.body import ARGUMENTS, memory_element
from tensorsmith.targets.cpu.build import Function, Value, module_text
from tensorsmith.targets.cpu.casts import narrow_half, widen_half
from tensorsmith.targets.cpu.chunks import chunk_count
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.lower import CompiledKernel, LoweredKernel
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.vector import Lanes, size_of

_HEADER = 6


@dataclass(frozen=True)
class IndexStructure:
    """What a compiled index kernel depends on."""

    mode: str
    dtype: DType
    indices: tuple[tuple[DType, bool], ...]  # dtype and wrap of each index
    way: str  # rows, vectors or elements


class _IndexKernel:
    """Emits one gather or scatter kernel."""

    def __init__(self, structure: IndexStructure, machine: Machine, name: str) -> None:
        self.structure = structure
        self.f = f = Function(name, ARGUMENTS)
        count = len(structure.indices)
        self.operands = count + 3
        self.launch_words = count + 2
        self.addresses = [f.word("%args", k, "ptr") for k in range(self.launch_words)]
        self.error_word = f.word("%args", self.launch_words, "ptr")
        self.element = memory_element(structure.dtype)
        self.lanes = Lanes(f, max(machine.vector_bytes // max(structure.dtype.itemsize, 2), 2), machine)
        self.one = Lanes(f, 1, machine)
        self.wide = Lanes(f, max(machine.vector_bytes // 8, 2), machine)
        self.sizes = [self._constant(_HEADER + 2 * k) for k in range(count)]
        self.steps = [self._constant(_HEADER + 2 * k + 1) for k in range(count)]

    def _constant(self, index: int) -> Value:
        return self.f.word("%args", self.launch_words + 1 + index)

    def build(self) -> Function:
        """The whole kernel."""
        f = self.f
        n, block, parts, outer, rows, axes = (self._constant(k) for k in range(_HEADER))
        inner_at = _HEADER + 2 * len(self.structure.indices)
        self.inner: list[Value] = [self._constant(inner_at + k) for k in range(self.operands)]
        chunk = f.value("zext i32 %chunk to i64")
        low = f.mul(f.urem(chunk, parts), block)
        high = f.minimum(n, f.add(low, block))
        first = f.mul(f.udiv(chunk, parts), rows)
        last = f.minimum(outer, f.add(first, rows))
        axis_table = f.offset("%args", 8 * (self.launch_words + 1 + inner_at + self.operands))
        odometer = Odometer(f, axis_table, axes, self.operands)
        with odometer.walk(first, last, "points of the outer axes") as offsets:
            if self.structure.way == "rows":
                self._row(offsets, low, high)
            elif self.structure.way == "vectors":
                self._vectors(offsets, low, high)
            else:
                self._elements(offsets, low, high)
        return f

    def _place(self, offsets: list[Value]) -> tuple[str, Value]:
        """(whether all indices are in range, byte offset in the table) at the point with these operand offsets."""
        f = self.f
        inside = "true"
        place: Value = offsets[0]
        for k, (dtype, wrap) in enumerate(self.structure.indices):
            pointer = f.offset(self.addresses[1 + k], offsets[1 + k])
            kind = "i64" if dtype.itemsize == 8 else "i32"
            index: Value = f.load(kind, pointer, dtype.itemsize)
            if kind == "i32":
                index = f.value(f"sext i32 {index} to i64")
            if wrap:
                negative = f.compare("slt", index, 0)
                index = f.select(negative, "i64", f.add(index, self.sizes[k]), index)
            valid = f.compare("ult", index, self.sizes[k])
            inside = valid if inside == "true" else f.value(f"and i1 {inside}, {valid}")
            place = f.add(place, f.mul(index, self.steps[k]))
        return inside, place

    def _report(self, position: Value) -> None:
        self.f.store(self.f.add(position, FIRST_POINT), "i64", self.error_word, 8)

    def _row(self, offsets: list[str], low: Value, high: Value) -> None:
        f = self.f
        inside, place = self._place(list(offsets))
        size = size_of(self.element)

        def move() -> None:
            start = f.mul(low, size)
            there = f.offset(f.offset(self.addresses[0], place), start)
            here = f.offset(f.offset(self.addresses[-1], offsets[-2]), start)
            count = f.sub(high, low)
            done = f.round_down(count, 4 * self.lanes.count)
            with f.loop(0, done, 4 * self.lanes.count, name=f"4 x {self.lanes.count} lanes of the row") as loop:
                for u in range(4):
                    self._move(self.lanes, there, here, f.add(loop.index, u * self.lanes.count), None)
            with f.loop(done, count, self.lanes.count, name=f"{self.lanes.count} masked lanes of the row") as rest:
                self._move(self.lanes, there, here, rest.index, self.lanes.below(f.sub(count, rest.index)))

        f.branch(inside, move, lambda: self._report(offsets[-1]))

    def _elements(self, offsets: list[str], low: Value, high: Value) -> None:
        f = self.f
        with f.loop(low, high, 1, name="elements") as loop:
            here = [f.add(offset, f.mul(loop.index, step)) for offset, step in zip(offsets, self.inner)]
            inside, place = self._place(here)

            def move() -> None:
                there = f.offset(self.addresses[0], place)
                self._move(self.one, there, f.offset(self.addresses[-1], here[-2]), 0, None)

            f.branch(inside, move, lambda: self._report(here[-1]))

    def _vectors(self, offsets: list[str], low: Value, high: Value) -> None:
        """Vectors of elements whose indices are all in range; a vector with one that is not, and the rest, one by one."""
        f, wide = self.f, self.wide
        end = f.add(low, f.round_down(f.sub(high, low), wide.count))
        lanes_apart = wide.op("mul", "i64", wide.iota("i64"), wide.splat("i64", str(self.inner[0])))
        with f.loop(low, end, wide.count, name=f"{wide.count} elements") as loop:
            first = f.add(offsets[0], f.mul(loop.index, self.inner[0]))
            place = wide.op("add", "i64", lanes_apart, wide.splat("i64", str(first)))
            outside = ""
            for k, (dtype, wrap) in enumerate(self.structure.indices):
                kind = "i64" if dtype.itemsize == 8 else "i32"
                start = f.offset(self.addresses[1 + k], offsets[1 + k])
                loaded = wide.load(kind, f.offset(start, f.mul(loop.index, dtype.itemsize)))
                index = wide.convert("sext", kind, "i64", loaded)
                size = wide.splat("i64", str(self.sizes[k]))
                if wrap:
                    negative = wide.compare("slt", "i64", index, wide.constant("i64", 0))
                    index = wide.select(negative, "i64", wide.op("add", "i64", index, size), index)
                faulty = wide.compare("uge", "i64", index, size)
                outside = wide.op("or", "i1", outside, faulty) if outside else faulty
                step = wide.op("mul", "i64", index, wide.splat("i64", str(self.steps[k])))
                place = wide.op("add", "i64", place, step)
            here = f.offset(self.addresses[-1], offsets[-2])

            def moved() -> None:
                # Single loads: gather instructions are no faster, and wait for their slowest element.
                for lane in range(wide.count):
                    there = f.offset(self.addresses[0], wide.extract("i64", place, lane))
                    other = f.offset(here, f.mul(f.add(loop.index, lane), size_of(self.element)))
                    self._move(self.one, there, other, 0, None)

            f.branch(
                wide.any(outside), lambda: self._elements(offsets, loop.index, f.add(loop.index, wide.count)), moved
            )
        self._elements(offsets, end, high)

    def _move(self, lanes: Lanes, there: str, here: str, index: Value, mask: str | None) -> None:
        """Move (or add) one vector between the table (`there`) and the other operand (`here`)."""
        f = self.f
        byte = f.mul(index, size_of(self.element))
        table_pointer, other_pointer = f.offset(there, byte), f.offset(here, byte)
        if self.structure.mode == "gather":
            lanes.store(self.element, lanes.load(self.element, table_pointer, mask), other_pointer, mask)
            return
        value = lanes.load(self.element, other_pointer, mask)
        if self.structure.mode == "scatter_add":
            value = self._sum(lanes, lanes.load(self.element, table_pointer, mask), value)
        lanes.store(self.element, value, table_pointer, mask)

    def _sum(self, lanes: Lanes, a: str, b: str) -> str:
        dtype, element = self.structure.dtype, self.element
        if dtype in (dtypes.float16, dtypes.bfloat16):
            total = lanes.op("fadd", "float", widen_half(lanes, dtype, a), widen_half(lanes, dtype, b))
            return narrow_half(lanes, dtype, total)
        if dtype.kind == "b":
            return lanes.op("or", element, a, b)
        return lanes.op("fadd" if dtype.is_floating_point else "add", element, a, b)


_kernels: CompiledOnce[tuple[IndexStructure, Machine], CompiledKernel] = CompiledOnce()


def lower_index(spec: IndexSpec, machine: Machine | None = None) -> LoweredKernel:
    """The compiled kernel of a gather or scatter, with the words of its recipe.

    Launch words: addresses of the table, of each index, of the other operand.
    """
    machine = machine or default_machine()
    size = spec.dtype.itemsize
    columns = [spec.table.strides, *(i.operand.strides for i in spec.indices), spec.other.strides, _positions(spec)]
    # A gather writes its output in memory order; a scatter keeps the domain's order, so that the last write wins.
    extents, strides = arrange(spec.domain, columns, [len(columns) - 2] if spec.mode == "gather" else [])
    indexed = any(operand[-1] for operand in strides[1:-2])
    rows = not indexed and strides[0][-1] == 1 and strides[-2][-1] == 1 and extents[-1] > 1
    consecutive = all(operand[-1] == 1 for operand in strides[1:-1])
    way = "rows" if rows else "vectors" if consecutive and indexed else "elements"
    structure = IndexStructure(spec.mode, spec.dtype, tuple((i.operand.dtype, i.wrap) for i in spec.indices), way)
    kernel = _kernels.get((structure, machine), lambda: _compile(structure, machine))
    n, outer, block, parts, per_chunk = _partition(spec, rows, extents, strides)
    sizes = [size, *(i.operand.dtype.itemsize for i in spec.indices), size, 1]
    words = [n, block, parts, outer, per_chunk, len(extents) - 1]
    for index in spec.indices:
        words += [index.size, index.step * size]
    words += [operand[-1] * bytes_each for operand, bytes_each in zip(strides, sizes)]
    words += table(extents[:-1], [[s * b for s in operand[:-1]] for operand, b in zip(strides, sizes)])
    points = math.prod(spec.domain)
    moved = points * size * (3 if spec.mode == "scatter_add" else 2)
    return LoweredKernel(kernel, parts * math.ceil(outer / per_chunk), words, 0, moved, 0)


def lower_gather(spec: IndexSpec, machine: Machine | None = None) -> LoweredKernel:
    """`lower_index` under the name of its commonest use."""
    return lower_index(spec, machine)


def compiled_index_kernels() -> int:
    """How many index kernels this process has made so far."""
    return len(_kernels)


def _positions(spec: IndexSpec) -> tuple[int, ...]:
    """Row-major strides over the axes along which an index has a stride; 0 along the others."""
    strides = [0] * len(spec.domain)
    step = 1
    for axis in reversed(range(len(spec.domain))):
        if spec.domain[axis] > 1 and any(i.operand.strides[axis] for i in spec.indices):
            strides[axis] = step
            step *= spec.domain[axis]
    return tuple(strides)


def _partition(
    spec: IndexSpec, rows: bool, extents: tuple[int, ...], strides: tuple[tuple[int, ...], ...]
) -> tuple[int, int, int, int, int]:
    """(n, outer, block, parts, outer points per chunk)."""
    n, outer = extents[-1], math.prod(extents[:-1])
    nanoseconds = n * outer * (0.1 * spec.dtype.itemsize if rows else 1.5) + outer * 5
    wanted = chunk_count(nanoseconds)
    parts, per_chunk, least = 1, outer, 64 if rows else 1024
    splits_inner = spec.mode == "gather" or strides[0][-1] != 0
    if spec.mode == "gather" and outer >= wanted:
        per_chunk = math.ceil(outer / wanted)
    elif spec.mode != "gather" and len(extents) > 1 and strides[0][0] != 0 and extents[0] >= 2:
        # Whole steps of the outermost axis: their destinations are disjoint.
        per_chunk = outer // extents[0] * math.ceil(extents[0] / min(wanted, extents[0]))
    elif splits_inner:
        parts = max(1, min(wanted, n // least))
    block = -(-math.ceil(n / parts) // 64) * 64
    return n, outer, block, math.ceil(n / block), per_chunk


def _compile(structure: IndexStructure, machine: Machine) -> CompiledKernel:
    symbol = f"kernel_{structure.mode}_{structure.way}"
    emitter = _IndexKernel(structure, machine, symbol)
    function = emitter.build()
    text = module_text([function])
    (address,) = compile_functions(text, [symbol], machine)
    return CompiledKernel(symbol, address, emitter.launch_words, text, function.structure)

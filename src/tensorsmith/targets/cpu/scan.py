"""Scan kernels (`kernels/spec_scan.py`): vectors along the scanned axis, or across rows that lie side by side.

    along     source and result are consecutive along the scanned axis: each vector becomes its own running values in
              log2(lanes) shuffles, then all before it is joined to it; between vectors only the total is carried, so the
              chain of dependent operations is one per vector
    across    they are consecutive along another axis: one lane a row, several vectors at a time
    elements  neither: one row at a time, one element after the other

Chunks are ranges of rows. The order in which values are joined depends on the shape and the machine's vectors only.
Constant words: the scanned extent, columns (rows that lie side by side), block, parts, outer, rows, axes, the byte steps of
source and result along the scanned axis, then the odometer's table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_scan import JOINED, PLACES, ScanSpec, identity
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cpu.body import ARGUMENTS, memory_element
from tensorsmith.targets.cpu.build import Function, Value, module_text
from tensorsmith.targets.cpu.casts import cast
from tensorsmith.targets.cpu.chunks import chunk_count
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.lower import CompiledKernel, LoweredKernel
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.scalars import RENDERINGS
from tensorsmith.targets.cpu.vector import Lanes, element_of

Parts = tuple[str, ...]  # the state of a lane: a value and, for places, where it was met

_LAUNCH_WORDS = 2
_HEADER = 9
_MOST_LANES = 16  # along the axis: more would only lengthen the shuffles
_FARTHEST = 500.0  # below the largest exponent: exp(-500) is far from the end of float64


@dataclass(frozen=True)
class ScanStructure:
    """What a compiled scan depends on."""

    kind: str
    dtype: DType
    state: DType
    way: str  # along, across or elements


class _ScanKernel:
    """Emits one scan."""

    def __init__(self, structure: ScanStructure, machine: Machine, name: str) -> None:
        self.structure = structure
        self.f = Function(name, ARGUMENTS)
        self.element = element_of(structure.state)
        self.memory = memory_element(structure.dtype)
        places = structure.kind in PLACES
        widest = 8 if places else max(structure.state.itemsize, structure.dtype.itemsize, 2)
        lanes = 1 if structure.way == "elements" else max(machine.vector_bytes // widest, 2)
        self.lanes = Lanes(self.f, min(lanes, _MOST_LANES), machine)
        self.places = places
        self.sizes = (structure.dtype.itemsize, 8 if self.places else structure.dtype.itemsize)
        self.kinds = (self.lanes.type(self.element), self.lanes.type("i64"))
        first = self.lanes.constant(self.element, identity(structure.kind, structure.state))
        # Sums start from 0.0; what is shifted in is -0.0, which is no special constant that costs slow instructions.
        floating = structure.kind == "sum" and structure.state.is_floating_point
        filler = self.lanes.constant(self.element, -0.0) if floating else first
        place = (self.lanes.constant("i64", 0),) if self.places else ()
        self.start: Parts = (first, *place)
        self.filler: Parts = (filler, *place)
        self.error = self.f.word("%args", _LAUNCH_WORDS, "ptr")

    def build(self) -> Function:
        """The whole kernel."""
        f = self.f
        source, result = (f.word("%args", k, "ptr") for k in range(_LAUNCH_WORDS))
        constants = [f.word("%args", _LAUNCH_WORDS + 1 + k) for k in range(_HEADER)]
        extent, columns, block, parts, outer, rows, axes, *steps = constants
        chunk = f.value("zext i32 %chunk to i64")
        low = f.mul(f.urem(chunk, parts), block)
        high = f.minimum(columns, f.add(low, block))
        first = f.mul(f.udiv(chunk, parts), rows)
        last = f.minimum(outer, f.add(first, rows))
        odometer = Odometer(f, f.offset("%args", 8 * (_LAUNCH_WORDS + 1 + _HEADER)), axes, 2)
        with odometer.walk(first, last, "rows") as offsets:
            ends = [f.offset(source, offsets[0]), f.offset(result, offsets[1])]
            if self.structure.way == "along":
                self._along(ends, extent)
            elif self.structure.way == "across":
                self._across(ends, extent, steps, low, high)
            else:
                self._columns(ends, extent, steps, 1, None)
        return f

    def _join(self, a: Parts, b: Parts) -> Parts:
        """What was met, then the next value."""
        state = self.structure.state
        if self.structure.kind in ("max", "min") and state.is_floating_point:
            # Of equal zeros the later one, which is where cummax and cummin say that the extreme was met.
            better = self.lanes.compare("ogt" if self.structure.kind == "max" else "olt", self.element, a[0], b[0])
            stays = self.lanes.op("or", "i1", better, self.lanes.compare("uno", self.element, a[0], a[0]))
            return (self.lanes.select(stays, self.element, a[0], b[0]),)
        if not self.places:
            context = Context(self.lanes, self.error)
            return (RENDERINGS[JOINED[self.structure.kind]](context, state, (a[0], b[0])),)
        element, larger = self.element, self.structure.kind == "argmax"
        if state.is_floating_point:
            newer = self.lanes.compare("oge" if larger else "ole", element, b[0], a[0])
            newer = self.lanes.op("or", "i1", newer, self.lanes.compare("uno", element, b[0], b[0]))
        else:
            signed = "s" if state.kind == "i" else "u"
            newer = self.lanes.compare(f"{signed}{'ge' if larger else 'le'}", element, b[0], a[0])
        kinds = (element, "i64")
        return tuple([self.lanes.select(newer, kind, y, x) for kind, x, y in zip(kinds, a, b)])

    def _load(self, pointer: str, first: Value, apart: bool, mask: str | None) -> Parts:
        """Values in the state's dtype, and where they stand: at `first`, or from it on along the axis (`apart`)."""
        value = self.lanes.load(self.memory, pointer, mask)
        if self.structure.dtype.kind == "b":
            value = self.lanes.convert("trunc", "i8", "i1", value)
        else:
            value = cast(self.lanes, self.structure.dtype, self.structure.state, value)
        if not self.places:
            return (value,)
        place = self.lanes.splat("i64", str(first))
        return value, self.lanes.op("add", "i64", place, self.lanes.iota("i64")) if apart else place

    def _store(self, parts: Parts, pointer: str, mask: str | None) -> None:
        value = parts[-1]
        if self.places:
            self.lanes.store("i64", value, pointer, mask)
            return
        if self.structure.dtype.kind == "b":
            value = self.lanes.convert("zext", "i1", "i8", value)
        else:
            value = cast(self.lanes, self.structure.state, self.structure.dtype, value)
        self.lanes.store(self.memory, value, pointer, mask)

    def _shifted(self, parts: Parts, distance: int) -> Parts:
        """The lanes moved up by `distance`, the identity in those below."""
        count = self.lanes.count
        order = ", ".join(f"i32 {k - distance if k >= distance else count + k}" for k in range(count))
        return self._shuffled(parts, self.filler, order)

    def _last(self, parts: Parts) -> Parts:
        """The last lane in all."""
        count = self.lanes.count
        return self._shuffled(parts, ("poison", "poison"), ", ".join([f"i32 {count - 1}"] * count))

    def _shuffled(self, parts: Parts, others: Sequence[str], order: str) -> Parts:
        found = []
        for value, other, kind in zip(parts, others, self.kinds):
            found.append(self.f.value(f"shufflevector {kind} {value}, {kind} {other}, <{self.lanes.count} x i32> <{order}>"))
        return tuple(found)

    def _along(self, ends: Sequence[str], extent: Value) -> None:
        f, count = self.f, self.lanes.count

        # Of float32, whose state is wider: what a common maximum costs in digits is beyond the last one of the result.
        near = self.structure.kind == "logsumexp" and self.structure.dtype is dtypes.float32

        def step(index: Value, carry: Parts, mask: str | None) -> Parts:
            here = [f.offset(end, f.mul(index, size)) for end, size in zip(ends, self.sizes)]
            value = self._load(here[0], index, True, mask)
            if near:
                found = (self._log_of_sums(carry, value),)
                self._store(found, here[1], mask)
                return self._last(found)
            value = self._prefix(value)
            self._store(self._join(carry, value), here[1], mask)
            return self._join(carry, self._last(value))

        whole = f.round_down(extent, count)
        carried = list(zip(self.kinds, self.start))
        with f.loop(0, whole, count, carried, name=f"{count} lanes along the axis") as loop:
            loop.next = list(step(loop.index, tuple(loop.carried), None))
        carry = tuple(str(value) for value in loop.out)
        with f.loop(whole, extent, count, name=f"{count} masked lanes along the axis") as rest:
            step(rest.index, carry, self.lanes.below(f.sub(extent, rest.index)))

    def _prefix(self, value: Parts) -> Parts:
        """Every lane joined with all below it."""
        distance = 1
        while distance < self.lanes.count:
            value = self._join(self._shifted(value, distance), value)
            distance *= 2
        return value

    def _log_of_sums(self, carry: Parts, value: Parts) -> str:
        """Log-sum-exps of a vector by one exponential and one logarithm: of running sums of exp(x - m), m the largest.

        Where some x is so far below m that its exponential would vanish, or nothing is finite, lanes are joined one by one.
        """
        lanes, state, element = self.lanes, self.structure.state, self.element
        context = Context(lanes, self.error)

        def apply(fn: Fn, *arguments: str) -> str:
            return RENDERINGS[fn](context, state, arguments)

        largest = apply(Fn.MAXIMUM, carry[0], value[0])
        distance = 1
        while distance < lanes.count:
            largest = apply(Fn.MAXIMUM, largest, lanes.rotate(element, largest, distance))
            distance *= 2
        least = lanes.op("fsub", element, largest, lanes.constant(element, _FARTHEST))
        far = lanes.compare("ult", element, value[0], least)
        far = lanes.op("or", "i1", far, apply(Fn.ISINF, largest))

        def joined() -> list[str]:
            return [self._join(carry, self._prefix(value))[0]]

        def summed() -> list[str]:
            total = apply(Fn.EXP, lanes.op("fsub", element, value[0], largest))
            filler = lanes.constant(element, -0.0)
            distance = 1
            while distance < lanes.count:
                count = lanes.count
                order = ", ".join(f"i32 {k - distance if k >= distance else count + k}" for k in range(count))
                total = lanes.op("fadd", element, self._shuffled((total,), (filler,), order)[0], total)
                distance *= 2
            before = apply(Fn.EXP, lanes.op("fsub", element, carry[0], largest))
            logarithm = apply(Fn.LOG, lanes.op("fadd", element, total, before))
            return [lanes.op("fadd", element, largest, logarithm)]

        return self.f.choose(lanes.any(far), [self.kinds[0]], joined, summed)[0]

    def _across(self, ends: Sequence[str], extent: Value, steps: Sequence[Value], low: Value, high: Value) -> None:
        f, count = self.f, self.lanes.count
        vectors = 1 if self.structure.kind == "logsumexp" else 4
        end = f.add(low, f.round_down(f.sub(high, low), count * vectors))

        def here(column: Value) -> list[str]:
            return [f.offset(pointer, f.mul(column, size)) for pointer, size in zip(ends, self.sizes)]

        with f.loop(low, end, count * vectors, name=f"{vectors} x {count} rows side by side") as loop:
            self._columns(here(loop.index), extent, steps, vectors, None)
        with f.loop(end, high, count, name=f"{count} masked rows side by side") as rest:
            self._columns(here(rest.index), extent, steps, 1, self.lanes.below(f.sub(high, rest.index)))

    def _columns(
        self, ends: Sequence[str], extent: Value, steps: Sequence[Value], vectors: int, mask: str | None
    ) -> None:
        """Walk the axis with one state a lane."""
        f, parts = self.f, len(self.start)
        carried = list(zip(self.kinds, self.start)) * vectors
        with f.loop(0, extent, 1, carried, name="positions of the axis") as loop:
            places = [f.offset(pointer, f.mul(loop.index, step)) for pointer, step in zip(ends, steps)]
            states: list[Value] = []
            for k in range(vectors):
                before = tuple(loop.carried[k * parts : (k + 1) * parts])
                here = [f.offset(place, k * self.lanes.count * size) for place, size in zip(places, self.sizes)]
                state = self._join(before, self._load(here[0], loop.index, False, mask))
                self._store(state, here[1], mask)
                states += state
            loop.next = states


_kernels: CompiledOnce[tuple[ScanStructure, Machine], CompiledKernel] = CompiledOnce()


def lower_scan(spec: ScanSpec, machine: Machine | None = None) -> LoweredKernel:
    """The compiled kernel of a scan, with the words of its recipe.

    Launch words: addresses of the source and of the result. NotImplementedError for dtypes that kernels do not have.
    """
    machine = machine or default_machine()
    extents, strides = arrange(spec.domain, [spec.source, spec.result], [1], (spec.axis,))
    steps = [spec.source[spec.axis], spec.result[spec.axis]]
    extent = spec.domain[spec.axis]
    beside = extents[-1] > 1 and all(operand[-1] == 1 for operand in strides)
    way = "across" if beside else "elements"
    if steps == [1, 1] and extent > 1 and (not beside or extent >= 64 or spec.kind != "logsumexp"):
        way = "along"
    structure = ScanStructure(spec.kind, spec.dtype, spec.state_dtype, way)
    kernel = _kernels.get((structure, machine), lambda: _compile(structure, machine))
    columns = extents[-1] if way == "across" else 1
    outer = math.prod(extents) // columns
    nanoseconds = _nanoseconds(structure, extent * columns * outer)
    wanted = chunk_count(nanoseconds)
    parts, per_chunk = 1, outer
    if outer >= wanted:
        per_chunk = math.ceil(outer / wanted)
    elif way == "across":
        parts, per_chunk = max(1, min(wanted, columns // 64)), max(outer, 1)
        parts, per_chunk = (parts, 1) if outer * parts <= 4 * wanted else (parts, outer)
    block = -(-math.ceil(columns / parts) // 64) * 64
    parts = math.ceil(columns / block)
    walked = len(extents) - 1 if way == "across" else len(extents)
    sizes = (spec.dtype.itemsize, spec.result_dtype.itemsize)
    words = [extent, columns, block, parts, outer, per_chunk, walked, *[step * size for step, size in zip(steps, sizes)]]
    words += table(extents[:walked], [[s * size for s in operand[:walked]] for operand, size in zip(strides, sizes)])
    points = math.prod(spec.domain)
    chunks = parts * math.ceil(outer / per_chunk)
    return LoweredKernel(kernel, chunks, words, 0, points * sum(sizes), points)


def _nanoseconds(structure: ScanStructure, points: int) -> float:
    """Estimated time."""
    if structure.kind == "logsumexp":
        return points * (20.0 if structure.way == "elements" else 3.0)
    return points * {"along": 0.5, "across": 0.3, "elements": 1.5}[structure.way]


def _compile(structure: ScanStructure, machine: Machine) -> CompiledKernel:
    symbol = f"kernel_scan_{structure.kind}_{structure.way}"
    function = _ScanKernel(structure, machine, symbol).build()
    text = module_text([function])
    (address,) = compile_functions(text, [symbol], machine)
    return CompiledKernel(symbol, address, _LAUNCH_WORDS, text, function.structure)

"""Searches in sorted sequences (`kernels/spec_order.py`): several values at a time, halving without a branch.

Every value takes the same number of steps, which depends on the sequence's extent alone, so the loads of one value overlap
with those of the others. A NaN is larger than all; NaNs at a sequence's end are left out of the search, which then needs
one comparison a step.

Constant words: `WORDS`, then the odometer's table over all axes but the innermost one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import arrange
from tensorsmith.kernels.spec_order import SearchSpec
from tensorsmith.targets.cpu.body import ARGUMENTS, memory_element
from tensorsmith.targets.cpu.build import Function, Value, module_text
from tensorsmith.targets.cpu.casts import cast
from tensorsmith.targets.cpu.chunks import chunk_count
from tensorsmith.targets.cpu.compiled_once import CompiledOnce
from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.lower import CompiledKernel, LoweredKernel
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine
from tensorsmith.targets.cpu.odometer import Odometer, table
from tensorsmith.targets.cpu.vector import Lanes, element_of

WORDS = ("extent", "columns", "block", "parts", "outer", "per_chunk", "axes", "values", "result")
_LAUNCH_WORDS = 3
_AT_ONCE = 8  # values that are searched for together
_HALVING_NANOSECONDS = 0.5  # of one value


@dataclass(frozen=True)
class SearchStructure:
    """What a compiled kernel depends on."""

    dtype: DType
    right: bool


class _SearchKernel:
    """Emits one kernel."""

    def __init__(self, structure: SearchStructure, machine: Machine, name: str) -> None:
        self.dtype, self.right = structure.dtype, structure.right
        self.f = Function(name, ARGUMENTS)
        self.lane = Lanes(self.f, 1, machine)
        self.compared = dtypes.float32 if self.dtype.is_half else self.dtype
        self.element = element_of(self.compared)

    def build(self) -> Function:
        """The whole kernel."""
        f = self.f
        sequences, values, result = (f.word("%args", k, "ptr") for k in range(_LAUNCH_WORDS))
        word = {name: f.word("%args", _LAUNCH_WORDS + 1 + k) for k, name in enumerate(WORDS)}
        chunk = f.value("zext i32 %chunk to i64")
        low = f.mul(f.urem(chunk, word["parts"]), word["block"])
        high = f.minimum(word["columns"], f.add(low, word["block"]))
        first = f.mul(f.udiv(chunk, word["parts"]), word["per_chunk"])
        last = f.minimum(word["outer"], f.add(first, word["per_chunk"]))
        self.extent, self.steps = word["extent"], (word["values"], word["result"])
        at_table = f.offset("%args", 8 * (_LAUNCH_WORDS + 1 + len(WORDS)))
        with Odometer(f, at_table, word["axes"], 3).walk(first, last, "rows of values") as offsets:
            self.sequence = f.offset(sequences, offsets[0])
            self.ends = f.offset(values, offsets[1]), f.offset(result, offsets[2])
            numbers = self._numbers()
            halvings = f.sub(64, f.call("i64", "llvm.ctlz.i64", ("i64", f.sub(numbers, 1)), ("i1", "false")))
            f.branch(
                f.compare("eq", numbers, 0), lambda: self._nothing(low, high),
                lambda: self._search(low, high, numbers, halvings),
            )  # fmt: skip
        return f

    def _load(self, pointer: str) -> str:
        """One value as it is compared."""
        value = cast(self.lane, self.dtype, self.compared, self.lane.load(memory_element(self.dtype), pointer))
        return self.lane.extract(self.element, value)

    def _is_nan(self, value: str) -> str:
        return self.f.value(f"fcmp uno {self.element} {value}, {value}")

    def _numbers(self) -> Value:
        """How many elements of the sequence come before its NaNs."""
        f, extent = self.f, self.extent
        if self.compared.kind != "f":
            return extent

        def found() -> list[Value]:
            with f.loop(0, 64, 1, [("i64", "0"), ("i64", extent)], name="halved intervals of the first NaN") as loop:
                low, high = loop.carried
                middle = f.value(f"lshr i64 {f.add(low, high)}, 1")
                at = f.offset(self.sequence, f.mul(f.minimum(middle, f.sub(extent, 1)), self.dtype.itemsize))
                nan = self._is_nan(self._load(at))
                open_ = f.compare("slt", low, high)
                below = f.value(f"and i1 {open_}, {f.value(f'xor i1 {nan}, true')}")
                loop.next = [
                    f.select(below, "i64", f.add(middle, 1), low),
                    f.select(f.value(f"and i1 {open_}, {nan}"), "i64", middle, high),
                ]
            return [loop.out[0]]

        def checked() -> Sequence[Value]:
            last = self._load(f.offset(self.sequence, f.mul(f.sub(extent, 1), self.dtype.itemsize)))
            return f.choose(self._is_nan(last), ["i64"], found, lambda: [extent], rare=True)

        return f.choose(f.compare("sgt", extent, 0), ["i64"], checked, lambda: [0])[0]

    def _finished(self, place: Value, value: str) -> Value:
        """After the NaNs too, where a NaN goes to the right."""
        if not self.right or self.compared.kind != "f":
            return place
        return self.f.select(self._is_nan(value), "i64", self.extent, place)

    def _nothing(self, low: Value, high: Value) -> None:
        """There is no number in the sequence."""
        f = self.f
        with f.loop(low, high, 1) as loop:
            value = self._load(f.offset(self.ends[0], f.mul(loop.index, self.steps[0])))
            f.store(self._finished("0", value), "i64", f.offset(self.ends[1], f.mul(loop.index, self.steps[1])), 8)

    def _search(self, low: Value, high: Value, numbers: Value, halvings: Value) -> None:
        f = self.f
        end = f.add(low, f.mul(f.udiv(f.sub(high, low), _AT_ONCE), _AT_ONCE))
        with f.loop(low, end, _AT_ONCE, name=f"{_AT_ONCE} values") as loop:
            self._together(loop.index, _AT_ONCE, numbers, halvings)
        with f.loop(end, high, 1, name="values left over") as rest:
            self._together(rest.index, 1, numbers, halvings)

    def _together(self, index: Value, count: int, numbers: Value, halvings: Value) -> None:
        f, size = self.f, self.dtype.itemsize
        here = [f.offset(end, f.mul(index, step)) for end, step in zip(self.ends, self.steps)]
        values = [self._load(f.offset(here[0], f.mul(self.steps[0], k))) for k in range(count)]
        carried: list[tuple[str, Value]] = [("i64", numbers), *[("ptr", self.sequence)] * count]
        with f.loop(0, halvings, 1, carried, name="halvings") as loop:
            length, *bases = loop.carried
            half = f.value(f"lshr i64 {length}, 1")
            reach = f.mul(half, size)
            following: list[Value] = [f.sub(length, half)]
            for base, value in zip(bases, values):
                probe = f.offset(base, reach)
                below = self._below(self._load(f.offset(probe, -size)), value)
                taken = f.value(f"and i64 {f.value(f'sext i1 {below} to i64')}, {reach}")  # a select may become a branch
                following.append(f.offset(base, taken))
            loop.next = following
        start = f.value(f"ptrtoint ptr {self.sequence} to i64")
        for k, (found, value) in enumerate(zip(loop.out[1:], values)):
            more = f.value(f"zext i1 {self._below(self._load(str(found)), value)} to i64")
            bytes_before = f.sub(f.value(f"ptrtoint ptr {found} to i64"), start)
            place = self._finished(f.add(f.value(f"sdiv exact i64 {bytes_before}, {size}"), more), value)
            f.store(place, "i64", f.offset(here[1], f.mul(self.steps[1], k)), 8)

    def _below(self, element: str, value: str) -> str:
        """Whether an element stands before a value; a NaN among the values stands behind all numbers."""
        predicate = "le" if self.right else "lt"
        if self.compared.kind == "f":
            return self.f.value(f"fcmp u{predicate} {self.element} {element}, {value}")
        sign = "s" if self.compared.kind == "i" else "u"
        return self.f.compare(sign + predicate, element, value, self.element)


_kernels: CompiledOnce[tuple[SearchStructure, Machine], CompiledKernel] = CompiledOnce()


def lower_search(spec: SearchSpec, machine: Machine | None = None) -> LoweredKernel:
    """The compiled kernel, with the words of its recipe. NotImplementedError for dtypes that kernels do not have."""
    machine = machine or default_machine()
    structure = SearchStructure(spec.dtype, spec.right)
    kernel = _kernels.get((structure, machine), lambda: _compile(structure, machine))
    size = spec.dtype.itemsize
    extents, strides = arrange(spec.domain, [spec.sequence, spec.values, spec.result], [2])
    one_sequence = extents[-1] == 1 or strides[0][-1] == 0
    columns = extents[-1] if one_sequence else 1
    walked = len(extents) - (1 if one_sequence else 0)
    outer = math.prod(extents[:walked])
    halvings = max(spec.extent.bit_length(), 1)
    wanted = chunk_count(columns * outer * _HALVING_NANOSECONDS * halvings)
    parts, per_chunk = 1, math.ceil(outer / wanted)
    if outer < wanted:
        parts, per_chunk = max(1, min(wanted // outer, columns // _AT_ONCE)), 1
    block = math.ceil(columns / parts)
    parts = math.ceil(columns / block)
    sizes = (size, size, 8)
    values = {
        "extent": spec.extent, "columns": columns, "block": block, "parts": parts, "outer": outer, "per_chunk": per_chunk,
        "axes": walked, "values": strides[1][-1] * size, "result": strides[2][-1] * 8,
    }  # fmt: skip
    words = [values[name] for name in WORDS]
    words += table(extents[:walked], [[s * scale for s in operand[:walked]] for operand, scale in zip(strides, sizes)])
    points = columns * outer
    moved = points * (size + 8) + spec.extent * size
    return LoweredKernel(kernel, parts * math.ceil(outer / per_chunk), words, 0, moved, points * halvings)


def _compile(structure: SearchStructure, machine: Machine) -> CompiledKernel:
    symbol = f"kernel_search_{'right' if structure.right else 'left'}"
    function = _SearchKernel(structure, machine, symbol).build()
    text = module_text([function])
    (address,) = compile_functions(text, [symbol], machine)
    return CompiledKernel(symbol, address, _LAUNCH_WORDS, text, function.structure)

"""Evaluating a kernel's straight-line body on vectors: the part that all CPU schedules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Protocol

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.build import Function, Value
from tensorsmith.targets.cpu.casts import cast
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.machine import Machine
from tensorsmith.targets.cpu.random import philox
from tensorsmith.targets.cpu.scalars import RENDERINGS
from tensorsmith.targets.cpu.vector import ELEMENTS, Lanes, element_of

ARGUMENTS = (("ptr", "args"), ("i32", "chunk"), ("i32", "chunks"), ("i32", "worker"))
# Rough cost of a function in vector instructions, for choosing how far loops are unrolled.
_COSTS = {Fn.DIV: 4, Fn.SQRT: 5, Fn.RSQRT: 9, Fn.RECIPROCAL: 4, Fn.LGAMMA: 120}
_PREDICATES = frozenset({
    Fn.EQ, Fn.NE, Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.LOGICAL_XOR, Fn.LOGICAL_NOT,
    Fn.ISNAN, Fn.ISINF, Fn.ISFINITE,
})  # fmt: skip
_CHEAP = _PREDICATES | {
    Fn.ADD, Fn.SUB, Fn.MUL, Fn.MINIMUM, Fn.MAXIMUM, Fn.NEG, Fn.ABS, Fn.SIGN, Fn.SGN, Fn.CONJ, Fn.FLOOR, Fn.CEIL, Fn.TRUNC,
    Fn.ROUND, Fn.WHERE, Fn.BITWISE_AND, Fn.BITWISE_OR, Fn.BITWISE_XOR, Fn.BITWISE_NOT, Fn.RELU, Fn.COPYSIGN,
}  # fmt: skip


def memory_element(dtype: DType) -> str:
    """The LLVM type of an element in memory: that of registers, but a byte for bool."""
    return "i8" if dtype.kind == "b" else element_of(dtype)


def instruction_cost(instr: Instr) -> int:
    """Rough number of vector instructions (per vector) of one body instruction."""
    if instr.kind is Kind.APPLY:
        assert instr.fn is not None
        return _COSTS.get(instr.fn, 1 if instr.fn in _CHEAP else 25)
    return {Kind.RANDOM: 120, Kind.CAST: 2, Kind.LOAD: 1, Kind.REDUCE: 2}.get(instr.kind, 0)


def lane_count(structure: Structure, machine: Machine) -> int:
    """Lanes per vector: a full register of the widest type, but of 4-byte types where 8-byte ones are mixed in."""
    used = [i.dtype for i in structure.body] + list(structure.inputs) + list(structure.outputs)
    for dtype in used:
        element_of(dtype)
    # Half types are computed in float32; a constant's or parameter's own dtype always reappears where it is used.
    sizes = {4 if d.is_half else d.itemsize for d in used} or {4}
    widest = max(sizes)
    if widest == 8 and 4 in sizes:
        widest = 4
    return max(machine.vector_bytes // widest, 2)


class HasBody(Protocol):
    """What has straight-line instructions: the structure of a kernel, or an epilogue."""

    @property
    def body(self) -> tuple[Instr, ...]:
        """The instructions."""


class Values:
    """The values of body instructions at one vector of points, computed on demand and remembered.

    known: values already computed outside (row values, loop invariants); load and coordinate give operands' values.
    """

    def __init__(
        self,
        structure: HasBody,
        context: Context,
        load: Callable[[int], str],
        coordinate: Callable[[int], str],
        known: Mapping[int, str],
    ) -> None:
        self.structure = structure
        self.context = context
        self.load = load
        self.coordinate = coordinate
        self.values: dict[int, str] = dict(known)

    def of(self, position: int) -> str:
        """The value of one instruction, with everything it needs."""
        for needed in cone(self.structure.body, [position], self.values):
            self.values[needed] = self._compute(self.structure.body[needed])
        return self.values[position]

    def _compute(self, instr: Instr) -> str:
        lanes = self.context.lanes
        if instr.kind is Kind.LOAD:
            return self.load(instr.index)
        if instr.kind is Kind.CONST:
            assert instr.value is not None
            return constant(lanes, instr.dtype, instr.value)
        if instr.kind is Kind.INDEX:
            return self.coordinate(instr.index)
        if instr.kind is Kind.CAST:
            exact = self._sign_of_half(instr) if instr.dtype.is_half else None
            if exact is not None:
                return exact
            source = self.structure.body[instr.args[0]].dtype
            return cast(lanes, source, instr.dtype, self.values[instr.args[0]])
        if instr.kind is Kind.RANDOM:
            return philox(lanes, self.values[instr.args[0]], self.values[instr.args[1]])
        if instr.kind is Kind.APPLY:
            return self._apply(instr)
        raise NotImplementedError(f"a {instr.kind.value} instruction outside its place in a kernel body")

    def _sign_of_half(self, instr: Instr) -> str | None:
        """A cast back to a half type of what only changed a sign, on the bits; None for any other cast."""
        body, lanes = self.structure.body, self.context.lanes
        inner = body[instr.args[0]]
        if inner.kind is not Kind.APPLY or inner.fn not in (Fn.NEG, Fn.ABS, Fn.COPYSIGN):
            return None
        casts = [body[a] for a in inner.args]
        if any(c.kind is not Kind.CAST or body[c.args[0]].dtype is not instr.dtype for c in casts):
            return None
        sign, rest = lanes.constant("i16", 0x8000), lanes.constant("i16", 0x7FFF)
        bits = [self.of(c.args[0]) for c in casts]
        if inner.fn is Fn.NEG:
            return lanes.op("xor", "i16", bits[0], sign)
        magnitude = lanes.op("and", "i16", bits[0], rest)
        if inner.fn is Fn.ABS:
            return magnitude
        return lanes.op("or", "i16", magnitude, lanes.op("and", "i16", bits[1], sign))

    def _apply(self, instr: Instr) -> str:
        assert instr.fn is not None
        rendering = RENDERINGS.get(instr.fn)
        if rendering is None:
            raise NotImplementedError(f"{instr.fn.value} has no CPU kernel; it is computed by a library call")
        dtype = self.structure.body[instr.args[-1]].dtype
        return rendering(self.context, dtype, [self.values[a] for a in instr.args])


def cone(body: tuple[Instr, ...], roots: Iterable[int], known: Mapping[int, object] | set[int]) -> list[int]:
    """Instructions that `roots` need and that are not known, in body order."""
    needed: set[int] = set()
    waiting = [r for r in roots if r not in known]
    while waiting:
        position = waiting.pop()
        if position in needed:
            continue
        needed.add(position)
        waiting += [a for a in body[position].args if a not in known]
    return sorted(needed)


def constant(lanes: Lanes, dtype: DType, value: bool | int | float) -> str:
    """A constant of a dtype in every lane."""
    if dtype.is_half:
        with np.errstate(over="ignore"):
            bits = int(np.asarray(value, np.float64).astype(np.float32).astype(dtype.numpy).view(np.uint16))
        return lanes.constant("i16", bits)
    if dtype.kind == "b":
        return lanes.constant("i1", bool(value))
    if dtype.kind in "iu":
        return lanes.constant(element_of(dtype), int(value))
    return lanes.constant(element_of(dtype), float(value))


def from_memory(lanes: Lanes, dtype: DType, value: str) -> str:
    """A value as read from memory, as registers hold it."""
    return lanes.compare("ne", "i8", value, lanes.constant("i8", 0)) if dtype.kind == "b" else value


def to_memory(lanes: Lanes, dtype: DType, value: str) -> str:
    """A value as registers hold it, as it is written to memory."""
    return lanes.convert("zext", "i1", "i8", value) if dtype.kind == "b" else value


class KernelText:
    """One kernel function under construction, with what every schedule needs from its arguments.

    Launch words: inputs, outputs, parameters, then the error word, then the structure's numbers and constant words
    (`constant_word`).
    """

    def __init__(self, structure: Structure, machine: Machine, name: str, lanes: int | None = None) -> None:
        self.structure = structure
        self.machine = machine
        self.function = Function(name, ARGUMENTS)
        self.lanes = Lanes(self.function, lanes or lane_count(structure, machine), machine)
        n_inputs, n_outputs = len(structure.inputs), len(structure.outputs)
        self.launch_words = n_inputs + n_outputs + len(structure.params)
        self.first_constant = self.launch_words + 1 + structure.numbers
        f = self.function
        self.inputs = [f.word("%args", k, "ptr") for k in range(n_inputs)]
        self.outputs = [f.word("%args", n_inputs + k, "ptr") for k in range(n_outputs)]
        self.error_word = f.word("%args", self.launch_words, "ptr")
        self.uniform: dict[int, str] = {}  # values that never vary: constants, parameters and what follows from them
        self._uniforms()

    def constant_word(self, index: Value) -> Value:
        """Constant word number `index`."""
        return self.function.word("%args", self.function.add(index, self.first_constant))

    @cached_property
    def cost(self) -> int:
        """Rough number of vector instructions of the whole body."""
        return sum(instruction_cost(instr) for instr in self.structure.body)

    def operand_dtype(self, operand: int) -> DType:
        """The dtype of operand `operand`; coordinates are int64."""
        return self.structure.operand_dtypes[operand]

    def base(self, operand: int) -> str | None:
        """The address given at launch, None for a coordinate."""
        if operand < len(self.inputs):
            return self.inputs[operand]
        first = self.structure.first_output
        return None if operand < first else self.outputs[operand - first]

    def context(self, mask: str | None = None) -> Context:
        """Where instructions go, with the active lanes."""
        return Context(self.lanes, self.error_word, mask)

    def values(
        self, load: Callable[[int], str], coordinate: Callable[[int], str], known: Mapping[int, str], mask: str | None
    ) -> Values:
        """An evaluation of the body at one vector of points."""
        return Values(self.structure, self.context(mask), load, coordinate, known)

    def _parameter(self, instr: Instr) -> str:
        held = instr.index - len(self.structure.params)  # a number of the launch, behind the error word
        given = instr.dtype if held >= 0 else self.structure.params[instr.index]
        number = self.launch_words + 1 + held if held >= 0 else self.launch_words + held
        f = self.function
        if given.is_floating_point:
            word, source = f.load("double", f.offset("%args", number * 8), 8), dtypes.float64
        else:
            word, source = f.word("%args", number), dtypes.int64
        vector = self.lanes.splat(ELEMENTS[source], word)
        return cast(self.lanes, source, instr.dtype, vector)

    def _uniforms(self) -> None:
        """Compute everything that depends on constants and parameters only, at the head of the kernel."""
        body = self.structure.body
        uniform = varying_free(body, lambda instr: instr.kind in (Kind.CONST, Kind.PARAM))
        for position in uniform:
            if body[position].kind is Kind.PARAM:
                self.uniform[position] = self._parameter(body[position])
        values = self.values(_no_operand, _no_operand, self.uniform, None)
        for position in uniform:
            values.of(position)
        self.uniform = {position: values.values[position] for position in uniform}


def varying_free(body: tuple[Instr, ...], is_leaf: Callable[[Instr], bool]) -> list[int]:
    """Instructions that follow from the leaves named by `is_leaf` alone (RANDOM and REDUCE never do), in body order."""
    found: set[int] = set()
    for position, instr in enumerate(body):
        if instr.kind in (Kind.APPLY, Kind.CAST):
            if all(a in found for a in instr.args):
                found.add(position)
        elif is_leaf(instr):
            found.add(position)
    return sorted(found)


def _no_operand(index: int) -> str:
    raise AssertionError(f"operand {index} is not uniform")

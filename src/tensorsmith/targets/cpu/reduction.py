"""Reductions on vectors: how accumulators start, take a vector in, and combine.

A reduction has one accumulator, or two for argmax and argmin: the best value so far and its position. NaN wins in max,
min, argmax and argmin; argmax and argmin give the first position among equals.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec import Instr
from tensorsmith.targets.cpu.build import Value
from tensorsmith.targets.cpu.casts import cast
from tensorsmith.targets.cpu.context import Context
from tensorsmith.targets.cpu.vector import Lanes, element_of


class Reduction:
    """One REDUCE instruction: `kind` over values of `argument` dtype with a `result` dtype."""

    def __init__(self, instr: Instr, argument: DType, lanes: Lanes) -> None:
        if instr.reduction not in ("sum", "prod", "max", "min", "argmax", "argmin"):
            raise NotImplementedError(f"the reduction {instr.reduction!r} has no CPU schedule")
        self.kind = instr.reduction
        self.argument = argument
        self.result = instr.dtype
        self.positional = self.kind in ("argmax", "argmin")
        self.lanes = lanes
        # The dtype of the accumulator; never a half (`kernels/halves.py`).
        self.held = argument if self.positional or self.kind in ("max", "min") else instr.dtype
        if self.positional and self.held.kind == "b":
            self.held = dtypes.uint8
        self.element = element_of(self.held)
        self.position = "i64" if self.held.itemsize == 8 else "i32"

    @property
    def rounds(self) -> bool:
        """Whether the order of additions changes the result: sums of floats."""
        return self.kind == "sum" and self.held.is_floating_point

    @property
    def kinds(self) -> list[str]:
        """Vector types of the accumulators."""
        kinds = [self.lanes.type(self.element)]
        return [*kinds, self.lanes.type(self.position)] if self.positional else kinds

    def initial(self) -> list[str]:
        """The accumulators before any value: the neutral element (and position 0 in every lane for the arg forms)."""
        lanes, dtype = self.lanes, self.held
        if self.kind in ("sum", "prod"):
            return [lanes.constant(self.element, 1 if self.kind == "prod" else 0)]
        largest = self.kind in ("max", "argmax")
        if dtype.is_floating_point:
            start: float | int = float("-inf") if largest else float("inf")
        elif dtype.kind == "b":
            start = 0 if largest else 1
        else:
            bounds = dtypes.iinfo(dtype)
            start = bounds.min if largest else bounds.max
        value = lanes.constant(self.element, start)
        return [value, lanes.constant(self.position, 0)] if self.positional else [value]

    def prepare(self, value: str) -> str:
        """A value as the accumulator's dtype."""
        return cast(self.lanes, self.argument, self.held, value)

    def include(self, context: Context, state: Sequence[str], value: str, position: str) -> list[str]:
        """The accumulators with one more vector; inactive lanes of the context's mask keep theirs.

        position: the positions of the lanes (of the dtype `self.position`), used by the arg forms.
        """
        prepared = self.prepare(value)
        following = self.combine(state, [prepared, position], ordered=True)
        if context.mask is None:
            return following
        elements = [self.element, self.position]
        return [self.lanes.select(context.mask, e, new, old) for e, new, old in zip(elements, following, state)]

    def combine(self, a: Sequence[str], b: Sequence[str], ordered: bool = False) -> list[str]:
        """Two accumulator states as one; `ordered` says that every position in `a` is before those in `b`."""
        lanes, element = self.lanes, self.element
        floating = self.held.is_floating_point
        if self.positional:
            return self._combine_positions(a, b, ordered)
        if self.held.kind == "b":
            return [lanes.op("or" if self.kind in ("sum", "max") else "and", "i1", a[0], b[0])]
        if self.kind == "sum":
            return [lanes.op("fadd" if floating else "add", element, a[0], b[0])]
        if self.kind == "prod":
            return [lanes.op("fmul" if floating else "mul", element, a[0], b[0])]
        if floating:
            return [self._float_extreme(a[0], b[0])]
        signed = "s" if self.held.kind == "i" else "u"
        return [lanes.intrinsic(f"{signed}{self.kind}", element, a[0], b[0])]

    def _float_extreme(self, a: str, b: str) -> str:
        """max or min where NaN wins: b unless a is better or a is NaN (the sign of zero is left open)."""
        lanes, element = self.lanes, self.element
        vector = lanes.type(element)
        name = f"llvm.{'maximum' if self.kind == 'max' else 'minimum'}.{lanes.mangled(element)}"
        lanes.function.declarations.add(f"declare {vector} @{name}({vector}, {vector})")
        return lanes.function.value(f"call nsz {vector} @{name}({vector} {a}, {vector} {b})")

    def _combine_positions(self, a: Sequence[str], b: Sequence[str], ordered: bool) -> list[str]:
        lanes, element = self.lanes, self.element
        largest = self.kind == "argmax"
        if self.held.is_floating_point:
            # Better or unordered, but never against a NaN that is already there.
            better = lanes.compare("ugt" if largest else "ult", element, b[0], a[0])
            better = lanes.op("and", "i1", better, lanes.compare("ord", element, a[0], a[0]))
        else:
            signed = "s" if self.held.kind == "i" else "u"
            better = lanes.compare(f"{signed}{'gt' if largest else 'lt'}", element, b[0], a[0])
        if not ordered:
            if self.held.is_floating_point:
                both_nan = lanes.op(
                    "and", "i1", lanes.compare("uno", element, a[0], a[0]), lanes.compare("uno", element, b[0], b[0])
                )
                equal = lanes.op("or", "i1", lanes.compare("oeq", element, a[0], b[0]), both_nan)
            else:
                equal = lanes.compare("eq", element, a[0], b[0])
            earlier = lanes.compare("ult", self.position, b[1], a[1])
            better = lanes.op("or", "i1", better, lanes.op("and", "i1", equal, earlier))
        return [
            lanes.select(better, element, b[0], a[0]),
            lanes.select(better, self.position, b[1], a[1]),
        ]

    def across(self, state: Sequence[str]) -> list[str]:
        """The accumulators of all lanes combined, in every lane, by a tree of fixed shape."""
        lanes = self.lanes
        current = list(state)
        distance = lanes.count // 2
        if self.kind in ("max", "min") and self.held.is_floating_point:
            return [self._float_extreme_across(state[0])]
        while distance:
            moved = [lanes.rotate(e, a, distance) for e, a in zip([self.element, self.position], current)]
            current = self.combine(current, moved)
            distance //= 2
        return current

    def _float_extreme_across(self, state: str) -> str:
        """The largest or smallest lane; NaN if any lane is, which is asked once instead of at every step."""
        lanes, element = self.lanes, self.element
        current, distance = state, lanes.count // 2
        while distance:
            moved = lanes.rotate(element, current, distance)
            better = lanes.compare("ogt" if self.kind == "max" else "olt", element, current, moved)
            current = lanes.select(better, element, current, moved)
            distance //= 2
        unordered = lanes.any(lanes.compare("uno", element, state, state))
        nan = lanes.constant(element, float("nan"))
        vector = lanes.type(element)
        return lanes.function.value(f"select i1 {unordered}, {vector} {nan}, {vector} {current}")

    def finish(self, context: Context, state: Sequence[str]) -> str:
        """The result in the REDUCE's dtype."""
        if self.positional:
            source = dtypes.int64 if self.position == "i64" else dtypes.uint32
            return cast(self.lanes, source, self.result, state[1])
        return cast(self.lanes, self.held, self.result, state[0])

    def positions(self, index: Value) -> str:
        """The positions index, index + 1, ... of a vector's lanes."""
        lanes, f = self.lanes, self.lanes.function
        if not self.positional:
            return ""
        start = str(index)
        if self.position == "i32":
            start = f.value(f"trunc i64 {index} to i32")
        return lanes.op("add", self.position, lanes.splat(self.position, start), lanes.iota(self.position))


def merge_sets(reductions: Sequence[Reduction], sets: Sequence[Sequence[str]]) -> list[str]:
    """Accumulators of interleaved vectors combined by a tree; `sets[u]` holds the states of all reductions in turn."""
    states = [list(s) for s in sets]
    while len(states) > 1:
        joined = []
        for left, right in zip(states[::2], states[1::2]):
            merged: list[str] = []
            place = 0
            for reduction in reductions:
                width = len(reduction.kinds)
                merged += reduction.combine(left[place : place + width], right[place : place + width])
                place += width
            joined.append(merged)
        states = joined + (states[-1:] if len(states) % 2 else [])
    return states[0]

"""Instructions of a kernel's body as lines of CUDA C++: what all schedules of fused kernels share.

A schedule says how a LOAD or INDEX is written where it stands (`leaf`); a `Scope` writes the instructions that a value
needs, once each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType, iinfo
from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cuda.scalars import apply_expression, c_type, cast_expression, literal, memory_type

Leaf = Callable[[int, Instr], str]

COMBINE = {"sum": Fn.ADD, "prod": Fn.MUL, "max": Fn.MAXIMUM, "min": Fn.MINIMUM}
PLACES = ("argmax", "argmin")

# About how many machine instructions a function is, where it is not one or two; twice as many in double.
_COSTS: dict[Fn, int] = {
    Fn.DIV: 10, Fn.RECIPROCAL: 9, Fn.SQRT: 9, Fn.RSQRT: 18, Fn.EXP: 10, Fn.EXP2: 8, Fn.EXPM1: 18, Fn.LOG: 14, Fn.LOG1P: 20,
    Fn.LOG2: 14, Fn.LOG10: 16, Fn.SIN: 60, Fn.COS: 60, Fn.TAN: 80, Fn.ASIN: 25, Fn.ACOS: 25, Fn.ATAN: 25, Fn.ATAN2: 45,
    Fn.SINH: 30, Fn.COSH: 25, Fn.TANH: 25, Fn.ASINH: 40, Fn.ACOSH: 40, Fn.ATANH: 35, Fn.SIGMOID: 20, Fn.SOFTPLUS: 35,
    Fn.ERF: 30, Fn.ERFC: 40, Fn.ERFINV: 50, Fn.LGAMMA: 150, Fn.DIGAMMA: 300, Fn.POW: 100, Fn.FLOOR_DIVIDE: 60,
    Fn.REMAINDER: 50, Fn.FMOD: 45, Fn.LOGADDEXP: 45, Fn.HYPOT: 25,
}  # fmt: skip
_RANDOM_COST = 20  # a quarter of a block of Philox
KEPT_COST = 8  # a value of so many instructions is worth a register


def instruction_cost(body: tuple[Instr, ...], instr: Instr) -> int:
    """About how many machine instructions one instruction of a body is."""
    if instr.kind is Kind.RANDOM:
        return _RANDOM_COST
    if instr.kind is Kind.CAST:
        return 1
    if instr.kind is not Kind.APPLY or instr.fn is None:
        return 0
    source = body[instr.args[-1]].dtype
    if source.kind in "iub":
        return 60 if instr.fn in (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD, Fn.POW) else 1
    return _COSTS.get(instr.fn, 1) * (2 if source.itemsize == 8 else 1)


def body_cost(body: tuple[Instr, ...]) -> int:
    """About how many machine instructions a point is."""
    return sum(instruction_cost(body, instr) for instr in body)


def reports_errors(body: tuple[Instr, ...]) -> bool:
    """Whether a value can be unacceptable, so that nothing may be computed of what is no element."""
    division = (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD)
    return any(instr.fn in division and body[instr.args[-1]].dtype.kind in "iu" for instr in body)


def loaded(dtype: DType, element: str) -> str:
    """An element of memory as a value."""
    return f"({element} != 0)" if dtype.kind == "b" else element


def parameters(structure: Structure) -> list[str]:
    """The kernel's parameters for inputs, outputs, run-time scalars and the numbers of the launch."""
    text = [f"const {memory_type(d)}* in{i}" for i, d in enumerate(structure.inputs)]
    text += [f"{memory_type(d)}* out{i}" for i, d in enumerate(structure.outputs)]
    text += [f"{'double' if d.kind == 'f' else 'long long'} p{i}" for i, d in enumerate(structure.params)]
    return text + [f"double p{len(structure.params) + i}" for i in range(structure.numbers)]


def expression(structure: Structure, instr: Instr, args: list[str]) -> str:
    """One instruction of known arguments as a C++ expression; not LOAD, INDEX and REDUCE, which a schedule writes."""
    body = structure.body
    if instr.kind is Kind.CONST:
        assert instr.value is not None
        return literal(instr.dtype, instr.value)
    if instr.kind is Kind.PARAM:
        is_number = instr.index >= len(structure.params)
        word = dtypes.float64 if is_number or structure.params[instr.index].kind == "f" else dtypes.int64
        return cast_expression(word, instr.dtype, f"p{instr.index}")
    if instr.kind is Kind.CAST:
        return cast_expression(body[instr.args[0]].dtype, instr.dtype, args[0])
    if instr.kind is Kind.APPLY:
        assert instr.fn is not None
        if instr.fn is Fn.ERF and instr.dtype is dtypes.float32 and _rounds_to_bfloat16(structure):
            return f"erf_for_bfloat16({args[0]})"
        return apply_expression(instr.fn, body[instr.args[-1]].dtype, args)
    raise NotImplementedError(f"a {instr.kind.value} instruction outside its place in a kernel body")


def _rounds_to_bfloat16(structure: Structure) -> bool:
    """Whether nothing of a pointwise kernel is written but bfloat16: each of its steps alone would have been rounded so."""
    pointwise = all(instr.kind is not Kind.REDUCE for instr in structure.body)
    return pointwise and all(dtype is dtypes.bfloat16 for dtype in structure.outputs)


@dataclass
class Scope:
    """Lines of one block of C++ and the names of the values visible in it."""

    structure: Structure
    indent: str
    leaf: Leaf
    known: dict[int, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    special: Callable[[Instr, list[str]], str | None] = lambda instr, args: None  # an expression of a schedule's own

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append(self.indent + text)

    def value(self, position: int) -> str:
        """The value of one body instruction, computed here unless already known."""
        body, waiting = self.structure.body, [position]
        while waiting:
            current = waiting[-1]
            missing = [a for a in body[current].args if a not in self.known]
            if current in self.known:
                waiting.pop()
            elif missing:
                waiting += missing
            else:
                waiting.pop()
                self._compute(current)
        return self.known[position]

    def _compute(self, position: int) -> None:
        instr = self.structure.body[position]
        args = [self.known[a] for a in instr.args]
        if instr.kind in (Kind.LOAD, Kind.INDEX):
            text = self.leaf(position, instr)
        elif instr.kind is Kind.RANDOM:
            text = f"random{position}.at({args[0]}, {args[1]})"
        elif (pack := self._pack_of_halves(instr)) is not None:
            text = f"widen_at_bfloat16({pack}, e)"
        else:
            text = self.special(instr, args) or expression(self.structure, instr, args)
        self.line(f"const {c_type(instr.dtype)} v{position} = {text};")
        self.known[position] = f"v{position}"

    def _pack_of_halves(self, instr: Instr) -> str | None:
        """The pack of which a CAST widens element e, where it is one of bfloat16."""
        source = self.structure.body[instr.args[0]] if instr.kind is Kind.CAST else instr
        if source.kind is not Kind.LOAD or source.dtype is not dtypes.bfloat16 or instr.dtype is not dtypes.float32:
            return None
        pack, found, _ = self.leaf(instr.args[0], source).partition(".at[e]")
        return pack if found else None


def random_blocks(body: tuple[Instr, ...], needed: Iterable[int]) -> list[str]:
    """Declarations of what RANDOM instructions keep from one element to the next."""
    return [f"PhiloxBlock<4> random{p};" for p in sorted(needed) if body[p].kind is Kind.RANDOM]


def uniform_scope(structure: Structure) -> Scope:
    """What depends on constants and parameters alone, at the head of a kernel."""

    def leaf(position: int, instr: Instr) -> str:
        raise AssertionError("no value of memory is uniform")

    scope = Scope(structure, "    ", leaf)
    for position, instr in enumerate(structure.body):
        derived = instr.kind in (Kind.APPLY, Kind.CAST) and all(a in scope.known for a in instr.args)
        if derived or instr.kind in (Kind.CONST, Kind.PARAM):
            scope.value(position)
    return scope


def needed_for(structure: Structure, roots: Iterable[int], known: Mapping[int, str] | Iterable[int] = ()) -> set[int]:
    """Instructions that the values of `roots` need, themselves included, behind what is known and behind REDUCEs."""
    have, needed, waiting = set(known), set[int](), list(roots)
    while waiting:
        current = waiting.pop()
        if current in have or current in needed:
            continue
        needed.add(current)
        if structure.body[current].kind is not Kind.REDUCE:
            waiting += structure.body[current].args
    return needed


# ------------------------------------------------------------------------------------------------------- reductions


def state_dtype(structure: Structure, instr: Instr) -> DType:
    """The dtype in which a REDUCE compares or accumulates."""
    return structure.body[instr.args[0]].dtype if instr.reduction in PLACES else instr.dtype


def identity(structure: Structure, instr: Instr) -> str:
    """What a REDUCE starts with."""
    if instr.reduction not in (*COMBINE, *PLACES):
        raise NotImplementedError(f"the reduction {instr.reduction} has no CUDA kernel")
    dtype = state_dtype(structure, instr)
    if instr.reduction in ("sum", "prod"):
        return literal(dtype, 0 if instr.reduction == "sum" else 1)
    largest = instr.reduction.endswith("max")
    if dtype.kind == "f":
        return literal(dtype, -math.inf if largest else math.inf)
    if dtype.kind == "b":
        return literal(dtype, not largest)
    return literal(dtype, iinfo(dtype).min if largest else iinfo(dtype).max)


def combined(structure: Structure, instr: Instr, state: tuple[str, str], more: tuple[str, str]) -> str:
    """A statement that takes `more` into `state`; both are a value and, for argmax and argmin, its place."""
    value, place = state
    if instr.reduction in PLACES:
        largest = "true" if instr.reduction == "argmax" else "false"
        kind = c_type(state_dtype(structure, instr))
        return (
            f"if (replaces<{kind}>({more[0]}, {more[1]}, {value}, {place}, {largest})) "
            f"{{ {value} = {more[0]}; {place} = {more[1]}; }}"
        )
    return f"{value} = {apply_expression(COMBINE[instr.reduction], instr.dtype, [value, more[0]])};"

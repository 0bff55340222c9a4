"""What a public operator is made of, found by following what its code refers to.

    public function ──> Operators ──> scalar functions and primitives of their graphs

Nothing is run: globals, closures and attributes of modules that the code names are looked up. What is named but never
reached at run time counts too: more may be found than one call uses. Python's own operators on nodes (`x * y`) are not
counted: every target has them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tensorsmith.eager.dispatch import FAST
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build as build_module
from tensorsmith.ir.graph import Primitive
from tensorsmith.ops.elementwise import Elementwise
from tensorsmith.ops.pointwise import OPERATORS
from tensorsmith.ops.registry import Public
from tensorsmith.scalar.expression import topological
from tensorsmith.scalar.table import Fn

# Modules whose functions are looked into; others (the dispatcher, checks, conversion of arguments) say nothing about
# what is computed.
_GRAPHS = ("tensorsmith.ops.", "tensorsmith.ir.build", "tensorsmith.scalar.functions", "tensorsmith.scalar.composites")
_NOT_COMPUTING = (
    "tensorsmith.ops.registry", "tensorsmith.ops.checks", "tensorsmith.ops.shortcut", "tensorsmith.ops.inplace",
)  # fmt: skip
_CONVERSIONS = {
    "as_operand", "tensor", "as_tensor", "from_numpy", "scalar_tensor", "array_of", "copy_array", "operand_dtype",
    "check_dtypes",
}  # fmt: skip


@dataclass(frozen=True)
class Anatomy:
    """The operators of a public function, and the scalar functions and primitives of their graphs, ordered by name."""

    operators: tuple[Operator, ...]
    functions: tuple[Fn, ...]
    primitives: tuple[Primitive, ...]


@cache
def _anatomy(function: Any) -> Anatomy:
    operators = _operators(function)
    functions: set[Fn] = set()
    primitives: set[Primitive] = set()
    for operator in operators:
        _follow(operator.build, functions, primitives)
        functions.update(fn for fn, found in OPERATORS.items() if found is operator)
    if isinstance(function, Elementwise):
        functions.update(node.fn for node in topological(function.expression) if node.fn is not None)
    if functions:
        primitives.add(Primitive.MAP)
    return Anatomy(
        tuple(sorted(operators, key=lambda o: o.name)),
        tuple(sorted(functions, key=lambda fn: fn.value)),
        tuple(sorted(primitives, key=lambda p: p.value)),
    )


def anatomy(entry: Public) -> Anatomy:
    """What a public operator is made of."""
    return _anatomy(entry.function)


def _operators(function: Any) -> list[Operator]:
    """The operators nearest to a function: its own, else those of the functions it calls, and so on."""
    if isinstance(function, Elementwise):
        return [function.operator]
    level, seen = [inspect.unwrap(function)], set()
    while level:
        found: dict[Operator, None] = {}
        deeper: list[Any] = []
        for each in level:
            seen.add(each)
            for thing in _references(each):
                if isinstance(thing, InplaceOperation):
                    thing = thing.operator
                if isinstance(thing, Operator):
                    found[thing] = None
                elif isinstance(thing, FunctionType):
                    thing = inspect.unwrap(thing)
                    if thing not in seen and _computes(thing):
                        deeper.append(thing)
        if found:
            return list(found)
        level = deeper
    return []


def _computes(function: FunctionType) -> bool:
    module = function.__module__ or ""
    return (
        module.startswith(_GRAPHS) and not module.startswith(_NOT_COMPUTING) and function.__name__ not in _CONVERSIONS
    )


def _follow(build: Callable[..., Any], functions: set[Fn], primitives: set[Primitive]) -> None:
    stack, seen = [build], set()
    while stack:
        function = inspect.unwrap(stack.pop())
        if function in seen:
            continue
        seen.add(function)
        builder = getattr(function, "__module__", "") == build_module.__name__
        if function is build_module.where:
            functions.add(Fn.WHERE)
        for thing in _references(function):
            if isinstance(thing, Fn):
                if not builder:  # a builder names functions to tell kinds apart, not to use them
                    functions.add(thing)
            elif isinstance(thing, Primitive):
                primitives.add(thing)
            elif isinstance(thing, Operator):
                stack.append(thing.build)  # a graph made from another operator's
            elif isinstance(thing, FunctionType) and _computes(thing):
                stack.append(thing)


def _references(function: Any) -> Iterator[Any]:
    """Objects that the code of a function names: globals, closed-over values, attributes of modules and enums."""
    if not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():
        try:
            yield from _members(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            continue
    for code in _codes(function.__code__):
        named = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        for thing in named:
            yield from _members(thing)
            if isinstance(thing, ModuleType) and thing.__name__.startswith("tensorsmith."):
                yield from (vars(thing)[name] for name in code.co_names if name in vars(thing))
            elif thing is Fn or thing is Primitive:
                yield from (thing.__members__[name] for name in code.co_names if name in thing.__members__)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _members(thing: Any) -> Iterator[Any]:
    yield thing
    if thing is OPERATORS or thing is FAST:
        return  # every pointwise operator, every call so far: naming the table says nothing about one of them
    if isinstance(thing, tuple | list):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()


__all__ = ["Anatomy", "anatomy"]

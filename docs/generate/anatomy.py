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
from tensorsmith.ir import build
from tensorsmith.ir.graph import Primitive
from tensorsmith.ops import checks, creation, inplace, pointwise, raw_keys, registry
from tensorsmith.ops.elementwise import Elementwise
from tensorsmith.ops.pointwise import OPERATORS
from tensorsmith.ops.registry import Public
from tensorsmith.scalar import composites, functions
from tensorsmith.scalar.expression import topological
from tensorsmith.scalar.table import Fn

# Functions of the operators' room and of these modules are looked into; others, and the conversion and the checks of
# arguments, say nothing about what is computed.
_COMPUTING = {module.__name__ for module in (build, functions, composites)}
_NOT_COMPUTING = {module.__name__ for module in (registry, checks, raw_keys, inplace)}
_CONVERSIONS = {
    inspect.unwrap(function)
    for function in (
        build.operand_dtype, pointwise.as_operand, pointwise.check_dtypes, creation.tensor, creation.as_tensor,
        creation.from_numpy, creation.scalar_tensor, creation.array_of, creation.copy_array,
    )
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
    scalars: set[Fn] = set()
    primitives: set[Primitive] = set()
    for operator in operators:
        _follow(operator.build, scalars, primitives)
        scalars.update(fn for fn, found in OPERATORS.items() if found is operator)
    if isinstance(function, Elementwise):
        scalars.update(node.fn for node in topological(function.expression) if node.fn is not None)
    if scalars:
        primitives.add(Primitive.MAP)
    return Anatomy(
        tuple(sorted(operators, key=lambda o: o.name)),
        tuple(sorted(scalars, key=lambda fn: fn.value)),
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
    module = function.__module__
    computing = module in _COMPUTING or module.startswith("tensorsmith.ops.")
    return computing and module not in _NOT_COMPUTING and function not in _CONVERSIONS


def _follow(written: Callable[..., Any], found: set[Fn], primitives: set[Primitive]) -> None:
    """Scalar functions and primitives of the graph that a function writes."""
    stack, seen = [written], set()
    while stack:
        function = inspect.unwrap(stack.pop())
        if function in seen:
            continue
        seen.add(function)
        builder = getattr(function, "__module__", "") == build.__name__
        if function is build.where:
            found.add(Fn.WHERE)
        for thing in _references(function):
            if isinstance(thing, Fn):
                if not builder:  # a builder names functions to tell kinds apart, not to use them
                    found.add(thing)
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

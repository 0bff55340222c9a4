"""Lifting: a plain Python function of numbers becomes an expression.

The function is run with symbolic inputs. Where it asks for the truth of a comparison, both answers are explored: each
run follows a prefix of decisions and answers True beyond it, until every path has been taken; the results are joined
by `where`. `math.exp` and its like work, because the function that runs is a copy in which the `math` module is
replaced. Values from outside (closure, globals, defaults) are read at lifting.
"""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from tensorsmith.scalar import functions
from tensorsmith.scalar.algebra import Operators, apply, as_number
from tensorsmith.scalar.expression import Expr, constant, variable
from tensorsmith.scalar.fn import Fn, Typing
from tensorsmith.scalar.lift_error import LiftError, definition, is_ours, is_standard_library, user_line
from tensorsmith.scalar.math_proxy import Patching
from tensorsmith.scalar.table import TABLE

__all__ = ["MOST_PATHS", "LiftError", "lift"]

MOST_PATHS = 64


def lift(function: Callable[..., Any], arity: int | None = None) -> Expr:
    """The expression that a plain Python function of numbers computes.

    `arity` is the number of symbolic inputs, by default the parameters without a default value; the others keep
    theirs. Raises LiftError (a TypeError) at the user's line for what has no expression: a loop over or an index from
    a traced value, a call that needs its number, more than 64 paths, a path that raises or returns no number.
    """
    count = _parameters(function) if arity is None else arity
    patched = Patching().callable(function)
    exploration = _Exploration(function)
    paths: list[_Path] = []
    prefix: list[bool] | None = []
    while prefix is not None:
        if len(paths) == MOST_PATHS:
            raise exploration.too_many_paths()
        path = exploration.run(patched, count, prefix)
        paths.append(path)
        prefix = path.next_prefix()
    return _joined(paths, 0)


def _parameters(function: Callable[..., Any]) -> int:
    name = getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise LiftError(f"{name}: its parameters cannot be read; pass lift(function, arity=...)") from error
    count = 0
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise LiftError(f"{name}: takes *{parameter.name}; pass lift(function, arity=...)", *definition(function))
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise LiftError(
                f"{name}: {parameter.name} is keyword-only and has no default; bind it with functools.partial",
                *definition(function),
            )
        positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        count += positional and parameter.default is parameter.empty
    return count


# ------------------------------------------------------------------------------------------------------ exploration


class _Path:
    """One run of the function: the conditions it asked for, the answers it got, and what it returned."""

    def __init__(self, prefix: list[bool]):
        self.prefix = prefix
        self.conditions: list[Expr] = []
        self.answers: list[bool] = []
        self.known: dict[Expr, bool] = {}
        self.result: Expr = constant(0.0)

    def decide(self, condition: Expr) -> bool:
        """The answer on this path; the same condition always gets the same answer."""
        if condition in self.known:
            return self.known[condition]
        depth = len(self.conditions)
        answer = self.prefix[depth] if depth < len(self.prefix) else True
        self.conditions.append(condition)
        self.answers.append(answer)
        self.known[condition] = answer
        return answer

    def next_prefix(self) -> list[bool] | None:
        """The decisions of the next path in depth-first order, None after the last."""
        answers = list(self.answers)
        while answers and not answers[-1]:
            answers.pop()
        return [*answers[:-1], False] if answers else None


def _joined(paths: list[_Path], depth: int) -> Expr:
    """The results of paths that agree on their first `depth` decisions, joined by where."""
    first = paths[0]
    if len(first.conditions) == depth:
        return first.result
    chosen = _joined([path for path in paths if path.answers[depth]], depth + 1)
    other = _joined([path for path in paths if not path.answers[depth]], depth + 1)
    if chosen is other:
        return chosen
    return functions.where(first.conditions[depth], chosen, other)  # type: ignore[no-any-return]


class _Exploration:
    """Runs a function along one path after another."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.path = _Path([])
        self.last_decision: tuple[str | None, int | None] = definition(function)

    def run(self, patched: Callable[..., Any], count: int, prefix: list[bool]) -> _Path:
        self.path = _Path(prefix)
        inputs = [_Traced(variable(index), self) for index in range(count)]
        try:
            returned = patched(*inputs)
        except LiftError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        self.path.result = self._result(returned)
        return self.path

    def decide(self, condition: Expr) -> bool:
        self.last_decision = user_line()
        if len(self.path.conditions) >= MOST_PATHS and condition not in self.path.known:
            raise self.too_many_paths()
        return self.path.decide(condition)

    def too_many_paths(self) -> LiftError:
        return LiftError(
            f"the function takes more than {MOST_PATHS} paths through its branches (a loop on a traced value?); "
            "use scalar.where, minimum, maximum or clamp instead of branches",
            *self.last_decision,
        )

    def _result(self, returned: Any) -> Expr:
        if isinstance(returned, _Traced):
            return returned.expr
        try:
            return constant(returned if isinstance(returned, (int, float)) else as_number(Fn.ADD, returned))
        except TypeError:
            name = getattr(self.function, "__name__", repr(self.function))
            advice = " (is a return missing?)" if returned is None else ""
            raise LiftError(
                f"{name}: must return one number on every path, got {type(returned).__name__}{advice}",
                *definition(self.function),
            ) from None

    def _failed(self, error: Exception) -> LiftError:
        """The error of a path that raised, at the innermost line that is neither ours nor the standard library's."""
        line: tuple[str | None, int | None] = definition(self.function)
        own_file = line[0]
        trace = error.__traceback__
        while trace is not None:
            filename = trace.tb_frame.f_code.co_filename
            if filename == own_file or not (is_ours(filename) or is_standard_library(filename)):
                line = filename, trace.tb_lineno
            trace = trace.tb_next
        advice = "calls on traced values must be Python operators, math.* or functions of scalar (scalar.exp, ...)"
        if isinstance(error, (AssertionError, ValueError)):
            advice = "a lifted function takes every path, so none may raise"
        return LiftError(f"cannot be lifted, {type(error).__name__}: {error}; {advice}", *line)


class _Traced(Operators):
    """A number that is not known yet: an expression, and the exploration that answers its comparisons."""

    __slots__ = ("expr", "exploration")

    def __init__(self, expr: Expr, exploration: _Exploration):
        self.expr = expr
        self.exploration = exploration

    def _apply_(self, fn: Fn, *args: Any) -> "_Traced":
        operands = [arg.expr if isinstance(arg, _Traced) else arg for arg in args]
        result = self.expr._apply_(fn, *operands)
        if result is NotImplemented:
            return NotImplemented  # type: ignore[no-any-return]
        return _Traced(result, self.exploration)

    def __bool__(self) -> bool:
        condition = self.expr
        if condition.fn is None or TABLE[condition.fn].typing is not Typing.BOOL:
            condition = functions.ne(condition, 0)
        return self.exploration.decide(condition)

    def __round__(self, ndigits: int | None = None) -> "_Traced":
        if ndigits:
            self._refuse("round(x, ndigits)", "use round(x * 10**ndigits) / 10**ndigits")
        return apply(Fn.ROUND, self)  # type: ignore[no-any-return]

    def __floor__(self) -> "_Traced":
        return apply(Fn.FLOOR, self)  # type: ignore[no-any-return]

    def __ceil__(self) -> "_Traced":
        return apply(Fn.CEIL, self)  # type: ignore[no-any-return]

    def __trunc__(self) -> "_Traced":
        return apply(Fn.TRUNC, self)  # type: ignore[no-any-return]

    def __float__(self) -> NoReturn:
        self._refuse("float(x), or a call that needs a float,", "use math.* or scalar.exp, scalar.sin, ... on x itself")

    def __int__(self) -> NoReturn:
        self._refuse("int(x)", "use scalar.trunc(x), which stays symbolic")

    def __index__(self) -> NoReturn:
        self._refuse("using x as an index or in range()", "a loop or an index needs a number known at lifting")

    def __complex__(self) -> NoReturn:
        self._refuse("complex(x)", "lifted functions are real")

    def __iter__(self) -> NoReturn:
        self._refuse("iterating over x", "x is one number")

    def __len__(self) -> NoReturn:
        self._refuse("len(x)", "x is one number")

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse("x[...]", "x is one number")

    def __hash__(self) -> int:
        self._refuse("looking x up in a set or dictionary", "its value is not known at lifting")

    def __format__(self, specification: str) -> str:
        return str(self.expr)  # for print() while tracing

    def __repr__(self) -> str:
        return f"<traced {self.expr}>"

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise LiftError(f"{what} is not possible on a traced value; {advice}", *user_line())

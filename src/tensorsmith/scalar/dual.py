"""Dual numbers: forward-mode differentiation from the same table.

A Dual is value + tangent e with e*e = 0. Duals of duals give second derivatives. Each nesting has a level of its own,
so that the tangents of an inner derivative are never taken for those of an outer one.
"""

import itertools
from collections.abc import Callable
from typing import Any, NoReturn

from tensorsmith.scalar.algebra import Operators, apply
from tensorsmith.scalar.fn import Fn, Typing
from tensorsmith.scalar.functions import add
from tensorsmith.scalar.table import TABLE


class Dual(Operators):
    """A value and its tangent, both numbers or duals of a lower level.

    `level` is by default one more than the value's. Comparisons compare the values and give plain bools.
    """

    __slots__ = ("value", "tangent", "level")

    def __init__(self, value: Any, tangent: Any = 0.0, level: int | None = None):
        self.value = float(value) if isinstance(value, (int, float)) else value
        self.tangent = float(tangent) if isinstance(tangent, (int, float)) else tangent
        self.level: int = level if level is not None else 1 + getattr(value, "level", 0)

    def _apply_(self, fn: Fn, *args: Any) -> Any:
        level = max(arg.level for arg in args if isinstance(arg, Dual))
        own = [isinstance(arg, Dual) and arg.level == level for arg in args]
        values = [arg.value if is_own else arg for arg, is_own in zip(args, own, strict=True)]
        out = apply(fn, *values)
        row = TABLE[fn]
        if row.typing is Typing.BOOL:
            return out
        tangents = [arg.tangent if is_own else None for arg, is_own in zip(args, own, strict=True)]
        total: Any = None
        for term in row.products(values, out, tangents):
            if term is not None:
                total = term if total is None else add(total, term)
        return Dual(out, 0.0 if total is None else total, level)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> NoReturn:
        raise TypeError("float(dual) would lose its tangent: use dual.value, or functions of scalar (scalar.exp, ...)")

    def __repr__(self) -> str:
        return f"Dual({self.value!r}, {self.tangent!r})"


_levels = itertools.count(1)


def forward_derivative(function: Callable[..., Any], wrt: int = 0) -> Callable[..., Any]:
    """The derivative of a function by one of its arguments; apply it again for higher derivatives."""

    def derivative(*args: Any) -> Any:
        # A fresh level for every call: an inner call starts later than the outer one it runs in.
        level = next(_levels)
        dual = Dual(args[wrt], 1.0, level)
        result = function(*args[:wrt], dual, *args[wrt + 1 :])
        return result.tangent if isinstance(result, Dual) and result.level == level else 0.0

    return derivative

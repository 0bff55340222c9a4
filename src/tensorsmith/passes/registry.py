"""Rewrites of the user: `register(name, rewrite, pattern=...)`.

A pattern is a function of values, written with operators and the scalar functions of `ts.scalar`. It is called once with
variables, which gives a tree of scalar functions; where a graph computes that tree, the rewrite gets what stands in the
variables' places:

>>> ts.passes.register("softplus", pattern=lambda x: f.log(1 + f.exp(x)), rewrite=lambda x: f.softplus(x))

A rewrite has to give a value of the same shape and dtype, or None to leave the node as it is. It is checked as the rewrites
of this room are: every application for shape and dtype, the graph by the verifier (`TENSORSMITH_DEBUG=1`), and the results
against those without passes (`ts.compile(..., verify=True)`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorsmith.ir.constants import constant_value
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.passes.rewrites import Rule
from tensorsmith.scalar.functions import Operators
from tensorsmith.scalar.table import TABLE, Fn

_COMMUTATIVE = frozenset({Fn.ADD, Fn.MUL, Fn.MAXIMUM, Fn.MINIMUM, Fn.EQ, Fn.NE, Fn.LOGICAL_AND, Fn.LOGICAL_OR})
_registered: dict[str, Rule] = {}
generation = 0  # counts changes of the table: plans made before one are not used after it


class Pattern(Operators):
    """A variable (number), a constant (value) or a scalar function of patterns."""

    takes_complex = False

    def __init__(self, number: int | None = None, value: Any = None, fn: Fn | None = None, operands: tuple = ()) -> None:
        self.number, self.value, self.fn, self.operands = number, value, fn, operands

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a pattern has no value: write it with operators, where() and the functions of ts.scalar")

    def _apply_(self, fn: Fn, *args: Any) -> Pattern:
        parts = tuple(each if isinstance(each, Pattern) else Pattern(value=each) for each in args)
        return Pattern(fn=fn, operands=parts)

    def match(self, node: Node, found: dict[int, Node]) -> bool:
        """Whether a node computes this; `found` gets the values of the variables."""
        if self.number is not None:
            known = found.setdefault(self.number, node)
            return known is node
        if self.fn is None:
            value = constant_value(node)
            return value is not None and value == self.value
        if node.op is not Primitive.MAP or node.attrs["fn"] is not self.fn:
            return False
        orders = [node.inputs]
        if self.fn in _COMMUTATIVE:
            orders.append(node.inputs[::-1])
        for operands in orders:
            attempt = dict(found)
            if all(part.match(operand, attempt) for part, operand in zip(self.operands, operands)):
                found.update(attempt)
                return True
        return False


@dataclass(frozen=True)
class _Matched:
    """The rewrite of a rule with a pattern."""

    pattern: Pattern
    count: int
    rewrite: Callable[..., Node | None]

    def __call__(self, node: Node) -> Node | None:
        found: dict[int, Node] = {}
        if not self.pattern.match(node, found) or len(found) < self.count:
            return None
        return self.rewrite(*[found[i] for i in range(self.count)])


def register(
    name: str, rewrite: Callable[..., Any], *, pattern: Callable[..., Any] | None = None, subject: Primitive | Fn | None = None
) -> None:
    """Add a rewrite to the passes of compiled functions, under a name that `disable` and `names()` know.

    rewrite: with a pattern, a function of what its variables stand for; else of every node, or of those of one `subject`
             (a `Primitive` or a scalar function)
    pattern: a function of variables that gives the computation to look for
    Raises ValueError for a name that is taken, TypeError for a pattern that is no scalar function.
    """
    global generation
    from tensorsmith.passes.manager import names

    if name in names():
        raise ValueError(f"there is a pass named {name!r} already; unregister it first, or choose another name")
    if not callable(rewrite):
        raise TypeError(f"register: the rewrite of {name!r} is no function, but {type(rewrite).__name__}")
    kind: Primitive | Fn | None = subject
    if pattern is not None:
        count = len(inspect.signature(pattern).parameters)
        tree = pattern(*[Pattern(number=i) for i in range(count)])
        if not isinstance(tree, Pattern) or tree.fn is None:
            raise TypeError(f"register: the pattern of {name!r} is no scalar function of its variables, but {tree!r}")
        assert tree.fn in TABLE
        kind, rewrite = tree.fn, _Matched(tree, count, rewrite)
    _registered[name] = Rule(name, kind, rewrite)
    generation += 1


def unregister(name: str) -> None:
    """Take a registered rewrite away. KeyError where there is none of that name."""
    global generation
    if name not in _registered:
        raise KeyError(f"there is no registered rewrite named {name!r}; there are {', '.join(_registered) or 'none'}")
    del _registered[name]
    generation += 1


def registered() -> dict[str, Rule]:
    """The rewrites of the user, by name."""
    return dict(_registered)

"""Expressions of the table's functions: immutable, interned, shared sub-expressions stored once.

An Expr is an input, a constant, or a function of the table applied to expressions. Two expressions built alike are
the same object, so `is` compares structure and identity can key caches. Nothing here recurses: chains may be long.
"""

import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.scalar.algebra import Operators, apply
from tensorsmith.scalar.fn import Fn
from tensorsmith.scalar.table import TABLE
from tensorsmith.scalar.values import Number


class Expr(Operators):
    """A node of an expression: exactly one of input (`index`), constant (`value`) and application (`fn`, `args`).

    Make them with `variable`, `constant`, and Python's operators or the functions of the table on them.
    """

    __slots__ = ("__weakref__", "args", "fn", "index", "value")

    fn: Fn | None
    args: "tuple[Expr, ...]"
    index: int | None
    value: Number | None

    def __new__(cls) -> "Expr":
        raise TypeError("Expr is made by variable(index), constant(value) or functions applied to expressions")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Expr is immutable: cannot set {name}")

    @property
    def is_variable(self) -> bool:
        """Whether this is an input."""
        return self.index is not None

    @property
    def is_constant(self) -> bool:
        """Whether this is a constant."""
        return self.value is not None

    def _apply_(self, fn: Fn, *args: Any) -> "Expr":
        operands = []
        for arg in args:
            if isinstance(arg, Expr):
                operands.append(arg)
            elif isinstance(arg, (int, float)):
                operands.append(constant(arg))
            else:
                return NotImplemented  # type: ignore[no-any-return]
        return _intern((fn, *map(id, operands)), fn=fn, args=tuple(operands))

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression has no truth value outside lift(): use scalar.where(condition, a, b), "
            "or pass the function itself to scalar.lift"
        )

    def __copy__(self) -> "Expr":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Expr":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (_encode(self),)

    def __repr__(self) -> str:
        return to_text(self)


_interned: "weakref.WeakValueDictionary[tuple[Any, ...], Expr]" = weakref.WeakValueDictionary()
_interning = threading.Lock()


def _intern(
    key: tuple[Any, ...],
    fn: Fn | None = None,
    args: tuple[Expr, ...] = (),
    index: int | None = None,
    value: Number | None = None,
) -> Expr:
    # Keys hold the ids of the arguments: an entry lives no longer than its node, and its node holds the arguments.
    with _interning:
        node = _interned.get(key)
        if node is None:
            node = object.__new__(Expr)
            for name, content in (("fn", fn), ("args", args), ("index", index), ("value", value)):
                object.__setattr__(node, name, content)
            _interned[key] = node
        return node


def variable(index: int) -> Expr:
    """The input number `index`, counted from 0."""
    if index < 0:
        raise ValueError(f"variable: the index must not be negative, got {index}")
    return _intern(("variable", index), index=index)


def constant(value: Number) -> Expr:
    """A constant, told apart by type and bit pattern: True, 1, 1.0, 0.0, -0.0 and NaNs are all distinct."""
    if isinstance(value, bool):
        return _intern(("bool", value), value=value)
    if isinstance(value, int):
        return _intern(("int", int(value)), value=int(value))
    if isinstance(value, float):
        return _intern(("float", struct.pack("<d", value)), value=float(value))
    raise TypeError(f"constant: expected bool, int or float, got {type(value).__name__}")


def topological(*roots: Expr) -> list[Expr]:
    """Every node that the roots depend on, and the roots, each once and after its arguments."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    # A node pushed twice before its first visit is skipped at the second; arguments still precede their users,
    # because a node is only emitted once everything pushed above it is done.
    return order


def arity(*roots: Expr) -> int:
    """One more than the largest input index used; 0 when the expression is constant."""
    return max((node.index + 1 for node in topological(*roots) if node.index is not None), default=0)


def evaluate(expr: Expr, args: Sequence[Any]) -> Any:
    """The expression with its inputs replaced by args: numbers, Scalar, Dual, Expr, IR nodes, anything with `_apply_`.

    Raises IndexError naming the input when an argument is missing.
    """
    return evaluate_all([expr], args)[0]


def evaluate_all(exprs: Sequence[Expr], args: Sequence[Any]) -> list[Any]:
    """Several expressions on the same inputs; what they share is computed once."""
    results: dict[Expr, Any] = {}
    for node in topological(*exprs):
        if node.fn is not None:
            results[node] = apply(node.fn, *(results[arg] for arg in node.args))
        elif node.index is not None:
            if node.index >= len(args):
                raise IndexError(f"evaluate: the expression uses input {node.index}, but got {len(args)} argument(s)")
            results[node] = args[node.index]
        else:
            results[node] = node.value
    return [results[expr] for expr in exprs]


# ------------------------------------------------------------------------------------------------- differentiation


def derivative(expr: Expr, wrt_index: int) -> Expr:
    """The derivative of the whole expression with respect to one input.

    Tangents are carried from the input to the root, so that d where(c, a, b) = where(c, da, db) is the outermost
    choice and a NaN of the side not taken never leaks. Terms that are zero whatever the inputs are dropped, products
    with one simplified; nothing that could change a float result is.
    """
    zero = constant(0.0)
    tangents: dict[Expr, Expr] = {}  # a node not in here has the tangent zero, whatever the inputs
    for node in topological(expr):
        if node.index is not None:
            if node.index == wrt_index:
                tangents[node] = constant(1.0)
            continue
        if node.fn is None:
            continue
        factors = [tangents.get(arg) for arg in node.args]
        if all(factor is None for factor in factors):
            continue
        if node.fn is Fn.WHERE:
            condition, chosen, other = node.args[0], factors[1], factors[2]
            if chosen is not None or other is not None:
                sides = (zero if side is None else side for side in (chosen, other))
                tangents[node] = simplified(Fn.WHERE, condition, *sides)
            continue
        operands = [_Simplifying(arg) for arg in node.args]
        wrapped = [None if factor is None else _Simplifying(factor) for factor in factors]
        total: Any = None
        for term in TABLE[node.fn].products(operands, _Simplifying(node), wrapped):
            if term is not None:
                total = term if total is None else total + term
        if total is not None:
            tangents[node] = total.expr if isinstance(total, _Simplifying) else constant(total)
    return tangents.get(expr, zero)


class _Simplifying(Operators):
    """An expression under construction in a derivative: applying a function simplifies where floats allow it."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr):
        self.expr = expr

    def _apply_(self, fn: Fn, *args: Any) -> "_Simplifying":
        return _Simplifying(
            simplified(fn, *(arg.expr if isinstance(arg, _Simplifying) else constant(arg) for arg in args))
        )


def _is_number(expr: Expr, number: Number) -> bool:
    value = expr.value
    return value is not None and value == number and type(value) is not bool


# Folded in Python, these give the same bits in every dtype as long as the whole numbers stay this small.
_FOLDABLE = frozenset(
    {Fn.ADD, Fn.SUB, Fn.MUL, Fn.NEG, Fn.EQ, Fn.NE, Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.WHERE}
)
_EXACT_IN_EVERY_FLOAT = 256


def _exact(value: Number | None) -> bool:
    return value is not None and abs(value) <= _EXACT_IN_EVERY_FLOAT and value == int(value)


def simplified(fn: Fn, *args: Expr) -> Expr:
    """fn applied, simplified where the result is the same for every float input; for derivatives, which are floats."""
    if fn in _FOLDABLE and all(_exact(arg.value) for arg in args):
        result = TABLE[fn].value(*(arg.value for arg in args))
        if _exact(result):
            return constant(result)
    if fn is Fn.MUL:
        for one, other in (args, args[::-1]):
            if _is_number(one, 1):
                return other
            if _is_number(one, -1):
                return simplified(Fn.NEG, other)
    elif fn is Fn.DIV and _is_number(args[1], 1):
        return args[0]
    elif fn is Fn.POW and _is_number(args[1], 1):
        return args[0]
    elif fn is Fn.NEG and args[0].fn is Fn.NEG:
        return args[0].args[0]
    elif fn is Fn.WHERE:
        if args[0].value is not None:
            return args[1] if args[0].value else args[2]
        if args[1] is args[2]:
            return args[1]
    return args[0]._apply_(fn, *args)


# ------------------------------------------------------------------------------------------------------- as text

_INFIX: dict[Fn, tuple[str, int]] = {
    Fn.LT: ("<", 1),
    Fn.LE: ("<=", 1),
    Fn.GT: (">", 1),
    Fn.GE: (">=", 1),
    Fn.EQ: ("==", 1),
    Fn.NE: ("!=", 1),
    Fn.BITWISE_OR: ("|", 2),
    Fn.BITWISE_XOR: ("^", 3),
    Fn.BITWISE_AND: ("&", 4),
    Fn.LEFT_SHIFT: ("<<", 5),
    Fn.RIGHT_SHIFT: (">>", 5),
    Fn.ADD: ("+", 6),
    Fn.SUB: ("-", 6),
    Fn.MUL: ("*", 7),
    Fn.DIV: ("/", 7),
    Fn.FLOOR_DIVIDE: ("//", 7),
    Fn.REMAINDER: ("%", 7),
    Fn.POW: ("**", 9),
}
_PREFIX: dict[Fn, str] = {Fn.NEG: "-", Fn.BITWISE_NOT: "~"}
_PREFIX_LEVEL, _ATOM_LEVEL = 8, 10
_LONGEST_INLINE = 60


def input_name(index: int) -> str:
    """The name an input is printed by: x, y, z, then x3, x4, ..."""
    return "xyz"[index] if index < 3 else f"x{index}"


def _number_text(value: Number) -> tuple[str, int]:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})", _ATOM_LEVEL
    text = repr(value)
    return text, _PREFIX_LEVEL if text.startswith("-") else _ATOM_LEVEL


def to_text(expr: Expr, names: Callable[[int], str] = input_name) -> str:
    """The expression as Python text.

    A long sub-expression used more than once is named on a line of its own (`t0 = ...`); the last line is the value.
    """
    order = topological(expr)
    uses: dict[Expr, int] = {}
    for node in order:
        for arg in node.args:
            uses[arg] = uses.get(arg, 0) + 1
    lines: list[str] = []
    texts: dict[Expr, tuple[str, int]] = {}
    for node in order:
        text, level = _node_text(node, texts, names)
        shared = uses.get(node, 0) > 1 and level < _ATOM_LEVEL
        if node.fn is not None and node is not expr and (len(text) > _LONGEST_INLINE or shared):
            name = f"t{len(lines)}"
            lines.append(f"{name} = {text}")
            text, level = name, _ATOM_LEVEL
        texts[node] = text, level
    return "\n".join([*lines, texts[expr][0]])


def _node_text(node: Expr, texts: dict[Expr, tuple[str, int]], names: Callable[[int], str]) -> tuple[str, int]:
    if node.index is not None:
        return names(node.index), _ATOM_LEVEL
    if node.fn is None:
        assert node.value is not None
        return _number_text(node.value)

    def at_least(arg: Expr, level: int) -> str:
        text, own = texts[arg]
        return text if own >= level else f"({text})"

    if node.fn in _INFIX:
        sign, level = _INFIX[node.fn]
        # Comparisons chain and ** groups to the right in Python, so these bracket their left side.
        left = at_least(node.args[0], level + 1 if level == 1 or node.fn is Fn.POW else level)
        return f"{left} {sign} {at_least(node.args[1], level + 1)}", level
    if node.fn in _PREFIX:
        return _PREFIX[node.fn] + at_least(node.args[0], _PREFIX_LEVEL), _PREFIX_LEVEL
    return f"{node.fn.value}({', '.join(texts[arg][0] for arg in node.args)})", _ATOM_LEVEL


# ------------------------------------------------------------------------------------------------ copies and pickles


def _encode(expr: Expr) -> list[tuple[Any, ...]]:
    """The nodes in topological order, arguments by position: pickling a long chain does not recurse."""
    positions: dict[Expr, int] = {}
    encoded: list[tuple[Any, ...]] = []
    for node in topological(expr):
        positions[node] = len(encoded)
        if node.fn is not None:
            encoded.append((node.fn.name, *(positions[arg] for arg in node.args)))
        else:
            encoded.append((None, node.index, node.value))
    return encoded


def _rebuild(encoded: list[tuple[Any, ...]]) -> Expr:
    nodes: list[Expr] = []
    for head, *rest in encoded:
        if head is not None:
            args = [nodes[position] for position in rest]
            nodes.append(args[0]._apply_(Fn[head], *args))
        elif rest[0] is not None:
            nodes.append(variable(rest[0]))
        else:
            nodes.append(constant(rest[1]))
    return nodes[-1]

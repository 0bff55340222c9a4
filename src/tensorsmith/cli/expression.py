"""Expressions given as text: `x * sigmoid(x)`, `softmax(x @ y, dim=-1)`.

The text is parsed by Python's grammar and walked over a list of allowed forms; nothing of it is ever evaluated by
Python itself. Two kinds are told apart by what they use:

    scalar   arithmetic, comparisons, `a if condition else b`, and/or/not, functions of tensorsmith.scalar
    tensor   besides arithmetic: `@`, operators with their keywords, methods (`x.sum(0)`), `.T`, slices
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorsmith import scalar
from tensorsmith.cli.errors import UsageError
from tensorsmith.core import dtypes
from tensorsmith.ops import registry
from tensorsmith.scalar.expression import Expr, constant, variable
from tensorsmith.tensor.tensor import Tensor

LONGEST = 4096  # characters
_PREFIXES = ("math.", "scalar.", "ts.", "torch.", "tensorsmith.", "nn.functional.", "F.")
_CONSTANTS = {"pi": math.pi, "inf": math.inf, "nan": math.nan, "math.e": math.e}
_BUILTINS = {"min": "minimum", "max": "maximum"}
_TENSOR_KEYWORDS = frozenset({"dim", "keepdim", "dtype", "normalized_shape"})
_DTYPES = {d.name: d for d in dtypes.ALL}

_LARGEST_EXPONENT = 1024


def _small_exponent(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The function, but not on Python integers that would fill the memory (9 ** 9 ** 9)."""

    def checked(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int) and abs(b) > _LARGEST_EXPONENT:
            raise ValueError(f"the exponent {b} is larger than {_LARGEST_EXPONENT}")
        return function(a, b)

    return checked


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _small_exponent(operator.pow),
    ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: _small_exponent(operator.lshift), ast.RShift: operator.rshift,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}


@dataclass(frozen=True)
class Parsed:
    """A parsed text. names: its variables in order; expression: of the scalar kind; function: of the tensor kind."""

    text: str
    names: tuple[str, ...]
    expression: Expr | None
    function: Callable[..., Any] | None


def parse(text: str) -> Parsed:
    """The expression that a text writes. Raises UsageError that quotes what is not understood."""
    if len(text) > LONGEST:
        raise UsageError(f"the expression has {len(text)} characters, at most {LONGEST} are read")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        advice = "write one such as 'x * sigmoid(x)'"
        raise UsageError(f"cannot read {text!r} as an expression: {error.msg}; {advice}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"cannot read {text[:60]!r} as an expression: {error or type(error).__name__}") from None
    order: list[str] = []
    if isinstance(body, ast.Lambda):
        order = _lambda_names(body)
        body = body.body
    try:
        body = _called(body)
        names = tuple(order or _variables(body))
        tensor = _is_tensor(body)
        if tensor:
            _TensorWalk({}).check(body)
        values = {name: variable(i) for i, name in enumerate(names)}
        result = None if tensor else _ScalarWalk(values).visit(body)
        if not names:
            raise UsageError(f"{text!r} names no variable; write an expression of x, such as 'x * sigmoid(x)'")
        if not tensor:
            return Parsed(text, names, result, None)
    except RecursionError:
        raise UsageError(f"the expression {text[:60]!r}... is nested too deeply") from None

    def function(*tensors: Any) -> Any:
        return _TensorWalk(dict(zip(names, tensors))).visit(body)

    function.__name__ = "expression"
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    )
    return Parsed(text, names, None, function)


# ------------------------------------------------------------------------------------------------------ reading names


def _lambda_names(node: ast.Lambda) -> list[str]:
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.defaults or arguments.kwonlyargs or not arguments.args:
        raise UsageError("a lambda takes plain names here: 'lambda x, y: x * y'")
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args)]


def _dotted(node: ast.expr) -> str | None:
    """`a.b.c` as text; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else None


def _plain(name: str) -> str:
    """A function's name without the package it is said to come from."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return _plain(name.removeprefix(prefix))
    return name


def _is_prefixed(node: ast.expr) -> bool:
    """Whether an attribute chain starts at a package and not at a value."""
    name = _dotted(node)
    return name is not None and name.startswith(_PREFIXES)


def scalar_function(name: str) -> Callable[..., Any] | None:
    """The function of single numbers with this name."""
    name = _BUILTINS.get(name, name)
    return getattr(scalar, name) if name in scalar.functions.__all__ or name in scalar.composites.__all__ else None


def tensor_function(name: str) -> Callable[..., Any] | None:
    """The operator with this name, from the main namespace or one of the others."""
    for namespace in ("", "nn.functional.", "special.", "linalg."):
        found = registry.TABLE.get(namespace + name)
        if found is not None:
            return found.function
    return None


def _called(body: ast.expr) -> ast.expr:
    """A bare function name (`softmax`) becomes its call on x, y, z."""
    name = _plain(_dotted(body) or "")
    function = scalar_function(name)
    if function is not None:
        count = next((row.arity for row in scalar.TABLE.values() if row.name == name), 0) or _required(function, None)
    else:
        function = tensor_function(name)
        count = _required(function, "Tensor") if function is not None else 0
    if function is None or not 0 < count <= 3:
        return body
    call = ast.Call(ast.Name(name), [ast.Name(letter) for letter in "xyz"[:count]], [])
    return ast.copy_location(call, body)


def _required(function: Callable[..., Any], annotation: str | None) -> int:
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return sum(annotation is None or p.annotation == annotation for p in needed)


def _variables(body: ast.expr) -> list[str]:
    """Names that are values, in order of appearance."""
    found: dict[str, None] = {}

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and not _is_prefixed(node.func):
                walk(node.func.value)
            for part in (*node.args, *(k.value for k in node.keywords)):
                walk(part)
        elif isinstance(node, ast.Attribute) and _is_prefixed(node):
            return
        elif isinstance(node, ast.Name):
            if node.id not in _CONSTANTS and node.id not in _DTYPES:
                found.setdefault(node.id)
        else:
            for child in ast.iter_child_nodes(node):
                walk(child)

    walk(body)
    return list(found)


def _is_tensor(body: ast.expr) -> bool:
    for node in ast.walk(body):
        if isinstance(node, ast.MatMult | ast.Subscript):
            return True
        if isinstance(node, ast.Attribute) and not _is_prefixed(node):
            return True
        if isinstance(node, ast.Call):
            name = _plain(_dotted(node.func) or "")
            if any(k.arg in _TENSOR_KEYWORDS for k in node.keywords):
                return True
            if scalar_function(name) is None and tensor_function(name) is not None:
                return True
            if name in ("max", "min", "logsumexp") and len(node.args) == 1:
                return True
    return False


# ------------------------------------------------------------------------------------------------------------ walking


class _Walk:
    """Computes an expression over values; subclasses say what functions are."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def visit(self, node: ast.expr) -> Any:
        handler = getattr(self, "visit_" + type(node).__name__, None)
        if handler is None:
            raise self.refused(node)
        return handler(node)

    def refused(self, node: ast.expr, why: str = "is not allowed in an expression here") -> UsageError:
        return UsageError(f"{ast.unparse(node)!r} {why}")

    def applied(self, node: ast.expr, function: Callable[..., Any], *values: Any, **keywords: Any) -> Any:
        """A function's value; its complaints become the user's error."""
        try:
            return function(*values, **keywords)
        except NotImplementedError as error:
            raise UsageError(f"{ast.unparse(node)!r}: not implemented: {error}") from error
        except (TypeError, ValueError, IndexError, RuntimeError, ArithmeticError) as error:
            raise UsageError(f"{ast.unparse(node)!r}: {error}") from error

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        function = _BINARY.get(type(node.op))
        if function is None:
            raise self.refused(node)
        return self.applied(node, function, self.visit(node.left), self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.applied(node, self.function(node, "logical_not"), self.visit(node.operand))
        return self.applied(node, _UNARY[type(node.op)], self.visit(node.operand))

    def visit_Compare(self, node: ast.Compare) -> Any:
        values = [self.visit(x) for x in (node.left, *node.comparators)]
        result = None
        for kind, left, right in zip(node.ops, values, values[1:]):
            if type(kind) not in _COMPARE:
                raise self.refused(node)
            one = self.applied(node, _COMPARE[type(kind)], left, right)
            result = one if result is None else self.applied(node, self.function(node, "logical_and"), result, one)
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        function = self.function(node, "logical_and" if isinstance(node.op, ast.And) else "logical_or")
        result = self.visit(node.values[0])
        for part in node.values[1:]:
            result = self.applied(node, function, result, self.visit(part))
        return result

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        parts = self.visit(node.test), self.visit(node.body), self.visit(node.orelse)
        return self.applied(node, self.function(node, "where"), *parts)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self.values:
            return self.values[node.id]
        if node.id in _CONSTANTS:
            return self.number(_CONSTANTS[node.id])
        raise self.refused(node, "is not one of the variables")

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, bool | int | float):
            return self.number(node.value)
        raise self.refused(node, "is not a number")

    def visit_Call(self, node: ast.Call) -> Any:
        name = _dotted(node.func)
        if name is None:
            raise self.refused(node)
        function = self.function(node, _plain(name))
        positional, keywords = self.arguments(node)
        return self.applied(node, function, *positional, **keywords)

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refused(node)
            keywords[keyword.arg] = self.static(keyword.value)
        return [self.static(x) for x in node.args], keywords

    def static(self, node: ast.expr) -> Any:
        """An argument of a call: a value, or a text such as approximate='tanh'."""
        if isinstance(node, ast.Constant) and (isinstance(node.value, str) or node.value is None):
            return node.value
        return self.visit(node)

    def number(self, value: bool | int | float) -> Any:
        return value

    def function(self, node: ast.expr, name: str) -> Callable[..., Any]:
        raise NotImplementedError


def _unknown(node: ast.expr, name: str, known: Sequence[str]) -> UsageError:
    close = difflib.get_close_matches(name, sorted(set(known)), 3)
    advice = f"; {', '.join(close)}?" if close else ""
    return UsageError(f"{ast.unparse(node)!r}: there is no function {name!r}{advice}")


class _ScalarWalk(_Walk):
    """Over scalar expressions."""

    def number(self, value: bool | int | float) -> Any:
        return constant(value)  # so that arithmetic on numbers builds expressions too, and computes nothing yet

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        name = _dotted(node) or ""
        found = _CONSTANTS.get(name, _CONSTANTS.get(_plain(name)))
        if found is None:
            raise self.refused(node)
        return constant(found)

    def function(self, node: ast.expr, name: str) -> Callable[..., Any]:
        found = scalar_function(name)
        if found is None:
            names = [*scalar.functions.__all__, *scalar.composites.__all__]
            raise _unknown(node, name, [*names, *(entry.name for entry in registry.TABLE.values())])
        return found


class _TensorWalk(_Walk):
    """Over tensors: operators, methods, slices."""

    # What a lone operator is explained with where the call does not say it.
    _DEFAULTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
        "softmax": lambda x: {"dim": -1},
        "log_softmax": lambda x: {"dim": -1},
        "logsumexp": lambda x: {"dim": -1},
        "layer_norm": lambda x: {"normalized_shape": tuple(x.shape[-1:])},
    }
    _ATTRIBUTES = frozenset({"T", "mT", "shape"})
    # Methods that the table of operators does not list.
    _METHODS = frozenset({"contiguous", "float", "double", "half", "bfloat16", "int", "long", "bool", "size"})

    def check(self, body: ast.expr) -> None:
        """Refuse forms and names that are not known, before any tensor is made."""
        for node in ast.walk(body):
            if isinstance(node, ast.Call):
                self.callee(node)
            elif isinstance(node, ast.expr) and not hasattr(self, "visit_" + type(node).__name__):
                if not isinstance(node, ast.Slice):
                    raise self.refused(node)

    def callee(self, node: ast.Call) -> tuple[Callable[..., Any], ast.expr | None, str]:
        """The function of a call, the value whose method it is, and its name."""
        name = _dotted(node.func)
        if isinstance(node.func, ast.Attribute) and not _is_prefixed(node.func):
            methods = (entry for entry in registry.TABLE.values() if entry.method)
            if node.func.attr in self._METHODS:
                return getattr(Tensor, node.func.attr), node.func.value, node.func.attr
            entry = next((e for e in methods if node.func.attr in (e.name, *e.aliases)), None)
            if entry is None:
                raise self.refused(node, "calls a method that is not an operator")
            return entry.function, node.func.value, entry.name
        if name is None:
            raise self.refused(node)
        return self.function(node, _plain(name)), None, _plain(name)

    def function(self, node: ast.expr, name: str) -> Callable[..., Any]:
        found = tensor_function(name)
        if found is None:
            raise _unknown(node, name, [entry.name for entry in registry.TABLE.values()])
        return found

    def visit_Call(self, node: ast.Call) -> Any:
        function, owner, name = self.callee(node)
        positional, keywords = self.arguments(node)
        if owner is not None:
            positional.insert(0, self.visit(owner))
        if len(positional) == 1 and name in self._DEFAULTS:
            keywords = self._DEFAULTS[name](positional[0]) | keywords
        return self.applied(node, function, *positional, **keywords)

    def visit_Name(self, node: ast.Name) -> Any:
        return _DTYPES[node.id] if node.id in _DTYPES and node.id not in self.values else super().visit_Name(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        name = _dotted(node) or ""
        if _CONSTANTS.get(name, _CONSTANTS.get(_plain(name))) is not None and _is_prefixed(node):
            return _CONSTANTS.get(name, _CONSTANTS.get(_plain(name)))
        if _is_prefixed(node) and node.attr in _DTYPES:
            return _DTYPES[node.attr]
        if node.attr not in self._ATTRIBUTES:
            raise self.refused(node)
        return self.applied(node, getattr, self.visit(node.value), node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return self.applied(node, operator.getitem, self.visit(node.value), self.index(node.slice))

    def index(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple):
            return tuple(self.index(x) for x in node.elts)
        if isinstance(node, ast.Slice):
            return slice(*(None if x is None else self.visit(x) for x in (node.lower, node.upper, node.step)))
        if isinstance(node, ast.Constant) and (node.value is None or node.value is Ellipsis):
            return node.value
        return self.visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.visit(x) for x in node.elts)

    visit_List = visit_Tuple

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value if node.value is None else super().visit_Constant(node)


__all__ = ["Parsed", "parse", "scalar_function", "tensor_function"]

"""Pointwise operators: one a row of the scalar table, as function, method, operator symbol and in-place form.

The methods look into the dispatcher's FAST table themselves: for a call seen before, `x + y` is two look-ups and a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import compute_dtype, finfo, of_python_scalar, promote_operands
from tensorsmith.eager.dispatch import FAST, NUMBERS, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.host_data import check_fits
from tensorsmith.ops.numbers_allowed import check_numbers
from tensorsmith.ops.registry import TABLE as PUBLIC, inplace_method, need_tensor, public
from tensorsmith.scalar.table import TABLE, Fn, Row, Typing
from tensorsmith.tensor.tensor import Tensor

OPERATORS: dict[Fn, Operator] = {}

_KINDS = {
    Typing.SAME: "follows the dtypes of its operands",
    Typing.FLOAT: "integers are computed in the default floating dtype",
    Typing.BOOL: "the result is bool",
    Typing.INTEGER: "integers and bool only",
    Typing.SELECT: "a bool condition selects",
}


def check_dtypes(fn: Fn, nodes: tuple[Any, ...]) -> None:
    """Refuse what PyTorch refuses: bool arithmetic without a meaning, bit operations on floats."""
    dtypes = [build.operand_dtype(x) for x in nodes]
    kinds = {d.kind for d in dtypes}
    name = TABLE[fn].name
    if TABLE[fn].typing is Typing.INTEGER and kinds & {"f", "c"}:
        raise NotImplementedError(
            f"\"{name}_cpu\" not implemented for '{next(d.name for d in dtypes if d.kind in 'fc')}'"
        )
    if "c" in kinds and fn is Fn.SIGN:
        raise NotImplementedError("sign: not defined for complex numbers; use sgn, which is x / |x|")
    if fn is Fn.SUB and "b" in kinds:
        if kinds == {"b"}:
            raise RuntimeError(
                "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
                "operator instead."
            )
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use "
            "the `~` or `logical_not()` operator instead."
        )
    if kinds == {"b"}:
        if fn is Fn.RELU:
            raise RuntimeError("Boolean inputs not supported for relu")
        if fn is Fn.NEG:
            raise RuntimeError(
                "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the "
                "`~` or `logical_not()` operator instead."
            )
        if fn is Fn.RELU:
            raise RuntimeError("Boolean inputs not supported for relu")


def mapped(fn: Fn) -> Callable[..., Node]:
    """The graph of a row of the table."""

    def build_map(*nodes: Any) -> Node:
        check_dtypes(fn, nodes)
        return build.map_(fn, *nodes)

    return build_map


def as_operand(value: Any) -> Any:
    """A tensor or an exact Python number; None where the value is neither."""
    if isinstance(value, Tensor) or value.__class__ in NUMBERS:
        return value
    if isinstance(value, np.generic):
        return as_operand(value.item())
    if isinstance(value, bool | int | float):  # subclasses of numbers
        return float(value) if isinstance(value, float) else int(value)
    return complex(value) if isinstance(value, complex) else None


# Where PyTorch takes tensors only, and where a number may only come second; `2 < x` and `2 % x` are other calls.
_TENSORS_ONLY = frozenset({
    Fn.MAXIMUM, Fn.MINIMUM, Fn.ATAN2, Fn.HYPOT, Fn.NEXTAFTER, Fn.LOGADDEXP, Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.LOGICAL_XOR,
})  # fmt: skip
_TENSOR_FIRST = frozenset({Fn.EQ, Fn.NE, Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.FMOD, Fn.COPYSIGN}) | _TENSORS_ONLY
_TENSORS_ONLY_NAMES = {TABLE[fn].name for fn in _TENSORS_ONLY}
_TENSOR_FIRST_NAMES = {TABLE[fn].name for fn in _TENSOR_FIRST}


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "floor_divide": np.floor_divide,
    "remainder": np.remainder, "pow": np.power, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor, "left_shift": np.left_shift, "right_shift": np.right_shift, "matmul": np.matmul,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def with_array(name: str, a: Any, b: Any) -> Tensor:
    """`x op array` or `array op x`: computed by NumPy, with NumPy's promotion, and returned as a tensor, as in PyTorch.

    Raises RuntimeError for a tensor that requires a gradient, which NumPy would not see.
    """
    from tensorsmith.ops.creation import from_numpy

    return from_numpy(np.asarray(_UFUNCS[name](np.asarray(a), np.asarray(b))))


def _slow_binary(operator: Operator, a: Any, b: Any, symbol: bool) -> Any:
    if not symbol:
        if operator.name in _TENSOR_FIRST_NAMES:
            need_tensor(operator.name, a)
        if operator.name in _TENSORS_ONLY_NAMES:
            need_tensor(operator.name, b, "other", 2)
    elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return with_array(operator.name, a, b)
    x, y = as_operand(a), as_operand(b)
    if x is None or y is None:
        if symbol:
            return NotImplemented
        which, value = ("other", b) if y is None else ("input", a)
        raise TypeError(f"{operator.name}(): argument '{which}' must be Tensor or Number, not {type(value).__name__}")
    if not symbol:
        check_numbers(operator.name, x, y)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        from tensorsmith.ops.creation import tensor

        x = tensor(x)
    return call(operator, (x, y), {})


def _differentiable(row: Row) -> bool:
    return row.differentiable or row.complex_rule is not None


def _unary(fn: Fn) -> None:
    row = TABLE[fn]
    operator = OPERATORS[fn] = Operator(row.name, mapped(fn), pointwise=True)
    inplace = InplaceOperation(operator)

    def function(input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        try:
            entry = FAST.get((operator, input.layout))
        except AttributeError:
            need_tensor(row.name, input)
            raise
        if entry is not None:
            return entry(input)
        return call(operator, (need_tensor(row.name, input),), {})

    _document(function, fn, "input")
    public("pointwise", name=row.name, out=True, differentiable=_differentiable(row))(function)
    setattr(Tensor, row.name, function)
    if (row.typing is not Typing.BOOL or fn is Fn.LOGICAL_NOT) and fn is not Fn.ANGLE:
        inplace_method(row.name, lambda self: inplace(self))


def _binary(fn: Fn, reflected_name: str | None = None) -> None:
    row = TABLE[fn]
    operator = OPERATORS[fn] = Operator(row.name, mapped(fn), pointwise=True)
    inplace = InplaceOperation(operator)

    def function(input: Tensor, other: Any) -> Tensor:  # noqa: A002
        try:
            entry = FAST.get((operator, input.layout, other.__class__ if other.__class__ in NUMBERS else other.layout))
        except AttributeError:
            entry = None
        return entry(input, other) if entry is not None else _slow_binary(operator, input, other, False)

    _document(function, fn, "input, other")
    public("pointwise", name=row.name, out=True, differentiable=_differentiable(row))(function)
    setattr(Tensor, row.name, function)
    if row.arity == 2:  # the result of a comparison is written as 0 or 1
        inplace_method(row.name, lambda self, other: inplace(self, _operand(row.name, self, other)))


def _operand(name: str, self: Any, value: Any, argument: str = "other") -> Any:
    found = as_operand(value)
    if found is None:
        raise TypeError(f"{name}(): argument '{argument}' must be Tensor or Number, not {type(value).__name__}")
    check_numbers(name, self, found)
    return found


def symbol_method(operator: Operator, reflected: bool = False) -> Callable[[Tensor, Any], Any]:
    """`x op y` (or `y op x`) through the FAST table."""

    def forward(self: Tensor, other: Any) -> Any:
        kind = other.__class__
        if kind not in NUMBERS:
            try:
                kind = other.layout
            except AttributeError:
                return _slow_binary(operator, self, other, True)
        entry = FAST.get((operator, self.layout, kind))
        if entry is not None:
            return entry(self, other)
        return _slow_binary(operator, self, other, True)

    def backward(self: Tensor, other: Any) -> Any:
        entry = FAST.get((operator, other.__class__, self.layout))
        if entry is not None:
            return entry(other, self)
        return _slow_binary(operator, other, self, True)

    return backward if reflected else forward


def inplace_symbol(operator: Operator) -> Callable[[Tensor, Any], Tensor]:
    """`x op= y`."""
    inplace = InplaceOperation(operator)

    def method(self: Tensor, other: Any) -> Any:
        operand = as_operand(other)
        return NotImplemented if operand is None else inplace(self, operand)

    return method


def _document(function: Any, fn: Fn, arguments: str) -> None:
    row = TABLE[fn]
    function.__name__ = function.__qualname__ = row.name
    function.__doc__ = (
        f"{row.name}({arguments}): {row.source}\n\n"
        f"Shapes broadcast; {_KINDS[row.typing]}. Float32 accuracy aimed at: {row.ulp} ULP."
    )


for _fn, _row in TABLE.items():
    if _fn is Fn.WHERE:
        continue
    if _row.arity == 1:
        _unary(_fn)
    elif _row.arity == 2:
        _binary(_fn)

where_operator = OPERATORS[Fn.WHERE] = Operator("where", mapped(Fn.WHERE), pointwise=True)


def _scaled_sum(sign: int) -> Callable[[Node, Any, Any], Node]:
    def build_sum(x: Any, y: Any, alpha: Any) -> Node:
        dtype, kind = build.promote([x, y]), build.operand_dtype(alpha).kind
        if kind == "b" and dtype.kind != "b":
            raise RuntimeError("Boolean alpha only supported for Boolean results.")
        if kind == "f" and dtype.kind in "iub":
            raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
        if build.operand_dtype(alpha).is_complex and not build.promote([x, y]).is_complex:
            raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")
        check_dtypes(Fn.ADD if sign > 0 else Fn.SUB, (x, y))
        graph = build.graph_of([x, y])
        if dtype.kind == "b":  # whether either is true, the second if alpha is not 0
            return build.map_(Fn.LOGICAL_OR, x, build.map_(Fn.LOGICAL_AND, y, alpha))
        work = compute_dtype(dtype)
        first, second, alpha = (build.cast(v, work, graph) for v in (x, y, alpha))
        return build.cast(build.map_(Fn.ADD if sign > 0 else Fn.SUB, first, build.map_(Fn.MUL, second, alpha)), dtype)

    return build_sum


_add_alpha = Operator("add_alpha", _scaled_sum(1), pointwise=True, node_name="Add")
_sub_alpha = Operator("sub_alpha", _scaled_sum(-1), pointwise=True, node_name="Sub")
_add_alpha_, _sub_alpha_ = InplaceOperation(_add_alpha, name="add_"), InplaceOperation(_sub_alpha, name="sub_")


def _alpha(name: str, x: Any, y: Any, alpha: Any) -> Any:
    """The factor of `add` and `sub`, if the dtype of the result holds it."""
    if isinstance(alpha, Tensor):
        alpha = alpha.item()
    tensors = [v for v in (x, y) if isinstance(v, Tensor)]
    weak = [of_python_scalar(v) for v in (x, y) if not isinstance(v, Tensor)]
    dtype = promote_operands([t.dtype for t in tensors if t.ndim], [t.dtype for t in tensors if not t.ndim], weak)
    if isinstance(alpha, int):
        check_fits(name, alpha, dtype)
        if dtype.is_half and alpha > finfo(dtype).max:
            raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")
    return alpha


def _with_alpha(fn: Fn, scaled: Operator, scaled_: InplaceOperation) -> None:
    plain = OPERATORS[fn]
    plain_ = InplaceOperation(plain)
    name = TABLE[fn].name

    def function(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:  # noqa: A002
        if alpha.__class__ is int and alpha == 1:
            try:
                entry = FAST.get((plain, input.layout, other.__class__ if other.__class__ in NUMBERS else other.layout))
            except AttributeError:
                entry = None
            return entry(input, other) if entry is not None else _slow_binary(plain, input, other, False)
        first, second = _operand(name, other, input, "input"), _operand(name, input, other)
        if not isinstance(first, Tensor) and not isinstance(second, Tensor):
            need_tensor(name, input)
        return call(scaled, (first, second, _alpha(name, first, second, alpha)), {})

    def function_(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
        kind = other.__class__
        if alpha.__class__ is int and alpha == 1:
            entry = FAST.get((plain_, self.layout, kind if kind in NUMBERS else getattr(other, "layout", None)))
            return entry(self, other) if entry is not None else plain_(self, _operand(name, self, other))
        if alpha.__class__ is float and kind not in NUMBERS:
            entry = FAST.get((scaled_, self.layout, getattr(other, "layout", None), float))
            if entry is not None:
                return entry(self, other, alpha)
        second = _operand(name, self, other)
        return scaled_(self, second, _alpha(name, self, second, alpha))

    _document(function, fn, "input, other, *, alpha=1")
    public("pointwise", name=name, out=True, aliases=("subtract",) if fn is Fn.SUB else ())(function)
    setattr(Tensor, name, function)
    inplace_method(name, function_)


def _check_power(x: Any, exponent: Any) -> None:
    """Refuse 1 / 2**n of integers."""
    if exponent.__class__ is int and -(1 << 63) <= exponent < 0 and isinstance(x, Tensor) and x.layout.dtype.kind in "iub":
        raise RuntimeError(
            f"Integers to negative integer powers are not allowed: {x.layout.dtype.name} ** {exponent}; use a float exponent"
        )


def _power(input: Tensor, exponent: Any) -> Tensor:  # noqa: A002
    operator, kind = OPERATORS[Fn.POW], exponent.__class__
    if kind is int and exponent < 0:
        _check_power(input, exponent)
    try:
        entry = FAST.get((operator, input.layout, kind if kind in NUMBERS else exponent.layout))
    except AttributeError:
        entry = None
    return entry(input, exponent) if entry is not None else _slow_binary(operator, input, exponent, False)


def _power_symbol(self: Tensor, exponent: Any) -> Any:
    kind = exponent.__class__
    if kind not in NUMBERS:
        try:
            kind = exponent.layout
        except AttributeError:
            return _slow_binary(OPERATORS[Fn.POW], self, exponent, True)
    elif kind is int and exponent < 0:
        _check_power(self, exponent)
    entry = FAST.get((OPERATORS[Fn.POW], self.layout, kind))
    return entry(self, exponent) if entry is not None else _slow_binary(OPERATORS[Fn.POW], self, exponent, True)


def _power_in_place(self: Tensor, exponent: Any) -> Any:
    _check_power(self, exponent)
    operand = as_operand(exponent)
    return NotImplemented if operand is None else _pow_(self, operand)


def _power_method_in_place(self: Tensor, exponent: Any) -> Tensor:
    _check_power(self, exponent)
    return _pow_(self, _operand("pow_", self, exponent))


_pow_ = InplaceOperation(OPERATORS[Fn.POW])
_document(_power, Fn.POW, "input, exponent")
public("pointwise", out=True)(_power)
inplace_method("pow", _power_method_in_place)
_with_alpha(Fn.ADD, _add_alpha, _add_alpha_)
_with_alpha(Fn.SUB, _sub_alpha, _sub_alpha_)

_SYMBOLS: dict[str, Fn] = {
    "add": Fn.ADD, "sub": Fn.SUB, "mul": Fn.MUL, "truediv": Fn.DIV, "floordiv": Fn.FLOOR_DIVIDE, "mod": Fn.REMAINDER,
    "pow": Fn.POW, "and": Fn.BITWISE_AND, "or": Fn.BITWISE_OR, "xor": Fn.BITWISE_XOR, "lshift": Fn.LEFT_SHIFT,
    "rshift": Fn.RIGHT_SHIFT,
}  # fmt: skip
for _symbol, _fn in _SYMBOLS.items():
    setattr(Tensor, f"__{_symbol}__", symbol_method(OPERATORS[_fn]) if _fn is not Fn.POW else _power_symbol)
    setattr(Tensor, f"__r{_symbol}__", symbol_method(OPERATORS[_fn], reflected=True))
    setattr(Tensor, f"__i{_symbol}__", inplace_symbol(OPERATORS[_fn]) if _fn is not Fn.POW else _power_in_place)
for _symbol, _fn in {"eq": Fn.EQ, "ne": Fn.NE, "lt": Fn.LT, "le": Fn.LE, "gt": Fn.GT, "ge": Fn.GE}.items():
    setattr(Tensor, f"__{_symbol}__", symbol_method(OPERATORS[_fn]))
Tensor.__hash__ = object.__hash__  # type: ignore[method-assign]
Tensor.__neg__ = Tensor.neg  # type: ignore[method-assign]
Tensor.__abs__ = Tensor.abs  # type: ignore[method-assign]


def _invert(self: Tensor) -> Tensor:
    if self.layout.dtype.kind in "fc":
        raise TypeError("~ (operator.invert) is only implemented on integer and Boolean-type tensors")
    return self.bitwise_not()  # type: ignore[attr-defined]


Tensor.__invert__ = _invert  # type: ignore[method-assign]
Tensor.__pos__ = lambda self: self  # type: ignore[method-assign]
for _name, _alias in {
    "abs": "absolute", "neg": "negative", "mul": "multiply", "div": "divide", "asin": "arcsin", "acos": "arccos",
    "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "trunc": "fix", "eq": "eq",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "atan2": "arctan2",
}.items():  # fmt: skip
    if _name in PUBLIC and _alias != _name:
        PUBLIC[_name].aliases = (*PUBLIC[_name].aliases, _alias)
        setattr(Tensor, _alias, getattr(Tensor, _name))
        if hasattr(Tensor, _name + "_"):
            setattr(Tensor, _alias + "_", getattr(Tensor, _name + "_"))
Tensor.subtract_ = Tensor.sub_  # type: ignore[method-assign]

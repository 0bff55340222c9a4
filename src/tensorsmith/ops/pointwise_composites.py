"""Pointwise operators composed of rows of the scalar table: division with rounding, nan_to_num, round to decimals, fmax, ...

Each is one kernel, and its gradient is derived from the composition (or given, where a limit has to be stated).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import bool_, complex128, compute_dtype, finfo, float64, int64
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.rules import float_result
from tensorsmith.ops.numbers_allowed import check_numbers
from tensorsmith.ops.pointwise import OPERATORS, as_operand
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

m = build.map_


def floating(x: Node) -> Node:
    """A value for a floating-point function: integers in the default dtype."""
    return build.cast(x, float_result(x.dtype))


def number_or_tensor(name: str, value: Any, argument: str = "other") -> Any:
    """A tensor or an exact number; TypeError for anything else."""
    found = as_operand(value)
    if found is None:
        raise TypeError(f"{name}(): argument '{argument}' must be Tensor or Number, not {type(value).__name__}")
    return found


# --- of one tensor ----------------------------------------------------------------------------------------------------


def _round_decimals(x: Node, decimals: int) -> Node:
    if decimals == 0 or x.dtype.kind in "iub":
        return m(Fn.ROUND, x)
    scale = 10.0 ** abs(decimals)
    return m(Fn.ROUND, x * scale) / scale if decimals > 0 else m(Fn.ROUND, x / scale) * scale


def zero_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], **attrs: Any) -> list[Node | None]:
    """The gradient of what is flat everywhere."""
    return [build.full(x.graph, x.shape, 0, x.dtype) if x.dtype.kind == "f" else None for x in inputs]


def _nan_to_num(x: Node, nan: float, posinf: float | None, neginf: float | None) -> Node:
    if x.dtype.is_complex:
        return build.as_complex(_nan_to_num(build.as_real(x), nan, posinf, neginf))
    if x.dtype.kind != "f":
        return x.graph.add(Primitive.CAST, (x,), dtype=x.dtype)
    limits = finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    found = build.where(m(Fn.ISNAN, x), nan, x)
    found = build.where(m(Fn.EQ, x, math.inf), high, found)
    return build.where(m(Fn.EQ, x, -math.inf), low, found)


def _square(x: Node) -> Node:
    return x * x if x.dtype.kind != "b" else build.cast(x, int64) * build.cast(x, int64)


def unary(
    name: str, graph: Callable[..., Node], what: str, vjp: Any = None, *, inplace: bool = True,
    aliases: tuple[str, ...] = (), differentiable: bool = True, namespaces: tuple[str, ...] = (), method: bool = True,
) -> Operator:  # fmt: skip
    """Enter an operator of one tensor: function, method, in-place form, namespaces (only those without `method`)."""
    operator = Operator(name, graph, vjp, pointwise=True)

    def function(input: Tensor) -> Tensor:  # noqa: A002
        try:
            entry = FAST.get((operator, input.layout))
        except AttributeError:
            need_tensor(name, input)
            raise
        if entry is not None:
            return entry(input)
        return call(operator, (need_tensor(name, input),), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    if method:
        public("pointwise", aliases=aliases, out=True, differentiable=differentiable)(function)
        setattr(Tensor, name, function)
    for each in namespaces:
        public("pointwise", name=name, namespace=each, method=False, out=True, differentiable=differentiable)(function)
    if inplace:
        operation = InplaceOperation(operator)
        inplace_method(name, lambda self: operation(self))
    return operator


unary("square", _square, "x * x.")
unary("frac", lambda x: x - m(Fn.TRUNC, x), "What follows the point: x - trunc(x).")
unary("deg2rad", lambda x: floating(x) * (math.pi / 180), "Degrees in radians.")
unary("rad2deg", lambda x: floating(x) * (180 / math.pi), "Radians in degrees.")
unary(
    "signbit", lambda x: m(Fn.LT, m(Fn.COPYSIGN, 1.0, x), 0) if x.dtype.kind == "f" else m(Fn.LT, x, 0),
    "Whether the sign bit is set (it is for -0.0).", inplace=False, differentiable=False,
)  # fmt: skip
unary("isposinf", lambda x: m(Fn.EQ, x, math.inf), "Whether +inf.", inplace=False, differentiable=False)
unary("isneginf", lambda x: m(Fn.EQ, x, -math.inf), "Whether -inf.", inplace=False, differentiable=False)
_nan_operator = Operator("nan_to_num", _nan_to_num, pointwise=True)
_nan_in_place = InplaceOperation(_nan_operator)


@public("pointwise", out=True)
def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:  # noqa: A002
    """NaN as `nan` (0), infinities as given or as the largest finite numbers."""
    return call(
        _nan_operator, (need_tensor("nan_to_num", input),), {"nan": nan or 0.0, "posinf": posinf, "neginf": neginf}
    )


inplace_method(
    "nan_to_num",
    lambda self, nan=None, posinf=None, neginf=None: _nan_in_place(self, nan=nan or 0.0, posinf=posinf, neginf=neginf),
)


@public("pointwise")
def positive(input: Tensor) -> Tensor:  # noqa: A002
    """The tensor itself; bool is refused."""
    if need_tensor("positive", input).dtype.kind == "b":
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


# --- round with decimals, division with a rounding mode ---------------------------------------------------------------

_round_operator = Operator("round_decimals", _round_decimals, zero_vjp, pointwise=True, node_name="Round")
_round_in_place = InplaceOperation(_round_operator)


def _with_decimals() -> None:
    plain, plain_ = OPERATORS[Fn.ROUND], InplaceOperation(OPERATORS[Fn.ROUND])

    def round_(input: Tensor, *, decimals: int | None = None) -> Tensor:  # noqa: A002
        """Rounded to the nearest integer, ties to even, or to `decimals` digits after the point (before it if negative)."""
        if decimals is None:
            return call(plain, (need_tensor("round", input),), {})
        return call(_round_operator, (need_tensor("round", input),), {"decimals": int(decimals)})

    public("pointwise", name="round", out=True)(round_)
    inplace_method(
        "round",
        lambda self, *, decimals=None: plain_(self) if decimals is None else _round_in_place(self, decimals=int(decimals)),
    )


_with_decimals()


def _trunc_divide(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    if dtype.kind == "f":
        return m(Fn.TRUNC, m(Fn.DIV, x, y))
    remainder = m(Fn.FMOD, x, y)  # of the sign of x, so that what is left divides exactly
    return m(Fn.FLOOR_DIVIDE, m(Fn.SUB, x, remainder), y)


_trunc_divide_operator = Operator("div_trunc", _trunc_divide, zero_vjp, pointwise=True, node_name="Div")
_floor_divide_operator = Operator(
    "div_floor", lambda x, y: m(Fn.FLOOR_DIVIDE, x, y), zero_vjp, pointwise=True, node_name="Div"
)
_DIVISIONS = {None: OPERATORS[Fn.DIV], "trunc": _trunc_divide_operator, "floor": _floor_divide_operator}
_DIVISIONS_IN_PLACE = {mode: InplaceOperation(operator, name="div_") for mode, operator in _DIVISIONS.items()}


def _division(mode: str | None) -> Operator:
    if mode not in _DIVISIONS:
        raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{mode}'")
    return _DIVISIONS[mode]


def two_operands(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands of which one at least is a tensor."""
    x, y = number_or_tensor(name, a, "input"), number_or_tensor(name, b)
    check_numbers(name, x, y)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        from tensorsmith.ops.creation import tensor

        x = tensor(x)
    return x, y


@public("pointwise", aliases=("divide",), out=True)
def div(input: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:  # noqa: A002
    """input / other; with rounding_mode "trunc" or "floor" rounded towards zero or down, integers staying integers."""
    return call(_division(rounding_mode), two_operands("div", input, other), {})


def _div_in_place(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    _division(rounding_mode)
    return _DIVISIONS_IN_PLACE[rounding_mode](self, number_or_tensor("div_", other))


inplace_method("div", _div_in_place)
Tensor.divide_ = _div_in_place  # type: ignore[method-assign]


@public("pointwise", out=True)
def true_divide(input: Tensor, other: Any) -> Tensor:  # noqa: A002
    """input / other."""
    return call(OPERATORS[Fn.DIV], two_operands("true_divide", input, other), {})


inplace_method("true_divide", lambda self, other: _div_in_place(self, other))

# --- of two operands --------------------------------------------------------------------------------------------------


def _fmax(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    x, y = build.cast(x, dtype, build.graph_of([x, y])), build.cast(y, dtype, build.graph_of([x, y]))
    return build.where(m(Fn.LOGICAL_OR, x >= y, m(Fn.ISNAN, y)), x, y)


def _fmin(x: Any, y: Any) -> Node:
    dtype = build.promote([x, y])
    x, y = build.cast(x, dtype, build.graph_of([x, y])), build.cast(y, dtype, build.graph_of([x, y]))
    return build.where(m(Fn.LOGICAL_OR, x <= y, m(Fn.ISNAN, y)), x, y)


def _float_power(x: Any, y: Any) -> Node:
    graph = build.graph_of([x, y])
    dtype = complex128 if x.dtype.is_complex or y.dtype.is_complex else float64
    return m(Fn.POW, build.cast(x, dtype, graph), build.cast(y, dtype, graph))


def _heaviside(x: Any, y: Any) -> Node:
    dtype = x.dtype
    if y.dtype is not dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    step = build.where(m(Fn.EQ, x, 0), y, build.cast(x > 0, dtype))
    return build.where(m(Fn.ISNAN, x), 0, step) if dtype.kind == "f" else step


def as_one_floating(x: Any, y: Any) -> tuple[Node, Node]:
    """Both operands in their common floating dtype, before anything is computed of one of them alone."""
    dtype, graph = float_result(build.promote([x, y])), build.graph_of([x, y])
    a, b = build.cast(x, dtype, graph), build.cast(y, dtype, graph)
    return build.as_value(a), build.as_value(b)


def _ldexp(x: Any, y: Any) -> Node:
    whole = y.dtype.kind in "iub"
    y = build.cast(y, float_result(y.dtype))  # its own floating dtype, as that of 2.0**y
    if x.dtype.is_complex or y.dtype.is_complex:
        return m(Fn.MUL, x, m(Fn.POW, 2.0, build.as_value(y)))
    dtype = x.dtype if whole and x.dtype.kind == "f" else float_result(build.promote([x, y]))
    # 2**y alone may leave the type where x * 2**y does not.
    work = float64 if whole else compute_dtype(dtype)
    return build.cast(m(Fn.MUL, build.cast(x, work), m(Fn.POW, 2.0, build.as_value(build.cast(y, work)))), dtype)


def _logaddexp2(x: Any, y: Any) -> Node:
    x, y = as_one_floating(x, y)
    return m(Fn.LOGADDEXP, m(Fn.MUL, x, math.log(2)), m(Fn.MUL, y, math.log(2))) / math.log(2)


def _rsub(x: Any, y: Any, alpha: Any) -> Node:
    return m(Fn.SUB, y, m(Fn.MUL, x, alpha) if alpha != 1 else x)


def binary(
    name: str, graph: Callable[..., Node], what: str, vjp: Any = None, *, inplace: bool = True,
    namespaces: tuple[str, ...] = (), aliases: tuple[str, ...] = (), differentiable: bool = True, method: bool = True,
    numbers: bool = True,
) -> Operator:  # fmt: skip
    """Enter an operator of two operands, of which one may be a number where `numbers` says so."""
    operator = Operator(name, graph, vjp, pointwise=True)

    def function(input: Tensor, other: Any) -> Tensor:  # noqa: A002
        if not numbers:
            return call(operator, (need_tensor(name, input), need_tensor(name, other, "other", 2)), {})
        return call(operator, two_operands(name, input, other), {})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    if method:
        public("pointwise", out=True, aliases=aliases, differentiable=differentiable)(function)
    for each in namespaces:
        public("pointwise", name=name, namespace=each, method=False, out=True)(function)
    if inplace and method:
        operation = InplaceOperation(operator)
        inplace_method(name, lambda self, other: operation(*two_operands(name, self, other)))
    return operator


binary("fmax", _fmax, "The larger of two; where one is NaN, the other.", inplace=False, numbers=False)
binary("fmin", _fmin, "The smaller of two; where one is NaN, the other.", inplace=False, numbers=False)
binary("float_power", _float_power, "x ** y in float64, or in complex128.", inplace=False)
binary(
    "heaviside", _heaviside, "0 below zero, 1 above, and the second operand at zero.", differentiable=False, numbers=False
)
binary("ldexp", _ldexp, "x * 2**y.", numbers=False)
binary("logaddexp2", _logaddexp2, "log2(2**x + 2**y).", inplace=False, numbers=False)
_rsub_operator = Operator("rsub", _rsub, pointwise=True)


@public("pointwise")
def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:  # noqa: A002
    """other - alpha * input."""
    if need_tensor("rsub", input).dtype.kind == "b" or isinstance(other, bool) or getattr(other, "dtype", None) is bool_:
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
            "`~` or `logical_not()` operator instead."
        )
    return call(_rsub_operator, (input, number_or_tensor("rsub", other)), {"alpha": alpha})

"""Choosing elementwise: where, masks, bounds and blends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import bool_, compute_dtype, finfo, type_name, uint8
from tensorsmith.eager.dispatch import FAST, NUMBERS, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import c_name
from tensorsmith.ops.host_data import check_fits
from tensorsmith.ops.pointwise import as_operand, where_operator
from tensorsmith.ops.registry import inplace_method, method, need_tensor, public
from tensorsmith.scalar.table import TABLE, Fn
from tensorsmith.tensor.tensor import Tensor


def _operand(name: str, value: Any, argument: str) -> Any:
    found = as_operand(value)
    if found is None:
        raise TypeError(f"{name}(): argument '{argument}' must be Tensor or Number, not {type(value).__name__}")
    return found


# --- where ------------------------------------------------------------------------------------------------------------


@public("selecting", method=False, out=True)
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:  # noqa: A002
    """`input` where the condition holds, else `other`; with the condition alone, the positions where it holds."""
    need_tensor("where", condition, "condition")
    if input is None and other is None:
        from tensorsmith.ops.positions import nonzero

        return nonzero(condition, as_tuple=True)
    if condition.dtype is not bool_ and condition.dtype is not uint8:
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype {type_name(condition.dtype)}"
        )
    a, b = _operand("where", input, "input"), _operand("where", other, "other")
    for number, tensor in ((a, b), (b, a)):
        if number.__class__ is int and isinstance(tensor, Tensor):
            check_fits("where", number, tensor.dtype)
    return call(where_operator, (condition, a, b), {})


@method("where")
def where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """The tensor itself where the condition holds, else `other`."""
    return where(condition, self, other)


# --- masks ------------------------------------------------------------------------------------------------------------


def _masked_fill(x: Node, mask: Node, value: Any) -> Node:
    return build.where(mask, build.cast(value, x.dtype, x.graph), x)


masked_fill_operator = Operator("masked_fill", _masked_fill, pointwise=True)
masked_fill_operation = InplaceOperation(masked_fill_operator)


def _check_fill(name: str, x: Tensor, mask: Any, value: Any) -> Any:
    need_tensor(name, x)
    if need_tensor(name, mask, "mask", 2).dtype is not bool_:
        raise RuntimeError(f"{name} only supports boolean masks, but got mask with dtype {mask.dtype.name}")
    operand = _operand(name, value, "value")
    if isinstance(operand, Tensor):
        if operand.ndim:
            raise RuntimeError(
                f"{name} only supports a 0-dimensional value tensor, but got tensor with {operand.ndim} dimension(s)."
            )
        if operand.dtype.kind == "c" and x.dtype.kind not in "cb":  # to a bool every number converts
            raise RuntimeError(f"{name}(): a complex value cannot be converted to type {c_name(x.dtype)} without overflow")
        return operand
    check_fits(name, operand, x.dtype)
    real = operand.real
    if x.dtype.kind == "f" and math.isfinite(real) and abs(real) > finfo(x.dtype).max:
        raise RuntimeError(f"value cannot be converted to type {c_name(x.dtype)} without overflow")
    return operand


@public("selecting")
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:  # noqa: A002
    """`value` where the mask holds, else the input."""
    operand = _check_fill("masked_fill", input, mask, value)
    return call(masked_fill_operator, (input, mask, operand), {})


def masked_fill_(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Write `value` in place where the mask holds."""
    return masked_fill_operation(self, mask, _check_fill("masked_fill_", self, mask, value))


inplace_method("masked_fill", masked_fill_)

# --- bounds -----------------------------------------------------------------------------------------------------------


def _clamp(x: Node, low: Any, high: Any) -> Node:
    dtype = build.promote([v for v in (x, low, high) if v is not None])
    found = x = build.cast(x, dtype)
    if low is not None:
        low = build.cast(low, dtype, x.graph)
        found = build.where(found < low, low, found)
        found = build.where(build.map_(Fn.ISNAN, low), low, found) if isinstance(low, Node) else found
    if high is not None:
        high = build.cast(high, dtype, x.graph)
        found = build.where(found > high, high, found)
        found = build.where(build.map_(Fn.ISNAN, high), high, found) if isinstance(high, Node) else found
    return found


def _both(x: Node, low: Any, high: Any) -> Node:
    return _clamp(x, low, high)


clamp_operator = Operator("clamp", _both, pointwise=True)
clamp_min_operator = Operator("clamp_min", lambda x, low: _clamp(x, low, None), pointwise=True)
clamp_max_operator = Operator("clamp_max", lambda x, high: _clamp(x, None, high), pointwise=True)
_CLAMPS = {o: InplaceOperation(o) for o in (clamp_operator, clamp_min_operator, clamp_max_operator)}


def _bounded(x: Tensor, low: Any, high: Any) -> tuple[Operator, tuple[Any, ...]]:
    need_tensor("clamp", x)
    number, tensor = (high, low) if isinstance(low, Tensor) else (low, high)
    if number is not None and not isinstance(number, Tensor) and isinstance(tensor, Tensor) and tensor.ndim:
        raise TypeError(
            "clamp(): 'min' and 'max' must both be tensors or both be numbers, got "
            f"{type(low).__name__} and {type(high).__name__}"
        )
    for bound in (low, high):
        if bound.__class__ is int and not any(isinstance(b, float) for b in (low, high)):
            check_fits("clamp", bound, x.dtype)
    if low is None and high is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    if high is None:
        return clamp_min_operator, (x, _operand("clamp", low, "min"))
    if low is None:
        return clamp_max_operator, (x, _operand("clamp", high, "max"))
    return clamp_operator, (x, _operand("clamp", low, "min"), _operand("clamp", high, "max"))


_REAL: frozenset[Any] = frozenset({int, float})


@public("selecting", aliases=("clip",), out=True)
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    """Between bounds (numbers or tensors), either of which may be missing. The gradient is 1 on the bounds too."""
    if min.__class__ in _REAL and max.__class__ in _REAL and -128 <= min <= 127 and -128 <= max <= 127:
        try:
            entry = FAST.get((clamp_operator, input.layout, min.__class__, max.__class__))
        except AttributeError:
            need_tensor("clamp", input)
            raise
        if entry is not None and input.layout.dtype.kind == "f":  # which holds such numbers, so that nothing is to check
            return entry(input, min, max)
    operator, operands = _bounded(input, min, max)
    return call(operator, operands, {})


def clamp_(self: Tensor, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    """Clamp in place."""
    operator, operands = _bounded(self, min, max)
    return _CLAMPS[operator](*operands)


@public("selecting", out=True)
def clamp_min(input: Tensor, min: Any) -> Tensor:  # noqa: A002
    """At least `min`."""
    return clamp(input, min=min)


@public("selecting", out=True)
def clamp_max(input: Tensor, max: Any) -> Tensor:  # noqa: A002
    """At most `max`."""
    return clamp(input, max=max)


inplace_method("clamp", clamp_)
Tensor.clip_ = clamp_  # type: ignore[method-assign]
inplace_method("clamp_min", lambda self, min: clamp_(self, min=min))
inplace_method("clamp_max", lambda self, max: clamp_(self, max=max))

# --- blends -----------------------------------------------------------------------------------------------------------


def _lerp(start: Node, end: Node, weight: Any) -> Node:
    dtype = build.promote([start, end, weight])
    start, end, weight = (build.cast(v, compute_dtype(dtype), start.graph) for v in (start, end, weight))
    near = build.map_(Fn.LT, build.map_(Fn.ABS, weight), 0.5) if isinstance(weight, Node) else abs(weight) < 0.5
    span = end - start
    # From the nearer end, so that a weight of 1 gives the end exactly.
    return build.cast(build.where(near, start + weight * span, end - span * (1 - weight)), dtype)


def _lerp_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node | None]:
    start, end, weight = inputs
    grad = grads[0]
    return [grad * build.conj(1 - weight), grad * build.conj(weight), grad * build.conj(end - start)]


lerp_operator = Operator("lerp", _lerp, vjp=_lerp_vjp, pointwise=True)


def _three(fn: Fn) -> Callable[..., Node]:
    def build_three(x: Node, a: Node, b: Node, value: Any) -> Node:
        dtype = build.promote([x, a, b])
        if x.dtype.kind == a.dtype.kind == b.dtype.kind == "b":
            raise NotImplementedError(f"\"addc{TABLE[fn].name}_cpu_out\" not implemented for 'Bool'")
        work = compute_dtype(dtype)
        x, a, b, value = (build.cast(v, work, x.graph) for v in (x, a, b, value))
        return build.cast(x + value * build.map_(fn, a, b), dtype)

    return build_three


addcmul_operator = Operator("addcmul", _three(Fn.MUL), pointwise=True)
addcdiv_operator = Operator("addcdiv", _three(Fn.DIV), pointwise=True)
_INPLACE = {o: InplaceOperation(o) for o in (lerp_operator, addcmul_operator, addcdiv_operator)}


def _check_lerp(name: str, start: Tensor, end: Tensor, weight: Any) -> Any:
    need_tensor(name, start)
    if need_tensor(name, end, "end", 2).dtype is not start.dtype:
        raise RuntimeError(f"expected dtype {c_name(start.dtype)} for `end` but got dtype {c_name(end.dtype)}")
    found = _operand(name, weight, "weight")
    alike = not (isinstance(found, Tensor) and found.dtype is not start.dtype)
    if start.dtype.kind not in "fc" and alike:
        raise NotImplementedError(f"\"lerp_kernel_scalar\" not implemented for '{type_name(start.dtype)}'")
    if isinstance(found, Tensor):
        if found.dtype is not start.dtype and found.ndim:
            raise RuntimeError(f"expected dtype {c_name(start.dtype)} for `weight` but got dtype {c_name(found.dtype)}")
        return found
    if isinstance(found, complex):
        if not start.is_complex():
            raise RuntimeError(f"{name}(): a complex weight needs complex tensors, got {start.dtype.name}")
        return found
    return float(found)


@public("selecting", out=True)
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:  # noqa: A002
    """input + weight * (end - input)."""
    return call(lerp_operator, (input, end, _check_lerp("lerp", input, end, weight)), {})


inplace_method(
    "lerp", lambda self, end, weight: _INPLACE[lerp_operator](self, end, _check_lerp("lerp_", self, end, weight))
)


def _with_value(name: str, operator: Operator, formula: str) -> Any:
    def checked(x: Tensor, a: Any, b: Any, value: Any) -> tuple[Any, ...]:
        operands = (need_tensor(name, x), need_tensor(name, a, "tensor1", 2), need_tensor(name, b, "tensor2", 3))
        if value.__class__ not in NUMBERS:
            raise TypeError(f"{name}(): argument 'value' must be Number, not {type(value).__name__}")
        operands_are_whole = all(v.dtype.kind in "iub" for v in operands)
        if value.__class__ is float and operands_are_whole and name == "addcdiv":
            raise RuntimeError("For integral input tensors, argument value must not be a floating point number.")
        if x.dtype.kind == a.dtype.kind == b.dtype.kind == "b":
            raise NotImplementedError(f"\"{name}_cpu_out\" not implemented for 'Bool'")
        if name == "addcdiv" and a.dtype.kind in "iub" and b.dtype.kind in "iub":
            raise RuntimeError(
                "Integer division with addcdiv is no longer supported; use (input + value * trunc(tensor1 / tensor2))"
                ".to(input.dtype) in place of it."
            )
        return (*operands, value)

    def function(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:  # noqa: A002
        try:
            entry = FAST.get((operator, input.layout, tensor1.layout, tensor2.layout, value.__class__))
        except AttributeError:
            entry = None
        if entry is not None:
            return entry(input, tensor1, tensor2, value)
        return call(operator, checked(input, tensor1, tensor2, value), {})

    def function_(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
        return _INPLACE[operator](*checked(self, tensor1, tensor2, value))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = formula
    found = public("selecting", out=True)(function)
    inplace_method(name, function_)
    return found


addcmul = _with_value("addcmul", addcmul_operator, "input + value * tensor1 * tensor2.")
addcdiv = _with_value("addcdiv", addcdiv_operator, "input + value * tensor1 / tensor2.")

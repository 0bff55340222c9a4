"""Activation functions: the composites of `scalar/composites.py` over tensors, each one kernel.

Gradients are derived from the formulas, except where an activation can be written over its input and its gradient found
from the result (as PyTorch does for elu, leaky_relu, ...): then `inplace=True` keeps the backward pass possible.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.dtypes import bool_, finfo, float16, float32, float64, type_name
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops import pointwise
from tensorsmith.ops.checks import axis_of, need_floating, need_floating_node, need_tensors, refuse
from tensorsmith.ops.random import draw, uniform_graph, words_of
from tensorsmith.ops.registry import TABLE, need_tensor, public
from tensorsmith.scalar import composites, functions as f
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

_activation = public("activations", namespace="nn.functional", method=False)
_activation_with_out = public("activations", namespace="nn.functional", method=False, out=True)


def _operator(
    name: str, kernel: str, formula: Callable[..., Node], gradient: Any = None, pointwise: bool = True,
    of_complex: bool = False,
) -> Operator:  # fmt: skip
    """A floating-point activation; `kernel` is what PyTorch's message calls it where the dtype is refused."""

    def build_activation(x: Node, **attrs: Any) -> Node:
        return formula(x if of_complex and x.dtype.is_complex else need_floating_node(kernel, x), **attrs)

    return Operator(name, build_activation, gradient, pointwise=pointwise)


def _in_place(operator: Operator) -> InplaceOperation:
    return InplaceOperation(operator)


def _run(
    operator: Operator, written: InplaceOperation, x: Tensor, inplace: bool, attrs: dict[str, Any],
    from_result: bool = True,
) -> Tensor:  # fmt: skip
    """The activation of a tensor. from_result: the gradient needs the result alone; the input may be written over."""
    need_tensor(operator.name, x)
    if not inplace:
        return call(operator, (x,), attrs)
    if not from_result and modes.grad and x.layout.tracked:
        return x.copy_(call(operator, (x.clone(),), attrs))
    return written(x, **attrs)


# --- relu and its relatives -------------------------------------------------------------------------------------------


def _relu(x: Node) -> Node:
    if x.dtype is bool_:
        raise RuntimeError("Boolean inputs not supported for relu")
    return f.relu(x)


_relu_operator = Operator("relu_activation", _relu, pointwise=True, node_name="Relu")
_relu_in_place = _in_place(_relu_operator)


@_activation
def relu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002 - PyTorch's name
    """max(x, 0), element by element; the gradient at 0 is 0."""
    if not inplace:
        try:
            entry = FAST.get((_relu_operator, input.layout))
        except AttributeError:
            need_tensor("relu", input)
            raise
        if entry is not None:
            return entry(input)
    return _run(_relu_operator, _relu_in_place, input, inplace, {})


def _hardtanh(x: Node, low: float, high: float) -> Node:
    if x.dtype is bool_:
        raise RuntimeError("Bool inputs not supported for hardtanh")
    if x.dtype.kind in "iu":
        low, high = int(low), int(high)
        if x.dtype.kind == "u" and low < 0:
            raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    # Unlike the composite, which decides by the bounds where the gradient ends, this keeps a -0 on the bound 0.
    return f.where(f.lt(x, low), low, f.where(f.gt(x, high), high, x))


def _hardtanh_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], low: float, high: float
) -> list[Node]:
    # At a bound the result is the bound and the gradient 0, so the result tells what the input would.
    y = outputs[0]
    return [build.where(f.logical_or(f.le(y, low), f.ge(y, high)), 0, grads[0])]


_hardtanh_operator = Operator("hardtanh", _hardtanh, _hardtanh_gradient, pointwise=True)
_hardtanh_in_place = _in_place(_hardtanh_operator)


@_activation
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:  # noqa: A002
    """x held between min_val and max_val; the gradient at the bounds is 0.

    Raises ValueError if min_val exceeds max_val.
    """
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _run(_hardtanh_operator, _hardtanh_in_place, input, inplace, {"low": min_val, "high": max_val})


@_activation
def relu6(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


def _leaky_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], negative_slope: float
) -> list[Node]:
    # With a slope of at least 0 the result is positive exactly where the input is.
    decides = outputs[0] if negative_slope >= 0 else inputs[0]
    return [build.where(f.gt(decides, 0), grads[0], grads[0] * negative_slope)]


_leaky_operator = _operator("leaky_relu", "leaky_relu_cpu", composites.leaky_relu, _leaky_gradient)
_leaky_in_place = _in_place(_leaky_operator)


@_activation
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:  # noqa: A002
    """x where positive, negative_slope x elsewhere."""
    return _run(
        _leaky_operator, _leaky_in_place, input, inplace, {"negative_slope": negative_slope}, negative_slope >= 0
    )


def _elu(x: Node, alpha: float, scale: float, input_scale: float) -> Node:
    positive = f.gt(x, 0)
    tail = f.expm1(build.where(positive, 0, x) * input_scale) * (alpha * scale)
    return build.where(positive, x * scale if scale != 1.0 else x, tail)


def _elu_gradient(
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    grads: Sequence[Node],
    alpha: float,
    scale: float,
    input_scale: float,
) -> list[Node]:
    # From the result: alpha scale e**(input_scale x) = y + alpha scale.
    y, grad = outputs[0], grads[0]
    straight = grad * scale if scale != 1.0 else grad
    if alpha < 0:  # then the sign of the result does not tell the sign of the input
        x = inputs[0]
        inside = f.exp(build.where(f.gt(x, 0), 0, x) * input_scale) * (alpha * scale * input_scale)
        return [build.where(f.gt(x, 0), straight, grad * inside)]
    return [build.where(f.gt(y, 0), straight, grad * ((y + alpha * scale) * input_scale))]


_elu_operator = _operator("elu", "elu_cpu", _elu, _elu_gradient)
_elu_in_place = _in_place(_elu_operator)


@_activation
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:  # noqa: A002
    """x where positive, alpha (e**x - 1) elsewhere."""
    attrs = {"alpha": alpha, "scale": 1.0, "input_scale": 1.0}
    return _run(_elu_operator, _elu_in_place, input, inplace, attrs, alpha >= 0)


@_activation
def selu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """scale (x where positive, alpha (e**x - 1) elsewhere), with the constants of Klambauer et al. (2017)."""
    attrs = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946, "input_scale": 1.0}
    return _run(_elu_operator, _elu_in_place, input, inplace, attrs)


@_activation
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:  # noqa: A002
    """x where positive, alpha (e**(x / alpha) - 1) elsewhere. RuntimeError for alpha = 0."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    attrs = {"alpha": alpha, "scale": 1.0, "input_scale": 1.0 / alpha}
    return _run(_elu_operator, _elu_in_place, input, inplace, attrs, alpha >= 0)


def _threshold_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], limit: float, value: float
) -> list[Node]:
    decides = outputs[0] if value <= limit else inputs[0]
    return [build.where(f.le(decides, limit), 0, grads[0])]


_threshold_operator = Operator(
    "threshold",
    lambda x, limit, value: composites.threshold(x, limit, int(value) if x.dtype.kind in "iu" else value),
    _threshold_gradient,
    pointwise=True,
)
_threshold_in_place = _in_place(_threshold_operator)


@_activation
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:  # noqa: A002
    """x where x > threshold, value elsewhere."""
    attrs = {"limit": threshold, "value": value}
    return _run(_threshold_operator, _threshold_in_place, input, inplace, attrs, value <= threshold)


# --- smooth ones ------------------------------------------------------------------------------------------------------

_silu_operator = _operator("silu", "silu_cpu", composites.silu, of_complex=True)
_silu_in_place = _in_place(_silu_operator)


@_activation
def silu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """x sigmoid(x), also called swish."""
    return _run(_silu_operator, _silu_in_place, input, inplace, {}, False)


_mish_operator = _operator("mish", "mish_cpu", composites.mish)
_mish_in_place = _in_place(_mish_operator)


@_activation
def mish(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """x tanh(log(1 + e**x)) (D. Misra, 2019)."""
    return _run(_mish_operator, _mish_in_place, input, inplace, {}, False)


_gelu_operator = _operator("gelu", "GeluKernelImpl", composites.gelu)
_GELU_KINDS = ("none", "tanh")


@_activation_with_out
def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:  # noqa: A002
    """x Phi(x), Phi the normal distribution function.

    approximate="tanh": 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))).
    Raises RuntimeError for another name.
    """
    try:
        entry = FAST.get((_gelu_operator, input.layout, ("approximate", approximate)))
    except AttributeError:
        need_tensor("gelu", input)
        raise
    if entry is not None:
        return entry(input)
    if approximate not in _GELU_KINDS:
        raise RuntimeError("approximate argument must be either none or tanh.")
    return call(_gelu_operator, (input,), {"approximate": approximate})


def _softplus(x: Node, beta: float, threshold: float) -> Node:
    scaled = x * beta if beta != 1.0 else x
    straight = f.gt(scaled, threshold)
    smooth = f.softplus(scaled)
    return build.where(straight, x, f.div(smooth, beta) if beta != 1.0 else smooth)


def _softplus_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], beta: float, threshold: float
) -> list[Node]:
    scaled = inputs[0] * beta if beta != 1.0 else inputs[0]
    return [build.where(f.gt(scaled, threshold), grads[0], grads[0] * f.sigmoid(scaled))]


_softplus_operator = _operator("softplus", "softplus_cpu", _softplus, _softplus_gradient)


@_activation_with_out
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:  # noqa: A002
    """log(1 + e**(beta x)) / beta, and x itself where beta x > threshold."""
    need_tensor("softplus", input)
    return call(_softplus_operator, (input,), {"beta": float(beta), "threshold": float(threshold)})


_softsign_operator = Operator("softsign", lambda x: composites.softsign(_no_bool("abs_cpu", x)), pointwise=True)


def _no_bool(kernel: str, x: Node) -> Node:
    if x.dtype is bool_:
        raise NotImplementedError(f"\"{kernel}\" not implemented for 'Bool'")
    return x


@_activation
def softsign(input: Tensor) -> Tensor:  # noqa: A002
    """x / (1 + |x|)."""
    return call(_softsign_operator, (need_tensor("softsign", input),), {})


_logsigmoid_operator = _operator("logsigmoid", "log_sigmoid_cpu", composites.logsigmoid, pointwise=False)


@_activation_with_out
def logsigmoid(input: Tensor) -> Tensor:  # noqa: A002
    """log(1 / (1 + e**-x)) = -log(1 + e**-x), without overflow."""
    return call(_logsigmoid_operator, (need_tensor("logsigmoid", input),), {})


def _tanhshrink(x: Node) -> Node:
    pointwise.check_dtypes(Fn.SUB, (x, f.tanh(x)))
    return composites.tanhshrink(x)


_tanhshrink_operator = Operator("tanhshrink", _tanhshrink, pointwise=True)


@_activation
def tanhshrink(input: Tensor) -> Tensor:  # noqa: A002
    """x - tanh(x)."""
    return call(_tanhshrink_operator, (need_tensor("tanhshrink", input),), {})


# --- piecewise ones ---------------------------------------------------------------------------------------------------


def _hardsigmoid_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node]:
    y = outputs[0]
    return [build.where(f.logical_or(f.le(y, 0.0), f.ge(y, 1.0)), 0, f.div(grads[0], 6.0))]


_hardsigmoid_operator = _operator("hardsigmoid", "hardsigmoid_cpu", composites.hardsigmoid, _hardsigmoid_gradient)
_hardsigmoid_in_place = _in_place(_hardsigmoid_operator)


@_activation
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """min(max(x + 3, 0), 6) / 6."""
    return _run(_hardsigmoid_operator, _hardsigmoid_in_place, input, inplace, {})


def _hardswish_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node]:
    x, grad = inputs[0], grads[0]
    middle = grad * (f.div(x, 3.0) + 0.5)
    return [build.where(f.le(x, -3.0), 0, build.where(f.ge(x, 3.0), grad, middle))]


_hardswish_operator = _operator("hardswish", "hardswish_cpu", composites.hardswish, _hardswish_gradient)
_hardswish_in_place = _in_place(_hardswish_operator)


@_activation
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """x min(max(x + 3, 0), 6) / 6."""
    return _run(_hardswish_operator, _hardswish_in_place, input, inplace, {}, False)


_hardshrink_operator = _operator("hardshrink", "hardshrink_cpu", composites.hardshrink)
_softshrink_operator = _operator("softshrink", "softshrink_cpu", composites.softshrink)


@_activation_with_out
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:  # noqa: A002
    """x outside [-lambd, lambd], 0 inside."""
    return call(_hardshrink_operator, (need_tensor("hardshrink", input),), {"lambd": lambd})


@_activation_with_out
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:  # noqa: A002
    """x moved by lambd towards 0, and 0 inside [-lambd, lambd]. RuntimeError for a negative lambd."""
    need_tensor("softshrink", input)
    need_floating("softshrink_check", input.dtype)
    if lambd < 0:
        raise RuntimeError(
            f"lambda must be in range [0, {finfo(input.dtype).max:g}] for input dtype "
            f"{type_name(input.dtype)}, but found {lambd:g}"
        )
    return call(_softshrink_operator, (input,), {"lambd": lambd})


# --- with a parameter or a gate ---------------------------------------------------------------------------------------


def _glu(x: Node, dim: int) -> Node:
    need_floating("glu_cpu", x.dtype)
    half = x.shape[dim] // 2
    return build.slice_(x, dim, 0, half) * f.sigmoid(build.slice_(x, dim, half, half))


_glu_operator = Operator("glu", _glu)


@_activation
def glu(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002
    """a sigmoid(b), where a and b are the halves of the input along dim (Dauphin et al., 2017).

    Raises RuntimeError for a zero-dim tensor or an odd extent.
    """
    need_tensor("glu", input)
    if not input.ndim:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    axis = axis_of(dim, input.ndim)
    if input.layout.shape[axis] % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {axis} is size {input.layout.shape[axis]}")
    return call(_glu_operator, (input,), {"dim": axis})


def _prelu(x: Node, weight: Node) -> Node:
    if x.dtype is not weight.dtype:
        raise RuntimeError(f"prelu: Type promoting not supported. Got {x.dtype.name} and {weight.dtype.name}")
    need_floating("prelu_cpu", x.dtype)
    if weight.ndim > 1:
        raise RuntimeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}")
    numel = weight.numel
    if numel != 1:
        if not x.ndim:
            raise RuntimeError("Not allow zero-dim input tensor.")
        channels = x.shape[1] if x.ndim > 1 else 1
        if channels != numel:
            raise RuntimeError(
                f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {numel} and channel "
                f"size = {channels}."
            )
    shape = [numel if i == 1 else 1 for i in range(x.ndim)] if numel != 1 else [1] * x.ndim
    slope = build.broadcast_to(build.reshape(weight, shape), x.shape)
    return build.where(f.gt(x, 0), x, slope * x)


_prelu_operator = Operator("prelu", _prelu, pointwise=True)


@_activation
def prelu(input: Tensor, weight: Tensor) -> Tensor:  # noqa: A002
    """x where positive, weight x elsewhere; weight has one element, or one for every channel (axis 1).

    Raises RuntimeError where the sizes or dtypes do not fit.
    """
    need_tensors("prelu", input=input, weight=weight)
    return call(_prelu_operator, (input, weight), {})


def _rrelu(x: Node, key: Node, offset: Node, lower: float, upper: float) -> Node:
    work = float64 if x.dtype is float64 else float32
    slope = uniform_graph(key, offset, x.shape, work) * (upper - lower) + lower
    return build.where(f.gt(x, 0), x, x * build.cast(slope, x.dtype))


_rrelu_operator = Operator("rrelu", _rrelu, pointwise=True, node_name="RreluWithNoise")


@_activation
def rrelu(
    input: Tensor,  # noqa: A002
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """x where positive, s x elsewhere: s uniform in [lower, upper) while training, else their mean (Xu et al., 2015).

    Raises RuntimeError if lower exceeds upper.
    """
    need_tensor("rrelu", input)
    if lower > upper:
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    need_floating("leaky_relu_cpu", input.dtype)
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    refuse("rrelu_with_noise_out_cpu", input.dtype, "", (float16,))
    key, offset = draw(input.layout.numel * words_of(input.dtype))
    result = call(_rrelu_operator, (input, key, offset), {"lower": float(lower), "upper": float(upper)})
    return input.copy_(result) if inplace else result


# Rows of the scalar table, of which `nn.functional` has two.
for _name in ("sigmoid", "tanh"):
    _activation(pointwise.PUBLIC[_name].function)

# PyTorch has these as `ts.name` too, and two of them as methods.
for _name in ("selu", "celu", "rrelu", "threshold", "prelu", "hardshrink"):
    _plain = inspect.unwrap(TABLE[f"nn.functional.{_name}"].function)
    public("activations", method=_name in ("prelu", "hardshrink"), out=_name == "hardshrink")(_plain)


def _written(name: str) -> None:
    function = TABLE[f"nn.functional.{name}"].function

    def in_place(input: Tensor, *args: Any, **keywords: Any) -> Tensor:  # noqa: A002
        return function(input, *args, **keywords, inplace=True)

    in_place.__name__ = in_place.__qualname__ = name + "_"
    in_place.__doc__ = f"`{name}` written over the input."
    public("activations", name=name + "_", namespace="nn.functional", method=False)(in_place)


for _name in ("relu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "rrelu", "threshold"):
    _written(_name)

"""Losses that compare element by element: each a pointwise formula and a sum or mean, in one kernel.

Input and target broadcast; half precision is summed in float32. reduction: "mean" (default), "sum" or "none".
`cross_entropy` and `nll_loss` are in `class_losses.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.dtypes import int32, real_dtype, type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import need_floating, need_tensors
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.loss_reduction import finish, reduction_mode, share
from tensorsmith.ops.registry import public
from tensorsmith.scalar import composites, functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

_loss = public("losses", namespace="nn.functional", method=False)


def _pair(x: Node, target: Node) -> tuple[Node, Node]:
    """Both in their promoted dtype, half precision widened, with one shape."""
    dtype = build.promote([x, target])
    shape = broadcast_shapes(x.shape, target.shape)
    return tuple(build.broadcast_to(build.wide(build.cast(n, dtype)), shape) for n in (x, target))  # type: ignore[return-value]


def _elementwise(name: str, kernel: str | None, formula: Callable[..., Node]) -> Operator:
    """A loss from its formula for one element. Operands: input, target and, if there are three, a weight."""

    def build_loss(x: Node, target: Node, *weight: Node, mode: str, weighted_mean: bool = False, **attrs: Any) -> Node:
        dtype = build.promote([x, target])
        if kernel is not None:
            need_floating(kernel, dtype)
        terms = formula(*_pair(x, target), **attrs)
        if not weight:
            dtype = dtype if terms.dtype.is_complex else real_dtype(dtype)
            if mode == "mean" and not dtype.is_floating_point:
                raise RuntimeError(
                    "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
                    f"dtype. Got: {type_name(dtype)}"
                )
            return finish(terms, mode, dtype)
        dtype = build.promote([build.cast(terms, dtype), weight[0]])
        factor = build.wide(build.cast(weight[0], dtype))
        if mode == "mean" and weighted_mean:
            return build.cast(build.reduce(terms * factor, "sum") / build.reduce(factor, "sum"), dtype)
        return finish(terms * factor, mode, dtype)

    return Operator(name, build_loss)


def _warn_sizes(input: Tensor, target: Tensor) -> None:  # noqa: A002 - PyTorch's name
    if target.layout.shape != input.layout.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). This will "
            "likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=3,
        )


def _run(
    operator: Operator,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    mode: str,
    attrs: dict[str, Any],  # noqa: A002
) -> Tensor:
    need_tensors(operator.name, input=input, target=target)
    _warn_sizes(input, target)
    if weight is None:
        return call(operator, (input, target), {"mode": mode, **attrs})
    if weight.layout.shape != input.layout.shape:
        raise ValueError("Weights and input must have the same size.")
    return call(operator, (input, target, weight), {"mode": mode, "weighted_mean": operator is not _huber, **attrs})


def _squared(x: Node, y: Node) -> Node:
    difference = x - y
    return difference * difference


_mse = _elementwise("mse_loss", "mse_cpu", _squared)


@_loss
def mse_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,  # noqa: A002
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(x - y)**2; with weight, times the weight, and its mean is divided by the sum of the weights.

    Raises ValueError for an unknown reduction or a weight of another shape than the input.
    """
    if weight is None and size_average is None and reduce is None:
        try:
            entry = FAST.get((_mse, input.layout, target.layout, ("mode", reduction)))
        except AttributeError:
            need_tensors("mse_loss", input=input, target=target)
            raise
        if entry is not None and input.layout.shape == target.layout.shape:
            return entry(input, target)
    return _run(_mse, input, target, weight, reduction_mode(reduction, size_average, reduce), {})


_l1 = _elementwise("l1_loss", None, lambda x, y: f.abs(x - y))


@_loss
def l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,  # noqa: A002
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """|x - y|; weight and errors as in `mse_loss`."""
    return _run(_l1, input, target, weight, reduction_mode(reduction, size_average, reduce), {})


def _smooth(x: Node, y: Node, beta: float) -> Node:
    difference = x - y
    distance = f.abs(difference)
    return build.where(f.lt(distance, beta), difference * difference * (0.5 / beta), distance - 0.5 * beta)


_smooth_l1 = _elementwise("smooth_l1_loss", "smooth_l1_cpu", _smooth)


@_loss
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,  # noqa: A002
    reduction: str = "mean", beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """d**2 / (2 beta) where d = |x - y| < beta, d - beta / 2 elsewhere; |x - y| for beta = 0.

    Raises RuntimeError for a negative beta.
    """
    mode = reduction_mode(reduction, size_average, reduce)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return _run(_l1, input, target, None, mode, {})
    return _run(_smooth_l1, input, target, None, mode, {"beta": float(beta)})


def _huber_formula(x: Node, y: Node, delta: float) -> Node:
    difference = x - y
    distance = f.abs(difference)
    return build.where(f.le(distance, delta), difference * difference * 0.5, (distance - 0.5 * delta) * delta)


_huber = _elementwise("huber_loss", "huber_cpu", _huber_formula)


@_loss
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,  # noqa: A002
) -> Tensor:
    """d**2 / 2 where d = |x - y| <= delta, delta (d - delta / 2) elsewhere; times the weight where given.

    Raises RuntimeError for a delta that is not positive.
    """
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return _run(_huber, input, target, weight, reduction_mode(reduction), {"delta": float(delta)})


# --- Kullback-Leibler divergence --------------------------------------------------------------------------------------


def _divergence(x: Node, target: Node, log_target: bool) -> Node:
    if log_target:
        return f.exp(target) * (target - x)
    return composites.xlogy(target, target) - target * x


_kl_div = _elementwise("kl_div", None, _divergence)


@_loss
def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,  # noqa: A002
    reduction: str = "mean", log_target: bool = False,
) -> Tensor:  # fmt: skip
    """t (log t - x), or e**t (t - x) with log_target; the input holds logarithms of probabilities.

    reduction="batchmean" divides the sum by the first extent, which is the definition of the divergence; "mean" divides
    by the number of elements.
    """
    need_tensors("kl_div", input=input, target=target)
    batch = reduction == "batchmean" and size_average is None and reduce is None
    if reduction == "mean" and size_average is None and reduce is None:
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size. 'batchmean' divides "
            "only by the batch size, and aligns with the KL div math definition.",
            stacklevel=2,
        )
    mode = "sum" if batch else reduction_mode(reduction, size_average, reduce)
    result = call(_kl_div, (input, target), {"mode": mode, "log_target": bool(log_target)})
    return result / input.layout.shape[0] if batch and input.ndim else result


# --- binary cross entropy ---------------------------------------------------------------------------------------------

_FLOOR = -100.0  # PyTorch's bound of the logarithms, so that a loss stays finite


def _binary(x: Node, target: Node, *weight: Node, mode: str) -> tuple[Node, Node]:
    """The loss, and whether an element of the input is no probability."""
    dtype = x.dtype
    need_floating("binary_cross_entropy", dtype)
    p, t = build.wide(x), build.wide(target)
    likely = f.maximum(f.log(p), _FLOOR)
    unlikely = f.maximum(f.log1p(-p), _FLOOR)
    terms = (t - 1.0) * unlikely - t * likely
    if weight:
        terms = terms * build.broadcast_to(build.wide(weight[0]), terms.shape)
    outside = f.logical_not(f.logical_and(f.ge(p, 0.0), f.le(p, 1.0)))
    return finish(terms, mode, dtype), build.reduce(build.cast(outside, int32), "max") if x.numel else (
        build.full(x.graph, (), 0, int32)
    )


def _binary_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mode: str
) -> list[Node | None]:
    x, target, *weight = inputs
    p, t = build.wide(x), build.wide(target)
    grad = share(build.wide(grads[0]), mode, x.shape, x.numel)
    factor = grad * build.broadcast_to(build.wide(weight[0]), x.shape) if weight else grad
    by_input = factor * (p - t) / f.maximum((1.0 - p) * p, 1e-12)
    by_target = factor * (f.log(1.0 - p) - f.log(p))
    parts: list[Node | None] = [build.cast(by_input, x.dtype), build.cast(by_target, target.dtype)]
    return parts + [None] * len(weight)


_binary_operator = Operator("binary_cross_entropy", _binary, _binary_gradient)


@_loss
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,  # noqa: A002
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-w (t log x + (1 - t) log(1 - x)), the logarithms bounded below by -100.

    Raises ValueError where input and target differ in shape, RuntimeError where an input is no probability or dtypes
    differ.
    """
    if modes.autocast is not None:
        input, target, weight = modes.autocast.operands("binary_cross_entropy", input, target, weight)  # noqa: A001
    need_tensors("binary_cross_entropy", input=input, target=target)
    mode = reduction_mode(reduction, size_average, reduce)
    if weight is not None and weight.layout.tracked:
        raise RuntimeError(
            "The function 'binary_cross_entropy' is not differentiable with respect to argument 'weight'. This input cannot "
            "have requires_grad True."
        )
    if target.layout.shape != input.layout.shape:
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is deprecated. "
            "Please ensure they have the same size."
        )
    for other in (target, weight):
        if other is not None and other.dtype is not input.dtype and input.dtype.is_floating_point:
            raise RuntimeError(f"Found dtype {type_name(other.dtype)} but expected {type_name(input.dtype)}")
    operands = (input, target) if weight is None else (input, target, weight)
    result, outside = call(_binary_operator, operands, {"mode": mode})
    if modes.tracer is None and array_of(outside):
        raise RuntimeError("all elements of input should be between 0 and 1")
    return result


def _with_logits(x: Node, target: Node, *rest: Node, mode: str, weighted: bool) -> Node:
    """max form of -(t log s(x) + (1 - t) log(1 - s(x))):  (1 - t) x + (1 + (p - 1) t) softplus(-x)."""
    dtype = build.promote([x, target, *rest])
    need_floating("log_sigmoid_cpu", x.dtype)
    z, t = _pair(build.cast(x, dtype), build.cast(target, dtype))
    factors = [build.broadcast_to(build.wide(build.cast(n, dtype)), z.shape) for n in rest]
    softened = f.softplus(-z)
    positive = factors[1 if weighted else 0] if len(factors) > weighted else None
    if positive is not None:
        softened = softened * ((positive - 1.0) * t + 1.0)
    terms = (1.0 - t) * z + softened
    return finish(terms * factors[0] if weighted else terms, mode, dtype)


_with_logits_operator = Operator("binary_cross_entropy_with_logits", _with_logits)


@_loss
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,  # noqa: A002
    reduce: bool | None = None, reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-w (p t log s + (1 - t) log(1 - s)) with s = sigmoid(x), in the form that does not overflow.

    weight (w) and pos_weight (p) broadcast to the input. Raises ValueError where input and target differ in shape.
    """
    need_tensors("binary_cross_entropy_with_logits", input=input, target=target)
    mode = reduction_mode(reduction, size_average, reduce)
    if target.layout.shape != input.layout.shape:
        raise ValueError(f"Target size ({target.shape}) must be the same as input size ({input.shape})")
    operands = [x for x in (input, target, weight, pos_weight) if x is not None]
    return call(_with_logits_operator, operands, {"mode": mode, "weighted": weight is not None})

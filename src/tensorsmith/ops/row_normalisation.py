"""Normalisation over rows: layer_norm and rms_norm.

Both see the input as (rows, n), n the product of the normalised axes:

    layer_norm:  mean m, centred variance v = mean (x - m)**2, h = (x - m) / sqrt(v + eps), y = h w + b
    rms_norm:    h = x / sqrt(mean x**2 + eps), y = h w

with one row kernel. The gradient computes the statistics again: with a = g w,

    dx = (a - mean a - h mean(a h)) / sqrt(v + eps)      (rms_norm: without mean a)
    dw = sum over rows of g h, db = sum over rows of g

in one row kernel, and one for dw and db; on a GPU both are one step. Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import compute_dtype, finfo, type_name
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import need_floating, need_tensors
from tensorsmith.ops.registry import public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor


def _mean(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True) / float(x.shape[axis])


def _as_rows(x: Node, axes: int) -> Node:
    """`x` wide and as (rows, elements of the last `axes` axes)."""
    split = x.ndim - axes
    return build.reshape(build.wide(x), (math.prod(x.shape[:split]), math.prod(x.shape[split:])))


def _as_columns(weight: Node) -> Node:
    return build.reshape(build.wide(weight), (1, weight.numel))


def _normalised(rows: Node, eps: float, centred: bool) -> tuple[Node, Node]:
    """The rows without mean and with unit variance, and the reciprocal of their standard deviation."""
    deviation = rows - _mean(rows, 1) if centred else rows
    scale = f.rsqrt(_mean(deviation * deviation, 1) + eps)
    return deviation * scale, scale


def _norm(x: Node, *parameters: Node, axes: int, eps: float, centred: bool, has_weight: bool) -> Node:
    rows = _as_rows(x, axes)
    result, _ = _normalised(rows, eps, centred)
    rest = list(parameters)
    if has_weight:
        result = result * _as_columns(rest.pop(0))
    if rest:
        result = result + _as_columns(rest[0])
    return build.reshape(build.cast(result, x.dtype), x.shape)


def _norm_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], axes: int, eps: float, centred: bool,
    has_weight: bool,
) -> list[Node | None]:  # fmt: skip
    x, *parameters = inputs
    rows, grad = _as_rows(x, axes), _as_rows(grads[0], axes)
    unit, scale = _normalised(rows, eps, centred)
    scaled = grad * _as_columns(parameters[0]) if has_weight else grad
    along = scaled - unit * _mean(scaled * unit, 1)
    if centred:
        along = along - _mean(scaled, 1)
    parts: list[Node | None] = [build.cast(build.reshape(along * scale, x.shape), x.dtype)]
    for number, parameter in enumerate(parameters):
        terms = grad * unit if has_weight and number == 0 else grad
        parts.append(build.cast(build.reshape(build.reduce(terms, "sum", (0,)), parameter.shape), parameter.dtype))
    return parts


NORM = Operator("layer_norm", _norm, _norm_gradient)


def _check(
    name: str,
    kernel: str,
    input: Tensor,
    shape: tuple[int, ...],
    parameters: dict[str, Tensor | None],  # noqa: A002
) -> None:
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []"
        )
    for which, parameter in parameters.items():
        if parameter is None:
            continue
        need_tensors(name, **{which: parameter})
        if parameter.layout.shape != shape:
            raise RuntimeError(
                f"Expected {which} to be of same shape as normalized_shape, but got {which} of shape "
                f"{list(parameter.layout.shape)} and normalized_shape = {list(shape)}"
            )
    if input.layout.shape[len(input.layout.shape) - len(shape) :] != shape or input.ndim < len(shape):
        star = ", " if name == "layer_norm" else ""
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*{star}{', '.join(map(str, shape))}], "
            f"but got input of size{list(input.layout.shape)}"
        )
    need_floating(kernel, input.dtype)
    for parameter in parameters.values():
        if parameter is not None and parameter.dtype is not input.dtype:
            if not input.dtype.is_half:
                raise RuntimeError(
                    f"mixed dtype (CPU): expect parameter to have scalar type of {type_name(input.dtype)}"
                )
            if parameter.dtype.name != "float32":
                raise RuntimeError("mixed dtype (CPU): all the parameters must have the same type.")


def _shape_of(name: str, normalized_shape: Any) -> tuple[int, ...]:
    if not isinstance(normalized_shape, tuple | list):
        raise TypeError(
            f"{name}(): argument 'normalized_shape' (position 2) must be tuple of ints, not {type(normalized_shape).__name__}"
        )
    return tuple(int(n) for n in normalized_shape)


_norm_functional = public("normalisation", namespace="nn.functional", method=False)


@_norm_functional
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,  # noqa: A002
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) over the last axes, times weight plus bias (Ba, Kiros, Hinton, 2016).

    normalized_shape: the extents of the axes normalised over, which weight and bias have as their shape.
    The variance is that of the population. Raises RuntimeError where shapes do not fit.
    """
    operands = [x for x in (input, weight, bias) if x is not None]
    attrs = {"axes": len(normalized_shape), "eps": eps, "centred": True, "has_weight": weight is not None}
    try:
        entry = FAST.get((NORM, *[x.layout for x in operands], *attrs.items()))
    except AttributeError:
        need_tensors("layer_norm", input=input)
        raise
    shape = _shape_of("layer_norm", normalized_shape)
    if entry is None or input.layout.shape[input.ndim - len(shape) :] != shape:
        _check("layer_norm", "LayerNormKernelImpl", input, shape, {"weight": weight, "bias": bias})
        return call(NORM, operands, attrs)
    return entry(*operands)


@_norm_functional
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,  # noqa: A002
) -> Tensor:
    """x / sqrt(mean x**2 + eps) over the last axes, times weight (Zhang, Sennrich, 2019).

    eps: the machine epsilon of the input's dtype where not given (of float32 for half precision).
    """
    need_tensors("rms_norm", input=input)
    shape = _shape_of("rms_norm", normalized_shape)
    _check("rms_norm", "rms_norm", input, shape, {"weight": weight})
    if eps is None:
        eps = finfo(compute_dtype(input.dtype)).eps
    attrs = {"axes": len(shape), "eps": float(eps), "centred": False, "has_weight": weight is not None}
    return call(NORM, (input,) if weight is None else (input, weight), attrs)


public("normalisation", method=False)(rms_norm)

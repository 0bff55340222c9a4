"""Dropout: elements, or whole channels, set to zero at random while training.

The random bits of element i are a function of (key, offset + i) (Philox), and the two numbers are operands. So one
kernel makes the bits, compares and scales, no mask is stored, and the backward pass makes the same bits again.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from tensorsmith.core.dtypes import type_name, uint32
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.dropout import limit
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import refuse_complex
from tensorsmith.ops.random import bits, draw
from tensorsmith.ops.registry import TABLE, need_tensor, public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor

_dropout_family = public("dropout", namespace="nn.functional", method=False)


def _dropped(x: Node, key: Node, offset: Node, p: float, channels: bool) -> Node:
    """Whether an element, or its channel, is dropped; in the shape of x."""
    shape = x.shape[:2] + (1,) * (x.ndim - 2) if channels else x.shape
    drawn = bits(key, offset, shape)
    return build.broadcast_to(f.lt(drawn, build.full(x.graph, shape, limit(p), uint32)), x.shape)


def _dropout(x: Node, key: Node, offset: Node, p: float, channels: bool) -> Node:
    if not x.dtype.is_floating_point:
        raise RuntimeError(f"result type Float can't be cast to the desired output type {type_name(x.dtype)}")
    if p == 1.0:
        return x * 0.0
    return build.where(_dropped(x, key, offset, p, channels), 0, x * (1.0 / (1.0 - p)))


_SELU_LIMIT = 1.7580993408473766  # -scale * alpha of SELU: what its negative side tends to


def _alpha_dropout(x: Node, key: Node, offset: Node, p: float, channels: bool) -> Node:
    if not x.dtype.is_floating_point:
        raise RuntimeError(f"result type Float can't be cast to the desired output type {type_name(x.dtype)}")
    if p == 1.0:
        return x * 0.0
    a = 1.0 / math.sqrt((_SELU_LIMIT * _SELU_LIMIT * p + 1.0) * (1.0 - p))
    shift = _SELU_LIMIT * a * p
    return build.where(_dropped(x, key, offset, p, channels), shift - _SELU_LIMIT * a, x * a + shift)


DROPOUT = Operator("dropout", _dropout, pointwise=True)
_dropout_in_place = InplaceOperation(DROPOUT)
_alpha_operator = Operator("alpha_dropout", _alpha_dropout, pointwise=True)
_alpha_in_place = InplaceOperation(_alpha_operator)


def _check_probability(p: Any) -> None:
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if p != p:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")


def _run(
    operator: Operator, written: InplaceOperation, x: Tensor, p: float, training: bool, inplace: bool, channels: bool
) -> Tensor:
    if not training or p == 0.0 or not x.numel():
        return x
    refuse_complex("bernoulli_scalar_cpu_", x)
    if channels and x.ndim < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    shape = x.layout.shape
    key, offset = draw(shape[0] * shape[1] if channels else x.layout.numel)
    attrs = {"p": float(p), "channels": channels}
    return written(x, key, offset, **attrs) if inplace else call(operator, (x, key, offset), attrs)


@_dropout_family
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    """While training each element is 0 with probability p and divided by 1 - p otherwise; else the input itself.

    Raises ValueError for p outside [0, 1], RuntimeError for integers.
    """
    _check_probability(p)
    need_tensor("dropout", input)
    if training and not inplace and p != 0.0:
        entry = FAST.get((DROPOUT, input.layout, int, int, ("p", p), ("channels", False)))
        if entry is not None:
            key, offset = draw(input.layout.numel)
            if offset.__class__ is int:  # under vmap it may be another number for every example
                return entry(input, key, offset)
            return DROPOUT(input, key, offset, p=p, channels=False)
    return _run(DROPOUT, _dropout_in_place, input, p, training, inplace, False)


@_dropout_family
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:  # noqa: A002
    """Dropout for SELU networks: dropped elements take SELU's limit, and mean and variance stay (Klambauer, 2017)."""
    _check_probability(p)
    return _run(_alpha_operator, _alpha_in_place, need_tensor("alpha_dropout", input), p, training, inplace, False)


@_dropout_family
def feature_alpha_dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,  # noqa: A002
) -> Tensor:
    """`alpha_dropout` of whole channels (axis 1)."""
    _check_probability(p)
    return _run(
        _alpha_operator, _alpha_in_place, need_tensor("feature_alpha_dropout", input), p, training, inplace, True
    )


def _channel_dropout(name: str, dims: int) -> None:
    batched = dims + 2

    def function(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        _check_probability(p)
        need_tensor(name, input)
        ndim = input.ndim
        if dims == 1 and ndim not in (2, 3):
            raise RuntimeError(
                f"dropout1d: Expected 2D or 3D input, but received a {ndim}D input. Note that dropout1d exists to "
                "provide channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an optional "
                "batch dimension (i.e. 2D or 3D inputs)."
            )
        if dims > 1 and ndim not in (batched - 1, batched):
            warnings.warn(
                f"{name}: Received a {ndim}-D input to {name}, which is deprecated and will result in an error in a "
                "future release. To retain the behavior and silence this warning, please use dropout instead.",
                stacklevel=2,
            )
        if dims == 2 and ndim == 3:
            warnings.warn(
                "dropout2d: Received a 3D input to dropout2d and assuming that channel-wise 1D dropout behavior is "
                "desired - input is interpreted as shape (N, C, L), where C is the channel dim.",
                stacklevel=2,
            )
        if dims != 2 and ndim == batched - 1:  # without a batch axis: channels are axis 0
            added = input.unsqueeze(0)
            return _run(DROPOUT, _dropout_in_place, added, p, training, inplace, True).squeeze(0)
        return _run(DROPOUT, _dropout_in_place, input, p, training, inplace, True)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"While training each channel of an input with {dims} spatial axes is 0 with probability p."
    _dropout_family(function)


for _name, _dims in (("dropout1d", 1), ("dropout2d", 2), ("dropout3d", 3)):
    _channel_dropout(_name, _dims)


def _with_train(name: str) -> None:
    """PyTorch's `torch.dropout(input, p, train)` and its relatives."""
    functional = TABLE[f"nn.functional.{name}"].function

    def function(input: Tensor, p: float, train: bool) -> Tensor:  # noqa: A002
        return functional(input, p, train)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`nn.functional.{name}` with all arguments given."
    public("dropout", method=False)(function)


for _name in ("dropout", "alpha_dropout", "feature_alpha_dropout"):
    _with_train(_name)

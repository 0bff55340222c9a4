"""Gradients kept small: by their common norm, or value by value."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import promote_types, real_dtype
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import zeros
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.tensor import Tensor


def _total_norm(*tensors: Node, norm_type: float) -> Node:
    """The norm of all elements of all tensors together; of order 0 PyTorch's: how many tensors have an element but zeros."""
    extreme = {math.inf: "max", -math.inf: "min"}.get(norm_type)
    parts = []
    for x in tensors:
        magnitude = f.abs(build.wide(x))
        if extreme is not None:
            parts.append(build.reduce(magnitude, extreme))
        elif norm_type == 0:
            count = build.reduce(build.cast(f.ne(magnitude, 0), magnitude.dtype), "sum")
            parts.append(f.minimum(count, 1))
        else:
            powers = magnitude * magnitude if norm_type == 2 else magnitude if norm_type == 1 else magnitude**norm_type
            parts.append(build.reduce(powers, "sum"))
    total = parts[0]
    for part in parts[1:]:
        total = total + part if extreme is None else f.maximum(total, part) if extreme == "max" else f.minimum(total, part)
    if extreme is None and norm_type not in (0, 1):
        total = f.sqrt(total) if norm_type == 2 else total ** (1.0 / norm_type)
    return build.cast(
        total, functools.reduce(promote_types, [real_dtype(x.dtype) if x.dtype.is_complex else x.dtype for x in tensors])
    )


_norm = Operator("total_norm", _total_norm)
_scale_ = InplaceOperation(Operator("scale_gradient", lambda grad, factor: grad * factor, pointwise=True))
_SCALE = FusedUpdate("scale_gradient", lambda grad, factor: [grad * factor], (0,), 1)
_SCALE_BY = FusedUpdate("scale_gradient_by", lambda grad, factor: [grad * factor], (0,), 2)
_CLAMP = FusedUpdate("clip_gradient", lambda grad, limit: [f.maximum(f.minimum(grad, limit), -limit)], (0,), 1)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p.state.grad for p in parameters if p.state is not None and p.state.grad is not None]


@no_grad()
def get_total_norm(tensors: Sequence[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """The norm of the tensors as one vector: (sum |x|^p)^(1/p), max |x| for p = inf, min |x| for p = -inf.

    For p = 0 it is the number of tensors that have an element other than zero, as in PyTorch, which takes norms of norms.

    Raises RuntimeError for a norm that is not finite, where error_if_nonfinite is set.
    """
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    filled = [t for t in tensors if t.layout.numel]
    if not filled:
        return zeros(())
    norm = _norm(*(t.detach() for t in filled), norm_type=float(norm_type))
    if error_if_nonfinite and not (norm - norm).item() == 0:  # NaN for NaN and infinity
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so "
            "it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return norm


@no_grad()
def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor) -> None:
    """Scale the gradients by max_norm / (total_norm + 1e-6) where that is below 1."""
    grads = _gradients(parameters)
    if not grads:
        return
    factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    if modes.tracer is not None or factor.layout.numel != 1:
        for grad in grads:
            _scale_(grad, factor)
        return
    if factor.layout.device is not CPU:  # nobody waits for the device to know it
        if all(grad.layout.device is factor.layout.device and not grad.layout.dtype.is_complex for grad in grads):
            _SCALE_BY.on_all([grads, [factor.expand(grad.shape) for grad in grads]], ())
            return
    number = factor.item()
    if number == 1.0:  # nothing changes but that they were written
        for grad in grads:
            grad.storage.version += 1
        return
    _SCALE.on_all([grads], (number,))


@no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients, in place, so that their common norm is at most max_norm; the norm before is returned."""
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    norm = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def clip_grad_norm(*args: Any, **kwargs: Any) -> Tensor:
    """The older name of `clip_grad_norm_`, which warns."""
    warnings.warn(
        "`nn.utils.clip_grad_norm` is now deprecated in favor of `nn.utils.clip_grad_norm_`.", FutureWarning, stacklevel=2
    )
    return clip_grad_norm_(*args, **kwargs)


@no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Hold every element of the gradients between -clip_value and clip_value, in place."""
    grads = _gradients(parameters)
    if grads:
        _CLAMP.on_all([grads], (float(clip_value),))

"""Batch normalisation in evaluation taken into the layer before it, and layers made without drawing their weights."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from tensorsmith.nn import init
from tensorsmith.nn.module import Module
from tensorsmith.nn.parameter import Parameter
from tensorsmith.ops.creation import full_like
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a convolution that is followed by batch normalisation with given statistics.

    W' = W w / sqrt(var + eps) a channel of outputs (axis 0, or 1 with transpose), b' = (b - mean) w / sqrt(var + eps) + bias.
    """
    tracked = conv_w.requires_grad, conv_b.requires_grad if conv_b is not None else False
    with no_grad():
        start = full_like(bn_rm, 0) if conv_b is None else conv_b
        scale = (bn_rv + bn_eps).rsqrt() * (1.0 if bn_w is None else bn_w)
        shape = [1] * conv_w.ndim
        shape[1 if transpose else 0] = -1
        weight = (conv_w * scale.reshape(shape)).to(conv_w.dtype)
        bias = (start - bn_rm) * scale + (0.0 if bn_b is None else bn_b)
        bias = bias.to(conv_w.dtype if conv_b is None else conv_b.dtype)
    return Parameter(weight.detach(), tracked[0]), Parameter(bias.detach(), tracked[1])


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Weight and bias of a linear layer that is followed by batch normalisation with given statistics."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _statistics(layer: Module, bn: Module) -> tuple[Any, ...]:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("bn.running_mean and bn.running_var must not be None")
    return layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias


def fuse_conv_bn_eval(conv: Module, bn: Module, transpose: bool = False) -> Module:
    """A copy of a convolution that gives what `bn(conv(x))` does. AssertionError for modules in training mode."""
    weight, bias, *statistics = _statistics(conv, bn)
    mean, variance, eps, scale, shift = statistics
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(weight, bias, mean, variance, eps, scale, shift, transpose)
    return fused


def fuse_linear_bn_eval(linear: Module, bn: Module) -> Module:
    """A copy of a linear layer that gives what `bn(linear(x))` does.

    AssertionError for modules in training mode, and where the layers differ in their number of features.
    """
    statistics = _statistics(linear, bn)
    if bn.num_features not in (1, linear.out_features):
        raise AssertionError(
            "To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got "
            f"linear.out_features={linear.out_features} and bn.num_features={bn.num_features}"
        )
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(*statistics)
    return fused


def skip_init(module_cls: type[Module], *args: Any, **kwargs: Any) -> Module:
    """A module whose parameters hold anything: nothing is drawn, so none of the random stream is used.

    Raises RuntimeError for a class that is no Module or takes no `device`.
    """
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    with init.skipped():
        return module_cls(*args, **kwargs)

"""Optimisers that divide by a running measure of past gradients: RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

import functools
from typing import Any

from tensorsmith.core.dtypes import float32
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import zeros
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.ops.registry import TABLE
from tensorsmith.optim.counted import CountedOptimizer
from tensorsmith.optim.optimizer import (
    Parameters,
    check_choices,
    check_hyperparameter,
    check_rate,
    direction,
)
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor


def _rmsprop(
    param: Node, grad: Node, square: Node, *rest: Node, centered: bool, momentum: bool, maximize: bool, decayed: bool
) -> list[Node]:
    *others, lr, alpha, added, eps, decay, kept = rest
    grad = direction(param, grad, decay, maximize=maximize, decayed=decayed)
    square = alpha * square + added * (grad * grad)
    new = [square]
    spread = square
    if centered:
        mean = others[-1] + added * (grad - others[-1])
        spread = square - mean * mean
    step = grad / (f.sqrt(spread) + eps)
    if momentum:
        step = kept * others[0] + step
        new.append(step)
    if centered:
        new.append(mean)
    return [param - lr * step, *new]


def _adagrad(
    param: Node, grad: Node, total: Node, lr: Node, eps: Node, decay: Node, *, maximize: bool, decayed: bool
) -> list[Node]:
    grad = direction(param, grad, decay, maximize=maximize, decayed=decayed)
    total = total + grad * grad
    return [param - lr * (grad / (f.sqrt(total) + eps)), total]


def _adadelta(
    param: Node, grad: Node, square: Node, change: Node, lr: Node, rho: Node, added: Node, eps: Node, decay: Node, *,
    maximize: bool, decayed: bool,
) -> list[Node]:  # fmt: skip
    grad = direction(param, grad, decay, maximize=maximize, decayed=decayed)
    square = rho * square + added * (grad * grad)
    step = f.sqrt(change + eps) / f.sqrt(square + eps) * grad
    return [param - lr * step, square, rho * change + added * (step * step)]


@functools.cache
def _rmsprop_update(centered: bool, momentum: bool, maximize: bool, decayed: bool) -> FusedUpdate:
    tensors = 3 + centered + momentum
    return FusedUpdate(
        "rmsprop_step", _rmsprop, (0, *range(2, tensors)), tensors, centered=centered, momentum=momentum,
        maximize=maximize, decayed=decayed,
    )  # fmt: skip


@functools.cache
def _adagrad_update(maximize: bool, decayed: bool) -> FusedUpdate:
    return FusedUpdate("adagrad_step", _adagrad, (0, 2), 3, maximize=maximize, decayed=decayed)


@functools.cache
def _adadelta_update(maximize: bool, decayed: bool) -> FusedUpdate:
    return FusedUpdate("adadelta_step", _adadelta, (0, 2, 3), 4, maximize=maximize, decayed=decayed)


class RMSprop(CountedOptimizer):
    """v = alpha v + (1 - alpha) g^2;  p = p - lr g / (sqrt(v) + eps).

    centered: v - mean(g)^2 under the root, mean(g) averaged as v is. momentum: b = momentum b + g / (sqrt(v) + eps),
    p = p - lr b. weight_decay: added to the gradient. maximize: with -grad. foreach and capturable are accepted for
    PyTorch's sake. State: step, square_avg (and momentum_buffer, grad_avg).
    Source: Tieleman and Hinton (2012), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(2, requires_grad=True)
    >>> optimizer = ts.optim.RMSprop([p], lr=0.1, alpha=0.75, eps=0)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.8000, 0.8000], requires_grad=True)
    """

    like_parameter = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        check_hyperparameter("momentum value", momentum, momentum >= 0)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        check_hyperparameter("alpha value", alpha, alpha >= 0)
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        return _rmsprop_update(
            bool(group["centered"]), group["momentum"] > 0, bool(group["maximize"]), group["weight_decay"] != 0
        )

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages that the group's choices need."""
        momentum, mean = ("momentum_buffer",) if group["momentum"] > 0 else (), ("grad_avg",) if group["centered"] else ()
        return ("square_avg", *momentum, *mean)

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Rate, weights of the averages, eps, decay and momentum."""
        alpha = float(group["alpha"])
        return lr, alpha, 1.0 - alpha, float(group["eps"]), float(group["weight_decay"]), float(group["momentum"])


class Adagrad(CountedOptimizer):
    """s = s + g^2;  p = p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps), with s = initial_accumulator_value at first.

    weight_decay: added to the gradient. maximize: with -grad. foreach and fused are accepted for PyTorch's sake.
    State, there from the beginning: step, sum.
    Source: Duchi, Hazan and Singer (2011), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(2, requires_grad=True)
    >>> optimizer = ts.optim.Adagrad([p], lr=0.5)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.5000, 0.5000], requires_grad=True)
    """

    like_parameter = ("sum",)

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("lr_decay value", lr_decay, lr_decay >= 0)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        check_hyperparameter("initial_accumulator_value value", initial_accumulator_value, initial_accumulator_value >= 0)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        check_choices(self, differentiable, foreach, fused)
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param].update(self.new_state(param, group))

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The counter and the sum, in both parts of a complex parameter."""
        first: Any = float(self.defaults["initial_accumulator_value"])
        first = complex(first, first) if param.is_complex() else first
        return {"step": zeros((), dtype=float32, device="cpu"), "sum": TABLE["full_like"].function(param.detach(), first)}

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        return _adagrad_update(bool(group["maximize"]), group["weight_decay"] != 0)

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The sum of squares."""
        return self.like_parameter

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """The rate of this step, eps and decay."""
        return lr / (1.0 + (count - 1.0) * group["lr_decay"]), float(group["eps"]), float(group["weight_decay"])


class Adadelta(CountedOptimizer):
    """v = rho v + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(v + eps) g;  u = rho u + (1 - rho) d^2;  p = p - lr d.

    weight_decay: added to the gradient. maximize: with -grad. foreach and capturable are accepted for PyTorch's sake.
    State: step, square_avg (v), acc_delta (u).
    Source: Zeiler (2012), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(2, requires_grad=True)
    >>> optimizer = ts.optim.Adadelta([p], rho=0.75, eps=0.25)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.2929, 0.2929], requires_grad=True)
    """

    like_parameter = ("square_avg", "acc_delta")

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0, foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("rho value", rho, 0 <= rho <= 1)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        return _adadelta_update(bool(group["maximize"]), group["weight_decay"] != 0)

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages of squared gradients and squared steps."""
        return self.like_parameter

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Rate, weights of the averages, eps and decay."""
        rho = float(group["rho"])
        return lr, rho, 1.0 - rho, float(group["eps"]), float(group["weight_decay"])

"""Optimisers without a measure of the gradient's size: ASGD, which averages the parameters, and Rprop, which uses signs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import float32
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import full, ones, zeros
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.ops.registry import TABLE
from tensorsmith.optim.counted import CountedOptimizer
from tensorsmith.optim.optimizer import (
    Parameters,
    check_choices,
    check_hyperparameter,
    check_rate,
    direction,
    number_of,
    zeros_like,
)
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor


def _asgd(
    param: Node, grad: Node, average: Node, eta: Node, shrunk: Node, mu: Node, decay: Node, *, maximize: bool,
    decayed: bool,
) -> list[Node]:  # fmt: skip
    grad = direction(param, grad, decay, maximize=maximize, decayed=decayed)
    param = param * shrunk - eta * grad
    return [param, f.where(f.eq(mu, 1.0), param, average + mu * (param - average))]


def _rprop(
    param: Node, grad: Node, before: Node, size: Node, down: Node, up: Node, least: Node, most: Node, *, maximize: bool
) -> list[Node]:
    grad = -grad if maximize else grad
    agreement = grad * before
    size = f.where(f.gt(agreement, 0.0), size * up, f.where(f.lt(agreement, 0.0), size * down, size))
    size = f.minimum(f.maximum(size, least), most)
    grad = f.where(f.lt(agreement, 0.0), 0.0, grad)
    return [param - f.sign(grad) * size, grad, size]


@functools.cache
def _asgd_update(maximize: bool, decayed: bool) -> FusedUpdate:
    return FusedUpdate("asgd_step", _asgd, (0, 2), 3, maximize=maximize, decayed=decayed)


@functools.cache
def _rprop_update(maximize: bool) -> FusedUpdate:
    return FusedUpdate("rprop_step", _rprop, (0, 2, 3), 4, maximize=maximize)


class ASGD(CountedOptimizer):
    """p = (1 - lambd eta_t) p - eta_t g;  ax = ax + mu_t (p - ax), the average of the parameters from step t0 on.

    eta_(t+1) = lr / (1 + lambd lr t)^alpha, mu_(t+1) = 1 / max(1, t - t0), at first lr and 1. weight_decay: added to the
    gradient. maximize: with -grad. foreach and capturable are accepted for PyTorch's sake.
    State: step, eta, mu, ax.
    Source: Polyak and Juditsky (1992), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(1, requires_grad=True)
    >>> optimizer = ts.optim.ASGD([p], lr=0.5, lambd=0.0)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.5000], requires_grad=True)
    """

    like_parameter = ("ax",)
    scalars = ("eta", "mu")

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Counter, rate, weight and average."""
        rate = full((), number_of(group["lr"]), dtype=float32, device="cpu")
        return {
            "step": zeros((), dtype=float32, device="cpu"), "eta": rate,
            "mu": ones((), dtype=float32, device="cpu"), "ax": zeros_like(param),
        }  # fmt: skip

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        return _asgd_update(bool(group["maximize"]), group["weight_decay"] != 0)

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The average."""
        return self.like_parameter

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """The rate and weight that the step before left, the decay of the parameter and of the gradient."""
        eta, mu = map(float, values)
        return eta, 1.0 - group["lambd"] * eta, mu, float(group["weight_decay"])

    def advanced(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The next rate and weight."""
        eta = lr / (1.0 + group["lambd"] * lr * count) ** group["alpha"]
        return np.float32(eta), np.float32(1.0 / max(1.0, count - group["t0"]))


class Rprop(CountedOptimizer):
    """Each element has a step size d: times etas[1] where the gradient kept its sign, times etas[0] where it turned.

    d is kept within step_sizes and starts at lr; p = p - sign(g) d, and where the sign turned, g counts as 0.
    maximize: with -grad. foreach and capturable are accepted for PyTorch's sake. State: step, prev, step_size.
    Source: Riedmiller and Braun (1993), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(1, requires_grad=True)
    >>> optimizer = ts.optim.Rprop([p], lr=0.5)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.5000], requires_grad=True)
    """

    like_parameter = ("prev", "step_size")

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), *, capturable: bool = False, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("eta values", f"{etas[0]}, {etas[1]}", 0 < etas[0] < 1 < etas[1])
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Counter, last gradient and step sizes, in both parts of a complex parameter."""
        first: Any = number_of(group["lr"])
        first = complex(first, first) if param.is_complex() else first
        sizes = TABLE["full_like"].function(param.detach(), first)
        return {"step": zeros((), dtype=float32, device="cpu"), "prev": zeros_like(param), "step_size": sizes}

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        return _rprop_update(bool(group["maximize"]))

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Last gradient and step sizes."""
        return self.like_parameter

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """The factors and the bounds of the step sizes."""
        return (*map(float, group["etas"]), *map(float, group["step_sizes"]))

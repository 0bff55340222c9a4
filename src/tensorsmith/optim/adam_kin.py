"""Relatives of Adam: NAdam, RAdam, Adamax and Lion."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import float32
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import ones
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.optim.counted import CountedOptimizer
from tensorsmith.optim.optimizer import (
    Parameters,
    check_choices,
    check_hyperparameter,
    check_rate,
    direction,
    number_of,
)
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.tensor import Tensor


def _start(param: Node, grad: Node, decayed: Node, maximize: bool, decay: str) -> tuple[Node, Node]:
    """Parameter and gradient after the decay: of the parameter itself, or through the gradient."""
    if decay == "decoupled":
        param = param * decayed
    return param, direction(param, grad, decayed, maximize=maximize, decayed=decay == "gradient")


def _nadam(
    param: Node, grad: Node, mean: Node, square: Node, added1: Node, beta2: Node, added2: Node, of_grad: Node,
    of_mean: Node, correction: Node, eps: Node, decayed: Node, *, maximize: bool, decay: str,
) -> list[Node]:  # fmt: skip
    param, grad = _start(param, grad, decayed, maximize, decay)
    mean = mean + added1 * (grad - mean)
    square = beta2 * square + added2 * (grad * grad)
    size = f.sqrt(square / correction) + eps
    return [param - of_grad * (grad / size) - of_mean * (mean / size), mean, square]


def _radam(
    param: Node, grad: Node, mean: Node, square: Node, added1: Node, beta2: Node, added2: Node, rate: Node,
    rectified: Node, eps: Node, decayed: Node, *, maximize: bool, decay: str,
) -> list[Node]:  # fmt: skip
    param, grad = _start(param, grad, decayed, maximize, decay)
    mean = mean + added1 * (grad - mean)
    square = beta2 * square + added2 * (grad * grad)
    size = f.where(f.gt(rectified, 0.0), rectified / (f.sqrt(square) + eps), 1.0)
    return [param - rate * (mean * size), mean, square]


def _adamax(
    param: Node, grad: Node, mean: Node, largest: Node, added1: Node, beta2: Node, rate: Node, eps: Node, decayed: Node,
    *, maximize: bool, decay: str,
) -> list[Node]:  # fmt: skip
    param, grad = _start(param, grad, decayed, maximize, decay)
    mean = mean + added1 * (grad - mean)
    largest = f.maximum(beta2 * largest, f.abs(grad) + eps)
    return [param - rate * (mean / largest), mean, largest]


def _lion(
    param: Node, grad: Node, mean: Node, added1: Node, added2: Node, lr: Node, decayed: Node, *, maximize: bool,
    decay: str,
) -> list[Node]:  # fmt: skip
    param, grad = _start(param, grad, decayed, maximize, decay)
    step = f.sign(mean + added1 * (grad - mean))
    return [param - lr * step, mean + added2 * (grad - mean)]


_RULES: dict[str, Callable[..., list[Node]]] = {"nadam": _nadam, "radam": _radam, "adamax": _adamax, "lion": _lion}


@functools.cache
def _update(rule: str, maximize: bool, decay: str) -> FusedUpdate:
    writes, tensors = ((0, 2), 3) if rule == "lion" else ((0, 2, 3), 4)
    return FusedUpdate(f"{rule}_step", _RULES[rule], writes, tensors, maximize=maximize, decay=decay)


class _Kin(CountedOptimizer):
    """What they share: two averages, and weight decay through the gradient or of the parameter."""

    rule = ""
    like_parameter: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def _check(self, lr: Any, betas: Any, weight_decay: float) -> tuple[float, float]:
        check_rate(lr)
        found = number_of(betas[0]), number_of(betas[1])
        for index, beta in enumerate(found):
            check_hyperparameter(f"beta parameter at index {index}", beta, 0 <= beta < 1)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        return found

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        decoupled = group.get("decoupled_weight_decay", False)
        decay = "none" if group["weight_decay"] == 0 else "decoupled" if decoupled else "gradient"
        return _update(self.rule, bool(group["maximize"]), decay)

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages."""
        return self.like_parameter

    @staticmethod
    def _decayed(group: dict[str, Any], lr: float) -> float:
        decay = float(group["weight_decay"])
        return 1.0 - lr * decay if group.get("decoupled_weight_decay", False) else decay


class NAdam(_Kin):
    """Adam with Nesterov's momentum: p = p - lr ((1 - mu_t) g / (1 - M_t) + mu_(t+1) m / (1 - M_(t+1))) / (sqrt(vhat) + eps).

    mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), M_t the product of mu_1 to mu_t; m, v and vhat as in Adam.
    weight_decay: added to the gradient, or with decoupled_weight_decay p = (1 - lr weight_decay) p first. maximize: with
    -grad. foreach and capturable are accepted for PyTorch's sake. State: step, mu_product (M), exp_avg, exp_avg_sq.
    Source: Dozat (2016), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(1, requires_grad=True)
    >>> optimizer = ts.optim.NAdam([p], lr=0.1, betas=(0.0, 0.0))
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.9000], requires_grad=True)
    """

    rule = "nadam"
    scalars = ("mu_product",)

    def __init__(
        self, params: Parameters, lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False,
        *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        betas = self._check(lr, betas, weight_decay)
        check_hyperparameter("momentum_decay value", momentum_decay, momentum_decay >= 0)
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Counter, product and averages."""
        averages = super().new_state(param, group)
        return {"step": averages.pop("step"), "mu_product": ones((), dtype=float32, device="cpu"), **averages}

    def _momenta(self, group: dict[str, Any], count: float) -> tuple[float, float]:
        beta1, slowing = group["betas"][0], group["momentum_decay"]
        now, then = (beta1 * (1.0 - 0.5 * 0.96 ** (t * slowing)) for t in (count, count + 1))
        return now, then

    def advanced(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The product with this step's momentum, rounded as its tensor is."""
        return (values[0] * type(values[0])(self._momenta(group, count)[0]),)

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Weights of the averages, of gradient and momentum, the correction, eps and decay."""
        beta1, beta2 = group["betas"]
        now, then = self._momenta(group, count)
        product = float(self.advanced(group, lr, count, values)[0])
        of_grad, of_mean = lr * (1.0 - now) / (1.0 - product), lr * then / (1.0 - product * then)
        correction = 1.0 - beta2**count
        eps = float(group["eps"])
        return 1.0 - beta1, beta2, 1.0 - beta2, of_grad, of_mean, correction, eps, self._decayed(group, lr)


class RAdam(_Kin):
    """Adam whose first steps, while the variance is uncertain, are plain.

    p = p - lr mhat r_t sqrt(1 - beta2^t) / (sqrt(v) + eps), m, v and mhat as in Adam;
    rho_t = rho - 2 t beta2^t / (1 - beta2^t), rho = 2 / (1 - beta2) - 1;
    r_t = sqrt((rho_t - 4) (rho_t - 2) rho / ((rho - 4) (rho - 2) rho_t)) where rho_t > 5, else p = p - lr mhat.
    weight_decay: added to the gradient, or with decoupled_weight_decay p = (1 - lr weight_decay) p first. maximize: with
    -grad. foreach and capturable are accepted for PyTorch's sake. State: step, exp_avg, exp_avg_sq.
    Source: Liu et al. (2020), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(1, requires_grad=True)
    >>> optimizer = ts.optim.RAdam([p], lr=0.1)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.9000], requires_grad=True)
    """

    rule = "radam"

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        betas = self._check(lr, betas, weight_decay)
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "foreach": foreach, "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Weights of the averages, the corrected rate, the rectification (0 for a plain step), eps and decay."""
        beta1, beta2 = group["betas"]
        correction = 1.0 - beta2**count
        longest = 2.0 / (1.0 - beta2) - 1.0
        length = longest - 2.0 * count * beta2**count / correction
        rectified = 0.0
        if length > 5.0:
            share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            rectified = math.sqrt(correction) * math.sqrt(share)
        rate, eps = lr / (1.0 - beta1**count), float(group["eps"])
        return 1.0 - beta1, beta2, 1.0 - beta2, rate, rectified, eps, self._decayed(group, lr)


class Adamax(_Kin):
    """m = beta1 m + (1 - beta1) g;  u = max(beta2 u, |g| + eps);  p = p - lr / (1 - beta1^t) m / u.

    weight_decay: added to the gradient. maximize: with -grad. foreach and capturable are accepted for PyTorch's sake.
    State: step, exp_avg (m), exp_inf (u).
    Source: Kingma and Ba (2015), in PyTorch's form. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(1, requires_grad=True)
    >>> optimizer = ts.optim.Adamax([p], lr=0.1)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.9000], requires_grad=True)
    """

    rule = "adamax"
    like_parameter = ("exp_avg", "exp_inf")

    def __init__(
        self, params: Parameters, lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, foreach: bool | None = None, *, maximize: bool = False,
        differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        betas = self._check(lr, betas, weight_decay)
        check_choices(self, differentiable, foreach)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Weights of the average and the norm, the corrected rate, eps and decay."""
        beta1, beta2 = group["betas"]
        return 1.0 - beta1, beta2, lr / (1.0 - beta1**count), float(group["eps"]), float(group["weight_decay"])


class Lion(_Kin):
    """p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g.

    The weight decay is decoupled. maximize: with -grad. foreach and fused are accepted as elsewhere; PyTorch has no Lion.
    State: step, exp_avg (m).
    Source: Chen et al. (2023), Symbolic Discovery of Optimization Algorithms. ValueError for a hyperparameter out of range.

    >>> import tensorsmith as ts
    >>> p = ts.ones(1, requires_grad=True)
    >>> optimizer = ts.optim.Lion([p], lr=0.1)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([0.9000], requires_grad=True)
    """

    rule = "lion"
    like_parameter = ("exp_avg",)

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        betas = self._check(lr, betas, weight_decay)
        check_choices(self, differentiable, foreach, fused)
        defaults = {
            "lr": lr, "betas": betas, "weight_decay": weight_decay, "decoupled_weight_decay": True,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Weights of the gradient in the step and in the average, rate and decay."""
        beta1, beta2 = group["betas"]
        return 1.0 - beta1, 1.0 - beta2, lr, self._decayed(group, lr)

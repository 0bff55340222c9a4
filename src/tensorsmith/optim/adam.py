"""Adam and AdamW."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

from tensorsmith.ir.graph import Node
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.optim.counted import CountedOptimizer
from tensorsmith.optim.optimizer import Parameters, check_choices, check_hyperparameter, check_rate, number_of
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _adam(
    param: Node, grad: Node, exp_avg: Node, exp_avg_sq: Node, *rest: Node, amsgrad: bool, maximize: bool, decay: str
) -> list[Node]:
    *maxima, added1, beta2, added2, step_size, unbiased, eps, decayed = rest
    grad = -grad if maximize else grad
    if decay == "gradient":
        grad = grad + decayed * param
    elif decay == "decoupled":
        param = param * decayed
    exp_avg = exp_avg + added1 * (grad - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + added2 * (grad * grad)
    largest = f.maximum(maxima[0], exp_avg_sq) if amsgrad else exp_avg_sq
    param = param - step_size * (exp_avg / (f.sqrt(largest) * unbiased + eps))
    return [param, exp_avg, exp_avg_sq, *([largest] if amsgrad else [])]


@functools.cache
def _update(amsgrad: bool, maximize: bool, decay: str) -> FusedUpdate:
    writes, tensors = ((0, 2, 3, 4), 5) if amsgrad else ((0, 2, 3), 4)
    return FusedUpdate("adam_step", _adam, writes, tensors, amsgrad=amsgrad, maximize=maximize, decay=decay)


class Adam(CountedOptimizer):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p = p - lr mhat / (sqrt(vhat) + eps).

    mhat = m / (1 - beta1^t), vhat = v / (1 - beta2^t); amsgrad: the largest v so far instead of v.
    weight_decay: added to the gradient (g = grad + weight_decay p), or with decoupled_weight_decay
    p = (1 - lr weight_decay) p first. maximize: with -grad. All parameters are updated by one native call; a compiled step
    reads lr at every run, other options are as they were when it was compiled. foreach, fused and capturable are
    accepted for PyTorch's sake. State: step, exp_avg, exp_avg_sq (and max_exp_avg_sq).
    Source: Kingma and Ba (2015), Reddi et al. (2018), in PyTorch's form. ValueError for a hyperparameter out of range.
    """

    like_parameter = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        betas = (number_of(betas[0]), number_of(betas[1]))
        for index, beta in enumerate(betas):
            check_hyperparameter(f"beta parameter at index {index}", beta, 0 <= beta < 1)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        check_choices(self, differentiable, foreach, fused)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused, "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        decay = "none" if group["weight_decay"] == 0 else "decoupled" if group["decoupled_weight_decay"] else "gradient"
        return _update(bool(group["amsgrad"]), bool(group["maximize"]), decay)

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The moments, and the largest second moment with amsgrad."""
        return self.like_parameter if group["amsgrad"] else self.like_parameter[:2]

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Weights of the averages, the corrected rate, the correction of the second moment, eps and the decay."""
        beta1, beta2 = group["betas"]
        decay = float(group["weight_decay"])
        decayed = 1.0 - lr * decay if group["decoupled_weight_decay"] else decay
        unbiased = 1.0 / math.sqrt(1.0 - beta2**count)
        return 1.0 - beta1, beta2, 1.0 - beta2, lr / (1.0 - beta1**count), unbiased, float(group["eps"]), decayed

    def traced_numbers(self, group: dict[str, Any], state: dict[str, Any]) -> tuple[Any, ...]:
        """The numbers of a step that is being compiled: asked for at every run, those of the group once for all parameters."""
        tracer, step = modes.tracer, state["step"]
        earlier = tracer.writes_to(step)  # steps of the same function before this one

        def count() -> float:
            return ctypes.c_float.from_address(step.ptr).value + earlier + 1.0  # asked before the run adds one

        def of_group(number: int) -> Any:
            return tracer.host(lambda: self.numbers(group, number_of(group["lr"]), 1.0, ())[number], (id(group), number))

        step_size = tracer.host(lambda: number_of(group["lr"]) / (1.0 - group["betas"][0] ** count()))
        unbiased = tracer.host(lambda: 1.0 / math.sqrt(1.0 - group["betas"][1] ** count()))
        return of_group(0), of_group(1), of_group(2), step_size, unbiased, of_group(5), of_group(6)


class AdamW(Adam):
    """Adam with decoupled weight decay: p = (1 - lr weight_decay) p, then Adam's update.

    Source: Loshchilov and Hutter (2019).
    """

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip

    def load_state_dict(self, state_dict: Any) -> None:
        """As Adam's; older states do not say that their weight decay is decoupled."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True

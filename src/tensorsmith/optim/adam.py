"""Adam and AdamW."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import float32
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import zeros
from tensorsmith.optim.optimizer import Optimizer, Parameters, check_hyperparameter, number_of, run_closure, zeros_like
from tensorsmith.optim.update import FusedUpdate
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _adam(
    param: Node, grad: Node, exp_avg: Node, exp_avg_sq: Node, *rest: Node, amsgrad: bool, maximize: bool, decay: str
) -> list[Node]:
    *maxima, added1, beta2, added2, step_size, root2, eps, decayed = rest
    grad = -grad if maximize else grad
    if decay == "gradient":
        grad = grad + decayed * param
    elif decay == "decoupled":
        param = param * decayed
    exp_avg = exp_avg + added1 * (grad - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + added2 * (grad * grad)
    largest = f.maximum(maxima[0], exp_avg_sq) if amsgrad else exp_avg_sq
    param = param - step_size * exp_avg / (f.sqrt(largest) / root2 + eps)
    return [param, exp_avg, exp_avg_sq, *([largest] if amsgrad else [])]


@functools.cache
def _update(amsgrad: bool, maximize: bool, decay: str) -> FusedUpdate:
    writes, tensors = ((0, 2, 3, 4), 5) if amsgrad else ((0, 2, 3), 4)
    return FusedUpdate("adam_step", _adam, writes, tensors, amsgrad=amsgrad, maximize=maximize, decay=decay)


class _Counter:
    """The step counter of a parameter: a float32 tensor in the state, read and written without an operator call."""

    __slots__ = ("tensor", "ptr", "cell")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.ptr = tensor.ptr
        self.cell = ctypes.c_float.from_address(tensor.ptr)


class Adam(Optimizer):
    """m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  p = p - lr mhat / (sqrt(vhat) + eps).

    mhat = m / (1 - beta1^t), vhat = v / (1 - beta2^t); amsgrad: the largest v so far instead of v.
    weight_decay: added to the gradient (g = grad + weight_decay p), or with decoupled_weight_decay
    p = (1 - lr weight_decay) p first. maximize: with -grad. Each parameter is updated by one kernel; a compiled step
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
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        check_hyperparameter("learning rate", lr, number_of(lr) >= 0)
        check_hyperparameter("epsilon value", eps, eps >= 0)
        betas = (number_of(betas[0]), number_of(betas[1]))
        for index, beta in enumerate(betas):
            check_hyperparameter(f"beta parameter at index {index}", beta, 0 <= beta < 1)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        if differentiable:
            raise NotImplementedError(f"{type(self).__name__}: differentiable=True")
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused, "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        self._counters: dict[Tensor, _Counter] = {}
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = run_closure(closure)
        traced = modes.tracer is not None
        for group in self.param_groups:
            lr = number_of(group["lr"])
            beta1, beta2 = group["betas"]
            weight_decay, amsgrad = float(group["weight_decay"]), bool(group["amsgrad"])
            decoupled = bool(group["decoupled_weight_decay"])
            decay = "none" if weight_decay == 0 else "decoupled" if decoupled else "gradient"
            update = _update(amsgrad, bool(group["maximize"]), decay)
            added1, added2, eps = 1.0 - beta1, 1.0 - beta2, float(group["eps"])
            decayed = 1.0 - lr * weight_decay if decoupled else weight_decay
            last = -1.0
            numbers: tuple = ()
            for param in group["params"]:
                own = param.state
                if own is None or own.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    modes.tracer, tracer = None, modes.tracer  # the state is memory, whoever watches
                    state["step"] = zeros((), dtype=float32)
                    state["exp_avg"] = zeros_like(param)
                    state["exp_avg_sq"] = zeros_like(param)
                    if amsgrad:
                        state["max_exp_avg_sq"] = zeros_like(param)
                    modes.tracer = tracer
                tensors: tuple[Tensor, ...] = (param, own.grad, state["exp_avg"], state["exp_avg_sq"])
                if amsgrad:
                    tensors = (*tensors, state["max_exp_avg_sq"])
                if traced:
                    update(tensors, self._traced_numbers(group, state["step"], added1, added2, weight_decay))
                    continue
                count = self._count(param, state["step"])
                if count != last:  # parameters usually share their count
                    last = count
                    root2 = math.sqrt(1.0 - beta2**count)
                    numbers = (added1, beta2, added2, lr / (1.0 - beta1**count), root2, eps, decayed)
                update(tensors, numbers)
        return loss

    @staticmethod
    def _traced_numbers(
        group: dict[str, Any], step: Tensor, added1: float, added2: float, weight_decay: float
    ) -> tuple[Any, ...]:
        """The numbers of a step that is being compiled: what follows from lr and count is asked for at every run.

        betas, eps and weight_decay become constants of the compiled step.
        """
        host = modes.tracer.host
        beta1, beta2 = group["betas"]
        step.add_(1)

        def count() -> float:
            return ctypes.c_float.from_address(step.ptr).value + 1.0  # asked before the run adds one

        step_size = host(lambda: number_of(group["lr"]) / (1.0 - beta1 ** count()))
        root2 = host(lambda: math.sqrt(1.0 - beta2 ** count()))
        decayed: Any = weight_decay
        if group["decoupled_weight_decay"]:
            decayed = host(lambda: 1.0 - number_of(group["lr"]) * weight_decay)
        return added1, beta2, added2, step_size, root2, float(group["eps"]), decayed

    def _count(self, param: Tensor, step: Any) -> float:
        """Add one to a step counter and read it."""
        if not isinstance(step, Tensor) or step.layout.dtype is not float32 or step.layout.numel != 1:
            step = self.state[param]["step"] = zeros((), dtype=float32).fill_(number_of(step))
        counter = self._counters.get(param)
        if counter is None or counter.tensor is not step or counter.ptr != step.ptr:
            counter = self._counters[param] = _Counter(step)
        count = counter.cell.value = counter.cell.value + 1.0
        step.storage.version += 1
        return count

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_counters": {}}


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

"""Adafactor: the variance of a matrix's gradients from the means of their rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import finfo, float32
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import zeros
from tensorsmith.optim.counted import CountedOptimizer
from tensorsmith.optim.optimizer import Optimizer, Parameters, number_of, run_closure, with_gradients, zeros_like
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _mean(x: Node, axes: tuple[int, ...] | None = None) -> Node:
    count = math.prod(x.shape[axis] for axis in (range(x.ndim) if axes is None else axes))
    return build.reduce(x, "sum", axes, keepdim=axes is not None) / count


def _root_mean_square(x: Node) -> Node:
    return f.sqrt(_mean(x * x))


def _scaled_step(param: Node, grad: Node, variance: Node, eps1: Any, numbers: tuple[Node, ...]) -> Node:
    """The parameter after a step along grad / sqrt(variance), no longer than d and relative to the parameter's size."""
    rho, shrink, eps2, d = numbers
    update = grad / f.sqrt(f.maximum(variance, eps1 * eps1))
    rate = f.maximum(_root_mean_square(param), eps2) * rho
    return param * shrink - rate / f.maximum(_root_mean_square(update) / d, 1.0) * update


def _smallest(param: Node, eps1: Node, relative: bool) -> Any:
    """eps1, or what stands for None."""
    return finfo(param.dtype).eps if relative else eps1


def _factored(
    param: Node, grad: Node, row: Node, column: Node, weight: Node, eps1: Node, *numbers: Node,
    maximize: bool, relative: bool,
) -> tuple[Node, ...]:
    wide, smallest = build.wide(param), _smallest(param, eps1, relative)
    grad = -build.wide(grad) if maximize else build.wide(grad)
    square = grad * grad
    means = []
    for before, axis in ((row, grad.ndim - 1), (column, grad.ndim - 2)):
        before = build.wide(before)
        means.append(before + weight * (_mean(square, (axis,)) - before))
    rows, columns = means
    share = f.maximum(_mean(rows, (grad.ndim - 2,)), smallest)
    new = _scaled_step(wide, grad, rows * columns / share, smallest, numbers)
    return tuple([build.cast(value, param.dtype) for value in (new, rows, columns)])


def _whole(
    param: Node, grad: Node, variance: Node, weight: Node, eps1: Node, *numbers: Node, maximize: bool, relative: bool
) -> tuple[Node, ...]:
    wide, smallest = build.wide(param), _smallest(param, eps1, relative)
    grad = -build.wide(grad) if maximize else build.wide(grad)
    variance = build.wide(variance) + weight * (grad * grad - build.wide(variance))
    new = _scaled_step(wide, grad, variance, smallest, numbers)
    return build.cast(new, param.dtype), build.cast(variance, param.dtype)


_FACTORED_ = InplaceOperation(Operator("adafactor_step", _factored), writes=(0, 2, 3))
_WHOLE_ = InplaceOperation(Operator("adafactor_vector_step", _whole), writes=(0, 2))


class Adafactor(CountedOptimizer):
    """v = v + t^beta2_decay (g^2 - v);  u = g / max(sqrt(v), eps1);  p = (1 - lr wd) p - a u / max(1, RMS(u) / d).

    a = max(eps2, RMS(p)) min(lr, 1 / sqrt(t)), with p before its decay. For parameters of two or more axes, only the means of
    v over the last axis (row_var) and over the one before (col_var) are kept, and v = row_var col_var / max(mean of row_var
    over its rows, eps1). eps = (eps1, eps2), eps1 None for the smallest relative step of the dtype. maximize: with -grad.
    foreach is accepted for PyTorch's sake. State: step and variance, or step, row_var and col_var.
    Source: Shazeer and Stern (2018), in PyTorch's form. ValueError for a hyperparameter out of range, RuntimeError (at the
    step) for complex parameters.

    >>> import tensorsmith as ts
    >>> p = ts.ones(2, 2, requires_grad=True)
    >>> optimizer = ts.optim.Adafactor([p], lr=0.1)
    >>> p.sum().backward(); optimizer.step(); p
    tensor([[0.9000, 0.9000],
            [0.9000, 0.9000]], requires_grad=True)
    """

    like_parameter = ("variance",)

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
        foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not 0 <= number_of(lr) < math.inf:
            raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
        if not beta2_decay <= 0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        for number, each in enumerate(eps, 1):
            if each is not None and not each >= 0:
                raise ValueError(f"epsilon{number} should be >= 0 but is: {each}")
        if not d >= 1:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay should be >= 0 but is: {weight_decay}")
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step."""
        step = zeros((), dtype=float32, device="cpu")
        if param.ndim < 2:
            return {"step": step, "variance": zeros_like(param)}
        *outer, rows, columns = param.layout.shape
        return {
            "step": step, "row_var": zeros((*outer, rows, 1), dtype=param.dtype, device=param.device),
            "col_var": zeros((*outer, 1, columns), dtype=param.dtype, device=param.device),
        }  # fmt: skip

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """Weight of the new square, eps1 (0 for None), bound of the rate, what is left of the parameter, eps2 and d."""
        eps1, eps2 = group["eps"]
        rho = min(lr, 1.0 / math.sqrt(count))
        shrink = 1.0 - lr * float(group["weight_decay"])
        return count ** float(group["beta2_decay"]), float(eps1 or 0.0), rho, shrink, float(eps2), float(group["d"])

    def choices(self) -> tuple:
        """Everything but the rate: this optimiser's kernels are not chosen by `update`."""
        return Optimizer.choices(self)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = run_closure(closure)
        for number, group in enumerate(self.param_groups):
            choices = {"maximize": bool(group["maximize"]), "relative": group["eps"][0] is None}
            params = with_gradients(group["params"])
            if any(p.layout.dtype.is_complex for p in params):
                raise RuntimeError("Adafactor does not support complex parameters")
            if not params:
                continue
            states = self._states(params, group)
            if modes.tracer is not None:
                for param, state in zip(params, states):
                    self._update(param, state, self.traced_numbers(group, state), choices)
                    self._count_in_plan(state)
                self._count_on_host(states)
                continue
            for numbers, rows in self._counted(number, group, states).items():
                for row in rows or range(len(params)):
                    self._update(params[row], states[row], numbers, choices)
        return loss

    def _update(self, param: Tensor, state: dict[str, Any], numbers: tuple[Any, ...], choices: dict[str, bool]) -> None:
        if not param.layout.numel:
            return
        grad: Any = param.state.grad  # type: ignore[union-attr]
        if "variance" in state:
            _WHOLE_(param, grad, state["variance"], *numbers, **choices)
        else:
            _FACTORED_(param, grad, state["row_var"], state["col_var"], *numbers, **choices)

    def _adopt(self, where: str, parameter: Tensor, name: str, value: Any) -> Any:
        """A copy of a saved state entry, in the dtype of its parameter; ValueError where it is of another shape."""
        if name in ("row_var", "col_var") and isinstance(value, Tensor):
            axis = parameter.ndim - (1 if name == "row_var" else 2)
            expected = tuple([1 if i == axis else n for i, n in enumerate(parameter.shape)])
            if parameter.ndim < 2 or tuple(value.shape) != expected:
                raise ValueError(
                    f"loaded state dict does not fit: {where} has shape {tuple(value.shape)}, the parameter "
                    f"{tuple(parameter.shape)}"
                )
        return super()._adopt(where, parameter, name, value)

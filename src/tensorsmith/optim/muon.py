"""Muon: momentum whose singular values are brought near one, for the matrices of hidden layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import bfloat16, float32
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.optim.optimizer import Optimizer, Parameters, number_of, run_closure, with_gradients, zeros_like
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes, traced_by
from tensorsmith.tensor.tensor import Tensor

MOST_STEPS = 99  # of the iteration, as in PyTorch


def _rounded(x: Node) -> Node:
    """A float32 value with bfloat16's digits."""
    return build.cast(build.cast(x, bfloat16), float32)


def orthogonalized(x: Node, coefficients: tuple[float, float, float], steps: int, eps: float) -> Node:
    """X = a X + (b G + c G G) X, G = X X^T, `steps` times from X / |X|: the singular values go to the neighbourhood of 1.

    Values are rounded to bfloat16 where PyTorch, which computes in that dtype, rounds them; sums are float32.
    """
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = _rounded(x)
    if tall:
        x = build.transpose(x, 0, 1)
    norm = _rounded(f.sqrt(build.reduce(x * x, "sum")))
    x = _rounded(x / f.maximum(norm, eps))
    for _ in range(steps):
        gram = _rounded(build.matmul(x, build.transpose(x, 0, 1)))
        change = _rounded(b * gram + c * build.matmul(gram, gram))
        x = _rounded(a * x + build.matmul(change, x))
    return build.transpose(x, 0, 1) if tall else x


def _muon(
    param: Node, grad: Node, mean: Node, added: Node, kept: Node, shrink: Node, rate: Node, *,
    nesterov: bool, coefficients: tuple[float, float, float], steps: int, eps: float,
) -> tuple[Node, Node]:  # fmt: skip
    wide, grad = build.wide(param), build.wide(grad)
    mean = build.wide(mean) + added * (grad - build.wide(mean))
    step = orthogonalized(grad + kept * (mean - grad) if nesterov else mean, coefficients, steps, eps)
    return build.cast(wide * shrink - rate * build.cast(step, wide.dtype), param.dtype), build.cast(mean, param.dtype)


_STEP_ = InplaceOperation(Operator("muon_step", _muon), writes=(0, 2))


class Muon(Optimizer):
    """m = momentum m + (1 - momentum) g;  u = momentum m + (1 - momentum) g (nesterov) or m;  p = (1 - lr wd) p - lr' O(u).

    O(u) is near U V^T for u = U S V^T: ns_steps iterations X = a X + (b X X^T + c (X X^T)^2) X from u / max(|u|, eps), in
    bfloat16, with ns_coefficients (a, b, c). lr' is lr sqrt(max(1, rows / columns)) for adjust_lr_fn None or "original",
    0.2 lr sqrt(max(rows, columns)) for "match_rms_adamw". For matrices only; biases and embeddings take AdamW.
    State: momentum_buffer (m).
    Source: Jordan et al. (2024), Liu et al. (2025, Muon is Scalable for LLM Training), in PyTorch's form. ValueError for a
    hyperparameter out of range or a parameter that is no matrix, RuntimeError (at the step) for complex ones.

    >>> import tensorsmith as ts
    >>> p = ts.zeros(2, 2, requires_grad=True)
    >>> optimizer = ts.optim.Muon([p], lr=0.1, weight_decay=0.0)
    >>> (p * ts.tensor([[3.0, 0.0], [0.0, 3.0]])).sum().backward(); optimizer.step()
    >>> bool(p[0, 0] == p[1, 1]), bool(p[0, 1] == 0), bool(-0.13 < p[0, 0] < -0.06)
    (True, True, True)
    """

    like_parameter = ("momentum_buffer",)

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        for name, value in (("Learning rate", lr), ("momentum", momentum), ("weight decay", weight_decay)):
            if not 0 <= number_of(value) < math.inf:
                raise ValueError(f"{name} should be >= 0 but is: {value}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add matrices with options of their own; ValueError for other tensors."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.ndim != 2:
                del self.param_groups[-1]
                raise ValueError(f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = run_closure(closure)
        for group in self.param_groups:
            params = with_gradients(group["params"])
            choices = _choices(group)
            if any(p.layout.dtype.is_complex for p in params):
                raise RuntimeError("Muon does not support complex parameters")
            for p in params:
                state = self.state[p]
                if "momentum_buffer" not in state:
                    with traced_by(None):  # the state is memory, whoever watches
                        state["momentum_buffer"] = zeros_like(p)
                numbers: tuple[Any, ...] = _numbers(group, p)
                if modes.tracer is not None:
                    host = modes.tracer.host
                    numbers = tuple(host(lambda p=p, i=i, g=group: _numbers(g, p)[i]) for i in range(len(numbers)))
                _STEP_(p, p.state.grad, state["momentum_buffer"], *numbers, **choices)  # type: ignore[union-attr]
        return loss


def _numbers(group: dict[str, Any], param: Tensor) -> tuple[float, ...]:
    """Weights of gradient and average, what is left of the parameter, and the rate for its shape."""
    lr, momentum = number_of(group["lr"]), float(group["momentum"])
    rows, columns = param.layout.shape
    if group["adjust_lr_fn"] == "match_rms_adamw":
        ratio = 0.2 * math.sqrt(max(rows, columns))
    else:
        ratio = math.sqrt(max(1.0, rows / columns)) if columns else 1.0
    return 1.0 - momentum, momentum, 1.0 - lr * float(group["weight_decay"]), lr * ratio


def _choices(group: dict[str, Any]) -> dict[str, Any]:
    """What the graph of the step depends on."""
    coefficients, steps = tuple([float(c) for c in group["ns_coefficients"]]), int(group["ns_steps"])
    if steps > MOST_STEPS:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")
    return {
        "nesterov": bool(group["nesterov"]), "coefficients": coefficients, "steps": steps, "eps": float(group["eps"]),
    }  # fmt: skip

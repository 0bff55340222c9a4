"""Stochastic gradient descent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.ir.graph import Node
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.optim.optimizer import (
    Optimizer,
    Parameters,
    check_choices,
    check_hyperparameter,
    check_rate,
    direction,
    number_of,
    run_closure,
    with_gradients,
    zeros_like,
)
from tensorsmith.tensor.modes import modes, traced_by
from tensorsmith.tensor.tensor import Tensor


def _plain(param: Node, grad: Node, lr: Node, weight_decay: Node, **choices: bool) -> list[Node]:
    return [param - lr * direction(param, grad, weight_decay, **choices)]


def _with_momentum(
    param: Node, grad: Node, buffer: Node, lr: Node, weight_decay: Node, momentum: Node, kept: Node, added: Node, *,
    nesterov: bool, **choices: bool,
) -> list[Node]:  # fmt: skip
    grad = direction(param, grad, weight_decay, **choices)
    buffer = kept * buffer + added * grad
    return [param - lr * (grad + momentum * buffer if nesterov else buffer), buffer]


@functools.cache
def _update(momentum: bool, nesterov: bool, maximize: bool, decayed: bool) -> FusedUpdate:
    if momentum:
        return FusedUpdate(
            "sgd_momentum_step", _with_momentum, (0, 2), 3, nesterov=nesterov, maximize=maximize, decayed=decayed
        )
    return FusedUpdate("sgd_step", _plain, (0,), 2, maximize=maximize, decayed=decayed)


def _kernel(group: dict[str, Any]) -> FusedUpdate:
    """The kernel for a group's choices."""
    has_momentum = float(group["momentum"]) != 0
    return _update(has_momentum, bool(group["nesterov"]), bool(group["maximize"]), float(group["weight_decay"]) != 0)


def _numbers(group: dict[str, Any]) -> tuple[float, ...]:
    """Rate, decay and, where there are momentum buffers, how they are weighted."""
    lr, decay, momentum = number_of(group["lr"]), float(group["weight_decay"]), float(group["momentum"])
    return (lr, decay) if momentum == 0 else (lr, decay, momentum, momentum, 1.0 - group["dampening"])


class SGD(Optimizer):
    """g = grad + weight_decay p;  b = momentum b + (1 - dampening) g (at first b = g);  p = p - lr b.

    Nesterov: p = p - lr (g + momentum b). maximize: with -grad. Without momentum p = p - lr g.
    All parameters are updated by one native call. A compiled step reads the options at every run. foreach and fused are
    accepted for PyTorch's sake.
    Source: Sutskever et al. (2013), in PyTorch's form. Raises ValueError for a hyperparameter out of range.
    """

    like_parameter = ("momentum_buffer",)

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check_rate(lr)
        check_hyperparameter("momentum value", momentum, momentum >= 0)
        check_hyperparameter("weight_decay value", weight_decay, weight_decay >= 0)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        check_choices(self, differentiable, foreach, fused)
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize, "foreach": foreach, "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def choices(self) -> tuple:
        """The numbers are asked for at every run; which kernel takes them is a choice."""
        return tuple(_kernel(group) for group in self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = run_closure(closure)
        for group in self.param_groups:
            update, numbers = _kernel(group), _numbers(group)
            has_momentum = len(numbers) > 2
            if modes.tracer is not None:  # a compiled step asks for them at every run
                host = modes.tracer.host
                numbers = tuple([host(lambda i=i, group=group: _numbers(group)[i]) for i in range(len(numbers))])
            params = with_gradients(group["params"])
            columns: list[list[Tensor]] = [params, [p.state.grad for p in params]]  # type: ignore[union-attr,misc]
            if has_momentum:
                states = [self.state[p] for p in params]
                fresh = self._make_buffers(params, states)
                columns.append([state["momentum_buffer"] for state in states])
                if fresh:  # b = 0 b + 1 g
                    weights = (0.0, 1.0) if modes.tracer is None else _weights_from_first(numbers[3:])
                    update.on_all([[column[row] for row in fresh] for column in columns], (*numbers[:3], *weights))
                    rest = [row for row in range(len(params)) if row not in set(fresh)]
                    columns = [[column[row] for row in rest] for column in columns]
            if columns[0]:
                update.on_all(columns, numbers)
        return loss

    @staticmethod
    def _make_buffers(params: list[Tensor], states: list[dict[str, Any]]) -> list[int]:
        """Give every state its momentum buffer; which had none."""
        fresh = []
        with traced_by(None):  # the state is memory, whoever watches
            for row, (param, state) in enumerate(zip(params, states)):
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = zeros_like(param)
                    fresh.append(row)
        return fresh


def _weights_from_first(later: Sequence[Any]) -> tuple[Any, ...]:
    """How buffers and gradients are weighted by a compiled step that made the buffers: at its first run as a first step does,
    at every other as `later` says.
    """
    runs = [0]  # of the step

    def count() -> None:
        runs[0] += 1

    def keep() -> Callable[[], None]:
        before = runs[0]
        return lambda: runs.__setitem__(0, before)

    tracer = modes.tracer
    weights = [tracer.host(lambda number=number, first=first: number.ask() if runs[0] else first)
               for number, first in zip(later, (0.0, 1.0))]  # fmt: skip
    tracer.effect(count, keep)
    return tuple(weights)

"""Optimisers that count their steps: one kernel a parameter, fed with numbers that follow from rate and count."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import float32
from tensorsmith.ir import build
from tensorsmith.ops.creation import array_of, zeros
from tensorsmith.optim.optimizer import Optimizer, number_of, run_closure, zeros_like
from tensorsmith.optim.update import FusedUpdate
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class _Counter:
    """The step counter of a parameter: a float32 tensor in the state, read and written without an operator call."""

    __slots__ = ("tensor", "ptr", "cell")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.ptr = tensor.ptr
        self.cell = ctypes.c_float.from_address(tensor.ptr)


_REPLACE = FusedUpdate("replace_number", lambda before, number: [build.as_value(number)], (0,), 1)


class CountedOptimizer(Optimizer):
    """Base class: subclasses say which kernel (`update`), which state (`names`) and which numbers it takes.

    The state of a parameter has `step`, a float32 counter, the tensors of `names` and the zero-dimensional float32
    tensors of `scalars`, which change from step to step by rule of their own (`advanced`).
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._counters: dict[Tensor, _Counter] = {}
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The state that the kernel takes after parameter and gradient."""
        raise NotImplementedError(f"{type(self).__name__}.names")

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """The numbers that the kernel takes; `values` are the scalars before the step, as NumPy scalars."""
        raise NotImplementedError(f"{type(self).__name__}.numbers")

    def advanced(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The scalars after the step."""
        return values

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step."""
        return {"step": zeros((), dtype=float32), **{name: zeros_like(param) for name in self.names(group)}}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = run_closure(closure)
        traced, scalars = modes.tracer is not None, self.scalars
        for group in self.param_groups:
            lr, pick, update = number_of(group["lr"]), _picker(self.names(group)), self.update(group)
            last = -1.0
            numbers: tuple[float, ...] = ()
            for param in group["params"]:
                own = param.state
                if own is None or own.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    modes.tracer, tracer = None, modes.tracer  # the state is memory, whoever watches
                    try:
                        state.update(self.new_state(param, group))
                    finally:
                        modes.tracer = tracer
                tensors: tuple[Tensor, ...] = (param, own.grad, *pick(state))
                if traced:
                    update(tensors, self.traced_numbers(group, state))
                    continue
                count = self._count(param, state["step"])
                if scalars:
                    values = _values(state, scalars)
                    numbers = self.numbers(group, lr, count, values)
                    for name, value in zip(scalars, self.advanced(group, lr, count, values)):
                        state[name].fill_(float(value))
                elif count != last:  # parameters usually share their count
                    last, numbers = count, self.numbers(group, lr, count, ())
                update(tensors, numbers)
        return loss

    def traced_numbers(self, group: dict[str, Any], state: dict[str, Any]) -> tuple[Any, ...]:
        """The numbers of a step that is being compiled: asked for again at every run, before it changes the state."""
        host, step, scalars = modes.tracer.host, state["step"], self.scalars

        def given() -> tuple[Any, ...]:
            count = ctypes.c_float.from_address(step.ptr).value + 1.0
            return group, number_of(group["lr"]), count, _values(state, scalars)

        numbers = [host(lambda i=i: self.numbers(*given())[i]) for i in range(len(self.numbers(*given())))]
        for i, name in enumerate(scalars):
            _REPLACE((state[name],), (host(lambda i=i: float(self.advanced(*given())[i])),))
        step.add_(1)
        return tuple(numbers)

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


@functools.cache
def _picker(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """A function that takes these entries out of a state."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda state: tuple([state[name] for name in names])


def _values(state: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Zero-dimensional entries of a state as NumPy scalars, whose products round as those of the tensors do."""
    return tuple(array_of(state[name])[()] if isinstance(state[name], Tensor) else np.float32(state[name]) for name in names)

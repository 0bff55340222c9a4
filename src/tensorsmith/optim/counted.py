"""Optimisers that count their steps: a kernel for all parameters, fed with numbers that follow from rate and count."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import DType, float32, float64
from tensorsmith.ir import build
from tensorsmith.ops.creation import array_of, zeros
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.optim.optimizer import Optimizer, number_of, run_closure, with_gradients, zeros_like
from tensorsmith.tensor.modes import modes, traced_by
from tensorsmith.tensor.tensor import Tensor

_CELLS: dict[DType, tuple[Any, Any]] = {float32: (ctypes.c_float, np.float32), float64: (ctypes.c_double, np.float64)}


class _Cells:
    """Zero-dimensional entries of the states of several parameters, read and written without operator calls."""

    __slots__ = ("tensors", "ptrs", "cells", "kinds")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.ptrs = [t.ptr for t in tensors]
        self.cells = [_CELLS[t.layout.dtype][0].from_address(t.ptr) for t in tensors]
        self.kinds = [_CELLS[t.layout.dtype][1] for t in tensors]  # NumPy scalars, whose products round as those of tensors

    def fit(self, found: Sequence[Any]) -> bool:
        """Whether they are these tensors, where they were."""
        same = len(found) == len(self.tensors) and all(map(operator.is_, found, self.tensors))
        return same and [t.ptr for t in found] == self.ptrs


_REPLACE = FusedUpdate("replace_number", lambda before, number: [build.as_value(number)], (0,), 1)


class CountedOptimizer(Optimizer):
    """Base class: subclasses say which kernel (`update`), which state (`names`) and which numbers it takes.

    The state of a parameter has `step`, a float32 counter, the tensors of `names` and the zero-dimensional float32
    tensors of `scalars`, which change from step to step by rule of their own (`advanced`).
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._cells: dict[tuple[int, str], _Cells] = {}  # by group and name
        super().__init__(params, defaults)

    def update(self, group: dict[str, Any]) -> FusedUpdate:
        """The kernel for a group's choices."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The state that the kernel takes after parameter and gradient."""
        raise NotImplementedError(f"{type(self).__name__}.names")

    def choices(self) -> tuple:
        """The numbers are asked for at every run; kernels and state are choices."""
        return tuple((self.update(group), self.names(group)) for group in self.param_groups)

    def numbers(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[float, ...]:
        """The numbers that the kernel takes; `values` are the scalars before the step, as NumPy scalars."""
        raise NotImplementedError(f"{type(self).__name__}.numbers")

    def advanced(self, group: dict[str, Any], lr: float, count: float, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The scalars after the step."""
        return values

    def new_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter before its first step."""
        return {"step": zeros((), dtype=float32, device="cpu"), **{name: zeros_like(param) for name in self.names(group)}}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = run_closure(closure)
        for number, group in enumerate(self.param_groups):
            params = with_gradients(group["params"])
            if not params:
                continue
            states = self._states(params, group)
            update, names = self.update(group), self.names(group)
            columns: list[list[Tensor]] = [params, [p.state.grad for p in params]]  # type: ignore[union-attr,misc]
            columns += [[state[name] for state in states] for name in names]
            if modes.tracer is not None:
                for row, state in zip(zip(*columns), states):
                    update(row, self.traced_numbers(group, state))
                    self._count_in_plan(state)
                self._count_on_host(states)
                continue
            rows_of = self._counted(number, group, states)
            if len(rows_of) == 1:
                update.on_all(columns, *rows_of)
                continue
            for numbers, rows in rows_of.items():
                update.on_all([[column[row] for row in rows] for column in columns], numbers)
        return loss

    def _states(self, params: Sequence[Tensor], group: dict[str, Any]) -> list[dict[str, Any]]:
        """The states of these parameters, new ones where there are none yet."""
        states = [self.state[p] for p in params]
        if not all(states):
            with traced_by(None):  # the state is memory, whoever watches
                for param, state in zip(params, states):
                    if not state:
                        state.update(self.new_state(param, group))
        if modes.tracer is not None:
            with traced_by(None):
                for state in states:
                    for name in ("step", *self.scalars):
                        state[name] = _cell(name, state[name])
        return states

    def _counted(
        self, number: int, group: dict[str, Any], states: Sequence[dict[str, Any]]
    ) -> dict[tuple[float, ...], list[int]]:
        """Count the step in these states: the numbers of the update, and which parameters take them.

        Parameters usually share their count. A parameter that is there twice is counted twice.
        """
        lr = number_of(group["lr"])
        counters = self._read(number, "step", states)
        counts = []
        for cell in counters.cells:
            count = cell.value = cell.value + 1.0
            counts.append(count)
        for tensor in counters.tensors:
            tensor.storage.version += 1
        if not self.scalars and counts.count(counts[0]) == len(counts):
            return {self.numbers(group, lr, counts[0], ()): []}
        others = [self._read(number, name, states) for name in self.scalars]
        found: dict[tuple[float, ...], tuple[tuple[float, ...], tuple[Any, ...]]] = {}
        rows_of: dict[tuple[float, ...], list[int]] = {}
        for row, count in enumerate(counts):
            key = (count, *[each.cells[row].value for each in others])
            if key not in found:
                values = tuple([each.kinds[row](value) for each, value in zip(others, key[1:])])
                found[key] = self.numbers(group, lr, count, values), self.advanced(group, lr, count, values)
            numbers, after = found[key]
            rows_of.setdefault(numbers, []).append(row)
            for each, value in zip(others, after):
                each.cells[row].value = value
                each.tensors[row].storage.version += 1
        return rows_of

    def _read(self, number: int, name: str, states: Sequence[dict[str, Any]]) -> _Cells:
        """The cells of one entry of the states; what is no zero-dimensional tensor of its dtype becomes one."""
        tensors = [state[name] for state in states]
        kept = self._cells.get((number, name))
        if kept is not None and kept.fit(tensors):
            return kept
        for row, state in enumerate(states):
            tensors[row] = state[name] = _cell(name, state[name])
        kept = self._cells[number, name] = _Cells(tensors)
        return kept

    def traced_numbers(self, group: dict[str, Any], state: dict[str, Any]) -> tuple[Any, ...]:
        """The numbers of a step that is being compiled: asked for again at every run, before it changes the state."""
        host, step, scalars = modes.tracer.host, state["step"], self.scalars
        earlier = modes.tracer.writes_to(step)  # steps of the same function before this one
        after = modes.tracer.notes.setdefault(("scalars", id(step)), threading.local())  # those steps, of this run

        def given() -> tuple[Any, ...]:
            count = ctypes.c_float.from_address(step.ptr).value + earlier + 1.0
            return group, number_of(group["lr"]), count, after.values if earlier and scalars else _values(state, scalars)

        def advanced(i: int) -> float:
            found = self.advanced(*given())
            if i == len(scalars) - 1:  # the last one that is asked for
                after.values = found
            return float(found[i])

        numbers = [host(lambda i=i: self.numbers(*given())[i]) for i in range(len(self.numbers(*given())))]
        if scalars and _counts_on_host(step):
            on_host([state[name] for name in scalars], lambda: self.advanced(*given()))
        else:
            for i, name in enumerate(scalars):
                _REPLACE((state[name],), (host(lambda i=i: advanced(i)),))
        return tuple(numbers)

    @staticmethod
    def _count_in_plan(state: dict[str, Any]) -> None:
        """Count a step that is being compiled in its plan, where that can."""
        if not _counts_on_host(state["step"]):
            state["step"].add_(1)

    @staticmethod
    def _count_on_host(states: Sequence[dict[str, Any]]) -> None:
        """Count a step that is being compiled on the host, where its plan cannot: once for all parameters."""
        steps = [state["step"] for state in states if _counts_on_host(state["step"])]
        if steps:
            cells = [ctypes.c_float.from_address(step.ptr) for step in steps]
            on_host(steps, lambda: tuple([cell.value + 1.0 for cell in cells]))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cells": {}}


def _cell(name: str, value: Any) -> Tensor:
    """An entry of a state as what the host counts in: a tensor of one element in the host's memory; itself where it is one."""
    dtypes = (float32,) if name == "step" else tuple(_CELLS)
    if isinstance(value, Tensor) and value.layout.dtype in dtypes and value.layout.numel == 1 and value.layout.device is CPU:
        return value
    return zeros((), dtype=float32, device="cpu").fill_(number_of(value))


def _counts_on_host(step: Tensor) -> bool:
    """Whether a counter is on another device than the plan of the step that is being compiled, so that the host counts."""
    return modes.tracer.device is not None and modes.tracer.device is not step.layout.device


def on_host(tensors: Sequence[Tensor], values: Callable[[], tuple[Any, ...]]) -> None:
    """Write zero-dimensional tensors of the host at every run of the function that is being compiled, before its plan runs."""
    cells = [_CELLS[each.layout.dtype][0].from_address(each.ptr) for each in tensors]

    def write() -> None:
        for cell, tensor, value in zip(cells, tensors, values()):
            cell.value = value
            tensor.storage.version += 1

    def keep() -> Callable[[], None]:
        before = [cell.value for cell in cells]

        def put_back() -> None:
            for cell, value in zip(cells, before):
                cell.value = value

        return put_back

    modes.tracer.effect(write, keep)


def _values(state: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Zero-dimensional entries of a state as NumPy scalars, whose products round as those of the tensors do."""
    return tuple(array_of(state[name])[()] if isinstance(state[name], Tensor) else np.float32(state[name]) for name in names)

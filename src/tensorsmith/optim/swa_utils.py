"""Averages of a model's weights over training: AveragedModel (SWA and EMA), its rate SWALR, and update_bn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from tensorsmith.core.dtypes import int64
from tensorsmith.nn.batch_normalisation import _BatchNorm
from tensorsmith.nn.module import Module
from tensorsmith.ops.creation import tensor
from tensorsmith.optim.lr_scheduler.base import LRScheduler, check_optimizer, one_per_group
from tensorsmith.optim.optimizer import Optimizer
from tensorsmith.tensor.modes import no_grad

Average = Callable[[Any, Any, Any], Any]


def _checked(decay: float) -> float:
    if not 0 <= decay <= 1:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
    return decay


def get_swa_avg_fn() -> Average:
    """The running mean: average + (value - average) / (n + 1)."""

    @no_grad()
    def swa_update(averaged_param: Any, current_param: Any, num_averaged: Any) -> Any:
        return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """The exponential average: decay * average + (1 - decay) * value."""
    _checked(decay)

    @no_grad()
    def ema_update(ema_param: Any, current_param: Any, num_averaged: Any) -> Any:
        return decay * ema_param + (1 - decay) * current_param

    return ema_update


def _all_in_place(weight: Callable[[Any], float]) -> Callable[[Sequence[Any], Sequence[Any], Any], None]:
    @no_grad()
    def update(averaged: Sequence[Any], current: Sequence[Any], num_averaged: Any) -> None:
        share = weight(num_averaged)
        for average, value in zip(averaged, current):
            if average.is_floating_point() or average.is_complex():
                average.lerp_(value, share)
            else:
                average.copy_(average + (value - average) * share)

    return update


def get_swa_multi_avg_fn() -> Callable[[Sequence[Any], Sequence[Any], Any], None]:
    """The running mean of many tensors, in place."""
    return _all_in_place(lambda count: 1.0 / (float(count) + 1.0))


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[[Sequence[Any], Sequence[Any], Any], None]:
    """The exponential average of many tensors, in place."""
    _checked(decay)
    return _all_in_place(lambda count: 1.0 - decay)


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of those that `update_parameters(model)` has seen.

    avg_fn(average, value, n): one parameter's new average; multi_avg_fn(averages, values, n): all in place; default the
    running mean (stochastic weight averaging). use_buffers: average the buffers too, else they are copied.
    `module` is the copy, `n_averaged` counts. Raises AssertionError where both functions are given.
    Source: Izmailov et al. (2018).

    >>> import tensorsmith as ts
    >>> model = ts.nn.Linear(1, 1, bias=False)
    >>> average = ts.optim.swa_utils.AveragedModel(model)
    >>> for value in (1.0, 2.0, 6.0):
    ...     with ts.no_grad():
    ...         _ = model.weight.fill_(value)
    ...     average.update_parameters(model)
    >>> average.module.weight.item()
    3.0
    """

    n_averaged: Any

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Average | None = None,
        multi_avg_fn: Callable[[Sequence[Any], Sequence[Any], Any], None] | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, dtype=int64))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model gives."""
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take a model's parameters into the averages."""

        def averaged_of(module: Module) -> list[Any]:
            buffers = module.buffers() if self.use_buffers else ()
            return [each.detach() for each in itertools.chain(module.parameters(), buffers)]

        averages, values = averaged_of(self.module), averaged_of(model)
        count = int(self.n_averaged.item())
        if count == 0:
            for average, value in zip(averages, values):
                average.copy_(value)
        elif self.avg_fn is not None:
            for average, value in zip(averages, values):
                average.copy_(self.avg_fn(average, value, self.n_averaged))
        else:
            (self.multi_avg_fn or get_swa_multi_avg_fn())(averages, values, self.n_averaged)
        if not self.use_buffers:
            for average, value in zip(self.module.buffers(), model.buffers()):
                average.copy_(value)
        self.n_averaged += 1


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of a model's batch normalisations anew, from one pass over a loader.

    Batches are inputs, or tuples and lists whose first item is the input.
    """
    momenta = {}
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
            momenta[module] = module.momentum
    if not momenta:
        return
    was_training = model.training
    model.train()
    for module in momenta:
        module.momentum = None
    try:
        for batch in loader:
            first = batch[0] if isinstance(batch, list | tuple) else batch
            model(first if device is None else first.to(device))
    finally:
        for module, momentum in momenta.items():
            module.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """lr goes from where it is to swa_lr in anneal_epochs, by "cos" or "linear", and stays there (for AveragedModel)."""

    hidden = ("optimizer",)

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | list[float], anneal_epochs: int = 10, anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer(optimizer)
        for group, rate in zip(optimizer.param_groups, one_per_group("swa_lr", optimizer, swa_lr)):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        done = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * done)) / 2 if self._anneal_strategy == "cos" else done

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        found = []
        for group, rate in zip(self.optimizer.param_groups, self._rates()):
            goal = group["swa_lr"]
            start = goal if before == 1 else (rate - before * goal) / (1 - before)
            found.append(goal * now + start * (1 - now))
        return found

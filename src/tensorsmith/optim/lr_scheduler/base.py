"""LRScheduler, the base class, and the schedules that call a function of the epoch."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.optim.optimizer import Optimizer, number_of
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.tensor import Tensor

Factor = Callable[[int], float]


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set a group's lr: a tensor keeps its identity."""
    if isinstance(group["lr"], Tensor):
        with no_grad():
            group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def rates_of(optimizer: Optimizer) -> list[float]:
    """The groups' rates now."""
    return [number_of(group["lr"]) for group in optimizer.param_groups]


def step_of_schedule(step: Callable[..., None]) -> Callable[..., None]:
    """`step` of a schedule, which a compiled function takes at every run, not only while it is traced."""

    @functools.wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> None:
        tracer = modes.tracer
        if tracer is None:
            step(self, *args, **kwargs)
            return
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):  # a measured quantity
                tracer.refuse(value, f"{type(self).__name__}.step()")
        tracer.effect(lambda: step(self, *args, **kwargs), lambda: keep_schedule(self))

    return stepped


def keep_schedule(schedule: Any) -> Callable[[], None]:
    """Remember a schedule, the schedules inside and their optimisers' options; what is returned puts them back."""
    inner = [keep_schedule(each) for each in getattr(schedule, "_schedulers", ())]
    groups = schedule.optimizer.param_groups
    attributes, options = dict(schedule.__dict__), [dict(group) for group in groups]
    rates = [number_of(group["lr"]) for group in groups]

    def put_back() -> None:
        schedule.__dict__.clear()
        schedule.__dict__.update(attributes)
        for group, before, rate in zip(groups, options, rates):
            group.clear()
            group.update(before)
            if isinstance(group["lr"], Tensor):
                set_rate(group, rate)
        for each in inner:
            each()

    return put_back


def one_per_group(name: str, optimizer: Optimizer, value: Any) -> list[float]:
    """A number for every group: the same, or a list of them. ValueError where the list has another length."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [number_of(value)] * groups
    if len(value) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, param_groups "
            f"has {groups}."
        )
    return [number_of(each) for each in value]


def check_optimizer(optimizer: Any) -> None:
    """TypeError for what is no optimiser."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


class LRScheduler:
    """Base class: subclasses define `get_lr`, the rates for `last_epoch`, and where there is one `_get_closed_form_lr`.

    last_epoch: -1 for a new training; a resumed one has initial_lr in its groups, else KeyError.
    """

    hidden: tuple[str, ...] = ("optimizer",)  # attributes that are not part of the state
    _is_initial = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = step_of_schedule(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", number_of(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{number}] when resuming "
                    "scheduler with last_epoch "
                    f">= 0: last_epoch={last_epoch}"
                )
        self.optimizer = optimizer
        self.base_lrs = [number_of(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        """Set the rates of the first epoch."""
        self._step_count = 0
        self._get_lr_called_within_step = False  # part of PyTorch's states
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """The rate of every group for `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__}.get_lr")

    def _rates(self) -> list[float]:
        return rates_of(self.optimizer)

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return self._last_lr

    @step_of_schedule
    def step(self, epoch: int | None = None) -> None:
        """The next epoch; a number (deprecated, as in PyTorch) goes to that epoch."""
        if self._step_count == 1 and not getattr(self.optimizer, "_opt_called", False):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the learning rate "
                "schedule is skipped. Call `optimizer.step()` first.",
                UserWarning,
                stacklevel=3,
            )
        self._step_count += 1
        if epoch is not None:
            warnings.warn(
                "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()` after every epoch.",
                UserWarning,
                stacklevel=3,
            )
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        closed = getattr(self, "_get_closed_form_lr", None) if epoch is not None else None
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set(self.get_lr() if closed is None else closed())

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates):
            set_rate(group, rate)
        self._last_lr = self._rates()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser and functions."""
        return {name: value for name, value in self.__dict__.items() if name not in self.hidden}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`; the optimiser's own state holds the rates."""
        self.__dict__.update(state_dict)


def inside(function: Any) -> Any:
    """What a state keeps of a function: the attributes of a callable object, nothing of a Python function."""
    return None if function is None or isinstance(function, types.FunctionType) else dict(function.__dict__)


class _ByFunction(LRScheduler):
    """Schedules by one function of the epoch, or one per group; callable objects keep their attributes in the state."""

    hidden = ("optimizer", "lr_lambdas")

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor], last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        count = len(optimizer.param_groups)
        self.lr_lambdas: list[Factor] = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        for each in self.lr_lambdas:
            if not callable(each):
                raise TypeError(f"lr_lambda should be a function, but got {type(each).__name__}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """As the base's; of functions only the attributes of callable objects."""
        return {**super().state_dict(), "lr_lambdas": [inside(each) for each in self.lr_lambdas]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`; the functions stay."""
        state = dict(state_dict)
        for function, kept in zip(self.lr_lambdas, state.pop("lr_lambdas", [])):
            if kept is not None:
                function.__dict__.update(kept)
        super().load_state_dict(state)


class LambdaLR(_ByFunction):
    """lr = initial lr * lr_lambda(epoch); one function, or one per group."""

    def get_lr(self) -> list[float]:
        return [base * each(self.last_epoch) for each, base in zip(self.lr_lambdas, self.base_lrs)]


class MultiplicativeLR(_ByFunction):
    """lr times lr_lambda(epoch) every epoch; one function, or one per group."""

    def get_lr(self) -> list[float]:
        if self._is_initial:
            return self._rates()
        return [rate * each(self.last_epoch) for each, rate in zip(self.lr_lambdas, self._rates())]

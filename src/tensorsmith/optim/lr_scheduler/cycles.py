"""Schedules that go up and down, with the momentum the other way: CyclicLR and OneCycleLR (Smith, 2017 and 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.optim.lr_scheduler.base import LRScheduler, check_optimizer, inside, one_per_group, set_rate
from tensorsmith.optim.optimizer import Optimizer


class _WithMomentum(LRScheduler):
    """Schedules that may set the momentum of SGD, or beta1 of Adam, too."""

    cycle_momentum: bool
    use_beta1: bool

    def _take_momentum(self, wanted: bool, base: Any, largest: Any, last_epoch: int) -> None:
        """Check the optimiser and keep the bounds in its groups."""
        optimizer = self.optimizer
        self.cycle_momentum = wanted
        if not wanted:
            return
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in optimizer.defaults
        lower = one_per_group("base_momentum", optimizer, base)
        upper = one_per_group("max_momentum", optimizer, largest)
        self._keep_momenta(lower, upper)
        if last_epoch == -1:
            for group, low, high in zip(optimizer.param_groups, lower, upper):
                self._set_momentum(group, high)
                group["max_momentum"], group["base_momentum"] = high, low

    def _keep_momenta(self, lower: list[float], upper: list[float]) -> None:
        """Where the bounds are attributes too."""

    def _set_momentum(self, group: dict[str, Any], momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CyclicLR(_WithMomentum):
    """lr between base_lr and max_lr, up in step_size_up steps and down in step_size_down (default: as many).

    mode: "triangular"; "triangular2", each cycle half as high; "exp_range", height times gamma^step; or scale_fn of the
    cycle's number (scale_mode "cycle") or the step's ("iterations"). cycle_momentum: the momentum goes from max_momentum
    to base_momentum and back. Source: Smith (2017). ValueError for an unknown mode or an optimiser without momentum.
    """

    hidden = ("optimizer", "_scale_fn_custom")

    def __init__(
        self, optimizer: Optimizer, base_lr: float | list[float], max_lr: float | list[float], step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8, max_momentum: float | list[float] = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer(optimizer)
        self.optimizer = optimizer
        base_lrs = one_per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups):
                set_rate(group, rate)
        self.max_lrs = one_per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self._take_momentum(cycle_momentum, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def _keep_momenta(self, lower: list[float], upper: list[float]) -> None:
        self.base_momentums, self.max_momentums = lower, upper

    def scale_fn(self, x: float) -> float:
        """The height of a cycle (or step), relative to the first."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        share = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            groups = self.optimizer.param_groups
            for group, low, high in zip(groups, self.base_momentums, self.max_momentums):
                self._set_momentum(group, high - (high - low) * share * scale)
        return [low + (high - low) * share * scale for low, high in zip(self.base_lrs, self.max_lrs)]

    def state_dict(self) -> dict[str, Any]:
        """As the base's; of scale_fn only the attributes of a callable object."""
        return {**super().state_dict(), "_scale_fn_custom": inside(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`; scale_fn stays."""
        state = dict(state_dict)
        kept = state.pop("_scale_fn_custom", None)
        if kept is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(kept)
        super().load_state_dict(state)


class OneCycleLR(_WithMomentum):
    """One rise from max_lr / div_factor to max_lr and one fall to max_lr / div_factor / final_div_factor.

    total_steps, or epochs and steps_per_epoch: the length; pct_start: the share of the rise; anneal_strategy: "cos" or
    "linear"; three_phase: fall to the first rate as fast as it rose, then to the last one. cycle_momentum: the momentum
    goes from max_momentum to base_momentum and back. One step a batch; a step beyond the last raises ValueError.
    Source: Smith and Topin (2018).
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | list[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer(optimizer)
        self.optimizer = optimizer
        if total_steps is not None:
            self.total_steps = _positive("total_steps", total_steps)
        elif epochs is not None and steps_per_epoch is not None:
            self.total_steps = _positive("epochs", epochs) * _positive("steps_per_epoch", steps_per_epoch)
        else:
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        rise, last = float(pct_start * self.total_steps) - 1, self.total_steps - 1
        phases: list[tuple[float, str, str, str, str]] = [(rise, "initial_lr", "max_lr", "max", "base")]
        if three_phase:
            phases += [
                (float(2 * pct_start * self.total_steps) - 2, "max_lr", "initial_lr", "base", "max"),
                (last, "initial_lr", "min_lr", "max", "max"),
            ]
        else:
            phases.append((last, "max_lr", "min_lr", "base", "max"))
        self._schedule_phases: list[dict[str, Any]] = [
            {
                "end_step": end, "start_lr": first, "end_lr": second, "start_momentum": f"{third}_momentum",
                "end_momentum": f"{fourth}_momentum",
            }
            for end, first, second, third, fourth in phases
        ]  # fmt: skip
        self._anneal_func_type = anneal_strategy
        rates = one_per_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, rates):
                group["initial_lr"] = rate / div_factor
                group["max_lr"] = rate
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self._take_momentum(cycle_momentum, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is {self.total_steps}"
            )
        start = 0.0
        for phase in self._schedule_phases[:-1]:
            if step <= phase["end_step"]:
                break
            start = phase["end_step"]
        else:
            phase = self._schedule_phases[-1]
        share = (step - start) / (phase["end_step"] - start)
        found = []
        for group in self.optimizer.param_groups:
            found.append(self._between(group[phase["start_lr"]], group[phase["end_lr"]], share))
            if self.cycle_momentum:
                self._set_momentum(
                    group, self._between(group[phase["start_momentum"]], group[phase["end_momentum"]], share)
                )
        return found


def _positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"Expected positive integer {name}, but got {value}")
    return value

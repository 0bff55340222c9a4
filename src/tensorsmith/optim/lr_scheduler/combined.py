"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from tensorsmith.optim.lr_scheduler.base import LRScheduler, rates_of, set_rate
from tensorsmith.optim.lr_scheduler.plateau import ReduceLROnPlateau
from tensorsmith.optim.optimizer import Optimizer, number_of


class _Combined(LRScheduler):
    hidden = ("optimizer", "_schedulers")
    _schedulers: list[Any]

    def _check(self, optimizer: Optimizer, schedulers: Sequence[Any]) -> None:
        name = type(self).__name__
        for place, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {place} should have `optimizer` as its attribute.")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs to be "
                    f"specified when calling `step`, but got one at index {place} in the given schedulers sequence."
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {place} has {scheduler.optimizer}, which is different from "
                    f"{type(optimizer).__name__}."
                )

    def state_dict(self) -> dict[str, Any]:
        """As the base's, with the states of the schedules."""
        return {**super().state_dict(), "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`."""
        state = dict(state_dict)
        for scheduler, kept in zip(self._schedulers, state.pop("_schedulers")):
            scheduler.load_state_dict(kept)
        super().load_state_dict(state)


class SequentialLR(_Combined):
    """The first schedule until epoch milestones[0], the second until milestones[1], and so on.

    ValueError where the milestones are not one fewer than the schedules, or a schedule is of another optimiser.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        if not schedulers:
            raise ValueError("SequentialLR expects at least one scheduler, but got no scheduler.")
        self._check(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of milestone "
                f"points, but got number of schedulers {len(schedulers)} and the number of milestones to be equal to "
                f"{len(milestones)}"
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            set_rate(group, number_of(group["initial_lr"]))
        self._undo(self)  # every schedule took its first step when it was made
        first = schedulers[bisect.bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def _undo(self, scheduler: Any) -> None:
        """Take a first step back, of the schedules inside too."""
        if hasattr(scheduler, "_schedulers"):
            for each in scheduler._schedulers:
                self._undo(each)
        elif hasattr(scheduler, "last_epoch"):
            scheduler.last_epoch -= 1

    def step(self) -> None:  # type: ignore[override]
        """The next epoch, of the schedule whose turn it is."""
        self.last_epoch += 1
        place = bisect.bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if place > 0 and self._milestones[place - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Combined):
    """All schedules at every step, so that their factors multiply. ValueError for schedules of different optimisers."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        optimizer = optimizer or schedulers[0].optimizer
        self._check(optimizer, schedulers)
        self._schedulers = list(schedulers)
        self.optimizer = optimizer
        self._last_lr = rates_of(optimizer)

    def step(self) -> None:  # type: ignore[override]
        """The next epoch of all."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = rates_of(self.optimizer)

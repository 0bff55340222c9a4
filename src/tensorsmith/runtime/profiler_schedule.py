"""Which steps of a loop a profile records: `schedule(...)`, its actions, and what to do with a finished trace; PyTorch's names.

with profile(schedule=schedule(wait=1, warmup=1, active=3), on_trace_ready=tensorboard_trace_handler("log")) as prof:
    for batch in loader:
        train(batch)
        prof.step()
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Callable
from typing import Any


class ProfilerActivity(enum.Enum):
    """What a profile may look at; only the CPU exists here."""

    CPU = 0
    CUDA = 2


class ProfilerAction(enum.Enum):
    """What a profile does during one step."""

    NONE = 0
    WARMUP = 1  # its cost is paid, nothing is kept
    RECORD = 2
    RECORD_AND_SAVE = 3  # the last step of a cycle: its end hands over the trace


def supported_activities() -> set[ProfilerActivity]:
    """The activities that exist here.

    >>> ts.profiler.supported_activities() == {ts.profiler.ProfilerActivity.CPU}
    True
    """
    return {ProfilerActivity.CPU}


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """A function from the number of a step to what is done in it: skip_first, then cycles of wait, warmup and active steps.

    repeat: how many cycles, 0 for all there are; skip_first_wait: 1 leaves out the wait of the first cycle
    Raises ValueError for negative numbers and for active == 0.

    >>> plan = ts.profiler.schedule(wait=1, warmup=1, active=2)
    >>> [plan(step).name for step in range(5)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ValueError(
            "schedule: wait, warmup, repeat and skip_first are at least 0 and active at least 1, not "
            f"wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, skip_first={skip_first}"
        )
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first
        if skip_first_wait:
            step += wait
        if repeat and step // cycle >= repeat:
            return ProfilerAction.NONE
        place = step % cycle
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[Any], None]:
    """An `on_trace_ready` that writes each trace into a folder, under a name of its own: WORKER.TIME.pt.trace.json.

    NotImplementedError for use_gzip.
    """
    if use_gzip:
        raise NotImplementedError("tensorboard_trace_handler: use_gzip=True is not implemented; compress the files afterwards")

    def handle(prof: Any) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        prof.export_chrome_trace(os.path.join(dir_name, f"{worker}.{time.time_ns()}.pt.trace.json"))

    return handle

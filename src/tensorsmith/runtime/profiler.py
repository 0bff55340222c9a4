"""What ran, when and for how long: `profile()`, in the manner of `torch.profiler`.

    with ts.profiler.profile() as prof:
        with ts.profiler.record_function("forward"):
            loss = model(x)
        loss.backward()
    print(prof.key_averages().table(sort_by="self_cpu_time_total"))
    prof.export_chrome_trace("trace.json")

Plans tell of themselves while a profile is active: an eager operator or a compiled program is one event, the kernels and
library calls of its plan are events inside it, and `record_function` puts what the user likes around them. Events are kept
by the Python thread that launched them. Workers of the pool that took chunks of a kernel have an event each, in `events()` and
in the trace; totals count a kernel once. While a profile is active every kernel is launched by itself, which costs a few
microseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorsmith.runtime.profiler_schedule import ProfilerAction, ProfilerActivity

clock = time.perf_counter
active = False


@dataclass
class Row:
    """Totals of one kernel name."""

    name: str
    calls: int = 0
    seconds: float = 0.0
    bytes_moved: int = 0
    flops: int = 0


@dataclass
class Event:
    """Something that ran. start: of `clock`; inner: seconds of what ran inside it.

    category: "operator", "kernel", "user", or "worker" for a thread's part of a kernel; its `thread` is minus its number
    """

    name: str
    category: str
    start: float
    seconds: float
    thread: int
    bytes_moved: int = 0
    flops: int = 0
    inner: float = 0.0
    chunks: int = 0  # of a worker
    enclosed: bool = False  # it is part of the time of an event around it

    @property
    def self_seconds(self) -> float:
        """Its time without that of the events inside it."""
        return self.seconds - self.inner


_profile: profile | None = None
# Called when profiling begins and ends: what launches kernels without asking `active` forgets its short cuts.
when_switched: list[Callable[[], object]] = []


def record(name: str, seconds: float, bytes_moved: int, flops: int) -> None:
    """Add one call of a kernel that has just ended."""
    if _profile is not None:
        thread = threading.get_ident()
        _profile.add(Event(name, "kernel", clock() - seconds, seconds, thread, bytes_moved, flops))


def ran(name: str, start: float, category: str = "operator") -> None:
    """Add an event that began at `start` and has just ended, around those that were recorded meanwhile."""
    if _profile is not None:
        _profile.add(Event(name, category, start, clock() - start, threading.get_ident()))


def follows_workers() -> bool:
    """Whether the active profile wants to know what the pool's workers do."""
    return _profile is not None and _profile.workers


def worked(name: str, parts: Iterable[Any]) -> None:
    """Add what the pool's workers did in a kernel; the part of the thread that launched it is the kernel's own event."""
    for part in parts:
        if part.worker and _profile is not None:
            _profile.add(Event(name, "worker", part.start, part.seconds, -part.worker, chunks=part.chunks))


class record_function(contextlib.ContextDecorator):  # noqa: N801 - PyTorch's name
    """A name for what runs in a block, or in the function it decorates: an event of its own while a profile is active.

    >>> with ts.profiler.record_function("forward"):
    ...     y = ts.ones(3) * 2
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name if args is None else f"{name} {args}"
        self.starts: list[float] = []

    def __enter__(self) -> record_function:
        self.starts.append(clock())
        return self

    def __exit__(self, *exc: object) -> None:
        ran(self.name, self.starts.pop(), "user")


_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class profile:  # noqa: N801 - PyTorch's name
    """Collect events while the block runs, or between `start()` and `stop()`.

    activities: what to look at, of which only the CPU exists here
    schedule: which steps are recorded, by their number (`ts.profiler.schedule`); `step()` ends one
    on_trace_ready: called with the profile at its end, or with a schedule at the end of each of its cycles
    record_shapes, profile_memory, with_stack, with_modules: PyTorch's; NotImplementedError where they are asked for
    with_flops: operations are counted in any case
    Profiles nest: events go to the innermost. RuntimeError where `stop` comes without `start`.

    >>> with ts.profiler.profile() as prof:
    ...     y = ts.ones(8, 8).softmax(1)
    >>> "softmax" in prof.key_averages().table()
    True
    """

    def __init__(
        self, *, activities: Iterable[Any] | None = None, schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], object] | None = None, record_shapes: bool = False, profile_memory: bool = False,
        with_stack: bool = False, with_flops: bool = False, with_modules: bool = False,
    ) -> None:  # fmt: skip
        for name, asked in (
            ("record_shapes", record_shapes), ("profile_memory", profile_memory), ("with_stack", with_stack),
            ("with_modules", with_modules),
        ):  # fmt: skip
            if asked:
                raise NotImplementedError(f"profile: {name}=True is not implemented; leave it out")
        if activities is not None and ProfilerActivity.CPU not in set(activities):
            raise ValueError("profile: there is nothing but the CPU to look at; pass activities=[ProfilerActivity.CPU]")
        self.schedule = schedule
        self.on_trace_ready = on_trace_ready
        self.recorded: list[Event] = []
        self.step_num = 0
        self.workers = True  # whether the parts of the pool's threads are recorded
        self._action = ProfilerAction.NONE
        self._step_start = 0.0
        self._before: tuple[profile | None] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to collect, as much as the schedule says of step 0."""
        global active, _profile
        self._before = (_profile,)
        active, _profile = True, self
        self._begin(self.schedule(self.step_num) if self.schedule is not None else ProfilerAction.RECORD_AND_SAVE)
        _switched()

    def stop(self) -> None:
        """Collect no more."""
        global active, _profile
        if self._before is None:
            raise RuntimeError("profile.stop(): the profile was not started")
        self._end()
        (_profile,) = self._before
        self._before = None
        active = _profile is not None
        _switched()
        if self.on_trace_ready is not None and self._action in _RECORDING:
            self.on_trace_ready(self)
        self._action = ProfilerAction.NONE

    def step(self) -> None:
        """The end of one step of a loop and the beginning of the next, which the schedule may treat in another way.

        RuntimeError where the profile was not started.
        """
        if self._before is None:
            raise RuntimeError("profile.step(): the profile was not started")
        self._end()
        if self._action is ProfilerAction.RECORD_AND_SAVE and self.schedule is not None and self.on_trace_ready is not None:
            self.on_trace_ready(self)
        self.step_num += 1
        self._begin(self.schedule(self.step_num) if self.schedule is not None else ProfilerAction.RECORD_AND_SAVE)

    def _begin(self, action: ProfilerAction) -> None:
        starts = action in _RECORDING and (self._action not in _RECORDING or self._action is ProfilerAction.RECORD_AND_SAVE)
        if starts and self.schedule is not None:
            self.recorded = []  # a new cycle
        self._action, self._step_start = action, clock()

    def _end(self) -> None:
        if self.step_num or self.schedule is not None:
            ran(f"ProfilerStep#{self.step_num}", self._step_start, "user")

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def add(self, event: Event) -> None:
        """Keep an event; its time is taken from the self time of the one around it when that one ends."""
        if self._action not in _RECORDING:
            return
        with self._lock:
            for earlier in reversed(self.recorded):
                if earlier.thread != event.thread:
                    continue
                if earlier.start < event.start:
                    break
                if not earlier.enclosed:
                    event.inner += earlier.seconds
                    earlier.enclosed = True
            self.recorded.append(event)

    # --- results ----------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> dict[str, Row]:
        """Totals of the kernels by name."""
        found: dict[str, Row] = {}
        for event in self.recorded:
            if event.category == "kernel":
                row = found.setdefault(event.name, Row(event.name))
                row.calls += 1
                row.seconds += event.seconds
                row.bytes_moved += event.bytes_moved
                row.flops += event.flops
        return found

    def events(self) -> list[Event]:
        """All events, by their beginning."""
        return sorted(self.recorded, key=lambda event: (event.start, -event.seconds))

    def key_averages(self) -> Averages:
        """Totals by category and name."""
        found: dict[tuple[str, str], Average] = {}
        for event in self.recorded:
            if event.category == "worker":
                continue
            found.setdefault((event.category, event.name), Average(event.name, event.category)).include(event)
        return Averages(found.values())

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events in Chrome's trace format, which chrome://tracing and Perfetto show."""
        first = min((event.start for event in self.recorded), default=0.0)
        process, threads = os.getpid(), sorted({event.thread for event in self.recorded})
        threads.sort(key=lambda thread: (thread < 0, abs(thread)))  # the pool's workers last
        names = [f"thread {number}" if thread >= 0 else f"pool worker {-thread}" for number, thread in enumerate(threads)]
        lines: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": name}}
            for number, name in enumerate(names)
        ]
        for event in self.events():
            numbers = {"bytes": event.bytes_moved, "flops": event.flops} if event.category == "kernel" else {}
            if event.category == "worker":
                numbers = {"chunks": event.chunks}
            lines.append({
                "ph": "X", "name": event.name, "cat": event.category, "pid": process, "tid": threads.index(event.thread),
                "ts": (event.start - first) * 1e6, "dur": event.seconds * 1e6, "args": numbers,
            })  # fmt: skip
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": lines, "displayTimeUnit": "ms"}, file)


@dataclass
class Average:
    """Totals of the events of one name, in PyTorch's words; times in microseconds."""

    key: str
    category: str
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    bytes_moved: int = 0
    flops: int = 0

    def include(self, event: Event) -> None:
        """Add one event."""
        self.count += 1
        self.cpu_time_total += event.seconds * 1e6
        self.self_cpu_time_total += event.self_seconds * 1e6
        self.bytes_moved += event.bytes_moved
        self.flops += event.flops

    @property
    def cpu_time(self) -> float:
        """The mean of one call."""
        return self.cpu_time_total / self.count if self.count else 0.0


_SORTED_BY = ("cpu_time_total", "self_cpu_time_total", "cpu_time", "count", "flops", "bytes_moved")


class Averages(Sequence[Average]):
    """A list of totals that prints as a table."""

    def __init__(self, entries: Iterable[Average]) -> None:
        self.entries = list(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: Any) -> Any:
        return self.entries[index]

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The totals as text, by their beginning or the largest `sort_by` first. ValueError for an unknown column."""
        if sort_by is not None and sort_by not in _SORTED_BY:
            raise ValueError(f"table: sort_by is one of {', '.join(_SORTED_BY)}, not {sort_by!r}")
        ordered = self.entries if sort_by is None else sorted(self.entries, key=lambda e: -getattr(e, sort_by))
        whole = sum(entry.self_cpu_time_total for entry in self.entries) or 1.0
        rows = [("Name", "Kind", "Self CPU %", "Self CPU", "CPU total", "CPU time avg", "# of Calls", "GB/s", "GFLOP/s")]
        for e in ordered[: row_limit if row_limit >= 0 else None]:
            seconds = e.cpu_time_total * 1e-6 or 1e-12
            rows.append((
                e.key, e.category, f"{e.self_cpu_time_total / whole:.2%}", _time(e.self_cpu_time_total),
                _time(e.cpu_time_total), _time(e.cpu_time), str(e.count),
                f"{e.bytes_moved / seconds / 1e9:.1f}" if e.bytes_moved else "-",
                f"{e.flops / seconds / 1e9:.1f}" if e.flops else "-",
            ))  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        rule = "  ".join("-" * width for width in widths)
        lines = ["  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in rows]
        lines = [rule, lines[0], rule, *lines[1:], rule]
        return "\n".join([line.rstrip() for line in lines] + [f"Self CPU time total: {_time(whole)}"])

    __str__ = table


def _time(microseconds: float) -> str:
    for least, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= least:
            return f"{microseconds / least:.3f}{unit}"
    return f"{microseconds:.3f}us"


def step_seconds(run: Callable[[], object]) -> list[float]:
    """The seconds of every kernel and library call that a function launches, in order."""
    with profile() as found:
        found.workers = False
        run()
    return [event.seconds for event in found.recorded if event.category == "kernel"]


def _switched() -> None:
    for call in when_switched:
        call()


__all__ = ["Average", "Averages", "Event", "Row", "profile", "record_function"]

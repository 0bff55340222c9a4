"""Times on a GPU, by events: candidates take turns, each figure is the median of its turns.

A region is as many calls in a row as last `shortest` milliseconds, between two events of the library that is measured; both
libraries wait for each other before a region, since each has a stream of its own. Without a GPU, in a rehearsal, wall time
stands in.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import tensorsmith as ts

Call = Callable[[], Any]


def wait(device: str) -> None:
    """Until both libraries are done."""
    if device == "cuda":
        torch.cuda.synchronize()
        ts.cuda.synchronize()


def region(library: Any, call: Call, count: int, device: str) -> float:
    """Milliseconds of one of `count` calls in a row."""
    wait(device)
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) * 1e3 / count
    first, last = library.cuda.Event(enable_timing=True), library.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        call()
    last.record()
    wait(device)
    return first.elapsed_time(last) / count  # type: ignore[no-any-return]


def host_region(call: Call, count: int, device: str) -> float:
    """Milliseconds of the host's time for one of `count` calls."""
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    taken = time.perf_counter() - start
    wait(device)
    return taken * 1e3 / count


def measure(
    candidates: Mapping[str, tuple[Any, Call]], device: str, turns: int = 7, shortest: float = 3.0, host: bool = False
) -> dict[str, float]:
    """Median milliseconds of a call of each candidate: name -> (library, call)."""

    def sample(library: Any, call: Call, count: int) -> float:
        return host_region(call, count, device) if host else region(library, call, count, device)

    counts = {}
    for name, (library, call) in candidates.items():
        for _ in range(3):  # compiles, captures, fills caches
            call()
        once = max(sample(library, call, 1), 1e-4)
        counts[name] = max(1, min(500, round(shortest / max(sample(library, call, max(1, round(0.3 / once))), 1e-4))))
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(turns):
        for name in list(candidates) if turn % 2 == 0 else list(reversed(candidates)):
            library, call = candidates[name]
            samples[name].append(sample(library, call, counts[name]))
    return {name: statistics.median(values) for name, values in samples.items()}

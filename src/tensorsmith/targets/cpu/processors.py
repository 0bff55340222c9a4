"""How many processors this process may use: affinity, control-group quota, and the environment's request."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path


@functools.cache
def default_threads() -> int:
    """The default size of the thread pool: ``TENSORSMITH_NUM_THREADS``, else affinity and quota, the smaller.

    Raises:
        ValueError: the variable is not a positive number.
    """
    text = os.environ.get("TENSORSMITH_NUM_THREADS", "").strip()
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"TENSORSMITH_NUM_THREADS={text!r} is not a positive number")
        return min(int(text), 512)
    count = affinity_count()
    quota = control_group_quota()
    if quota is not None:
        # Rounded down: one thread too many is throttled for the rest of the period, and the join waits for it.
        count = min(count, max(1, int(quota)))
    return count


def affinity_count() -> int:
    """Number of processors that the process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def control_group_quota(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """Processors' worth of time that Linux control groups (v1 or v2) allow the process, or None without a limit.

    The limit may stand at any level of the hierarchy: the smallest from the process's group upwards counts.
    """
    try:
        lines = Path(proc).read_text().splitlines()
    except OSError:
        return None
    limits: list[float] = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, group = parts
        if controllers == "":
            for base in (Path(root), Path(root, "unified")):
                limits += _walk(base, group, _quota_v2)
        elif "cpu" in controllers.split(","):
            for base in (Path(root, "cpu"), Path(root, controllers)):
                limits += _walk(base, group, _quota_v1)
    return min(limits, default=None)


def _walk(base: Path, group: str, read: Callable[[Path], float | None]) -> list[float]:
    found = []
    place = base / group.lstrip("/")
    while True:
        limit = read(place)
        if limit is not None:
            found.append(limit)
        if place == base or base not in place.parents:
            return found
        place = place.parent


def _quota_v2(place: Path) -> float | None:
    try:
        quota, period = (place / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(place: Path) -> float | None:
    try:
        quota = int((place / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((place / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None

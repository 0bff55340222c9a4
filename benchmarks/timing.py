"""Comparisons of running times that hold on a machine which is not idle.

Candidates take turns (A B B A ...), so that whatever disturbs the machine disturbs all of them alike, and each figure
is a median over turns. One thread is measured in processor time of this process; several threads need wall time and a
quiet machine.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]


def touch(result: Any) -> None:
    """Ask for the memory of a result inside the measured time, so that work put off until later counts too."""
    if isinstance(result, tuple | list):
        for part in result:
            touch(part)
    elif hasattr(result, "data_ptr"):
        result.data_ptr()


def repetitions(call: Call, clock: Callable[[], float], shortest: float) -> int:
    """How many calls take at least `shortest` seconds together; the calls on the way are the warm-up."""
    for _ in range(2):
        touch(call())
    count = 1
    while True:
        start = clock()
        for _ in range(count):
            touch(call())
        taken = clock() - start
        if taken >= shortest or count >= 1 << 20:
            return count
        count = max(2 * count, math.ceil(count * shortest / max(taken, 1e-9)))


def compare(
    candidates: Mapping[str, Call],
    turns: int = 11,
    shortest: float = 0.02,
    threads: int = 1,
    before_turn: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Median seconds of one call of each candidate.

    shortest: seconds that one sample lasts at least; before_turn: runs before each turn and is not measured (new input
    values, for instance, so that nothing remembered helps).
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    counts = {name: repetitions(call, clock, shortest) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    for turn in range(turns):
        if before_turn is not None:
            before_turn()
        names = list(candidates) if turn % 2 == 0 else list(reversed(candidates))
        for name in names:
            call, count = candidates[name], counts[name]
            start = clock()
            for _ in range(count):
                touch(call())
            samples[name].append((clock() - start) / count)
    return {name: statistics.median(values) for name, values in samples.items()}


def duration(seconds: float) -> str:
    """Microseconds, or from ten seconds on seconds, in a column."""
    return f"{seconds * 1e6:11.2f} us" if seconds < 10 else f"{seconds:11.2f} s "


@dataclass
class Report:
    """Ratios of the peer's time to ours, printed as they come; `finish` prints their geometric mean."""

    title: str
    peer: str = "torch"
    ratios: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, peer: float, ours: float, remark: str = "") -> None:
        """One case that is right."""
        self.ratios[name] = peer / ours
        times = f"{self.peer} {duration(peer)}   ours {duration(ours)}"
        print(f"{name:42s} {times}   ratio {peer / ours:6.2f}  {remark}", flush=True)

    def fail(self, name: str, reason: str) -> None:
        """One case that is wrong, or that does not run."""
        self.wrong.append(name)
        print(f"{name:42s} WRONG: {reason}", flush=True)

    def finish(self, floor: float | None = None, mean: float | None = None) -> int:
        """Print the summary; 1 if a case is wrong, below the floor, or the mean is too low."""
        found = statistics.geometric_mean(self.ratios.values()) if self.ratios else 0.0
        worst = min(self.ratios, key=lambda name: self.ratios[name], default="")
        text = f"{self.title}: geometric mean {found:.2f}"
        if worst:
            text += f", worst {self.ratios[worst]:.2f} in '{worst}'"
        print(text + f", wrong {len(self.wrong)} of {len(self.ratios) + len(self.wrong)}")
        too_low = bool(self.ratios) and floor is not None and self.ratios[worst] < floor
        return int(bool(self.wrong) or not self.ratios or too_low or (mean is not None and found < mean))


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains one of these words (comma separated)")
    parser.add_argument("--threads", type=int, default=1, help="1 (default): processor time; more: wall time")
    parser.add_argument("--turns", type=int, default=11, help="samples of each candidate (default 11)")
    parser.add_argument("--floor", type=float, default=None, help="exit 1 where a ratio is lower")
    parser.add_argument("--mean", type=float, default=None, help="exit 1 where the ratios' geometric mean is lower")
    return parser


def selected(names: Iterable[str], only: str) -> Sequence[str]:
    """The names that contain one of the words of `only`; all without one."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    return [name for name in names if not words or any(word in name for word in words)]

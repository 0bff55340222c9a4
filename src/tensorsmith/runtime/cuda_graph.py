"""Replays: plans of a CUDA device that run as one graph from their second run on.

A launch costs the host microseconds, a kernel of a graph nothing. What a run is given, addresses and numbers, is compared with
the run before; the kernels of steps whose words changed get new ones. Which step comes after which follows from the memory
that they read and write, so independent branches run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorsmith.runtime.requests import KernelStep
from tensorsmith.targets.cuda import allocator, devices
from tensorsmith.targets.cuda.graphs import KernelGraph

if TYPE_CHECKING:
    from tensorsmith.runtime.plan import Plan

FEWEST_STEPS = 4  # worth a graph
Range = tuple[int, int, int]  # word, first byte, end
Access = tuple[list[Range], list[Range]]  # what a step reads, what it writes


def order_of(accesses: Sequence[Access]) -> list[list[int]]:
    """For every step those that it has to come after: who wrote what it reads, or used what it writes. Without detours."""
    found: list[list[int]] = []
    before: list[int] = []  # all that a step comes after, as bits
    for number, (reads, writes) in enumerate(accesses):
        direct: list[int] = []
        known = 0
        for other in range(number - 1, -1, -1):
            if known >> other & 1:
                continue
            other_reads, other_writes = accesses[other]
            if _meet(reads, other_writes) or _meet(writes, other_writes) or _meet(writes, other_reads):
                direct.append(other)
                known |= before[other] | 1 << other
        found.append(direct[::-1])
        before.append(known)
    return found


def _meet(a: Sequence[Range], b: Sequence[Range]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)


class Replays:
    """The graphs of a plan, one for every stream it runs on."""

    def __init__(self, plan: Plan, accesses: Sequence[Access]) -> None:
        self.plan = plan
        self.accesses = accesses
        self.index = plan.device.index or 0
        self.graphs: dict[int, _Replay] = {}
        self.seen: set[int] = set()
        self.lock = threading.Lock()

    def run(self, words: Sequence[int | float]) -> bool:
        """Run the plan as a graph; False where it is to be run step by step, as the first time and while debugging."""
        if devices.debug() or allocator.state_of(self.index).pools:
            return False
        stream = allocator.current_stream(self.index)
        with self.lock:
            replay = self.graphs.get(stream)
            if replay is None:
                if stream not in self.seen:
                    self.seen.add(stream)
                    return False
                replay = self.graphs[stream] = _Replay(self.plan, self.accesses, self.index, words)
            else:
                replay.follow(words)
            devices.use(self.index)
            replay.graph.launch(stream)
        return True


class _Replay:
    """One graph and the words it has."""

    def __init__(self, plan: Plan, accesses: Sequence[Access], index: int, words: Sequence[int | float]) -> None:
        steps = [step for step in plan.steps if isinstance(step, KernelStep)]
        assert len(steps) == len(plan.steps)
        self.sources = [step.sources for step in steps]
        self.readers: dict[int, list[int]] = {}  # word -> steps
        for number, sources in enumerate(self.sources):
            for word, _ in sources:
                readers = self.readers.setdefault(word, [])
                if not readers or readers[-1] != number:
                    readers.append(number)
        self.words = tuple(words)
        given = [[words[w] + o if o else words[w] for w, o in sources] for sources in self.sources]
        self.graph = KernelGraph(index, [step.recipe for step in steps], given, order_of(accesses))

    def follow(self, words: Sequence[int | float]) -> None:
        """Give the graph the words of this run."""
        words = tuple(words)
        if words == self.words:
            return
        before, self.words = self.words, ()  # where an update fails, the next run gives every step its words
        stale = range(len(self.sources)) if not before else sorted(
            {step for word, (a, b) in enumerate(zip(before, words)) if a != b for step in self.readers.get(word, ())}
        )  # fmt: skip
        for number in stale:
            self.graph.update(number, [words[w] + o if o else words[w] for w, o in self.sources[number]])
        self.words = words

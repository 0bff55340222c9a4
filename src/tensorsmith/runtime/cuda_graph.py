"""Replays: plans of a CUDA device that run as one graph from their second run on.

A launch costs the host microseconds, a kernel of a graph nothing. What a run is given, addresses and numbers, is compared with
the run before; the kernels of steps whose words changed get new ones. Which step comes after which follows from the memory
that they read and write, so independent branches run at the same time.

Giving a kernel new words costs several launches. So steps that read a number which changes from run to run, and what comes
after them, are left out of the graph where they are few, and launched behind it: the updates of an optimiser that counts its
steps, while the device works on the gradients.

A plan with steps that the host computes or decides (`control_steps.py`) is a graph for every long row of launches between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tensorsmith.runtime.requests import KernelStep
from tensorsmith.targets.cpu import launch as launching
from tensorsmith.targets.cpu.recipe import Given, NativePlan, decode_error
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


def tail_of(order: Sequence[Sequence[int]], first: set[int]) -> list[int]:
    """These steps and all that come after them; [] where that is more than half of all."""
    found: set[int] = set()
    for number, before in enumerate(order):
        if number in first or not found.isdisjoint(before):
            found.add(number)
    return sorted(found) if 2 * len(found) <= len(order) else []


def _meet(a: Sequence[Range], b: Sequence[Range]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)


def give_graphs(plan: Plan, accesses: Callable[[], Sequence[Access]]) -> None:
    """Let a plan run as one graph; where the host computes or decides in between, as one for each long row of launches."""
    rows: list[list[int]] = []  # first step and end
    for number, step in enumerate(plan.steps):
        if isinstance(step, KernelStep):
            if rows and rows[-1][1] == number:
                rows[-1][1] += 1
            else:
                rows.append([number, number + 1])
    long = [row for row in rows if row[1] - row[0] >= FEWEST_STEPS]
    if long == [[0, len(plan.steps)]]:
        plan.replays = Replays(plan, accesses())
    elif long:
        found = accesses()
        plan.replays_of_parts = {first: Replays(plan, found[first:end], first) for first, end in long}


class Replays:
    """The graphs of a plan, or of some steps in a row, one for every stream it runs on."""

    def __init__(self, plan: Plan, accesses: Sequence[Access], first: int = 0) -> None:
        self.plan = plan
        self.first = first
        self.order = order_of(accesses)
        self.index = plan.device.index or 0
        self.graphs: dict[int, _Replay] = {}
        self.seen: set[int] = set()
        self.tail: list[int] | None = None  # steps behind the graph, once it is known which numbers change
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
                replay = self.graphs[stream] = _Replay(self, words, self.tail or [])
            else:
                if self.tail is None:
                    first = replay.readers_of_numbers_that_changed(words)
                    if first:
                        self.tail = tail_of(self.order, first)
                        if self.tail:
                            self.graphs.clear()
                            replay = self.graphs[stream] = _Replay(self, words, self.tail)
                replay.follow(words)
            devices.use(self.index)
            replay.graph.launch(stream)
            if replay.tail is not None:
                replay.run_tail(words)
        return True


class _Replay:
    """One graph, the words it has, and the steps that are launched behind it."""

    def __init__(self, replays: Replays, words: Sequence[int | float], tail: Sequence[int]) -> None:
        self.plan = plan = replays.plan
        self.first, order = replays.first, replays.order
        steps = [step for step in plan.steps[self.first : self.first + len(order)] if isinstance(step, KernelStep)]
        assert len(steps) == len(order)
        behind = set(tail)
        inside = [number for number in range(len(steps)) if number not in behind]
        place = {number: k for k, number in enumerate(inside)}
        self.sources = [steps[number].sources for number in inside]
        self.readers: dict[int, list[int]] = {}  # word -> steps of the graph
        for number, sources in enumerate(self.sources):
            for word, _ in sources:
                readers = self.readers.setdefault(word, [])
                if not readers or readers[-1] != number:
                    readers.append(number)
        before = len(plan.tensor_inputs) + len(plan.new_bytes)
        self.numbers = range(before, before + len(plan.params) + len(plan.complex_params))
        self.words = tuple(words)
        given = [[words[w] + o if o else words[w] for w, o in sources] for sources in self.sources]
        after = [[place[k] for k in order[number]] for number in inside]
        self.graph = KernelGraph(replays.index, [steps[number].recipe for number in inside], given, after)
        self.behind = list(tail)
        self.tail: NativePlan | None = None
        if tail:
            table = [(steps[k].recipe, [Given(w, o) for w, o in steps[k].sources]) for k in tail]
            self.tail = NativePlan(table, len(self.words), (), 0)

    def readers_of_numbers_that_changed(self, words: Sequence[int | float]) -> set[int]:
        """Steps, while all are in the graph, that read numbers which are others than in the run before."""
        changed = [word for word in self.numbers if words[word] != self.words[word]]
        return {step for word in changed for step in self.readers.get(word, ())}

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

    def run_tail(self, words: Sequence[int | float]) -> None:
        """Launch the steps behind the graph, in their order."""
        assert self.tail is not None
        code = launching.launch_many(self.tail.address, *words)
        if code is not None:
            step, code = decode_error(code)
            self.plan.fail(self.first + self.behind[step], code, words)

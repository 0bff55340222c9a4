"""What a plan keeps from run to run: `Prepared` values of inputs whose writes are known, and memory whose use steps `compare`.

A value of a graph that depends on lasting inputs alone (`passes/lasting.py`) is computed once and read by every run, from all
threads. It is computed again where the input it is made of lies elsewhere or has another stamp: something that differs after
every write, as storage and version do. Memory that others may write without our knowing has no stamp; what is made of it is
either made at every run, or kept by a kernel that compares it bit for bit with a copy (`winograd_weight`), in `Compared`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.targets.cpu.memory import allocate, free_list

ALIGN = 64


class Compared:
    """Memory that steps keep from run to run, zeros at first. Runs that overlap, in several threads, have one block each."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._idle: list[np.ndarray] = []

    @contextmanager
    def taken(self) -> Iterator[int]:
        """The address of a block that no other run has."""
        try:
            block = self._idle.pop()
        except IndexError:
            block = np.zeros(self.nbytes + ALIGN, np.uint8)
        try:
            yield -(-block.ctypes.data // ALIGN) * ALIGN
        finally:
            self._idle.append(block)


@dataclass
class Maker:
    """Makes some kept values of some inputs, none of which another maker reads.

    inputs: places, in `Prepared.inputs`, of what it reads
    offsets: where in the block the values lie
    plan: runs on the addresses of the inputs, then those of the values
    """

    inputs: list[int]
    offsets: list[int]
    plan: Any  # plans hold this
    made_of: list[object] | None = None


class Prepared:
    """Values that are made of lasting inputs once, in one block of memory.

    inputs: the numbers of those inputs in the plan's graph
    words: which words of a run hold their addresses
    """

    def __init__(self, inputs: tuple[int, ...], words: list[int], makers: list[Maker], nbytes: int) -> None:
        self.inputs = inputs
        self.nbytes = nbytes
        self.words = words
        self.makers = makers
        self._lock = threading.Lock()
        self._made_of: list[object] = []
        self._address = 0

    def ready(self, words: Sequence[int | float], stamps: Sequence[object | None] | None) -> int:
        """The address of the values for inputs that lie at `words` and have these stamps; None stands for one never seen."""
        given = [object()] * len(self.inputs) if stamps is None else [object() if s is None else s for s in stamps]
        found = list(zip(given, [words[i] for i in self.words]))
        if found != self._made_of:
            with self._lock:
                if found != self._made_of:
                    self._make(found)
        return self._address

    def _make(self, found: list[tuple[object, int | float]]) -> None:
        self._made_of = []  # while a maker may raise
        if not self._address:
            self._address = allocate(self.nbytes)
        for maker in self.makers:
            made_of: list[object] = [found[i] for i in maker.inputs]
            if made_of != maker.made_of:
                maker.made_of = None
                maker.plan.run([int(found[i][1]) for i in maker.inputs] + [self._address + offset for offset in maker.offsets])
                maker.made_of = made_of
        self._made_of = list(found)

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            free_list(self.nbytes).append(self._address)

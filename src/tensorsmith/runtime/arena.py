"""Where temporaries lie: one block of memory for a plan, whose parts are used again when their values are no longer needed.

A plan takes and gives back parts while its steps are listed; `solve` then gives every part an address. First-fit in the order
of the steps is tried first; where it leaves more than the bound, the largest parts are placed before the others. The bound is
what is alive at the fullest step: no placement needs less.

Scratch space that each worker has a share of is made for more workers than there are. What nobody touches costs addresses,
not memory: such a part may lie behind all others that are alive at its step, and reach beyond the peak.

Memory of the plan's results can be lent until they are written. Parts alive at the fullest step are placed there, the largest
first, for as long as that lowers the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

ALIGN = 64
MOST_SORTED = 4096  # parts up to which the second way is tried
LEAST_LENT = 256 << 10  # bytes of a part that is worth memory which no cache knows
MOST_LENT = 64  # parts
LEAST_BOUND = 16 << 20  # bytes of a block that no cache holds


@dataclass
class Part:
    """Bytes that are needed from step `first` to step `last`, both inclusive; `untouched` ones follow, for one step."""

    size: int
    first: int
    last: int = -1
    offset: int = -1
    untouched: int = 0
    owner: Any = None  # whose memory it lies in, if not in the block

    @property
    def end(self) -> int:
        """Where it ends, once it has been placed."""
        return self.offset + self.size + self.untouched


@dataclass
class Lent:
    """Memory of somebody else that is free from step `first` to step `last`, both inclusive."""

    owner: Any
    size: int
    first: int
    last: int
    parts: list[Part] = field(default_factory=list)

    def takes(self, part: Part) -> bool:
        """Give a part a place here, if it fits."""
        if part.first < self.first or part.last > self.last:
            return False
        alive = sorted((p for p in self.parts if p.first <= part.last and part.first <= p.last), key=lambda p: p.offset)
        if _fit(part, alive) > self.size:
            return False
        part.owner = self.owner
        self.parts.append(part)
        return True


class Arena:
    """Parts by liveness. reuse: whether memory is used again at all."""

    def __init__(self, reuse: bool = True, align: int = ALIGN) -> None:
        self.parts: list[Part] = []
        self.reuse = reuse
        self.align = align  # parts lie at multiples of it
        self.peak = 0  # bytes that are touched
        self.extent = 0  # addresses
        self.bound = 0
        self.lent: list[Lent] = []

    def lend(self, owner: Any, nbytes: int, first: int, last: int) -> None:
        """Memory that parts may lie in from a step to another."""
        if nbytes >= LEAST_LENT and first <= last and self.reuse:
            self.lent.append(Lent(owner, nbytes + ALIGN, first, last))  # behind the end there is a gap, too

    def take(self, nbytes: int, step: int, untouched: int = 0) -> Part:
        """A part from a step on, with a gap behind it, so that whole vectors may be read at the end."""
        size = (max(nbytes, 1) + ALIGN + self.align - 1) & -self.align
        part = Part(size, step, untouched=(untouched + self.align - 1) & -self.align)
        self.parts.append(part)
        return part

    def give(self, part: Part, step: int) -> None:
        """The last step that needs a part."""
        part.last = step

    @property
    def total(self) -> int:
        """Bytes without using any of them again."""
        return sum(part.size for part in self.parts)

    def solve(self, steps: int) -> None:
        """Place all parts; `extent` is the size of the block."""
        for part in self.parts:
            if part.last < 0 or not self.reuse:
                part.last = steps
        change = [0] * (steps + 2)
        for part in self.parts:
            change[part.first] += part.size
            change[part.last + 1] -= part.size
        alive = list(accumulate(change))
        self.bound = max(alive)
        for _ in range(MOST_LENT if self.lent else 0):
            placed = self._lend_one(alive.index(self.bound)) if self.bound >= LEAST_BOUND else None
            if placed is None:
                break
            for step in range(placed.first, placed.last + 1):
                alive[step] -= placed.size
            self.bound = max(alive)
        lasting = [part for part in self.parts if not part.untouched and part.owner is None]
        self.peak = self._first_fit(lasting)
        if self.peak > self.bound and len(lasting) <= MOST_SORTED:
            before = [part.offset for part in lasting]
            peak = self._largest_first(lasting)
            if peak < self.peak:
                self.peak = peak
            else:
                for part, offset in zip(lasting, before):
                    part.offset = offset
        self.extent = self.peak
        self._place_behind([part for part in self.parts if part.untouched])

    def _lend_one(self, fullest: int) -> Part | None:
        """Place the largest part that is alive at a step, and fits, into memory that is lent."""
        there = [p for p in self.parts if p.first <= fullest <= p.last and p.owner is None and not p.untouched]
        for part in sorted(there, key=lambda p: -p.size):
            if part.size < LEAST_LENT:
                break
            if any(lent.takes(part) for lent in self.lent):
                return part
        return None

    def _place_behind(self, parts: list[Part]) -> None:
        """Parts with untouched bytes: in a gap that takes all of it below the peak, else behind what is alive then."""
        for number, part in enumerate(parts):
            placed = [p for p in self.parts if not p.untouched and p.owner is None] + parts[:number]
            alive = sorted((p for p in placed if p.first <= part.last and part.first <= p.last), key=lambda p: p.offset)
            whole = part.size + part.untouched
            if _fit(part, alive, whole) > self.peak:
                part.offset = max((p.end for p in alive), default=0)
            self.peak = max(self.peak, part.offset + part.size)
            self.extent = max(self.extent, part.end)

    @staticmethod
    def _first_fit(parts: list[Part]) -> int:
        """Each part, in the order of the steps, where it fits first among those that are alive then."""
        peak = 0
        alive: list[Part] = []  # by offset
        for part in parts:
            alive = [other for other in alive if other.last >= part.first]
            peak = max(peak, _fit(part, alive))
            alive.append(part)
            alive.sort(key=lambda other: other.offset)
        return peak

    @staticmethod
    def _largest_first(parts: list[Part]) -> int:
        """Each part, the largest first, where it fits first among those placed that are alive with it."""
        peak = 0
        placed: list[Part] = []  # by offset
        for part in sorted(parts, key=lambda each: (-each.size, each.first)):
            peak = max(peak, _fit(part, [p for p in placed if p.first <= part.last and part.first <= p.last]))
            placed.append(part)
            placed.sort(key=lambda other: other.offset)
        return peak


def _fit(part: Part, others: list[Part], size: int = 0) -> int:
    """Give a part the first free place among others, which are sorted by offset; where it ends. size: if not its own."""
    size = size or part.size
    start = 0
    for other in others:
        if other.offset - start >= size:
            break
        start = max(start, other.end)
    part.offset = start
    return start + size

"""Where temporaries lie: one block of memory for a plan, whose parts are used again when their values are no longer needed.

A plan takes and gives back parts while its steps are listed; `solve` then gives every part an address. First-fit in the order
of the steps is tried first; where it leaves more than the bound, the largest parts are placed before the others. The bound is
what is alive at the fullest step: no placement needs less.

Scratch space that each worker has a share of is made for more workers than there are. What nobody touches costs addresses,
not memory: such a part may lie behind all others that are alive at its step, and reach beyond the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGN = 64
MOST_SORTED = 4096  # parts up to which the second way is tried


@dataclass
class Part:
    """Bytes that are needed from step `first` to step `last`, both inclusive; `untouched` ones follow, for one step."""

    size: int
    first: int
    last: int = -1
    offset: int = -1
    untouched: int = 0

    @property
    def end(self) -> int:
        """Where it ends, once it has been placed."""
        return self.offset + self.size + self.untouched


class Arena:
    """Parts by liveness. reuse: whether memory is used again at all."""

    def __init__(self, reuse: bool = True) -> None:
        self.parts: list[Part] = []
        self.reuse = reuse
        self.peak = 0  # bytes that are touched
        self.extent = 0  # addresses
        self.bound = 0

    def take(self, nbytes: int, step: int, untouched: int = 0) -> Part:
        """A part from a step on, with a gap behind it, so that whole vectors may be read at the end."""
        part = Part(max((nbytes + ALIGN - 1) & -ALIGN, ALIGN) + ALIGN, step, untouched=(untouched + ALIGN - 1) & -ALIGN)
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
        alive = 0
        for difference in change:
            alive += difference
            self.bound = max(self.bound, alive)
        lasting = [part for part in self.parts if not part.untouched]
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

    def _place_behind(self, parts: list[Part]) -> None:
        """Parts with untouched bytes: in a gap that takes all of it below the peak, else behind what is alive then."""
        for number, part in enumerate(parts):
            placed = [p for p in self.parts if not p.untouched] + parts[:number]
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

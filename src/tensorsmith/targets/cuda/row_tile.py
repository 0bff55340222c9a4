"""How kernels with reductions are laid out (`RowTile`), and what their passes compute."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.levels import Levels
from tensorsmith.kernels.spec import Kind
from tensorsmith.targets.cuda.body import KEPT_COST, instruction_cost, needed_for

WARP = 32


@dataclass(frozen=True)
class RowTile:
    """How a kernel with reductions is laid out.

    unroll: units of a thread, all of its row if resident; exact: whether every thread has all of its units
    stage: the pass of this launch where each is a launch of its own; `levels.count` for the one that stores results
    cluster: blocks that share a row in one launch; keep: whether a resident row has its expensive values beside it
    blocks: how many blocks a multiprocessor must have room for
    shared: inputs along the row that all rows share: each pass of a resident row reads them anew, from a cache
    rounds: whether blocks stay and take row after row (`row_rounds.py`); ahead: and ask for the next before they reduce one
    walks: whether blocks stay and take one stretch of columns after the other together (`row_walk.py`)
    """

    inner: bool
    width: int
    lanes: int
    across: int
    unroll: int
    resident: bool
    exact: bool
    narrow: bool
    rank: int
    slabs: bool
    stage: int | None = None
    cluster: int = 1
    keep: bool = True
    blocks: int = 1
    shared: tuple[int, ...] = ()
    rounds: bool = False
    ahead: bool = False
    walks: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.across

    @property
    def lanes_of_warp(self) -> int:
        """Lanes of one pack of rows that are in one warp, in an outer kernel."""
        return max(1, min(self.lanes, WARP // self.across))

    @property
    def block(self) -> tuple[int, int, int]:
        """Geometry of a block."""
        return (self.lanes, self.across, 1) if self.inner else (self.across, self.lanes, 1)


def kept_values(structure: Structure, levels: Levels) -> tuple[int, ...]:
    """Expensive values of elements that more than one pass needs."""
    available, used = set[int](), set[int]()
    for roots in passes(structure, levels):
        fresh = needed_for(structure, roots, available)
        used |= {a for p in fresh if structure.body[p].kind is not Kind.REDUCE for a in structure.body[p].args} & available
        used |= set(roots) & available
        costly = {p for p in fresh if levels.varies[p] and instruction_cost(structure.body, structure.body[p]) >= KEPT_COST}
        available |= costly
    return tuple(sorted(used))


def passes(structure: Structure, levels: Levels) -> list[list[int]]:
    """What every pass over the elements computes: arguments of its REDUCEs; at last what is stored along the row."""
    found = [[structure.body[p].args[0] for p in reduces] for reduces in levels.reduces]
    return [*found, list(structure.values_along)]

"""How a body with reductions falls into levels: what varies along what is reduced, and which REDUCEs share a pass over it.

    softmax:  load x (0)  reduce max (1)  x - max (1)  exp (1)  reduce sum (2)  exp / sum (2)

In brackets the depth, the number of REDUCEs on the way to a value. The REDUCEs of depth d + 1 are computed by pass d (from
0), which can use every value of depth d; a value of depth d that is written along the axis needs pass d too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.kernels.canonical import Structure
from tensorsmith.kernels.spec import Kind


@dataclass(frozen=True)
class Levels:
    """The passes of a body along the reduce axis.

    varies: whether an instruction varies along a reduced axis; depth: passes it must wait for; reduces: the REDUCEs of each
    pass (the last pass has none where it only writes outputs)
    """

    varies: tuple[bool, ...]
    depth: tuple[int, ...]
    reduces: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Number of passes."""
        return len(self.reduces)


def find_levels(structure: Structure) -> Levels:
    """The levels of a structure with a reduce axis."""
    body = structure.body
    varies: list[bool] = []
    depth: list[int] = []
    for instr in body:
        below = max((depth[a] for a in instr.args), default=0)
        if instr.kind in (Kind.LOAD, Kind.INDEX):
            operand = instr.index + (structure.first_coordinate if instr.kind is Kind.INDEX else 0)
            moving = structure.along[operand] != 0 or (bool(structure.slabs) and structure.slabs[operand])
        else:
            moving = instr.kind is not Kind.REDUCE and any(varies[a] for a in instr.args)
        varies.append(moving)
        depth.append(below + 1 if instr.kind is Kind.REDUCE else below)
    last = max((depth[p] for p, instr in enumerate(body) if instr.kind is Kind.REDUCE), default=0)
    count = max([last] + [depth[value] + 1 for value in structure.values_along])
    reduces = tuple(
        tuple(p for p, instr in enumerate(body) if instr.kind is Kind.REDUCE and depth[p] == number + 1)
        for number in range(count)
    )
    return Levels(tuple(varies), tuple(depth), reduces)

"""Kernels along rows that compute sums over the rows too, for targets that read what both need once.

The gradient of a normalisation is two kernels: dx along the rows, and the sums over all rows of what belongs to the weights.
Both read x and dy. Where a target says that it has one step for two such kernels, they become one group, at a place in the
order where all that either reads is there, and nobody has waited for what either writes. What the first only wrote for the
second then needs no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import LARGEST_BODY, Group, root_domain

MOST_LEAVES = 12

Refusal = Callable[[Fusion, Group], str]  # why the target has no step for a group of two parts, "" where it has


def with_sums(fusion: Fusion, refusal: Refusal) -> list[Group]:
    """The groups of a fusion, pairs of kernels joined where they meet and the target has a step for both."""
    groups = list(fusion.groups)
    along: dict[tuple[int, ...], list[Group]] = {}
    over: list[Group] = []
    for group in groups:
        if group.anchor is None and group.reduce_axes:
            if all(root_domain(root) != group.domain for root in group.roots):
                over.append(group)
            elif len(group.reduce_axes) == 1:
                along.setdefault(group.domain, []).append(group)
    for sums in over:
        found = along.get(sums.domain, [])
        for rows in [rows for rows in reversed(found) if _meet(rows, sums)]:
            place = _place(groups, rows, sums)
            if place is None:
                continue
            group = _pair(fusion, groups, rows, sums)
            sums.apart = refusal(fusion, group)
            if not sums.apart:
                groups[place] = group
                groups = [each for each in groups if each is not rows and each is not sums]
                along[sums.domain] = [each for each in found if each is not rows]
                break
    return groups


def _meet(rows: Group, sums: Group) -> bool:
    """Whether one kernel sums over the rows of the other, and both read one value of every point of the domain."""
    extents, along = rows.domain, rows.reduce_axes
    if any(axis in along for axis in sums.reduce_axes):
        return False
    if any(n > 1 and axis not in (*along, *sums.reduce_axes) for axis, n in enumerate(extents)):
        return False
    if len(rows.leaves | sums.leaves) > MOST_LEAVES or len(rows.visited | sums.visited) > LARGEST_BODY:
        return False
    if sums.after > min(root.index for root in rows.roots) or rows.after > min(root.index for root in sums.roots):
        return False
    both = sums.leaves & (rows.leaves | set(rows.roots))
    return any(node.numel == math.prod(extents) for node in both)


def _place(groups: Sequence[Group], rows: Group, sums: Group) -> int | None:
    """Where in the order the two can be one step: where one of them stands."""
    i, j = (next(k for k, group in enumerate(groups) if group is each) for each in (rows, sums))
    first, later = (rows, sums) if i < j else (sums, rows)
    between = groups[min(i, j) + 1 : max(i, j)]
    made_between = {root for group in between for root in group.roots}
    if first is sums and later.leaves & set(sums.roots):
        return None
    if not later.leaves & made_between:
        return min(i, j)
    if not any(group.leaves & set(first.roots) for group in between):
        return max(i, j)
    return None


def _pair(fusion: Fusion, groups: Sequence[Group], rows: Group, sums: Group) -> Group:
    shown = {base for base, _ in fusion.output_places()}
    others = [group for group in groups if group is not rows and group is not sums]
    read = set[object]().union(*[group.leaves for group in others])
    written = [root for root in rows.roots if root not in sums.leaves or root in shown or root in read]
    unwritten = set(rows.roots).difference(written)
    return Group(
        [*written, *sums.roots], rows.domain, rows.reduce_axes, leaves=(rows.leaves | sums.leaves).difference(rows.roots),
        visited=rows.visited | sums.visited | unwritten, after=max(rows.after, sums.after), parts=(rows, sums),
    )  # fmt: skip

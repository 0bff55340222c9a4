"""The sum of the gradients that a value gets from what reads it.

Slices of a value give gradients with zeros around them. Those of slices that do not meet are joined rather than added: one
value is made, not one of the whole size for every slice, so that the gradient of T steps is as long as T and not T times T.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tensorsmith.ir.build import broadcast_to, concat, pad
from tensorsmith.ir.graph import Node, Primitive


class Placed(NamedTuple):
    """A part with zeros before and after it along one axis."""

    start: int
    part: Node

    def end(self, axis: int) -> int:
        return self.start + self.part.shape[axis]


def total_of(parts: Sequence[Node]) -> Node:
    """The sum of gradients of one shape, in the order they came; those between zeros after the others."""
    if len(parts) == 1:
        return parts[0]
    whole: list[Node] = []
    placed: dict[int, list[Placed]] = {}
    for part in parts:
        axis = axis_of_part(part)
        if axis is None:
            whole.append(part)
        else:
            placed.setdefault(axis, []).append(Placed(part.attrs["low"][axis], part.inputs[0]))
    for axis, those in placed.items():
        whole += [joined(row, axis, parts[0]) for row in _rows(those, axis)]
    total = whole[0]
    for part in whole[1:]:
        total = total + part
    return total


def axis_of_part(part: Node) -> int | None:
    """The axis along which a value is another one between zeros; None where it is not."""
    if part.op is not Primitive.PAD or part.attrs.get("value") or any(step != 1 for step in part.attrs["step"]):
        return None
    low, high = part.attrs["low"], part.attrs["high"]
    axes = [axis for axis in range(part.ndim) if low[axis] or high[axis]]
    return axes[0] if len(axes) == 1 and min(low) >= 0 and min(high) >= 0 else None


def _rows(those: list[Placed], axis: int) -> list[list[Placed]]:
    """Parts in rows of ones that do not meet, each in order; a part goes into the first row that has room behind its last."""
    rows: list[list[Placed]] = []
    for each in sorted(those, key=lambda placed: placed.start):  # a stable order
        for row in rows:
            if row[-1].end(axis) <= each.start:
                row.append(each)
                break
        else:
            rows.append([each])
    return rows


def joined(row: Sequence[Placed], axis: int, like: Node) -> Node:
    """The parts of a row one behind the other, with zeros where there is none."""
    pieces: list[Node] = []
    end = row[0].start
    for each in row:
        if each.start > end:
            shape = list(each.part.shape)
            shape[axis] = each.start - end
            pieces.append(broadcast_to(like.graph.constant(0, like.dtype), shape))
        pieces.append(each.part)
        end = each.end(axis)
    low, high = [0] * like.ndim, [0] * like.ndim
    low[axis], high[axis] = row[0].start, like.shape[axis] - end
    return pad(concat(pieces, axis), low, high)

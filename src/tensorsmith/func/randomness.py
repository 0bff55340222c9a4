"""Random numbers that differ from example to example of a vmap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorsmith.eager.operator import Operator
from tensorsmith.ir.build import reshape
from tensorsmith.ir.graph import Node
from tensorsmith.tensor.modes import modes

if TYPE_CHECKING:
    from tensorsmith.func.levels import LevelStack


def _starts(first: Node, extents: tuple[int, ...], stride: int) -> Node:
    return reshape(first.graph.iota(math.prod(extents)) * stride + first, extents)


_starts_operator = Operator("first_counters", _starts, fresh=True)


def draw_each(stack: LevelStack, levels: Sequence[Any], generator: Any, count: int) -> tuple[Any, Any]:
    """The key, and the first of `count` counters for each example of the levels: a wrapped zero-dim tensor."""
    stride = -(-count // 4) * 4
    extents = tuple([level.extent for level in levels])
    modes.tracer = stack.before
    try:
        key, first = generator.draw(stride * math.prod(extents))
        starts = _starts_operator(first, extents=extents, stride=stride)
    finally:
        modes.tracer = stack
    for level in levels:
        starts = level.wrap(starts)
    return key, starts

"""Max pooling recognised: the largest of taps that are slices of one value becomes one node, which has a kernel.

    max(max(x[.., a0::s, b0::t], x[.., a0::s, b1::t]), ...)      ->      max_pool(x)        padding is -inf

Written out as taps it is what gradients, tangents and every target know; only the planner asks for the kernel, which reads
each row of x as whole vectors, where the taps of a stride would be read element by element from a padded copy.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tensorsmith.ir.graph import Graph, Node, Primitive, base_of, replay
from tensorsmith.scalar.table import Fn

LEAST_TAPS, LEAST_ROW = 4, 8  # of a window, and elements of a row of x, from which the kernel pays
STRIDES = (1, 2)  # along rows, that the kernel has instructions for


@dataclass(frozen=True)
class _Tap:
    """Where a tap starts in x on the last two axes, in what steps, and how many elements there are; padding is outside of x."""

    x: Node
    start: tuple[int, int]
    step: tuple[int, int]
    count: tuple[int, int]


def lower_pooling(graph: Graph, apart: Collection[int] = ()) -> Graph:
    """The same graph with max pooling over the last two axes as nodes; the graph itself where there is none.

    apart: numbers of inputs whose rows do not lie one after the other, which are read where they lie.
    """
    nodes = graph.live_nodes()
    if not any(node.op is Primitive.MAP and node.attrs["fn"] is Fn.MAXIMUM for node in nodes):
        return graph
    readers = Counter(operand for node in nodes for operand in node.inputs)
    readers.update(graph.outputs)
    inside = {node.inputs[0] for node in nodes if _is_maximum(node) and readers[node.inputs[0]] == 1}
    found = {}
    for node in nodes:
        if _is_maximum(node) and node not in inside:
            pooled = _pooling(node, readers)
            base = base_of(pooled[0]) if pooled else None
            if pooled and base is not None and not (base.op is Primitive.INPUT and base.attrs["number"] in apart):
                found[node] = pooled
    if not found:
        return graph
    result = graph.empty()
    mapping = {node: result.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs}
    for node in nodes:
        if node in found:
            x, attrs = found[node]
            mapping[node] = result.add(
                Primitive.LIBRARY, (mapping[x],), name="max_pool", shape=node.shape, dtype=node.dtype, **attrs
            )
        elif node.op is not Primitive.INPUT:
            mapping[node] = replay(result, node, [mapping[operand] for operand in node.inputs])
    result.outputs = tuple(mapping[node] for node in graph.outputs)
    return result


def _is_maximum(node: Node) -> bool:
    return node.op is Primitive.MAP and node.attrs["fn"] is Fn.MAXIMUM


def _pooling(root: Node, readers: Counter[Node]) -> tuple[Node, dict[str, Any]] | None:
    """What a chain of maxima is the pooling of, and how; None where it is none."""
    if not root.dtype.is_floating_point or root.dtype.is_half or root.ndim < 3 or not root.numel:
        return None
    taps, node = [], root
    while _is_maximum(node) and (node is root or readers[node] == 1):
        taps.append(_tap(node.inputs[1]))
        node = node.inputs[0]
    taps.append(_tap(node))
    first = taps[-1]
    if first is None or len(taps) < LEAST_TAPS or first.step[1] not in STRIDES or first.x.shape[-1] < LEAST_ROW:
        return None
    starts = set()
    for tap in taps:
        if tap is None or (tap.x, tap.step, tap.count) != (first.x, first.step, first.count):
            return None
        starts.add(tap.start)
    places = [sorted({start[axis] for start in starts}) for axis in range(2)]
    if len(starts) != len(taps) or len(starts) != math.prod(map(len, places)) or len(places[1]) == 1:
        return None
    apart = [{b - a for a, b in itertools.pairwise(each)} for each in places]
    if any(len(each) > 1 for each in apart):
        return None
    dilation = tuple(next(iter(each), 1) for each in apart)
    kernel, low = tuple(map(len, places)), tuple(-each[0] for each in places)
    return first.x, {"kernel": kernel, "stride": first.step, "low": low, "dilation": dilation}


def _tap(node: Node) -> _Tap | None:
    """A slice of the last two axes of a value, perhaps of one with -inf around it."""
    shape = node.shape
    start, step = [0] * node.ndim, [1] * node.ndim
    while node.op is Primitive.SLICE:
        axis = node.attrs["axis"]
        start[axis] = node.attrs["start"] + start[axis] * node.attrs["step"]
        step[axis] *= node.attrs["step"]
        node = node.inputs[0]
    if node.op is Primitive.PAD and node.attrs.get("value", 0) == -math.inf and set(node.attrs["step"]) == {1}:
        if min(*node.attrs["low"], *node.attrs["high"]) < 0:
            return None
        start = [at - low for at, low in zip(start, node.attrs["low"])]
        node = node.inputs[0]
    if any(start[:-2]) or set(step[:-2]) - {1} or node.shape[:-2] != shape[:-2]:
        return None
    return _Tap(node, (start[-2], start[-1]), (step[-2], step[-1]), (shape[-2], shape[-1]))

"""Layout assignment: regions of a graph whose images are computed with their channels last.

In memory an image (N, C, H, W) is (N, H, W, C) there, which in the graph is a permuted view, so the rewrite is written out:

* a 1x1 convolution of stride 1 becomes the product of (N H W, C) by the transposed weights, whose results lie channel by
  channel, so that its epilogue (`passes/epilogues.py`) takes scales, shifts, activations and residuals;
* a convolution of single channels is marked `channels_last`, and has a kernel whose vectors run along the channels;
* pointwise values follow: one is in a region if it reads a value of it that is as large;
* everything else reads a permuted view; what is large and computed row-major is copied on its way in.

A region is what hangs together of these. Whether it pays is decided by counts of elements: of what its convolutions gain,
and of what is converted at its borders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from tensorsmith.core.dtypes import float32, float64
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive, base_of, replay
from tensorsmith.passes.walk import of_numbers

# Of a result, in conversions of an element (a read and a write, one of them across memory): what channels last gain.
_SINGLE_CHANNELS = 1.0
_OF_PRODUCT = 1 / 128  # of each of its multiplications
_BORDER = 2.0  # how much more a conversion has to save than it costs
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def assign_layout(graph: Graph, fired: Counter[str]) -> Graph:
    """The graph with regions of images whose channels lie last; the graph itself where none pays.

    fired: counts what was rewritten, and what was left as it was.
    """
    nodes = graph.live_nodes()
    convolutions = [node for node in nodes if node.op is Primitive.CONV]
    gaining = {node for node in convolutions if _is_product(node) or _is_single_channels(node)}
    if not gaining or any(base_of(node.inputs[1]).op is not Primitive.INPUT for node in convolutions):
        return graph  # the gradients of weights read the same images row-major
    region_of = _regions(nodes, gaining)
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for operand in dict.fromkeys(node.inputs):
            readers.setdefault(operand, []).append(node)
    shown = frozenset(base_of(node) for node in graph.outputs)
    gain: dict[int, float] = {}
    for node, region in region_of.items():
        border = _BORDER * _border(node, region_of, readers, shown)
        gain[region] = gain.get(region, 0.0) + _gain(node) - border
    chosen = {node for node, region in region_of.items() if gain[region] > 0}
    for node in region_of:
        if node.op is Primitive.CONV and node not in chosen:
            fired["convolution left row-major, where conversions cost more"] += 1
    return _Rewrite(graph, nodes, chosen, fired).run() if chosen else graph


def _is_image(node: Node) -> bool:
    return node.ndim == 4 and node.numel > 0


def _is_product(node: Node) -> bool:
    """Whether a convolution is one product: 1x1, of stride 1, of one group."""
    attrs, w = node.attrs, node.inputs[1].shape
    plain = w[2:] == (1, 1) and attrs["groups"] == 1 and set(attrs["stride"] + attrs["step"]) == {1}
    return _is_image(node) and plain and not any(attrs["low"] + attrs["high"]) and node.dtype in (float32, float64)


def _is_single_channels(node: Node) -> bool:
    """Whether every channel of a convolution is one of x by itself."""
    attrs, x, w = node.attrs, *(operand.shape for operand in node.inputs)
    if not _is_image(node) or not node.inputs[0].numel or node.dtype not in (float32, float64) or set(attrs["step"]) != {1}:
        return False
    return w[1] == 1 and w[0] == attrs["groups"] == x[1] and math.prod(w[2:]) <= 64 and min(attrs["low"] + attrs["high"]) >= 0


def _regions(nodes: Iterable[Node], gaining: set[Node]) -> dict[Node, int]:
    """The number of its region for every value of one."""
    parent: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in nodes:
        within = [each for each in node.inputs if each in parent and each.ndim == 4]
        if node.op in (Primitive.MAP, Primitive.CAST):
            if not within:
                continue
        elif node in gaining:
            within = within[:1] if node.inputs[0] in parent else []
        else:
            continue
        parent[node] = node
        for operand in within:
            parent[root(operand)] = root(node)
    numbers: dict[Node, int] = {}
    return {node: numbers.setdefault(root(node), len(numbers)) for node in parent}


def _gain(node: Node) -> float:
    if node.op is not Primitive.CONV:
        return 0.0
    return node.numel * (_OF_PRODUCT * node.inputs[0].shape[1] if _is_product(node) else _SINGLE_CHANNELS)


def _border(
    node: Node, region_of: dict[Node, int], readers: dict[Node, list[Node]], shown: frozenset[Node]
) -> float:  # fmt: skip
    """Elements that are converted for a value: of its operands on their way in, of itself on its way out."""
    operands = node.inputs[:1] if node.op is Primitive.CONV else node.inputs
    within = sum(each.numel for each in operands if each not in region_of and not _is_small(each, node))
    outside = [each for each in readers.get(node, ()) if each not in region_of]
    wants = not all(_reads_as_it_lies(each, node) for each in outside)
    return within + (node.numel if wants or node in shown else 0)


def _reads_as_it_lies(reader: Node, node: Node) -> bool:
    """Whether a reader outside of a region is as quick on a permuted view: a pool, or what joins the axes of space."""
    joins = reader.op is Primitive.RESHAPE and reader.shape[:2] == node.shape[:2]
    return joins or reader.op in (Primitive.REDUCE, Primitive.UNFOLD, Primitive.PERMUTE)


def _is_small(operand: Node, beside: Node) -> bool:
    """Whether an operand is a few numbers, repeated, or an image of single pixels."""
    return base_of(operand).numel * 4 <= beside.numel or operand.shape[2:] == (1, 1)


class _Rewrite:
    """The graph built anew with some values' channels last."""

    def __init__(self, graph: Graph, nodes: Iterable[Node], chosen: set[Node], fired: Counter[str]) -> None:
        self.graph, self.nodes, self.chosen, self.fired = graph, nodes, chosen, fired
        self.result = graph.empty()
        self.shown = frozenset(base_of(node) for node in graph.outputs)
        self.first: dict[Node, Node] = {}  # values as they were
        self.last: dict[Node, Node] = {}  # (N, H, W, C)

    def run(self) -> Graph:
        for node in self.graph.inputs:
            self.first[node] = self.result.input(node.shape, node.dtype, node.attrs["param"])
        for node in self.nodes:
            if node.op is Primitive.INPUT:
                continue
            if node not in self.chosen:
                self.first[node] = replay(self.result, node, [self.row_major(each, node) for each in node.inputs])
            elif node.op is Primitive.CONV:
                self.last[node] = self.product(node) if _is_product(node) else self.single_channels(node)
            else:
                self.last[node] = self.result.add(node.op, [self.channels_last(each) for each in node.inputs], **node.attrs)
        self.result.outputs = tuple(self.row_major(node) for node in self.graph.outputs)
        return self.result

    def row_major(self, node: Node, reader: Node | None = None) -> Node:
        """A value as (N, C, H, W); a copy for a convolution, which reads its rows often."""
        found = self.first.get(node)
        if found is None:
            found = build.permute(self.last[node], TO_FIRST)
            if node in self.shown:  # results, and views of them, are row-major
                found = self.result.add(Primitive.CAST, (found,), dtype=found.dtype)
            self.first[node] = found
        if found.op is Primitive.PERMUTE and node in self.chosen and reader is not None and reader.op is Primitive.CONV:
            self.fired["copy of a region's value for a convolution"] += 1
            return self.result.add(Primitive.CAST, (found,), dtype=found.dtype)
        return found

    def channels_last(self, node: Node, copied: bool = False) -> Node:
        """A value as (N, H, W, C); copied: row-major ones are, but for inputs, which may lie so already."""
        found = self.last.get(node)
        if found is not None:
            return found
        value = self.first[node]
        if node.op is Primitive.EXPAND and node.inputs[0].ndim == 4 and node.inputs[0].numel == 1:
            found = self.result.add(Primitive.EXPAND, (self.first[node.inputs[0]],), shape=_shape_last(node))
        else:
            found = build.permute(value, TO_LAST)
        if copied and base_of(node).op is not Primitive.INPUT and not of_numbers(base_of(node)):
            self.fired["copy on the way into a region"] += 1
            found = self.result.add(Primitive.CAST, (found,), dtype=found.dtype)
        self.last[node] = found
        return found

    def product(self, node: Node) -> Node:
        """A 1x1 convolution."""
        x, w = self.channels_last(node.inputs[0], True), self.first[node.inputs[1]]
        batch, height, width, channels = x.shape
        rows = build.reshape(x, (batch * height * width, channels))
        weights = build.transpose(build.reshape(w, w.shape[:2]), 0, 1)
        self.fired["1x1 convolution as a product with channels last"] += 1
        return build.reshape(build.matmul(rows, weights), (batch, height, width, w.shape[0]))

    def single_channels(self, node: Node) -> Node:
        """A convolution of single channels, with the channels of its weights last too."""
        x, w = self.channels_last(node.inputs[0], True), self.first[node.inputs[1]]
        taps = self.result.add(Primitive.CAST, (build.permute(w, (2, 3, 1, 0)),), dtype=w.dtype)
        attrs = {**node.attrs, "channels_last": True}
        operands = build.permute(x, TO_FIRST), build.permute(taps, (3, 2, 0, 1))
        self.fired["convolution of single channels with channels last"] += 1
        return build.permute(self.result.add(Primitive.CONV, operands, **attrs), TO_LAST)


def _shape_last(node: Node) -> tuple[int, ...]:
    return tuple(node.shape[axis] for axis in TO_LAST)

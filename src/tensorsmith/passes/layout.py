"""Layout assignment: regions of a graph whose images are computed with their channels last.

In memory an image (N, C, H, W) is (N, H, W, C) there, which in the graph is a permuted view, so the rewrite is written out:

* a 1x1 convolution of stride 1 becomes the product of (N H W, C) by the transposed weights, whose results lie channel by
  channel, so that its epilogue (`passes/epilogues.py`) takes scales, shifts, activations and residuals;
* a convolution of single channels is marked `channels_last`, and has a kernel whose vectors run along the channels;
* pointwise values follow: one is in a region if it reads a value of it that is as large;
* everything else reads a permuted view; what is large and computed row-major is copied on its way in.

Where values of a batch are larger than caches, the first part of a region, as far as they are, is computed some images at a
time, one convolution after the other: what one of them writes the next finds in the cache.

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
_CACHED = 8 << 20  # bytes of a value that the next convolution finds in a cache
_MOST_PARTS = 16  # of a batch
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def assign_layout(graph: Graph, fired: Counter[str]) -> Graph:
    """The graph with regions of images whose channels lie last; the graph itself where none pays.

    fired: counts what was rewritten, and what was left as it was.
    """
    nodes = graph.live_nodes()
    convolutions = [node for node in nodes if node.op is Primitive.CONV]
    gaining = {node for node in convolutions if _is_product(node) or _is_single_channels(node)}
    if not gaining or _has_gradients_of_weights(nodes):
        return graph  # they read the same images row-major
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
    return _Rewrite(graph, readers, chosen, fired).run() if chosen else graph


def _has_gradients_of_weights(nodes: Iterable[Node]) -> bool:
    """Whether what stands in the place of a convolution's weights is made of other convolutions."""
    made: set[Node] = set()
    for node in nodes:
        if node.op is Primitive.CONV and node.inputs[1] in made:
            return True
        if node.op is Primitive.CONV or any(each in made for each in node.inputs):
            made.add(node)
    return False


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

    def __init__(
        self, graph: Graph, readers: dict[Node, list[Node]], chosen: set[Node], fired: Counter[str]
    ) -> None:  # fmt: skip
        self.graph, self.nodes, self.chosen, self.fired = graph, graph.live_nodes(), chosen, fired
        self.readers = readers
        self.result = graph.empty()
        self.shown = frozenset(base_of(node) for node in graph.outputs)
        self.first: dict[Node, Node] = {}  # values as they were
        self.last: dict[Node, Node] = {}  # (N, H, W, C)
        self.parts: dict[Node, list[Node]] = {}  # the same of some images each
        self.pieces: frozenset[Node] = frozenset()  # what has parts
        self.leading: dict[Node, bool] = {}

    def run(self) -> Graph:
        for node in self.graph.inputs:
            self.first[node] = self.result.input(node.shape, node.dtype, node.attrs["param"])
        pieces, images = self.in_parts()
        if pieces:
            self.pieces = frozenset(pieces)
            behind = set(self.chosen)
            for node in self.nodes:  # what the region does not decide comes first, so that its parts stay together
                if node not in self.chosen and not any(each in behind for each in node.inputs):
                    self.outside(node)
                else:
                    behind.add(node)
            for start in range(0, pieces[0].shape[0], images):
                for node in pieces:
                    self.parts.setdefault(node, []).append(self.rewritten(node, start, images))
                self.fired["part of a batch that caches hold"] += 1
        for node in self.nodes:
            if node in self.parts or node in self.first:
                continue
            if node not in self.chosen:
                self.outside(node)
            else:
                self.last[node] = self.rewritten(node)
        for node in self.chosen:
            if node.op is Primitive.CONV:
                kind = "1x1 convolution as a product" if _is_product(node) else "convolution of single channels"
                self.fired[f"{kind} with channels last"] += 1
        self.result.outputs = tuple(self.row_major(node) for node in self.graph.outputs)
        return self.result

    def in_parts(self) -> tuple[list[Node], int]:
        """The values that are computed some images at a time, and how many images: up to the last that no cache holds."""
        prefix: list[Node] = []
        large, largest = 0, 0
        behind: set[Node] = set()
        for node in self.nodes:
            if node not in self.chosen:
                if any(each in behind or each in self.chosen for each in node.inputs):
                    behind.add(node)
                continue
            if any(each in behind for each in node.inputs) or node.shape[0] != max(2, (prefix or [node])[0].shape[0]):
                break
            prefix.append(node)
            size = node.numel * node.dtype.itemsize
            if size > _CACHED:
                large, largest = len(prefix), max(largest, size)
        if not large:
            return [], 0
        batch = prefix[0].shape[0]
        return prefix[:large], max(1, _CACHED * batch // largest, -(-batch // _MOST_PARTS))

    def outside(self, node: Node) -> None:
        """A value that stays as it is."""
        if node.op is not Primitive.INPUT:
            self.first[node] = replay(self.result, node, [self.row_major(each, node) for each in node.inputs])

    def rewritten(self, node: Node, start: int = 0, images: int = 0) -> Node:
        """A value of a region with its channels last, or some images of it."""
        copied = node.op is Primitive.CONV
        given = [self.some(each, copied, start, images) for each in (node.inputs[:1] if copied else node.inputs)]
        if not copied:
            return self.result.add(node.op, given, **node.attrs)
        w = self.first[node.inputs[1]]
        return self.product(given[0], w) if _is_product(node) else self.single_channels(node, given[0], w)

    def some(self, node: Node, copied: bool, start: int, images: int) -> Node:
        """An operand, or the part of it from image `start` on."""
        if not images:
            return self.channels_last(node, copied)
        if node in self.parts:
            return self.parts[node][start // images]
        if self.leads_in(node, node.shape[0]):  # one copy for all that read it
            return self.copied(node, build.permute(self.row_major_part(node, start, images), TO_LAST))
        found = build.slice_(self.channels_last(node), 0, start, min(images, node.shape[0] - start))
        return self.copied(node, found) if copied else found

    def leads_in(self, node: Node, batch: int) -> bool:
        """Whether a row-major value is made of its images one by one, and read by what is computed in parts alone."""
        if node not in self.leading:
            each_by_itself = node.op in (Primitive.MAP, Primitive.CAST, Primitive.CONV) and node.shape[:1] == (batch,)
            self.leading[node] = (
                each_by_itself and node.ndim == 4 and node not in self.shown and node not in self.chosen
                and all(reader in self.pieces or self.leads_in(reader, batch) for reader in self.readers[node])
            )  # fmt: skip
        return self.leading[node]

    def row_major_part(self, node: Node, start: int, images: int) -> Node:
        """Some images of a value that a region is made of, computed where it leads to nothing else."""
        if not self.leading.get(node):
            return build.slice_(self.first[node], 0, start, min(images, node.shape[0] - start))
        for each in node.inputs:
            self.leads_in(each, node.shape[0])
        if node.op is Primitive.CONV:
            given = [self.row_major_part(node.inputs[0], start, images), self.first[node.inputs[1]]]
        else:
            given = [self.row_major_part(each, start, images) for each in node.inputs]
        return self.result.add(node.op, given, **node.attrs)

    def whole(self, node: Node) -> Node | None:
        """A value of a region with its channels last, joined where it has parts."""
        if node not in self.last and node in self.parts:
            self.last[node] = build.concat(self.parts[node], 0)
        return self.last.get(node)

    def row_major(self, node: Node, reader: Node | None = None) -> Node:
        """A value as (N, C, H, W); a copy for a convolution, which reads its rows often."""
        found = self.first.get(node)
        if found is None:
            last = self.whole(node)
            assert last is not None
            found = build.permute(last, TO_FIRST)
            if node in self.shown:  # results, and views of them, are row-major
                found = self.result.add(Primitive.CAST, (found,), dtype=found.dtype)
            self.first[node] = found
        if found.op is Primitive.PERMUTE and node in self.chosen and reader is not None and reader.op is Primitive.CONV:
            self.fired["copy of a region's value for a convolution"] += 1
            return self.result.add(Primitive.CAST, (found,), dtype=found.dtype)
        return found

    def channels_last(self, node: Node, copied: bool = False) -> Node:
        """A value as (N, H, W, C); copied: row-major ones are, but for inputs, which may lie so already."""
        found = self.whole(node)
        if found is not None:
            return found
        value = self.first[node]
        if node.op is Primitive.EXPAND and node.inputs[0].ndim == 4 and node.inputs[0].numel == 1:
            found = self.result.add(Primitive.EXPAND, (self.first[node.inputs[0]],), shape=_shape_last(node))
        else:
            found = build.permute(value, TO_LAST)
        if copied:
            found = self.copied(node, found)
        self.last[node] = found
        return found

    def copied(self, node: Node, seen: Node) -> Node:
        """What enters a region, in memory as it is read there; an input may lie so already."""
        if base_of(node).op is Primitive.INPUT or of_numbers(base_of(node)):
            return seen
        self.fired["copy on the way into a region"] += 1
        return self.result.add(Primitive.CAST, (seen,), dtype=seen.dtype)

    def product(self, x: Node, w: Node) -> Node:
        """A 1x1 convolution."""
        batch, height, width, channels = x.shape
        rows = build.reshape(x, (batch * height * width, channels))
        weights = build.transpose(build.reshape(w, w.shape[:2]), 0, 1)
        return build.reshape(build.matmul(rows, weights), (batch, height, width, w.shape[0]))

    def single_channels(self, node: Node, x: Node, w: Node) -> Node:
        """A convolution of single channels, with the channels of its weights last too."""
        taps = self.result.add(Primitive.CAST, (build.permute(w, (2, 3, 1, 0)),), dtype=w.dtype)
        attrs = {**node.attrs, "channels_last": True}
        operands = build.permute(x, TO_FIRST), build.permute(taps, (3, 2, 0, 1))
        return build.permute(self.result.add(Primitive.CONV, operands, **attrs), TO_LAST)


def _shape_last(node: Node) -> tuple[int, ...]:
    return tuple(node.shape[axis] for axis in TO_LAST)

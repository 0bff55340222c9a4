"""A broadcast multiplication followed by a sum is a contraction: the product of matrices that it says.

    (x[:, :, None] * w[None, :, :]).sum(1)   =   x @ w

Axes of the product are of four kinds: summed (K), kept and in both operands (batch), kept and in one of them (M, N). With
both M and N there are M N K multiplications of M K + K N numbers: a matrix product reads each from a tile, where the fused
sum would read everything again for every result. With only one of them the fused sum is as good, and is left alone.
"""

from __future__ import annotations

import math

from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive, replay, rewritten
from tensorsmith.scalar.table import Fn

DEEPEST = 8  # scalar functions looked through for the broadcast under them


def contract(graph: Graph) -> tuple[Graph, int]:
    """The same graph with contractions as matrix products, and how many; the graph itself where there are none."""
    found = {node for node in graph.live_nodes() if is_contraction(node)}
    for node in [*found]:  # a sum of sums is one contraction
        inner = node.inputs[0]
        while inner.op is Primitive.REDUCE:
            found.discard(inner)
            inner = inner.inputs[0]
    if not found:
        return graph, 0
    return rewritten(graph, lambda node, operands: _product(node, operands) if node in found else None), len(found)


def is_contraction(node: Node) -> bool:
    """Whether a node is a sum over a product whose operands are each repeated along an axis of their own."""
    if node.op is not Primitive.REDUCE or node.attrs["kind"] != "sum":
        return False
    if not node.dtype.is_floating_point or node.dtype.is_half:
        return False
    source, axes = _summed(node, node.inputs[0])
    if source.op is not Primitive.MAP or source.attrs["fn"] is not Fn.MUL or source.dtype is not node.dtype or not source.numel:
        return False
    return _kinds(source.shape, axes, *[_extents(x, DEEPEST) for x in source.inputs]) is not None


def _summed(node: Node, source: Node) -> tuple[Node, tuple[int, ...]]:
    """What a sum, or a sum of sums, adds up, and along which axes."""
    axes = [node.attrs["axis"]]
    while source.op is Primitive.REDUCE and source.attrs["kind"] == "sum":
        axes.append(source.attrs["axis"])
        source = source.inputs[0]
    return source, tuple(sorted(axes))


def _extents(node: Node, depth: int) -> tuple[int, ...]:
    """The shape of a value without the axes along which it is repeated (they have extent 1)."""
    if node.op is Primitive.EXPAND:
        return node.inputs[0].shape
    if node.op in (Primitive.MAP, Primitive.CAST) and depth:
        parts = [_extents(x, depth - 1) for x in node.inputs]
        return tuple([max(extents) for extents in zip(*parts)]) if parts[0] else node.shape
    return node.shape


def _kinds(
    shape: tuple[int, ...], axes: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[list[int], list[int], list[int]] | None:
    """The batch axes, those of a alone and those of b alone; None where it is no product of matrices."""
    batch, rows, columns = [], [], []
    for axis, n in enumerate(shape):
        in_a, in_b = a[axis] == n, b[axis] == n
        if n == 1:
            continue
        if axis in axes:
            if not (in_a and in_b):
                return None
        elif in_a and in_b:
            batch.append(axis)
        elif in_a:
            rows.append(axis)
        elif in_b:
            columns.append(axis)
        else:
            return None
    return (batch, rows, columns) if rows and columns and any(shape[axis] > 1 for axis in axes) else None


def _narrowed(node: Node, extents: tuple[int, ...], depth: int) -> Node:
    """A value without its repetitions."""
    if node.shape == extents:
        return node
    if node.op is Primitive.EXPAND:
        inner = node.inputs[0]
        for axis, (n, wanted) in enumerate(zip(inner.shape, extents)):
            if wanted == 1 and n != 1:
                inner = build.slice_(inner, axis, 0, 1)
        return inner if inner.shape == extents else build.broadcast_to(inner, extents)
    if node.op in (Primitive.MAP, Primitive.CAST) and depth:
        return replay(node.graph, node, [_narrowed(x, extents, depth - 1) for x in node.inputs])
    for axis, wanted in enumerate(extents):
        if wanted == 1 and node.shape[axis] != 1:
            node = build.slice_(node, axis, 0, 1)
    return node


def _product(node: Node, operands: list[Node]) -> Node:
    source, axes = _summed(node, operands[0])
    shape = source.shape
    a, b = [_narrowed(x, _extents(x, DEEPEST), DEEPEST) for x in source.inputs]
    kinds = _kinds(shape, axes, a.shape, b.shape)
    assert kinds is not None
    batch, rows, columns = kinds
    deep = [axis for axis in axes if shape[axis] > 1]

    def matrix(x: Node, first: list[int], second: list[int]) -> Node:
        rest = [axis for axis in range(len(shape)) if axis not in (*batch, *first, *second)]
        moved = build.permute(x, (*batch, *first, *second, *rest))
        return build.reshape(
            moved, (*(shape[i] for i in batch), math.prod(shape[i] for i in first), math.prod(shape[i] for i in second))
        )

    product = build.matmul(matrix(a, rows, deep), matrix(b, deep, columns))
    order = [*batch, *rows, *columns]
    apart = build.reshape(product, [shape[axis] for axis in order])
    kept = build.permute(apart, [order.index(axis) for axis in sorted(order)])
    return build.reshape(kept, node.shape)

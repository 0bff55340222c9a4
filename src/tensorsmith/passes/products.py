"""Deep matrix products in parts: few results that are long sums.

    (M, K) @ (K, N)  =  sum over s of  (M, D) @ (D, N),   K = S D (+ a tail)

One register tile after the other would read both operands again for every part of the few results, and hardly any thread
would find work. The parts are a batch of products, which reads each operand once and in the order it lies in memory, and
their sum. The partition depends on the shape alone, so results do not depend on the number of threads; long sums round
less.
"""

from __future__ import annotations

from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive, rewritten

DEPTH = 4096  # of a part, about
FEWEST = 4  # parts worth adding up
MOST_RESULTS = 1 << 15
SHARE = 8  # parts of the reading of the operands that the writing of partial results may be


def split_products(graph: Graph) -> Graph:
    """The same graph with deep products in parts; the graph itself where there are none."""
    if not any(is_deep(node) for node in graph.live_nodes()):
        return graph
    return rewritten(graph, lambda node, operands: _split(*operands) if is_deep(node) else None)


def is_deep(node: Node) -> bool:
    """Whether a product is a few long sums. (Half types stay whole: their partial results would be rounded.)"""
    if node.op is not Primitive.MATMUL or node.ndim != 2 or not node.dtype.is_floating_point or node.dtype.is_half:
        return False
    (M, N), K = node.shape, node.inputs[0].shape[1]
    return K >= FEWEST * DEPTH and 0 < M * N <= MOST_RESULTS and SHARE * M * N <= (M + N) * DEPTH


def part_depth(K: int) -> int:
    """A depth that divides K, near DEPTH, if there is one; else DEPTH."""
    near = (depth for step in range(DEPTH // 2) for depth in (DEPTH - step, DEPTH + step))
    return next((depth for depth in near if K % depth == 0), DEPTH)


def _split(a: Node, b: Node) -> Node:
    (M, K), N = a.shape, b.shape[1]
    depth = part_depth(K)
    parts, done = K // depth, K // depth * depth
    left = build.permute(build.reshape(build.slice_(a, 1, 0, done), (M, parts, depth)), (1, 0, 2))
    right = build.reshape(build.slice_(b, 0, 0, done), (parts, depth, N))
    total = build.reshape(a.graph.add(Primitive.REDUCE, (build.matmul(left, right),), kind="sum", axis=0), (M, N))
    if done == K:
        return total
    return total + build.matmul(build.slice_(a, 1, done, K - done), build.slice_(b, 0, done, K - done))

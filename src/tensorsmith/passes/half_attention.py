"""Attention of halves as a target computes it that multiplies them: its operands are not made float32 first.

    ATTENTION(cast q, cast k, cast v) in float32  ->  cast ATTENTION(q, k, v) in halves

The operator asks for attention in float32 of operands that were halves, and rounds the result (`ops/attention.py`). Kernels of
tensor cores take halves, accumulate in float32 and round as they store, so that neither is ever memory. Of an attention in
halves the log-sum-exps come in parts (`ir/attention.py`), whose sum is what they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorsmith.core.dtypes import DType, float32
from tensorsmith.ir import build
from tensorsmith.ir.attention import part_weights
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of, rewritten

_ATTENTION = (Primitive.ATTENTION, Primitive.ATTENTION_GRADIENT)


def halve_attention(graph: Graph) -> Graph:
    """The same graph with attention of halves in halves; the graph itself where there is none."""
    nodes = graph.live_nodes()
    if not any(node.op in _ATTENTION for node in nodes):
        return graph
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    results = set(graph.outputs)
    found = {node for node in nodes if node.op in _ATTENTION and node not in results and _fits(node, readers)}
    if not found:
        return graph

    def rewrite(node: Node, operands: list[Node]) -> Node | None:
        if node in found:
            count = _matrices(node)
            return operands[0].graph.add(node.op, [*map(_halves, operands[:count]), *operands[count:]], **node.attrs)
        if node.op is Primitive.SLICE and node.inputs[0] in found:
            return _part(node, operands[0])
        if node.op is Primitive.CAST and _dtype_below(operands[0]) is node.attrs["dtype"]:
            return _halves(operands[0])
        return None

    return rewritten(graph, rewrite)


def _matrices(node: Node) -> int:
    """How many operands of attention are matrices that tensor cores multiply."""
    return 3 if node.op is Primitive.ATTENTION else 4


def _fits(node: Node, readers: Mapping[Node, Sequence[Node]]) -> bool:
    """Whether an attention is of halves of one type, and everything that reads it takes one result."""
    dtypes = {_dtype_below(operand) for operand in node.inputs[: _matrices(node)]}
    if node.dtype is not float32 or len(dtypes) != 1 or None in dtypes:
        return False
    return all(reader.op is Primitive.SLICE and _number_of(node, reader) is not None for reader in readers.get(node, ()))


def _dtype_below(node: Node) -> DType | None:
    """The half type that a value in float32 is made of, views apart."""
    base = base_of(node)
    if base.op is Primitive.CAST and base.dtype is float32 and base.inputs[0].dtype.is_half:
        return base.inputs[0].dtype
    return None


def _halves(node: Node) -> Node:
    """The same value before it was cast."""
    if node.op in VIEWS:
        return node.graph.add(node.op, (_halves(node.inputs[0]),), **node.attrs)
    return node.inputs[0]


def _lengths(node: Node) -> list[int]:
    """Elements of every result of an attention in float32."""
    q, k, v = node.inputs[:3]
    if node.op is Primitive.ATTENTION_GRADIENT:
        return [q.numel, k.numel, v.numel]
    rows = q.numel // q.shape[-1]
    return [rows * v.shape[-1], rows]


def _number_of(node: Node, reader: Node) -> int | None:
    """Which result a slice lies in."""
    start, length, end = reader.attrs["start"], reader.attrs["length"], 0
    for number, count in enumerate(_lengths(node)):
        end += count
        if start < end:
            return number if start + length <= end and reader.attrs["step"] == 1 else None
    return None


def _part(node: Node, flat: Node) -> Node:
    """A slice of an attention in float32, of the one in halves."""
    attention, start, length = node.inputs[0], node.attrs["start"], node.attrs["length"]
    if attention.op is Primitive.ATTENTION_GRADIENT or _number_of(attention, node) == 0:
        return build.cast(build.slice_(flat, 0, start, length), float32)
    rows = _lengths(attention)[1]
    total: Node | None = None
    for number, weight in enumerate(part_weights(flat.dtype)):
        part = build.cast(build.slice_(flat, 0, start + number * rows, length), float32)
        part = part if weight == 1.0 else part * weight
        total = part if total is None else total + part
    assert total is not None
    return total

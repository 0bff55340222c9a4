"""The verifier: `verify(graph)` checks what every pass must preserve and names the first node that breaks it.

Called by `passes/manager.py:run_passes` after each pass, and by the tests; execution does not verify its graphs.
"""

from __future__ import annotations

from tensorsmith.core.dtypes import DType, int64
from tensorsmith.ir.graph import Graph, Node, Primitive, constant_key
from tensorsmith.ir.rules import infer


class VerificationError(ValueError):
    """A graph that is not well formed."""


def verify(graph: Graph) -> None:
    """Raise VerificationError unless the graph is well formed.

    Nodes are numbered in topological order; operands and outputs belong to the graph; shapes and dtypes are those of
    the primitives' rules; inputs are numbered in order; no two nodes are the same.
    """
    interned: dict[tuple, Node] = {}
    for position, node in enumerate(graph.nodes):
        if node.index != position:
            raise _error(node, f"is at position {position}")
        if node.graph is not graph:
            raise _error(node, "belongs to another graph")
        for operand in node.inputs:
            _check_operand(graph, node, operand)
        shape, dtype = _inferred(node)
        if node.shape != shape or node.dtype is not dtype:
            raise _error(node, f"should be {dtype.name}{list(shape)} by the rule of its primitive")
        if node.op is not Primitive.INPUT and graph.interning:
            twin = interned.setdefault(_key(node), node)
            if twin is not node:
                raise _error(node, f"is the same as %{twin.index}: it was not interned")
    for number, node in enumerate(graph.inputs):
        _check_member(graph, node, f"input {number}")
        if node.op is not Primitive.INPUT or node.attrs["number"] != number:
            raise _error(node, f"is listed as input {number}")
    listed = {node.index for node in graph.inputs}
    for node in graph.nodes:
        if node.op is Primitive.INPUT and node.index not in listed:
            raise _error(node, "is missing among the graph's inputs")
    if not graph.outputs:
        raise VerificationError("verify: the graph has no output")
    for number, node in enumerate(graph.outputs):
        _check_member(graph, node, f"output {number}")


def _error(node: Node, problem: str) -> VerificationError:
    return VerificationError(f"verify: node {node!r} {problem}")


def _is_member(graph: Graph, node: Node) -> bool:
    return node.index < len(graph.nodes) and graph.nodes[node.index] is node


def _check_operand(graph: Graph, node: Node, operand: Node) -> None:
    if not _is_member(graph, operand):
        raise _error(node, f"has operand %{operand.index}, which is not in the graph")
    if operand.index >= node.index:
        raise _error(node, f"comes before its operand %{operand.index}")


def _check_member(graph: Graph, node: Node, role: str) -> None:
    if not _is_member(graph, node):
        raise _error(node, f"is {role} but not in the graph")


def _inferred(node: Node) -> tuple[tuple[int, ...], DType]:
    if node.op is Primitive.INPUT:
        if node.attrs["param"] and node.shape != ():
            raise _error(node, "is a run-time scalar with axes")
        return node.shape, node.dtype
    if node.op is Primitive.CONST:
        return (), node.dtype
    if node.op is Primitive.IOTA:
        return (node.attrs["extent"],), int64
    try:
        return infer(node.op, node.inputs, node.attrs)
    except (TypeError, ValueError, KeyError, IndexError) as problem:
        raise _error(node, f"is refused by the rule of its primitive: {problem}") from problem


def _key(node: Node) -> tuple:
    operands = tuple(operand.index for operand in node.inputs)
    if node.op is Primitive.CONST:
        return node.op, operands, constant_key(node.attrs["value"]), node.dtype
    return node.op, operands, tuple(sorted(node.attrs.items(), key=lambda item: item[0]))

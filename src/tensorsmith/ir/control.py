"""Decisions and loops on values: LIBRARY nodes whose attributes are graphs.

    cond        inputs (p, x...)            then(x...) if p else other(x...)
    while_loop  inputs (c..., x...)         while condition(c..., x...): c = body(c..., x...)

Both have several results. A node stands for one of them (`output`); nodes that differ in that alone are one step of a plan.
Graphs are compared by identity, and take all inputs but p.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.ir.build import full
from tensorsmith.ir.graph import Graph, Node, Primitive, copy_into

NAMES = ("cond", "while_loop")


def is_control(node: Node) -> bool:
    """Whether a node is a result of a decision or a loop."""
    return node.op is Primitive.LIBRARY and node.attrs["name"] in NAMES


def same_control(a: Node, b: Node) -> bool:
    """Whether two nodes are results of the same decision or loop."""
    keys = ("name", "then", "other", "condition", "body")
    same_inputs = len(a.inputs) == len(b.inputs) and all(x is y for x, y in zip(a.inputs, b.inputs))
    return same_inputs and all(a.attrs.get(key) is b.attrs.get(key) for key in keys)


def cond(predicate: Node, operands: Sequence[Node], then: Graph, other: Graph) -> list[Node]:
    """The results of one of two graphs with equal inputs and outputs."""
    inputs = (predicate, *operands)
    return [
        predicate.graph.add(
            Primitive.LIBRARY, inputs, name="cond", output=k, shape=node.shape, dtype=node.dtype, then=then, other=other
        )
        for k, node in enumerate(then.outputs)
    ]


def while_loop(carried: Sequence[Node], captured: Sequence[Node], condition: Graph, body: Graph) -> list[Node]:
    """The values carried when the condition is false."""
    inputs = (*carried, *captured)
    return [
        inputs[0].graph.add(
            Primitive.LIBRARY, inputs, name="while_loop", output=k, shape=node.shape, dtype=node.dtype, condition=condition,
            body=body, carried=len(carried),
        )
        for k, node in enumerate(body.outputs)
    ]  # fmt: skip


def cond_gradient(node: Node, grad: Node) -> list[Node | None]:
    """The gradient of a result: a decision between the gradients of its branches, which compute their values again."""
    predicate, *operands = node.inputs
    floating = [x.dtype.kind in "fc" for x in operands]
    branches = [_pulled_back(node.attrs[key], node.attrs["output"], floating, grad) for key in ("then", "other")]
    if not any(floating):
        return [None] * len(node.inputs)
    results = iter(cond(predicate, [*operands, grad], *branches))
    return [None, *(next(results) if each else None for each in floating)]


def _pulled_back(branch: Graph, output: int, floating: Sequence[bool], grad: Node) -> Graph:
    """The graph of the gradients of one output: inputs are those of the branch and the gradient."""
    from tensorsmith.ir.vjp import vjp

    alone = Graph()
    inputs = [alone.input(x.shape, x.dtype) for x in branch.inputs]
    mapping = copy_into(alone, branch, inputs)
    alone.outputs = (mapping[branch.outputs[output]],)
    back = vjp(alone, tuple(floating), (True,))
    whole = Graph()
    values = [whole.input(x.shape, x.dtype) for x in branch.inputs]
    given = whole.input(grad.shape, grad.dtype)
    forward = copy_into(whole, alone, values)[alone.outputs[0]]
    saved = [values[s.number] if s.kind == "input" else forward for s in back.saved]
    pulled = copy_into(whole, back.graph, [*saved, *([given] if back.grad_outputs else [])])
    found = []
    for x, number, wanted in zip(values, back.results, floating):
        if wanted:
            found.append(full(whole, x.shape, 0, x.dtype) if number is None else pulled[back.graph.outputs[number]])
    whole.outputs = tuple(found)
    return whole

"""Decisions and loops on values: LIBRARY nodes whose attributes are graphs.

    cond        inputs (p, x...)            then(x...) if p else other(x...)
    while_loop  inputs (c..., x...)         while condition(c..., x...): c = body(c..., x...)
    while_loop_gradient  inputs (c..., x..., g)    the loop again, then for its rounds from last to first
                                            g..., h... = pull(c..., x..., g...), where the h... add up

They have several results. A node stands for one of them (`output`); nodes that differ in that alone are one step of a plan.
Graphs are compared by identity, and take all inputs but p.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.ir.build import full
from tensorsmith.ir.graph import Graph, Node, Primitive, copy_into

NAMES = ("cond", "while_loop", "while_loop_gradient")


def is_control(node: Node) -> bool:
    """Whether a node is a result of a decision or a loop."""
    return node.op is Primitive.LIBRARY and node.attrs["name"] in NAMES


def same_control(a: Node, b: Node) -> bool:
    """Whether two nodes are results of the same decision or loop."""
    keys = ("name", "then", "other", "condition", "body", "pull", "of")
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
    branches = [_pulled_back(node.attrs[key], [node.attrs["output"]], floating) for key in ("then", "other")]
    if not any(floating):
        return [None] * len(node.inputs)
    results = iter(cond(predicate, [*operands, grad], *branches))
    return [None, *(next(results) if each else None for each in floating)]


def while_loop_gradient(node: Node, grad: Node) -> list[Node | None]:
    """The gradient of a result: a loop that computes and keeps the values of all rounds, and goes back through them."""
    carried = node.attrs["carried"]
    floating = [x.dtype.kind in "fc" for x in node.inputs]
    differentiable = [k for k in range(carried) if floating[k]]
    pull = _pulled_back(node.attrs["body"], differentiable, floating)
    inputs, which = (*node.inputs, grad), differentiable.index(node.attrs["output"])
    results = iter([
        grad.graph.add(
            Primitive.LIBRARY, inputs, name="while_loop_gradient", output=k, shape=result.shape, dtype=result.dtype,
            condition=node.attrs["condition"], body=node.attrs["body"], pull=pull, carried=carried, of=which,
        )
        for k, result in enumerate(pull.outputs)
    ])  # fmt: skip
    return [next(results) if each else None for each in floating]


def _pulled_back(branch: Graph, outputs: Sequence[int], floating: Sequence[bool]) -> Graph:
    """The gradients of the floating inputs; its inputs are those of the branch and then the gradients of some outputs."""
    from tensorsmith.ir.vjp import vjp

    alone = Graph()
    mapping = copy_into(alone, branch, [alone.input(x.shape, x.dtype) for x in branch.inputs])
    alone.outputs = tuple(mapping[branch.outputs[k]] for k in outputs)
    back = vjp(alone, tuple(floating), (True,) * len(outputs))
    whole = Graph()
    values = [whole.input(x.shape, x.dtype) for x in branch.inputs]
    given = [whole.input(x.shape, x.dtype) for x in alone.outputs]
    forward = copy_into(whole, alone, values)
    saved = [values[s.number] if s.kind == "input" else forward[alone.outputs[s.number]] for s in back.saved]
    pulled = copy_into(whole, back.graph, [*saved, *(given[k] for k in back.grad_outputs)])
    found = []
    for x, number, wanted in zip(values, back.results, floating):
        if wanted:
            found.append(full(whole, x.shape, 0, x.dtype) if number is None else pulled[back.graph.outputs[number]])
    whole.outputs = tuple(found)
    return whole

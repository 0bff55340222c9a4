"""`simplify(graph)`: the local rewrites of `rewrites.py` applied until none applies, and dead code dropped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tensorsmith.ir.graph import Graph, Node, Primitive, copy_into, replay
from tensorsmith.passes.rewrites import SAFE, UNSAFE, Rule

_Subjects = dict[object, list[Rule]]


def simplify(graph: Graph, unsafe: bool = False, fired: Counter[str] | None = None) -> Graph:
    """The graph rebuilt with every SAFE rewrite applied, with `unsafe` the UNSAFE ones too; inputs keep their numbers.

    fired: counts, by rule name, how often each rewrite applied.
    """
    return rewrite(graph, [*SAFE, *UNSAFE] if unsafe else SAFE, fired)


def rewrite(graph: Graph, rules: Iterable[Rule], fired: Counter[str] | None = None) -> Graph:
    """The graph with these rules applied to every node, operands first."""
    by_subject: _Subjects = defaultdict(list)
    for rule in rules:
        by_subject[rule.subject].append(rule)
    work = Graph()
    values: dict[Node, Node] = {node: work.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs}
    for node in graph.live_nodes():
        if node not in values:
            built = replay(work, node, [values[operand] for operand in node.inputs])
            values[node] = _settled(built, by_subject, fired)
    work.outputs = tuple(values[node] for node in graph.outputs)
    return without_dead_code(work)


def without_dead_code(graph: Graph) -> Graph:
    """A copy of what the outputs depend on; all inputs stay."""
    result = Graph()
    inputs = [result.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs]
    copies = copy_into(result, graph, inputs)
    result.outputs = tuple(copies[node] for node in graph.outputs)
    return result


def _settled(node: Node, by_subject: _Subjects, fired: Counter[str] | None) -> Node:
    """The node after as many rewrites as apply; each makes it simpler, so they end."""
    while True:
        subject = node.attrs["fn"] if node.op is Primitive.MAP else node.op
        for rule in by_subject.get(subject, ()):
            better = rule.rewrite(node)
            if better is not None and better is not node:
                if better.shape != node.shape or better.dtype is not node.dtype:
                    raise AssertionError(f"rewrite {rule.name!r} turns {node!r} into {better!r}")
                if fired is not None:
                    fired[rule.name] += 1
                node = better
                break
        else:
            return node

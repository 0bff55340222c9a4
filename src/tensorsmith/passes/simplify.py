"""`simplify(graph)`: the local rewrites of `rewrites.py` applied until none applies, and dead code dropped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tensorsmith.ir.graph import Graph, Node, Primitive, copy_into, replay
from tensorsmith.passes.rewrites import SAFE, Rule
from tensorsmith.passes.unsafe_rewrites import UNSAFE

_Subjects = dict[object, list[Rule]]
MOST_REWRITES = 200  # of one node


class RewriteError(RuntimeError):
    """A rewrite that gave a value of another shape or dtype, something that is no value, or does not end."""


def simplify(graph: Graph, unsafe: bool = False, fired: Counter[str] | None = None) -> Graph:
    """The graph rebuilt with every SAFE rewrite applied, with `unsafe` the UNSAFE ones too; inputs keep their numbers.

    fired: counts, by rule name, how often each rewrite applied.
    """
    return without_dead_code(rewrite(graph, [*SAFE, *UNSAFE] if unsafe else SAFE, fired))


def rewrite(graph: Graph, rules: Iterable[Rule], fired: Counter[str] | None = None) -> Graph:
    """The graph with these rules applied to every node, operands first. What they left over stays among its nodes."""
    by_subject: _Subjects = defaultdict(list)
    for rule in rules:
        by_subject[rule.subject].append(rule)
    work = graph.empty()
    values: dict[Node, Node] = {node: work.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs}
    for node in graph.live_nodes():
        if node not in values:
            built = replay(work, node, [values[operand] for operand in node.inputs])
            values[node] = _settled(built, by_subject, fired)
    work.outputs = tuple(values[node] for node in graph.outputs)
    return work


def without_dead_code(graph: Graph) -> Graph:
    """A copy of what the outputs depend on; all inputs stay."""
    result = graph.empty()
    inputs = [result.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs]
    copies = copy_into(result, graph, inputs)
    result.outputs = tuple(copies[node] for node in graph.outputs)
    return result


def _settled(node: Node, by_subject: _Subjects, fired: Counter[str] | None) -> Node:
    """The node after as many rewrites as apply; each makes it simpler, so they end."""
    anywhere = by_subject.get(None)
    for _ in range(MOST_REWRITES):
        subject = node.attrs["fn"] if node.op is Primitive.MAP else node.op
        rules = by_subject.get(subject, ())
        for rule in rules if anywhere is None else (*rules, *anywhere):
            better = rule.rewrite(node)
            if better is not None and better is not node:
                if not isinstance(better, Node):
                    raise RewriteError(f"rewrite {rule.name!r} gives {better!r}, which is no value of the graph, for {node!r}")
                if better.shape != node.shape or better.dtype is not node.dtype:
                    raise RewriteError(
                        f"rewrite {rule.name!r} turns {node!r} into {better!r}: it has to keep shape and dtype"
                    )
                if fired is not None:
                    fired[rule.name] += 1
                node = better
                break
        else:
            return node
    raise RewriteError(f"rewrite {rule.name!r} applies for ever: after {MOST_REWRITES} rewrites it still changes {node!r}")

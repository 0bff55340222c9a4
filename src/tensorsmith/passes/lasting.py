"""What is made of lasting inputs alone (weights, buffers), apart from what is made anew at every run.

A compiled function that needs no gradients reads the same weights at every run. `split_lasting` cuts its graph in two: values
that depend on lasting inputs alone become inputs of the rest, in memory that the plan keeps (`runtime/prepared.py`) and
computes again where an input they are made of has changed. A pass has to do nothing for that but to write, in place of a
weight, the value that its kernel wants: weights that were folded, cast, copied in another order or packed are then free at
every run. What a kernel alone can read is a LIBRARY node (`winograd_weight`, `packed_right`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of, copy_into, replay, rewritten, touches_complex

MOST_GROWTH = 4  # times the elements of what a value is made of: with more, it is rather computed again,
SMALL = 1 << 14  # unless it has at most so many
FEWEST_ROWS = 9  # of a product whose right operand is packed; fewer read it where it lies, as fast as memory
LEAST_WEIGHT = 1 << 10  # elements of an operand that is worth it

_NEVER = frozenset({Primitive.INPUT, Primitive.CONST, Primitive.IOTA, Primitive.RANDOM})


@dataclass(frozen=True)
class Part:
    """A graph that makes some kept values of some lasting inputs."""

    graph: Graph
    inputs: tuple[int, ...]  # numbers, in the whole graph, of the inputs of `graph`
    made: tuple[int, ...]  # numbers, among the kept values, of the outputs of `graph`


def made_of_lasting(graph: Graph, lasting: Collection[int]) -> dict[Node, frozenset[int]]:
    """The live nodes that depend on lasting inputs and constants alone, with the inputs that they depend on."""
    found: dict[Node, frozenset[int]] = {}
    for node in graph.live_nodes():
        if node.op is Primitive.INPUT:
            if node.attrs["number"] in lasting:
                found[node] = frozenset({node.attrs["number"]})
        elif node.op is not Primitive.RANDOM and all(operand in found for operand in node.inputs):
            found[node] = frozenset().union(*[found[operand] for operand in node.inputs])
    return found


def pack_products(graph: Graph, lasting: Collection[int]) -> Graph:
    """The same graph, in which products have their right operand packed where it is lasting and enough rows meet it."""
    if not lasting:
        return graph
    known = made_of_lasting(graph, lasting)

    def pack(node: Node, operands: list[Node]) -> Node | None:
        if node.op is not Primitive.MATMUL or not _is_packed(node) or not known.get(node.inputs[1]):
            return None
        a, b = operands
        packed = b.graph.add(Primitive.LIBRARY, (b,), name="packed_right", shape=b.shape, dtype=b.dtype)
        return a.graph.add(Primitive.MATMUL, (a, packed), packed=True)

    return rewritten(graph, pack) if any(_is_packed(n) for n in graph.live_nodes() if n.op is Primitive.MATMUL) else graph


def _is_packed(node: Node) -> bool:
    a, b = node.inputs
    fits = node.ndim == 2 and node.dtype.is_floating_point and not node.dtype.is_half
    return fits and a.shape[0] >= FEWEST_ROWS and b.shape[1] > 1 and b.numel >= LEAST_WEIGHT


def split_lasting(graph: Graph, lasting: Collection[int]) -> tuple[Graph, list[Part], dict[Node, Node]]:
    """The graph with what it is made of lasting inputs alone as further inputs, the graphs that make those, and which node of
    the old graph each of the new one is (none where nothing was split).
    """
    known = made_of_lasting(graph, lasting) if lasting else {}
    results = {base_of(node) for node in graph.outputs}  # new memory at every run
    kept = {node for node, inputs in known.items() if inputs and node not in results and _worth_keeping(graph, node, inputs)}
    wanted = _met_first(graph, kept)
    if not wanted:
        return graph, [], {}
    rest = graph.empty()
    mapping = {node: rest.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs}
    for node in wanted:
        mapping[node] = rest.input(node.shape, node.dtype)
    for node in _outside(graph, kept):
        if node not in mapping:
            mapping[node] = replay(rest, node, [mapping[operand] for operand in node.inputs])
    rest.outputs = tuple(mapping[node] for node in graph.outputs)
    parts = [_part(graph, wanted, numbers, known) for numbers in _that_share_inputs(wanted, known)]
    return rest, parts, {new: old for old, new in mapping.items()}


def _worth_keeping(graph: Graph, node: Node, inputs: frozenset[int]) -> bool:
    if node.op in _NEVER or node.op in VIEWS or touches_complex(node):
        return False
    return node.numel <= max(SMALL, MOST_GROWTH * sum(graph.inputs[number].numel for number in inputs))


def _outside(graph: Graph, kept: Collection[Node]) -> list[Node]:
    """The nodes that outputs depend on without a kept value between them, and the kept values that they meet."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node in needed and node not in kept:
            needed.update(node.inputs)
    return [node for node in graph.nodes if node in needed]


def _met_first(graph: Graph, kept: Collection[Node]) -> list[Node]:
    return [node for node in _outside(graph, kept) if node in kept]


def _that_share_inputs(wanted: list[Node], known: dict[Node, frozenset[int]]) -> list[list[int]]:
    """The numbers of the values in groups that are made of different inputs."""
    groups: list[tuple[set[int], list[int]]] = []
    for number, node in enumerate(wanted):
        inputs, numbers = set(known[node]), [number]
        for group in [group for group in groups if group[0] & inputs]:
            groups.remove(group)
            inputs |= group[0]
            numbers += group[1]
        groups.append((inputs, numbers))
    return [sorted(numbers) for _, numbers in groups]


def _part(graph: Graph, wanted: list[Node], numbers: list[int], known: dict[Node, frozenset[int]]) -> Part:
    inputs = sorted(frozenset().union(*[known[wanted[number]] for number in numbers]))
    source = graph.empty()
    source.nodes, source.inputs, source.outputs = graph.nodes, graph.inputs, tuple(wanted[number] for number in numbers)
    part = graph.empty()
    arguments = {number: part.input(graph.inputs[number].shape, graph.inputs[number].dtype) for number in inputs}
    mapping = copy_into(part, source, arguments)  # type: ignore[arg-type]
    part.outputs = tuple(mapping[node] for node in source.outputs)
    return Part(part, tuple(inputs), tuple(numbers))

"""Recompute or save: a large value that is needed early and late, and lies in memory between, is computed again where it is
cheap.

In a training step the fullest point is where the backward begins: everything it will read is alive. Of the values alive there
one is computed again if all of this holds:

* it has at least `LEAST_BYTES`, and memory in between: a product, a convolution or an output reads it before the fullest point;
* it is at most `MOST_OPERATIONS` pointwise operations away from values that are in memory where it is needed next, or were in
  the second half of the time until then, because somebody reads them; or that have no more than 1/`SMALL` of its size;
* those it is made of are together at most `MOST_READ` times as large: one kernel that reads and writes at the speed of memory.

So what is saved are the operands of pointwise functions, not their results; products, convolutions and reductions are never
computed twice. Readers after the fullest point read a copy that is made of `again` views (`ir/graph.py`), which no other pass
takes for the value before, right before the first of them. It has the same operations and thus the same bits; what is summed
of it may be summed by another kernel.
"""

from __future__ import annotations

from collections import Counter

from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of, replay

LEAST_BYTES = 2 << 20  # what a second-level cache does not hold until it is needed
MOST_OPERATIONS = 12
RANDOM_OPERATIONS = 8  # one draw counts so many
MOST_READ = 3
SMALL = 16
_POINTWISE = frozenset({Primitive.MAP, Primitive.CAST, Primitive.RANDOM})
_FREE = frozenset({Primitive.CONST, Primitive.IOTA})


def nbytes(node: Node) -> int:
    """Bytes of a value in memory."""
    return node.numel * node.dtype.itemsize


class _Lifetimes:
    """Which values of a graph lie in memory, about, and when they are read. Times are positions among the live nodes."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.live_nodes()
        self.time = {node: number for number, node in enumerate(self.nodes)}
        self.in_memory = {base_of(node) for node in graph.outputs}
        for node in self.nodes:
            if node.op not in _POINTWISE and node.op not in VIEWS and node.op not in _FREE:
                self.in_memory.add(node)
                if node.op is not Primitive.REDUCE:
                    self.in_memory.update(base_of(operand) for operand in node.inputs)
        self.last: dict[Node, int] = {}  # when it is read last, seen through what is not in memory
        for node in graph.outputs:
            self.last[base_of(node)] = len(self.nodes)
        for node in reversed(self.nodes):
            time = self.time[node] if node in self.in_memory else self.last.get(node, -1)
            for operand in node.inputs:
                self.last[operand] = max(self.last.get(operand, -1), time)
        self.turn = self.fullest()
        self.needed: dict[Node, int] = {}  # when it is read first after that
        for node in reversed(self.nodes):
            time = self.time[node] if node in self.in_memory else self.needed.get(node, -1)
            if time > self.turn:
                for operand in node.inputs:
                    self.needed[operand] = min(self.needed.get(operand, time), time)

    def fullest(self) -> int:
        """The time at which most bytes are alive, beside results, which have memory of their own."""
        end = len(self.nodes)
        change = [0] * (end + 2)
        for node in self.in_memory:
            if node.op is not Primitive.INPUT and self.last.get(node, end) < end:
                change[self.time[node]] += nbytes(node)
                change[self.last[node] + 1] -= nbytes(node)
        alive = most = found = 0
        for time, difference in enumerate(change):
            alive += difference
            if alive > most:
                most, found = alive, time
        return found


def recompute(graph: Graph, fired: Counter[str]) -> Graph:
    """The graph in which the values of the rule above are computed again; the graph itself where there is none."""
    if not any(node.op in _POINTWISE and nbytes(node) >= LEAST_BYTES for node in graph.nodes):
        return graph
    lives = _Lifetimes(graph)
    chosen: set[Node] = set()
    for node in lives.nodes[: lives.turn]:
        if node.op in _POINTWISE and node in lives.in_memory and nbytes(node) >= LEAST_BYTES:
            if lives.turn < lives.last[node] < len(lives.nodes) and _cheap(node, lives, chosen):
                chosen.add(node)
                fired[f"{_described(node)} computed again, not kept"] += 1
    return _Copied(graph, lives, chosen).result if chosen else graph


def _described(node: Node) -> str:
    name = node.attrs["fn"].name.lower() if node.op is Primitive.MAP else node.op.value
    return f"{name} {node.dtype.name}{list(node.shape)}"


def _is_leaf(node: Node, root: Node, lives: _Lifetimes, chosen: set[Node]) -> bool:
    """Whether a value is in memory when `root` is computed again."""
    if node.op is Primitive.INPUT or node.op in _FREE or nbytes(node) * SMALL <= nbytes(root):
        return True
    return node in lives.in_memory and node not in chosen and 2 * lives.last[node] >= lives.turn + lives.needed[root]


def _cheap(root: Node, lives: _Lifetimes, chosen: set[Node]) -> bool:
    """Whether a value is a few operations away from what is in memory when it is needed again."""
    operations = read = 0
    seen: set[Node] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node is not root and _is_leaf(node, root, lives, chosen):
            read += nbytes(node) if node.op not in _FREE else 0
        elif node.op in VIEWS:
            waiting += node.inputs
        elif node.op in _POINTWISE:
            operations += RANDOM_OPERATIONS if node.op is Primitive.RANDOM else 1
            waiting += node.inputs
        else:
            return False
        if operations > MOST_OPERATIONS or read > MOST_READ * nbytes(root):
            return False
    return True


class _Copied:
    """The new graph: readers after the turn read copies of the chosen values."""

    def __init__(self, graph: Graph, lives: _Lifetimes, chosen: set[Node]) -> None:
        self.lives, self.chosen = lives, chosen
        self.result = graph.empty()
        self.mapping = {node: self.result.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs}
        self.again: dict[tuple[Node, int], Node] = {}  # by value, and the number of the copy it is part of
        self.late: dict[Node, Node] = {}
        reaching = set(chosen)  # pointwise values and views, not in memory, that are made of chosen ones
        for number, node in enumerate(lives.nodes):
            if node.op is not Primitive.INPUT:
                late = number > lives.turn
                operands = [self.after(x, reaching) if late else self.mapping[x] for x in node.inputs]
                self.mapping[node] = replay(self.result, node, operands)
            if node not in lives.in_memory and not reaching.isdisjoint(node.inputs) and number <= lives.turn:
                reaching.add(node)
        self.result.outputs = tuple(self.mapping[node] for node in graph.outputs)

    def after(self, node: Node, reaching: set[Node]) -> Node:
        """What a reader after the turn reads in place of a value."""
        if node not in reaching:
            return self.mapping[node]
        found = self.late.get(node)
        if found is None:
            if node in self.chosen:
                found = self.copy(node, node)
            else:
                found = replay(self.result, node, [self.after(x, reaching) for x in node.inputs])
            self.late[node] = found
        return found

    def copy(self, node: Node, root: Node) -> Node:
        """A value as part of the copy of `root`."""
        part = -1 - self.lives.time[root]  # no number of the tracer's, of a part that the user has run again
        found = self.again.get((node, part))
        if found is None:
            if node.op is Primitive.CONST:
                found = self.mapping[node]
            elif node is not root and _is_leaf(node, root, self.lives, self.chosen):
                found = self.result.add(Primitive.AGAIN, (self.mapping[node],), part=part)
            else:
                found = replay(self.result, node, [self.copy(operand, root) for operand in node.inputs])
            self.again[node, part] = found
        return found

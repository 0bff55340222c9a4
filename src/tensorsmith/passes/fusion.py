"""Which values of a graph become memory, and which kernels compute them.

Every node is either *materialised* (it gets a buffer) or *inlined* into the kernels that need it. Views are never work: a
chain of views over a buffer is strides; where strides cannot express it (a reshape of permuted data) the value below is
copied first. A kernel covers one domain, at most two reduced axes, and any number of stored values (its roots):

* outputs, and everything an anchor (matmul, gather, concat, ...) reads or writes, is materialised;
* a reduction is inlined where the kernel walks exactly its input, as in softmax; otherwise it is materialised; a sum of sums
  over another axis is one reduction over two axes;
* a value that two kernels would both compute is materialised unless it is cheap.

`fuse` decides by trying: it analyses every root, and where something cannot be inlined it is materialised and the analysis
starts again; the walks that did not meet that value are kept. The answer is kept with the compiled plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tensorsmith.core.views import Strided
from tensorsmith.ir.convolution import lies_last
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, base_of, touches_complex
from tensorsmith.passes.epilogues import absorbed
from tensorsmith.passes.rows_apart import rows_apart
from tensorsmith.passes.walk import (
    LARGEST_BODY,
    Group,
    NeedsBuffer,
    Walk,
    apply_chain,
    channels_last,
    contiguous,
    inlined_inputs,
    is_row_result,
    of_numbers,
    root_domain,
    same_points,
    same_rows,
)  # fmt: skip
from tensorsmith.scalar.table import Fn

ANCHORS = frozenset(
    {
        Primitive.MATMUL, Primitive.CONV, Primitive.ATTENTION, Primitive.ATTENTION_GRADIENT, Primitive.TAKE, Primitive.GATHER,
        Primitive.SCATTER, Primitive.PUT, Primitive.SCAN, Primitive.RECURRENT, Primitive.RECURRENT_GRADIENT,
        Primitive.LIBRARY, Primitive.PAD, Primitive.CONCAT,
    }
)  # fmt: skip

Places = Callable[[Sequence[Node], Mapping[Node, Sequence[Node]], Collection[Node]], dict[Node, Strided]]

LONG_BODY = 32  # from so many on, a value with several readers is memory from the start


class Fusion:
    """The decision for one graph: `materialised`, `groups` in execution order, `place(node)` of every buffer."""

    def __init__(
        self, graph: Graph, inputs: Mapping[Node, Strided], outputs: Mapping[Node, Strided], library: frozenset[Fn],
        fusing: bool = True, halves: bool = False, places: Places = rows_apart, repeats: Repeats | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.repeats = repeats
        self.fusing = fusing
        self.halves = halves
        self.library = library
        self.inputs = inputs
        self.nodes = graph.live_nodes()
        self.results = frozenset(graph.outputs)
        self.outputs = {self.written_as(node, place): place for node, place in outputs.items()}
        self.consumers: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for operand in node.inputs:
                self.consumers.setdefault(operand, []).append(node)
        self.apart = places(self.nodes, self.consumers, self.results)
        self.materialised: set[Node] = set()
        self.steps: dict[Node, Group] = {}  # of every root by itself
        self.parts: dict[tuple[Node, int], tuple[Group, set[Node]]] = {}  # what an anchor computes of an operand it copies
        self.deciding: dict[Node, set[Node | tuple[Node, int]]] = {}  # the steps and parts that were found going through a node
        self.epilogues: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.required()
        self.shorten()

    def written_as(self, node: Node, place: Strided) -> Node:
        """What to write for an output: for a product that is only reshaped, as of a 1x1 convolution, the product itself."""
        base = node
        while base.op is Primitive.RESHAPE:
            base = base.inputs[0]
        return base if base.op is Primitive.MATMUL and base not in self.results and place == contiguous(node) else node

    def place(self, node: Node) -> Strided:
        """Where a materialised value lies in its buffer."""
        found = self.inputs.get(node) or self.outputs.get(node)
        if found is not None and found.shape == node.shape:
            return found
        return self.apart.get(node) or (channels_last(node) if lies_last(node) else contiguous(node))

    def locate(self, node: Node) -> tuple[Node, Strided]:
        """The buffer under a chain of views and the strides it is seen with; NeedsBuffer where there is none."""
        chain: list[Node] = []
        current = node
        while current.op in VIEWS and current not in self.materialised:
            chain.append(current)
            current = current.inputs[0]
        if current not in self.materialised and current.op is not Primitive.INPUT:
            raise NeedsBuffer(current)
        return current, apply_chain(self.place(current), tuple(reversed(chain)))

    def required(self) -> None:
        """Outputs, anchors and what anchors read."""
        for node in self.graph.outputs:
            base = base_of(node)
            computed = base.op not in (Primitive.CONST, Primitive.IOTA) and not base.attrs.get("param", False)
            if node in self.outputs or not computed or self.seen_backwards(node):
                self.materialised.add(node)
            elif base.op is not Primitive.INPUT:
                self.materialised.add(base)
        if not self.fusing:
            apart = {Primitive.MAP, Primitive.CAST, Primitive.REDUCE, Primitive.RANDOM}
            self.materialised.update(node for node in self.nodes if node.op in apart and not of_numbers(node))
        for node in self.nodes:
            if not self.is_anchor(node):
                continue
            root = self.epilogue(node) if self.fusing and node.op in (Primitive.MATMUL, Primitive.CONV) else node
            self.materialised.add(root)
            for operand in node.inputs[len(inlined_inputs(node)) :]:
                base = base_of(operand)
                if touches_complex(node) and of_numbers(base):
                    continue
                if base.op is not Primitive.INPUT:
                    self.materialised.add(base)
                elif base.attrs["param"]:  # a run-time scalar has no memory: the plan copies it into some
                    raise NeedsBuffer(base)

    def shorten(self) -> None:
        """Cut what runs on from step to step of a recurrence, before every kernel along it is found to compute the same.

        Without it the analysis goes through the last `LARGEST_BODY` operations again for every value that it materialises.
        """
        below: dict[Node, frozenset[Node]] = {}
        nothing: frozenset[Node] = frozenset()
        for node in self.nodes:
            if node in self.materialised or node.op is Primitive.INPUT:
                continue
            met = nothing.union(*[below.get(operand, nothing) for operand in node.inputs])
            if node.op not in VIEWS and len(met) < LARGEST_BODY:
                met |= {node}
            several = len(self.consumers.get(node, ())) > 1 and node.op is Primitive.MAP and not self.is_anchor(node)
            if several and len(met) >= LONG_BODY and not self.simple_operations(node) <= MOST_REPEATED:
                self.materialised.add(node)
            else:
                below[node] = met

    def is_anchor(self, node: Node) -> bool:
        """Whether a node is a step of its own, never a part of a fused kernel."""
        if touches_complex(node):
            return self.is_numpy_step(node) and node.op not in VIEWS and not (node.dtype.is_complex and of_numbers(node))
        return node.op in ANCHORS or (node.op is Primitive.MAP and self.is_library_call(node))

    def is_library_call(self, node: Node) -> bool:
        """Whether a scalar function has no kernel. The neighbour of a half is none of the float32 that kernels compute in."""
        fn = node.attrs["fn"]
        return fn in self.library or (fn is Fn.NEXTAFTER and node.dtype.is_half)

    @staticmethod
    def is_numpy_step(node: Node) -> bool:
        """Whether a node, where it is materialised, runs as a NumPy step: kernels know no complex numbers."""
        return touches_complex(node) and node.op is not Primitive.INPUT

    def seen_backwards(self, node: Node) -> bool:
        """Whether a chain of views walks an axis backwards, which no tensor may do."""
        while node.op in VIEWS:
            if node.op is Primitive.FLIP:
                return True
            node = node.inputs[0]
        return False

    def output_places(self) -> list[tuple[Node, Strided]]:
        """For every output: the buffer it lies in, and how (an output may be a view of an input or of another value)."""
        return [self.locate(node) for node in self.graph.outputs]

    def epilogue(self, product: Node) -> Node:
        """Fold `+ bias` and a relu behind a matmul or a convolution, or all that a matmul absorbs; the node it then writes."""
        group = Group([product], anchor=product)
        root = product
        last = lies_last(product)
        if not last and (follower := self.only_consumer(root)) is not None and follower.op is Primitive.MAP:
            if follower.attrs["fn"] is Fn.ADD and self.takes_epilogue(product):
                other = follower.inputs[1] if follower.inputs[0] is root else follower.inputs[0]
                if other is not root and self.is_bias(other, product):
                    group.bias, root = other, follower
        if not last and (follower := self.only_consumer(root)) is not None and follower.op is Primitive.MAP:
            if follower.attrs["fn"] is Fn.RELU and self.takes_epilogue(product):
                group.activation, root = Fn.RELU, follower
        # A device's convolutions take any body, but for gradients of strided ones, whose parts have little to hide it behind.
        takes_all = last or product.op is Primitive.MATMUL or (self.halves and set(product.attrs["step"]) == {1})
        more = absorbed(self, product) if takes_all else None
        if more is not None and more.root is not root and root in {product, *more.nodes}:
            group.bias, group.activation, group.absorbed, root = None, None, more.nodes, more.root
            self.materialised.update(more.small)
        group.roots = [root]
        self.epilogues[root] = group
        return root

    def takes_epilogue(self, product: Node) -> bool:
        """Whether the target's kernels compute something of the results of a product of this dtype."""
        return product.dtype.is_floating_point and (self.halves or not product.dtype.is_half)

    def only_consumer(self, node: Node) -> Node | None:
        consumers = self.consumers.get(node, [])
        return consumers[0] if len(consumers) == 1 and node not in self.results else None

    def is_bias(self, node: Node, product: Node) -> bool:
        """Whether a node is an input with one element a column of a product, or a channel of a convolution, repeated."""
        base = base_of(node)
        if base.op is not Primitive.INPUT or base.attrs["param"] or base.dtype is not product.dtype:
            return False
        try:
            _, seen = self.locate(node)
        except NeedsBuffer:
            return False
        axis = 1 if product.op is Primitive.CONV else product.ndim - 1
        wanted = [1 if i == axis else 0 for i in range(product.ndim)]
        return all(n == 1 or s == w for n, s, w in zip(product.shape, seen.strides, wanted))

    def run(self) -> list[Group]:
        """Analyse until nothing more has to be materialised."""
        place = {node: number for number, node in enumerate(self.nodes)}
        first = 0
        while True:
            try:
                for node in self.nodes[first:]:
                    if node in self.materialised and node.op is not Primitive.INPUT:
                        self.step_of(node)
                self.groups = self.partition()
                self.output_places()
                found = self.computed_twice()
                if not found:
                    return self.groups
            except NeedsBuffer as need:
                found = [need.node]
                if need.node.op is Primitive.INPUT:  # it lies as no strides can express: the plan copies it
                    raise
                if need.node in self.materialised:
                    raise AssertionError(f"fusion does not converge at {need.node!r}") from None
            for node in found:
                self.materialise(node)
            first = min(place[node] for node in found)  # whatever reads it comes later in the graph

    def materialise(self, node: Node) -> None:
        """Give a value a buffer, and forget the steps that were found going through it."""
        self.materialised.add(node)
        for decided in self.deciding.pop(node, ()):
            if isinstance(decided, tuple):
                self.parts.pop(decided, None)
            else:
                self.steps.pop(decided, None)

    def step_of(self, root: Node) -> Group:
        """The anchor or the kernel that writes one root, by itself."""
        found = self.steps.get(root)
        if found is None:
            anchor = self.epilogues.get(root)
            if anchor is None and (self.is_anchor(root) or self.is_numpy_step(root)):
                anchor = Group([root], anchor=root)
            found, met = self.kernel(root) if anchor is None else self.anchored(root, anchor)
            self.steps[root] = found
            for node in met:
                self.deciding.setdefault(node, set()).add(root)
        return found

    def kernel(self, root: Node) -> tuple[Group, set[Node]]:
        """The kernel that writes one root, and the nodes that were met on the way."""
        group = Group([root])
        walk = Walk(self.materialised, self.place, group)
        walk.start(root)
        if not group.reduce_axes:
            group.domain = root_domain(root)
        elif root_domain(root) != group.domain and not is_row_result(root_domain(root), group.domain, group.reduce_axes):
            raise NeedsBuffer(next(n for n in group.visited if n.op is Primitive.REDUCE))
        return group, group.visited.union(node for node, _, _ in walk.seen)

    def partition(self) -> list[Group]:
        """All steps, with the kernels joined that can be one."""
        groups: list[Group] = []
        made_by: dict[Node, int] = {}
        kernels: dict[tuple[int, ...], list[int]] = {}  # by the points they cover
        for node in self.nodes:
            if node not in self.materialised or node.op is Primitive.INPUT:
                continue
            group = self.step_of(node)
            home = None
            if group.anchor is None and self.fusing:  # what is joined with it changes a copy
                group = group.copy()
                alike = kernels.setdefault(group.domain, [])
                home = self.join(groups, alike, group, made_by)
                if home is None:
                    alike.append(len(groups))
            if home is None:
                home = len(groups)
                groups.append(group)
            made_by[node] = home
        return groups

    def anchored(self, root: Node, given: Group) -> tuple[Group, set[Node]]:
        """The step of an anchor, and the nodes that were met on the way.

        Everything it reads has to be strides over a buffer; what PAD and CONCAT copy is computed on the way.
        """
        group = Group([root], anchor=given.anchor, bias=given.bias, activation=given.activation, absorbed=given.absorbed)
        anchor = group.anchor
        assert anchor is not None
        inlined = inlined_inputs(anchor)
        met: set[Node] = set()
        for number, operand in enumerate(inlined):
            part, seen = self.part(root, number, operand)
            group.leaves |= part.leaves
            group.visited |= part.visited
            met |= seen
        beside = [group.bias] if group.bias is not None else []
        beside += [each for node in group.absorbed for each in node.inputs if self.is_beside(each, group)]
        group.visited |= group.absorbed
        for operand in (*anchor.inputs[len(inlined) :], *beside):
            if touches_complex(anchor) and of_numbers(base_of(operand)):
                continue
            group.leaves.add(self.locate(operand)[0])
            while operand.op in VIEWS:
                met.add(operand)
                operand = operand.inputs[0]
        return group, met

    def is_beside(self, operand: Node, group: Group) -> bool:
        """Whether an operand of what an anchor absorbs is another value in memory."""
        base = base_of(operand)
        return operand not in group.absorbed and base is not group.anchor and not of_numbers(base)

    def part(self, root: Node, number: int, operand: Node) -> tuple[Group, set[Node]]:
        """What an anchor computes of an operand that it copies, and the nodes that were met on the way."""
        key = (root, number)
        known = self.parts.get(key)
        if known is not None:
            return known
        part = Group([operand])
        walk = Walk(self.materialised, self.place, part)
        walk.root = operand
        if operand.op is Primitive.PAIR and operand not in self.materialised:
            part.visited.add(operand)
            walk.inputs_of(operand, (), False)
        else:
            walk.visit(operand, (), False)
        if part.reduce_axes and operand not in self.materialised:
            raise NeedsBuffer(next(n for n in part.visited if n.op is Primitive.REDUCE))
        met = {operand, *(node for node, _, _ in walk.seen)}
        for node in met:
            self.deciding.setdefault(node, set()).add(key)
        self.parts[key] = part, met
        return part, met

    def join(
        self, groups: list[Group], alike: Sequence[int], new: Group, made_by: Mapping[Node, int]
    ) -> int | None:
        """The index of an earlier kernel that can store the new root too, without a cycle.

        It covers the same points, as those in `alike` do, and both read one operand, or reduce what one kernel made.
        """
        makers = {made_by[leaf] for leaf in new.leaves if leaf in made_by}
        newest = max(makers, default=-1)
        for index in reversed(alike):
            old = groups[index]
            if index < newest or old.roots[0].index < new.after:
                break
            if index == newest and not (same_rows(old, new) or same_points(old, new)):
                continue
            if not (index == newest or old.leaves & new.leaves):
                if not new.reduce_axes or makers.isdisjoint([made_by.get(leaf, -1) for leaf in old.leaves]):
                    continue
            if new.reduce_axes and new.reduce_axes != old.reduce_axes:
                continue
            if len(old.visited | new.visited) > LARGEST_BODY or len(old.leaves | new.leaves) > 12:
                continue
            old.roots += new.roots
            old.leaves |= new.leaves
            old.visited |= new.visited
            return index
        return None

    def computed_twice(self) -> list[Node]:
        """Values of some cost that two kernels would both compute: the smallest, of those in one kernel the last.

        The smallest first, because with a value a row in memory what is made of it may be cheap. Of values that meet in a
        kernel one at a time, because what the first leaves of the others shows only then.
        """
        within: dict[Node, list[Group]] = {}
        for group in self.groups:
            for node in group.visited:
                within.setdefault(node, []).append(group)
        repeated = [node for node in reversed(self.nodes) if len(within.get(node, ())) > 1]
        repeated.sort(key=lambda node: node.numel)
        found: list[Node] = []
        met: set[Node] = set()
        for node in repeated:
            if found and node.numel > found[0].numel:
                break
            if node not in met and not self.is_cheap(node, within[node]):
                found.append(node)
                met.update(*[group.visited for group in within[node] if group.anchor is None])
        return found

    def is_cheap(self, node: Node, groups: Sequence[Group]) -> bool:
        """Whether computing it again costs less than reading it: a few simple operations on buffers."""
        if self.simple_operations(node) <= MOST_REPEATED:
            return True
        if self.repeats is None or any(math.prod(group.domain) > node.numel for group in groups):  # one for many points
            return False
        return self.is_read_as_fast(node, self.repeats)

    def is_read_as_fast(self, node: Node, repeats: Repeats) -> bool:
        """Whether what a value is made of is read as fast as the value itself, and arithmetic takes no longer than that."""
        cost, read = 0, 0
        seen: set[Node] = set()
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            if current is not node and (current in self.materialised or current.op is Primitive.INPUT):
                read += current.numel * current.dtype.itemsize
            elif current.op is Primitive.MAP:
                cost += 1 if current.attrs["fn"] in CHEAP else repeats.function
                waiting += [base_of(operand) for operand in current.inputs]
            elif current.op is Primitive.CAST:
                waiting += [base_of(operand) for operand in current.inputs]
            elif current.op not in (Primitive.CONST, Primitive.IOTA):
                return False
            if cost > repeats.most or read > repeats.read * node.numel * node.dtype.itemsize:
                return False
        return True

    def simple_operations(self, node: Node) -> int:
        """How many operations from buffers to this value, if they are simple; else more than are repeated."""
        if node.op in (Primitive.IOTA, Primitive.CAST):
            return 0
        if node.op is not Primitive.MAP or node.attrs["fn"] not in CHEAP:
            return MOST_REPEATED + 1
        total = 1
        for operand in node.inputs:
            below = base_of(operand)
            if below not in self.materialised and below.op not in (Primitive.INPUT, Primitive.CONST):
                total += self.simple_operations(below)
            if total > MOST_REPEATED:
                break
        return total


@dataclass(frozen=True)
class Repeats:
    """What kernels of a target compute again rather than read: `most` simple operations, of which another function counts
    `function`, on values that together have `read` times the bytes of the result."""

    most: int
    function: int
    read: float


MOST_REPEATED = 3
CHEAP = frozenset(
    {
        Fn.ADD, Fn.SUB, Fn.MUL, Fn.NEG, Fn.ABS, Fn.MINIMUM, Fn.MAXIMUM, Fn.RELU, Fn.WHERE, Fn.EQ, Fn.NE, Fn.LT, Fn.LE,
        Fn.GT, Fn.GE, Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.LOGICAL_NOT,
    }
)  # fmt: skip


def fuse(
    graph: Graph, inputs: Mapping[Node, Strided], outputs: Mapping[Node, Strided] | None = None,
    library: frozenset[Fn] = frozenset(), fusing: bool = True, halves: bool = False, places: Places = rows_apart,
    repeats: Repeats | None = None,
) -> Fusion:  # fmt: skip
    """Partition a graph into kernels and anchors, for inputs and outputs that lie as given (outputs: contiguous).

    library: scalar functions that the target has no kernel for; each such call is a step of its own.
    fusing: off, every operation is a kernel of its own.
    halves: products of float16 and bfloat16 compute something of their results too.
    places: which values in memory lie otherwise than row after row, and how.
    repeats: what is computed again beside a few simple operations, where arithmetic is much faster than memory.
    """
    fusion = Fusion(graph, inputs, outputs or {}, library, fusing, halves, places, repeats)
    fusion.run()
    return fusion

"""The backward engine: sends gradients from outputs to leaves.

One loop, no recursion. Nodes that a gradient has reached wait in a heap, highest sequence number first. Edges lead to
smaller numbers (see `node.py`), so whatever could still send a gradient to the first node of the heap has already run:
it is ready without counting how many gradients it waits for. Gradients wait in a list per node, one place per output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Any

from tensorsmith.autograd.accumulate import into_leaf
from tensorsmith.autograd.anomaly import check_gradients, report_failure
from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.hooks import call_node_hooks, call_tensor_hooks, run_tensor_hooks
from tensorsmith.autograd.node import AccumulateGrad, Node
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

Captures = dict[Node, list[tuple[int, int]]]  # node -> [(number of its output, place in the results)]


class BackwardCall:
    """One call of the engine, for hooks that want to know what it reaches."""

    __slots__ = ("roots", "needed")

    def __init__(self, roots: list[Node], needed: Collection[Node] | None) -> None:
        self.roots = roots
        self.needed = needed  # nodes that run or whose gradients are wanted; None for all that the roots lead to

    def reached(self) -> Collection[Node]:
        """The nodes that get a gradient."""
        if self.needed is None:
            seen = set(self.roots)
            stack = list(seen)
            while stack:
                for edge in stack.pop().edges:
                    if edge is not None and edge[0] not in seen:
                        seen.add(edge[0])
                        stack.append(edge[0])
            self.needed = seen
        return self.needed


def run(roots: Sequence[tuple[Node, int, Tensor]], keep_graph: bool, create_graph: bool) -> None:
    """Send each root's gradient back to every leaf it reaches.

    roots: (node, number of its output, gradient). keep_graph: saved values stay. create_graph: record the backward.
    """
    if modes.tracer is not None:
        modes.tracer.note_backward()
    heap: list[tuple[int, Node]] = []
    waiting: dict[Node, list[Tensor | None]] = {}
    for target, number, seed in roots:
        _deliver(target, number, seed, heap, waiting)
    before_call = modes.backwards
    modes.backwards = (*before_call, BackwardCall([root[0] for root in roots], None))
    roots = seed = ()  # type: ignore[assignment]
    grad_mode, modes.grad = modes.grad, create_graph
    anomaly = modes.anomaly
    node: Node | None = None
    grad: Tensor | None
    try:
        while heap:
            node = heappop(heap)[1]
            grads = waiting.pop(node)
            if node.attached is not None or anomaly or grads[0] is None:
                outputs = _apply_carefully(node, grads, anomaly, keep_graph)
            else:
                outputs = node.apply(grads)
                if not keep_graph:
                    node.release()
            for edge, grad in zip(node.edges, outputs):
                if edge is None:
                    continue
                target, number = edge
                # `_deliver`, written out: this is the engine's inner loop
                buffer = waiting.get(target)
                if buffer is None:
                    if target.output_count == 1:
                        waiting[target] = [grad]
                    else:
                        waiting[target] = buffer = [None] * target.output_count
                        buffer[number] = grad
                    heappush(heap, (-target.sequence, target))
                elif grad is not None:
                    before = buffer[number]
                    buffer[number] = grad if before is None else arithmetic.add(before, grad)
            # What the next node is given must be referred to by its list alone: `into_leaf` counts references.
            outputs = grad = grads = buffer = before = None  # type: ignore[assignment]
    except Exception as error:
        if anomaly and node is not None:
            report_failure(node, error)
        raise
    finally:
        modes.grad = grad_mode
        modes.backwards = before_call


def run_towards(
    roots: Sequence[tuple[Node, int, Tensor]], keep_graph: bool, create_graph: bool, needed: Collection[Node],
    captures: Captures, results: list[Tensor | None],
) -> None:  # fmt: skip
    """As `run`, but only nodes in `needed` run; gradients that reach `captures` are put into `results`."""
    heap: list[tuple[int, Node]] = []
    waiting: dict[Node, list[Tensor | None]] = {}
    for target, number, seed in roots:
        if target in needed or target in captures:
            _deliver(target, number, seed, heap, waiting)
    before_call = modes.backwards
    modes.backwards = (*before_call, BackwardCall([], {*needed, *captures}))
    roots = seed = ()  # type: ignore[assignment]
    grad: Tensor | None
    grad_mode, modes.grad = modes.grad, create_graph
    anomaly = modes.anomaly
    try:
        while heap:
            node = heappop(heap)[1]
            grads = waiting.pop(node)
            places = captures.get(node)
            if places is not None:
                _run_tensor_hooks(node, grads)
                for number, place in places:
                    results[place] = grads[number]
            if node not in needed:
                continue
            try:
                outputs = _apply_carefully(node, grads, anomaly, keep_graph, hooks_ran=places is not None)
            except Exception as error:
                if anomaly:
                    report_failure(node, error)
                raise
            for edge, grad in zip(node.edges, outputs):
                if edge is not None and (edge[0] in needed or edge[0] in captures):
                    _deliver(edge[0], edge[1], grad, heap, waiting)
            outputs = grad = grads = None  # type: ignore[assignment]
    finally:
        modes.grad = grad_mode
        modes.backwards = before_call


def _deliver(
    target: Node, number: int, grad: Tensor | None, heap: list[tuple[int, Node]],
    waiting: dict[Node, list[Tensor | None]],
) -> None:  # fmt: skip
    """Put a gradient where its node will find it, added to what waits there."""
    buffer = waiting.get(target)
    if buffer is None:
        waiting[target] = buffer = [None] * target.output_count
        heappush(heap, (-target.sequence, target))
    if grad is not None:
        before = buffer[number]
        buffer[number] = grad if before is None else arithmetic.add(before, grad)


def _apply_carefully(
    node: Node, grads: list[Tensor | None], anomaly: bool, keep_graph: bool, hooks_ran: bool = False
) -> Sequence[Tensor | None]:
    """Run one node with its hooks, with the NaN check of anomaly mode, and where gradients are missing."""
    attached = node.attached
    if not hooks_ran:
        _run_tensor_hooks(node, grads)
    if attached is not None and attached.pre_hooks:
        grads[:] = call_node_hooks(attached.pre_hooks, tuple(grads), None)
    outputs: Sequence[Any] = ()
    if isinstance(node, AccumulateGrad):
        into_leaf(node.variable, grads, hooks_ran=True)
    elif node.accepts_missing or any([g is not None for g in grads]):
        outputs = node.apply(grads)
    else:
        outputs = (None,) * len(node.edges)
    if anomaly:
        check_gradients(node, outputs)
    if attached is not None and attached.hooks:
        outputs = call_node_hooks(attached.hooks, tuple(outputs), tuple(grads))
    if not keep_graph:
        node.release()
    return outputs


def _run_tensor_hooks(node: Node, grads: list[Tensor | None]) -> None:
    """Hooks of the tensors that a node made; of the leaf, for the node that accumulates into one."""
    if isinstance(node, AccumulateGrad):
        state = node.variable.state
        if state is not None and state.hooks:
            grads[0] = call_tensor_hooks(state.hooks, grads[0])
    elif node.attached is not None:
        run_tensor_hooks(node.attached, grads)


def nodes_towards(roots: Sequence[Node], targets: Collection[Node]) -> set[Node]:
    """The nodes with a path to a target, among those reachable from the roots; a target only if it leads to another.

    Nodes older than every target cannot lead to one and are not visited.
    """
    oldest = min(node.sequence for node in targets)
    seen = set(roots)
    stack = list(seen)
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and edge[0] not in seen and edge[0].sequence >= oldest:
                seen.add(edge[0])
                stack.append(edge[0])
    leading: set[Node] = set()
    for node in sorted(seen, key=lambda node: node.sequence):
        for edge in node.edges:
            if edge is not None and (edge[0] in leading or edge[0] in targets):
                leading.add(node)
                break
    return leading

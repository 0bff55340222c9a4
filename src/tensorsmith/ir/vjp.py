"""Reverse-mode differentiation as a graph transformation: `vjp(graph, needs)` is again a graph.

The backward graph takes what must be kept from the forward run, then the gradients of the outputs, and returns the
gradients of the inputs. It can be differentiated again by the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorsmith.ir.build import broadcast_to, cast, full, sum_to
from tensorsmith.ir.contributions import total_of
from tensorsmith.ir.gradients import RULES
from tensorsmith.ir.graph import Graph, Node, Primitive, replay

Override = Callable[[list[Node], list[Node], list[Node]], Sequence[Node | None]]


@dataclass(frozen=True)
class Saved:
    """A value the backward graph takes from the forward run: which of its inputs or outputs."""

    kind: Literal["input", "output"]
    number: int


@dataclass(frozen=True)
class BackwardGraph:
    """The gradient of a graph.

    graph: its inputs are the saved values, in the order of `saved` (run-time scalars stay run-time scalars), then
        the gradients of the outputs numbered in `grad_outputs`.
    results: for every input of the forward graph the number of its gradient in `graph.outputs`; None where it has no
        gradient (not asked for, neither real nor complex, or no output depends on it). Inputs with the same gradient share
        a number, and an output of the backward graph may be one of its inputs.
    """

    graph: Graph
    saved: tuple[Saved, ...]
    grad_outputs: tuple[int, ...]
    results: tuple[int | None, ...]


def vjp(
    graph: Graph, needs: tuple[bool, ...], grads: tuple[bool, ...] | None = None, override: Override | None = None
) -> BackwardGraph:
    """The graph of the vector-Jacobian product: gradients of the outputs in, gradients of the inputs out.

    needs: which inputs want a gradient. grads: which outputs have one (all by default); integer outputs never do.
    override(inputs, outputs, grads): the operator's own rule in place of the derived one, on nodes that stand for the
        values of the forward run; returns a gradient or None per input. An output without a gradient is given zeros.
    Only what the gradients depend on is saved: an output of the forward graph where a rule refers to it, else inputs,
    from which other values are computed again. A gradient has the shape and dtype of its input.
    The gradient of a complex value z = x + iy is dL/dx + i dL/dy, PyTorch's convention; that of a real value from which
    complex ones are made is real.
    Raises NotImplementedError for library routines without a rule.
    """
    active = _active(graph, needs)
    work = Graph()
    inputs = [work.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs]
    kept: dict[Node, int] = {}  # outputs that can be saved; a graph's input or constant needs no saving as an output
    for number, node in enumerate(graph.outputs):
        if node.inputs:
            kept.setdefault(node, number)
    values = {node: work.input(node.shape, node.dtype) for node in kept}
    saved_as = {node: Saved("input", number) for number, node in enumerate(inputs)}
    saved_as |= {values[node]: Saved("output", number) for node, number in kept.items()}
    values |= dict(zip(graph.inputs, inputs))
    see_through_views(kept, values)
    for node in graph.live_nodes():
        if node not in values:
            values[node] = replay(work, node, [values[operand] for operand in node.inputs])

    # An operator's own rule may give a gradient where the graph carries none (a count as the limit of a norm).
    given = [
        i
        for i, node in enumerate(graph.outputs)
        if (node in active or (override is not None and node.dtype.kind in "fc")) and (grads is None or grads[i])
    ]
    grad_inputs = {i: work.input(graph.outputs[i].shape, graph.outputs[i].dtype) for i in given}
    gradients: dict[Node, Node] = {}
    if override is None:
        gradients = _pull_back(graph, active, values, grad_inputs)
    elif given:
        outputs = [values[node] for node in graph.outputs]
        every = [grad_inputs[i] if i in grad_inputs else full(work, y.shape, 0, y.dtype) for i, y in enumerate(outputs)]
        for node, part in zip(graph.inputs, override(inputs, outputs, every), strict=True):
            if part is not None and node in active:
                gradients[node] = fit(part, node)

    if given and override is None:  # a function that is flat everywhere has a gradient: zero
        reached = {graph.outputs[i] for i in given}
        for node in reversed(graph.live_nodes()):
            if node in reached:
                reached.update(node.inputs)
        for node in graph.inputs:
            if node in active and node in reached and node not in gradients:
                gradients[node] = full(work, node.shape, 0, node.dtype)

    distinct: dict[Node, int] = {}
    found = [gradients.get(node) for node in graph.inputs]
    results = tuple(None if g is None else distinct.setdefault(g, len(distinct)) for g in found)
    work.outputs = tuple(distinct)
    backward, used = cut(work, [*saved_as, *grad_inputs.values()])
    saved = tuple(saved_as[node] for node in used if node in saved_as)
    grad_outputs = tuple(i for i, node in grad_inputs.items() if node in used)
    return BackwardGraph(backward, saved, grad_outputs, results)


def _active(graph: Graph, needs: Sequence[bool]) -> set[Node]:
    """The floating-point and complex values that depend, through such values, on an input of `needs`."""
    active: set[Node] = set()
    for node in dict.fromkeys(
        (*graph.inputs, *graph.live_nodes())
    ):  # an input that nothing reads may have a gradient too
        if node.op is Primitive.INPUT:
            depends = bool(needs[node.attrs["number"]])
        else:
            depends = any(operand in active for operand in node.inputs)
        if depends and node.dtype.kind in "fc":
            active.add(node)
    return active


def see_through_views(kept: Iterable[Node], values: dict[Node, Node]) -> None:
    """Where an output is a reshaped or permuted value, that value is the output seen through the inverse view.

    So a maximum whose reduced axis was dropped is saved, as the one that keeps it is.
    """
    for node in kept:
        while node.op in (Primitive.RESHAPE, Primitive.PERMUTE) and node.inputs[0] not in values:
            (inverse,) = RULES[node.op](node, node, values[node])
            assert inverse is not None
            node = node.inputs[0]
            values[node] = inverse


def _pull_back(
    graph: Graph, active: set[Node], values: dict[Node, Node], grad_inputs: dict[int, Node]
) -> dict[Node, Node]:
    """Apply the rules from the outputs to the inputs; contributions to one value are added in a fixed order."""
    contributions: dict[Node, list[Node]] = {}

    def contribute(node: Node, part: Node) -> None:
        contributions.setdefault(node, []).append(fit(part, node))

    for number, grad in grad_inputs.items():
        contribute(graph.outputs[number], grad)
    for node in reversed(graph.live_nodes()):
        if node.op is Primitive.INPUT or node not in contributions:
            continue
        grad = total_of(contributions.pop(node))
        seen = replay(grad.graph, node, [values[operand] for operand in node.inputs])
        parts = RULES[node.op](seen, values[node], grad)
        for operand, part in zip(node.inputs, parts, strict=True):
            if part is not None and operand in active:
                contribute(operand, part)
    return {node: total_of(parts) for node, parts in contributions.items()}


def fit(grad: Node, value: Node) -> Node:
    """The gradient in the shape and dtype of the value: summed over axes along which the value was repeated."""
    if grad.shape != value.shape:
        grad = sum_to(grad, value.shape) if grad.ndim >= value.ndim else broadcast_to(grad, value.shape)
    return cast(grad, value.dtype)


def cut(work: Graph, inputs: Iterable[Node]) -> tuple[Graph, dict[Node, Node]]:
    """The graph of what the outputs depend on; its inputs are those of `inputs` that are used, in this order.

    Also the map from the inputs kept to the new ones.
    """
    live = work.live_nodes()
    living = set(live)
    used = [node for node in inputs if node in living]
    result = Graph()
    arguments = {node: result.input(node.shape, node.dtype, node.attrs["param"]) for node in used}
    copies = dict(arguments)
    for node in live:
        if node not in copies:
            copies[node] = replay(result, node, [copies[operand] for operand in node.inputs])
    result.outputs = tuple(copies[node] for node in work.outputs)
    return result, arguments

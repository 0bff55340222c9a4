"""The gradient of a traced function, as autograd has it: traced too, right after the function.

The graph alone does not say where gradients stop (`detach()`, `no_grad`) or follow a rule of the user's (`autograd.Function`).
So the backward of the results runs once while everything is still recorded, with gradients of the results that are inputs of
the graph. What it computes is the function's gradient rule. Values of the forward run that it refers to are saved by that run
(`saved.py` says which), or computed again from what is saved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorsmith.autograd.backward import grad
from tensorsmith.compile.saved import values_to_save
from tensorsmith.compile.tracer import Source, TracedStorage, Tracer
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph, Node, Primitive, copy_into
from tensorsmith.tensor.tensor import Tensor


@dataclass
class TracedGradient:
    """graph: inputs are those of the function, then the gradients of `outputs`; its outputs are the function's outputs, and
    then the gradients of the inputs `of`.

    values: what the forward run saves beside its results, as nodes of the traced function; `saved` are the same in `graph`
    replaced: whether some of that is the old value of an input that the function writes over, so that without what was saved
        there is no gradient
    """

    graph: Graph
    count: int  # of the function's outputs
    outputs: tuple[int, ...]
    of: tuple[int, ...]
    values: tuple[Node, ...] = ()
    saved: tuple[Node, ...] = ()
    replaced: bool = False

    def from_inputs(self) -> TracedGradient:
        """The same rule for a run that saves nothing beside its results."""
        return replace(self, saved=())

    def __call__(self, inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node | None]:
        """The gradients of all inputs, on nodes that stand for the forward run, whose last outputs are what it saved."""
        known = {node: outputs[k] for k, node in enumerate(self.graph.outputs[: self.count]) if node.inputs}
        known.update(zip(self.saved, outputs[len(outputs) - len(self.saved) :]))
        arguments = [*inputs, *(grads[k] for k in self.outputs)]
        mapping = copy_into(inputs[0].graph, self.graph, arguments, known.get)
        found: list[Node | None] = [None] * len(inputs)
        for number, node in zip(self.of, self.graph.outputs[self.count :]):
            found[number] = mapping[node]
        return found


def traced_gradient(
    tracer: Tracer, results: Mapping[int, Tensor], stand_ins: Sequence[Tensor], replaced: Collection[int] = ()
) -> TracedGradient | None:
    """The gradient of the tracked results, by their output numbers, with respect to the tracked inputs.

    replaced: the numbers of inputs that the function writes over
    """
    graph, nodes, inputs = tracer.graph, len(tracer.graph.nodes), len(tracer.graph.inputs)
    by_node = {id(graph.inputs[k]): k for k in range(inputs)}
    leaves: dict[int, Tensor] = {}
    for number, source in enumerate(tracer.sources):
        if source.tensor is not None and source.tracked:
            leaves[number] = source.tensor
    for stand_in in stand_ins:
        if isinstance(stand_in.storage, TracedStorage) and stand_in.layout.tracked:
            leaves.setdefault(by_node[id(tracer.current(stand_in).node)], stand_in)
    for number, leaf in leaves.items():
        if tracer.current(leaf).writes:
            raise NotImplementedError(
                f"compile: the function writes over a tensor that is tracked by autograd (input {number}, shape "
                f"{tuple(leaf.layout.shape)}) and returns what depends on it; write over a copy, or call backward() inside"
            )
    asked = [leaf for leaf in leaves.values() if leaf.layout.tracked]
    if not asked:
        return None
    given = []
    for tensor in results.values():
        node = graph.input(tensor.layout.shape, tensor.layout.dtype)
        seen = Strided(tensor.layout.shape, contiguous_strides(tensor.layout.shape))
        tracer.sources.append(Source())
        given.append(tracer.tensor(node, node, seen, None))
    hooks = [(leaf.state, leaf.state.hooks) for leaf in asked if leaf.state is not None]
    stops = tracer.stops
    for state, _ in hooks:  # they run when the gradient arrives, at every run
        state.hooks = None
    try:
        found = grad(list(results.values()), asked, given, allow_unused=True)
    finally:
        tracer.stops = stops  # the backward itself records nothing
        for state, before in hooks:
            state.hooks = before
    if len(tracer.sources) > inputs + len(given):
        raise NotImplementedError(
            "compile: the backward of the function reads a tensor, or draws random numbers, that its forward does not; call "
            "backward() inside the compiled function"
        )
    joint = graph.empty()
    arguments = [joint.input(n.shape, n.dtype, n.attrs["param"]) for n in graph.inputs]
    of = tuple(number for (number, _), gradient in zip(leaves.items(), found) if gradient is not None)
    outputs = graph.outputs
    gradients = tuple(tracer.value(gradient) for gradient in found if gradient is not None)
    graph.outputs = (*outputs, *gradients)
    mapping = copy_into(joint, graph, arguments)
    joint.outputs = tuple(mapping[node] for node in graph.outputs)
    graph.outputs = outputs
    values = values_to_save(graph, nodes, gradients, [graph.inputs[k] for k in replaced])
    old = any(node.op is Primitive.INPUT for node in values)
    del tracer.sources[inputs:]
    graph.cut_back(nodes, inputs)
    return TracedGradient(joint, len(outputs), tuple(results), of, values, tuple(mapping[v] for v in values), old)

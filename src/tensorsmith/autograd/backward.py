"""`backward` and `grad`: what users call to run the engine, with PyTorch's checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorsmith.autograd import engine
from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.node import Node, gradient_edge
from tensorsmith.autograd.transforms import transforms
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class GradientEdge(NamedTuple):
    """A place in the graph that a gradient flows to, without the tensor: usable as an output or input of `grad`."""

    node: Node
    output_nr: int


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge to which the gradient of a tensor flows. ValueError where it needs none."""
    edge = gradient_edge(tensor)
    if edge is None:
        raise RuntimeError("It is not possible to get the gradient edge for a Tensor that does not require gradients")
    return GradientEdge(*edge)


Target = Tensor | GradientEdge


def backward(
    tensors: Target | Sequence[Target], grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None, create_graph: bool = False, inputs: Target | Sequence[Target] | None = None,
) -> None:  # fmt: skip
    """Sum of the gradients of `tensors` with respect to the leaves, added into their `grad`.

    grad_tensors: the vectors of the vector-Jacobian products; a scalar needs none.
    retain_graph: keep what nodes saved, so that the graph can be walked again (default: the value of create_graph).
    create_graph: record the backward itself, for derivatives of derivatives.
    inputs: accumulate into these only.
    Raises RuntimeError as PyTorch does: a non-scalar without a gradient, shapes that differ, no graph, a freed graph.
    """
    if isinstance(tensors, Tensor) and inputs is None and grad_tensors is None:  # the usual call
        roots = [_implicit_root(tensors, 0)]
        engine.run(roots, create_graph if retain_graph is None else retain_graph, create_graph)
        return
    if inputs is not None and not isinstance(inputs, Tensor | GradientEdge) and len(inputs) == 0:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    roots = _roots(_sequence(tensors), _grad_sequence(grad_tensors, tensors))
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        engine.run(roots, keep, create_graph)
        return
    targets = set()
    for tensor in _sequence(inputs):
        if isinstance(tensor, Tensor) and tensor.layout.tracked and tensor.node is not None:
            tensor.retain_grad()
        targets.add(_input_edge(tensor)[0])
    needed = engine.nodes_towards([node for node, _, _ in roots], targets) | targets
    engine.run_towards(roots, keep, create_graph, needed, {}, [])


def grad(
    outputs: Target | Sequence[Target], inputs: Target | Sequence[Target],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None, retain_graph: bool | None = None,
    create_graph: bool = False, only_inputs: bool = True, allow_unused: bool | None = None,
    is_grads_batched: bool = False, materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Sum of the gradients of `outputs` with respect to each of `inputs`; no `grad` is touched.

    Arguments as `backward`'s. An input that the outputs do not depend on is an error, unless allow_unused (None for it)
    or materialize_grads (zeros for it). is_grads_batched: each of grad_outputs has one more first axis, of many vectors for one
    backward, and so have the results.
    """
    if not only_inputs:
        raise NotImplementedError("grad: only_inputs=False (use backward to accumulate into leaves)")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    wanted = _sequence(inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    if is_grads_batched:
        keywords = dict(retain_graph=retain_graph, create_graph=create_graph, allow_unused=allow_unused,
                        materialize_grads=materialize_grads)  # fmt: skip
        return _batched_grad(_sequence(outputs), wanted, _grad_sequence(grad_outputs, outputs), keywords)
    roots = _roots(_sequence(outputs), _grad_sequence(grad_outputs, outputs))
    captures: engine.Captures = {}
    for place, tensor in enumerate(wanted):
        node, number = _input_edge(tensor)
        captures.setdefault(node, []).append((number, place))
    needed = engine.nodes_towards([node for node, _, _ in roots], captures)
    results: list[Tensor | None] = [None] * len(wanted)
    engine.run_towards(
        roots, create_graph if retain_graph is None else retain_graph, create_graph, needed, captures, results
    )
    for place, found in enumerate(results):
        if found is not None:
            if not create_graph and found.layout.tracked:
                results[place] = found.detach()
            continue
        tensor = wanted[place]
        if materialize_grads and isinstance(tensor, Tensor):
            results[place] = arithmetic.zeros(tensor.layout.with_tracking(False))
        elif not (allow_unused or materialize_grads):
            raise RuntimeError(
                f"The differentiated Tensor at index {place} appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(results)


def _batched_grad(
    outputs: Sequence[Target], inputs: Sequence[Target], seeds: Sequence[Tensor | None], keywords: dict[str, Any]
) -> tuple[Tensor | None, ...]:
    """`grad` for many seeds at once, which stand along the first axis of each of `seeds`."""
    missing: list[bool] = []

    def one(*rows: Tensor) -> tuple[Tensor, ...]:
        rest = iter(rows)
        found = grad(outputs, inputs, [None if seed is None else next(rest) for seed in seeds], **keywords)
        missing[:] = [g is None for g in found]
        return tuple([g for g in found if g is not None])

    given = iter(transforms.vmap(one)(*[seed for seed in seeds if seed is not None]))
    return tuple([None if none else next(given) for none in missing])


def _sequence(tensors: Any) -> tuple:
    """One tensor or several, as a tuple."""
    return (tensors,) if isinstance(tensors, Tensor | GradientEdge) else tuple(tensors)


def _grad_sequence(grads: Any, tensors: Any) -> tuple:
    """The given gradients, None where there is none, as many as tensors."""
    count = len(_sequence(tensors))
    if grads is None:
        return (None,) * count
    found = (grads,) if isinstance(grads, Tensor) else tuple(grads)
    if len(found) < count and not isinstance(tensors, Tensor | GradientEdge):
        raise RuntimeError(f"got {count} tensors and {len(found)} gradients")
    return found


def _roots(outputs: Sequence[Target], grads: Sequence[Tensor | None]) -> list[tuple[Node, int, Tensor]]:
    """(node, output number, gradient) for every output."""
    return [
        _implicit_root(output, i) if grad is None else _given_root(output, grad, i)
        for i, (output, grad) in enumerate(zip(outputs, grads))
    ]


def _implicit_root(output: Target, number: int) -> tuple[Node, int, Tensor]:
    """A root with gradient one, for a scalar."""
    if not isinstance(output, Tensor):
        if isinstance(output, GradientEdge):
            raise RuntimeError("grad can be implicitly created only for scalar outputs, not for a GradientEdge")
        raise TypeError(f"backward: outputs are tensors, got {type(output).__name__}")
    layout = output.layout
    if layout.tracked and layout.numel != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    edge = gradient_edge(output)
    if edge is None:
        raise RuntimeError(f"element {number} of tensors does not require grad and does not have a grad_fn")
    if not layout.dtype.is_floating_point:
        raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {layout.dtype}")
    mode, modes.grad = modes.grad, False
    try:
        return *edge, arithmetic.ones_like(output)
    finally:
        modes.grad = mode


def _given_root(output: Target, grad: Tensor, number: int) -> tuple[Node, int, Tensor]:
    """A root with the caller's gradient, which is checked."""
    if not isinstance(grad, Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(grad).__name__}")
    if isinstance(output, GradientEdge):
        return output.node, output.output_nr, grad
    if grad.layout.shape != output.layout.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{number}] has a shape of {grad.shape} and output[{number}] has a shape of "
            f"{output.shape}."
        )
    edge = gradient_edge(output)
    if edge is None:
        raise RuntimeError(f"element {number} of tensors does not require grad and does not have a grad_fn")
    if grad.layout.dtype is not output.layout.dtype:
        grad = arithmetic.cast(grad, output.layout.dtype)
    return *edge, grad


def _input_edge(tensor: Target) -> tuple[Node, int]:
    """Where the gradient of an input arrives."""
    if isinstance(tensor, GradientEdge):
        return tensor
    edge = gradient_edge(tensor)
    if edge is None:
        if not tensor.layout.tracked:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
        return Node(), 0  # a view made under no_grad: no gradient reaches it
    return edge


__all__ = ["GradientEdge", "backward", "get_gradient_edge", "grad"]

"""`ts.cond` and `ts.while_loop`: decisions and loops on values of tensors, which a compiled function keeps as such.

Names, arguments and what is refused are those of `torch.cond` and of the operator `while_loop`. Called eagerly they are an
`if` and a `while`. In a compiled function every branch is traced to a graph of its own, and only what is chosen runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.compile.nest import flatten, hashable, unflatten
from tensorsmith.compile.tracer import Source, TraceError, Tracer
from tensorsmith.core.dtypes import bool_
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import Kind, Operation, Program
from tensorsmith.ir import control as nodes
from tensorsmith.ir.graph import Graph, Node, copy_into
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def cond(pred: bool | Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple | list = ()) -> Any:
    """true_fn(*operands) if pred else false_fn(*operands).

    pred:     a bool, or a tensor of one element
    operands: tuple or list (nested ones, dicts too) of tensors; what the branches use beside them is captured
    Both branches return tensors of equal number, shapes and dtypes, and write over nothing but what they made. Gradients flow
    through the branch that is taken.
    Raises RuntimeError for a pred of several elements and for branches that differ; in a compiled function NotImplementedError
    for random numbers, optimisers and `backward()` into leaves inside of a branch.

    >>> ts.cond(x.sum() > 0, lambda x: x.sqrt(), lambda x: -x, (x,))
    """
    if not isinstance(pred, bool | Tensor):
        raise RuntimeError(f"cond: expected pred to be bool or tensor, but got {type(pred).__name__}")
    if isinstance(pred, Tensor) and pred.layout.numel != 1:
        raise RuntimeError(f"cond: expected pred to be bool or single-element tensor, but got shape {tuple(pred.layout.shape)}")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("cond: expected both branches to be callable")
    if not isinstance(operands, tuple | list):
        raise RuntimeError(f"cond: expected operands to be a tuple or list of tensors, but got {type(operands).__name__}")
    if isinstance(pred, bool):
        return (true_fn if pred else false_fn)(*operands)
    tracer = _compiling("cond", pred)
    if tracer is None:
        return (true_fn if bool(pred) else false_fn)(*operands)
    branches = [_Branch(tracer, "cond", f, tuple(operands)) for f in (true_fn, false_fn)]
    _check_alike("cond: true_fn and false_fn return", *branches)
    captured = _captured(branches)
    then, other = (branch.closed(captured) for branch in branches)
    arguments = [pred, *branches[0].tensors, *captured]

    def build(graph: Graph, inputs: list[Node]) -> list[Node]:
        return nodes.cond(inputs[0], inputs[1:], then, other)

    results = _call(tracer, "cond", build, arguments) if then.outputs else []
    return unflatten(branches[0].nest, results)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: tuple | list,
    additional_inputs: tuple | list = (),
) -> tuple:  # fmt: skip
    """`while cond_fn(*carried): carried = body_fn(*carried)`; the carried tensors when it ends, as a tuple.

    cond_fn:           gives a bool, or a bool tensor of one element
    body_fn:           gives tensors of the shapes and dtypes of the carried ones
    additional_inputs: further arguments of both, which stay as they are
    Raises RuntimeError where the carried tensors change shape or dtype; in a compiled function NotImplementedError for
    second derivatives through the loop. Its gradient computes the values of all rounds again, and keeps them meanwhile.

    >>> ts.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (ts.tensor(0), x))
    """
    for name, given in (("carried_inputs", carried_inputs), ("additional_inputs", additional_inputs)):
        if not isinstance(given, tuple | list) or not all(isinstance(x, Tensor) for x in given):
            raise RuntimeError(f"while_loop: expected {name} to be a tuple or list of tensors, but got {given!r}")
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("while_loop: expected cond_fn and body_fn to be callable")
    if not carried_inputs:
        raise RuntimeError("while_loop: there is nothing to carry")
    tracer = _compiling("while_loop", *carried_inputs)
    carried, rest = tuple(carried_inputs), tuple(additional_inputs)
    if tracer is None:
        return _loop(cond_fn, body_fn, carried, rest)
    condition = _Branch(tracer, "while_loop", cond_fn, (*carried, *rest))
    body = _Branch(tracer, "while_loop", body_fn, (*carried, *rest))
    shape = [node.shape for node in condition.outputs]
    if not isinstance(condition.nest, int) or len(shape) != 1 or condition.outputs[0].numel != 1:
        raise RuntimeError("while_loop: cond_fn is to return one bool tensor of one element, of the carried tensors")
    if condition.outputs[0].dtype is not bool_:
        raise RuntimeError(f"while_loop: cond_fn is to return a bool tensor, but returns {condition.outputs[0].dtype.name}")
    before = [(t.layout.shape, t.layout.dtype.name) for t in carried]
    _check_carried(before, [(node.shape, node.dtype.name) for node in body.outputs])
    captured = _captured([condition, body])
    asks, advances = condition.closed(captured), body.closed(captured)
    arguments = [*carried, *rest, *captured]

    def build(graph: Graph, inputs: list[Node]) -> list[Node]:
        return nodes.while_loop(inputs[: len(carried)], inputs[len(carried) :], asks, advances)

    return tuple(_call(tracer, "while_loop", build, arguments))


def _loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: tuple, rest: tuple) -> tuple:
    before = [(t.layout.shape, t.layout.dtype.name) for t in carried]
    while True:
        go_on = cond_fn(*carried, *rest)
        if isinstance(go_on, Tensor) and (go_on.layout.numel != 1 or go_on.layout.dtype is not bool_):
            raise RuntimeError(
                f"while_loop: cond_fn is to return a bool tensor of one element, but returns {go_on.layout.dtype.name}"
                f"{list(go_on.layout.shape)}"
            )
        if not isinstance(go_on, bool | Tensor):
            raise RuntimeError(f"while_loop: cond_fn is to return a bool or a bool tensor, but returns {type(go_on).__name__}")
        if not go_on:
            return carried
        found = body_fn(*carried, *rest)
        found = tuple(found) if isinstance(found, tuple | list) else (found,)
        if not all(isinstance(t, Tensor) for t in found):
            raise RuntimeError("while_loop: body_fn is to return tensors")
        _check_carried(before, [(t.layout.shape, t.layout.dtype.name) for t in found])
        carried = found


def _check_carried(before: list, after: list) -> None:
    if before != after:
        raise RuntimeError(
            f"while_loop: body_fn is to return tensors like the carried ones, {_kinds(before)}, but returns {_kinds(after)}"
        )


def _kinds(kinds: Sequence[tuple]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds) or "nothing"


def _compiling(name: str, *tensors: Tensor) -> Tracer | None:
    """The tracer of the compiled function that is traced; None where it runs eagerly."""
    if modes.tracer is None or isinstance(modes.tracer, Tracer):
        return modes.tracer
    if any(t.layout.level is not None for t in tensors):
        raise NotImplementedError(f"{name}: a decision on values inside of a function transform (vmap, grad); use where()")
    return None


class _Branch:
    """A function traced by itself: its graph over the operands and what it captured."""

    def __init__(self, outer: Tracer, name: str, function: Callable[..., Any], operands: tuple) -> None:
        self.tensors, nest = flatten(operands)
        inner = Tracer(outer.graph.empty(), lines=None)
        inner.guards, inner.reach, inner.device = outer.guards, outer.reach, outer.device
        stand_ins: list[Tensor] = []
        for tensor in self.tensors:
            layout = tensor.layout
            inner.on(layout.device)
            node = inner.graph.input(layout.shape, layout.dtype)
            stand_in = inner.tensor(node, node, Strided(layout.shape, layout.strides), None)
            inner.sources.append(Source(argument=len(stand_ins), layout=layout.with_tracking(False)))
            stand_ins.append(stand_in)
        modes.tracer = inner
        try:
            found, self.nest = flatten(function(*unflatten(nest, stand_ins)), "result")
            self.outputs = [inner.value(t) for t in found]
            changed = [leaf for leaf, before in inner.captured if leaf.state is not None and leaf.state.grad is not before]
        finally:
            inner.undo()
            modes.tracer = outer
        own = {id(t.storage) for t in stand_ins}
        if any(c.writes and (c.owner is not None or id(c.storage) in own) for c in inner.storages.values()):
            raise TraceError(f"{name}: a branch writes over an operand or a captured tensor; return the new value instead")
        given = [t for t in stand_ins if t.state is not None and t.state.grad is not None]
        if changed or given or inner.events or inner.optimizers:
            raise NotImplementedError(
                f"{name}: random numbers, optimisers, schedules and backward() into leaves inside of a branch of a compiled "
                "function"
            )
        outer.device = inner.device
        outer.stops = outer.stops or inner.stops
        self.graph, self.sources = inner.graph, inner.sources
        self.captured = [s.tensor for s in inner.sources if s.tensor is not None]

    def closed(self, captured: Sequence[Tensor]) -> Graph:
        """The graph whose inputs are the operands and then all captured tensors."""
        graph = self.graph.empty()
        inputs = [graph.input(t.layout.shape, t.layout.dtype) for t in (*self.tensors, *captured)]
        place = {id(t): len(self.tensors) + i for i, t in enumerate(captured)}
        arguments = [inputs[s.argument] if s.tensor is None else inputs[place[id(s.tensor)]] for s in self.sources]
        self.graph.outputs = tuple(self.outputs)
        mapping = copy_into(graph, self.graph, arguments)
        graph.outputs = tuple(mapping[node] for node in self.outputs)
        return graph


def _captured(branches: Sequence[_Branch]) -> list[Tensor]:
    """What any of the branches captured, each tensor once."""
    found: dict[int, Tensor] = {}
    for branch in branches:
        for tensor in branch.captured:
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def _check_alike(what: str, a: _Branch, b: _Branch) -> None:
    kinds = [[(node.shape, node.dtype.name) for node in branch.outputs] for branch in (a, b)]
    if kinds[0] != kinds[1]:
        raise RuntimeError(f"{what} tensors of different kinds: {_kinds(kinds[0])} and {_kinds(kinds[1])}")
    if hashable(a.nest) != hashable(b.nest):
        raise RuntimeError(f"{what} different containers or values: {a.nest} and {b.nest}")


class _Control(Operation):
    """One decision or loop as an operation."""

    fresh = True

    def __init__(self, name: str, build: Callable[[Graph, list[Node]], list[Node]]) -> None:
        self.name = name
        self.build = build

    def program(self, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Program:
        graph = Graph()
        inputs = [graph.input(k.shape, k.dtype) for k in kinds]  # type: ignore[union-attr]
        graph.outputs = tuple(self.build(graph, inputs))
        return Program(self, graph, attrs, f"{self.name.title().replace('_', '')}Backward0")


def _call(tracer: Tracer, name: str, build: Callable[[Graph, list[Node]], list[Node]], arguments: list[Tensor]) -> list[Tensor]:
    results = tracer.call(_Control(name, build), arguments, {})
    return list(results) if isinstance(results, tuple) else [results]

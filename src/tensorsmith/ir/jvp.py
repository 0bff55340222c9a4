"""Forward-mode differentiation as a graph transformation: `jvp(graph, has_tangent)` is again a graph.

`RULES[op](node, output, tangents)` gives the tangent of the node's result from those of its inputs (None for an input
without one; some input has one), or None where the result does not move. Rules are made of primitives that have rules
of both directions themselves. What is linear is its own rule: the primitive, applied to the tangents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorsmith.core.dtypes import compute_dtype
from tensorsmith.ir import attention, recurrent
from tensorsmith.ir.build import as_value, broadcast_to, cast, concat, conj, full, map_, pad, reduce, slice_, where, wide
from tensorsmith.ir.gradients import prefix_recurrence, products_of_others, record_holder, zeros
from tensorsmith.ir.graph import Graph, Node, Primitive, copy_into, replay, touches_complex
from tensorsmith.ir.library_gradients import LIBRARY_RULES, WITH_TANGENT, tangent as library_tangent
from tensorsmith.ir.vjp import Override, Saved, cut, fit, see_through_views, vjp
from tensorsmith.scalar.table import TABLE, Fn

Tangents = Sequence[Node | None]
Rule = Callable[[Node, Node, Tangents], Node | None]


@dataclass(frozen=True)
class ForwardGraph:
    """The tangents of a graph's outputs.

    graph: its inputs are the values of `saved`, in this order (run-time scalars stay run-time scalars), then the tangents
        of the inputs numbered in `tangents`.
    results: for every output of the original graph the number of its tangent in `graph.outputs`; None where it has none.
        Outputs with the same tangent share a number, and an output may be one of the graph's inputs.
    """

    graph: Graph
    saved: tuple[Saved, ...]
    tangents: tuple[int, ...]
    results: tuple[int | None, ...]


def jvp(graph: Graph, has_tangent: Sequence[bool], override: Override | None = None, from_outputs: bool = True) -> ForwardGraph:
    """The graph of the Jacobian-vector product: tangents of the inputs in, tangents of the outputs out.

    has_tangent: which inputs have a tangent, of the input's shape and dtype; only floating-point inputs can.
    override: the operator's own gradient rule (as for `vjp`). The tangent is then the transpose of that rule, so that
        both directions agree about ties and limits.
    from_outputs: rules may refer to the results of the run (exp's derivative is its result); otherwise everything is
        computed from the inputs, for a call whose results are not there yet.
    An output that depends on such an input has a tangent (zeros where the function is flat); another has none.
    Raises NotImplementedError for library routines without a rule.
    """
    work = Graph()
    inputs = [work.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs]
    saved_as = {node: Saved("input", number) for number, node in enumerate(inputs)}
    values: dict[Node, Node] = {}
    if from_outputs:
        kept: dict[Node, int] = {}
        for number, node in enumerate(graph.outputs):
            if node.inputs:
                kept.setdefault(node, number)
        values = {node: work.input(node.shape, node.dtype) for node in kept}
        saved_as |= {values[node]: Saved("output", number) for node, number in kept.items()}
    values |= dict(zip(graph.inputs, inputs))
    see_through_views([node for node in values if node.inputs], values)
    for node in graph.live_nodes():
        if node not in values:
            values[node] = replay(work, node, [values[operand] for operand in node.inputs])

    moving = [has_tangent[i] and node.dtype.kind in "fc" for i, node in enumerate(graph.inputs)]
    given = {i: work.input(inputs[i].shape, inputs[i].dtype) for i, moves in enumerate(moving) if moves}
    if override is None or not given:
        tangents = _pushed(graph, values, {graph.inputs[i]: node for i, node in given.items()})
    else:
        tangents = _transposed(graph, values, given, override)
    distinct: dict[Node, int] = {}
    found = [tangents.get(node) for node in graph.outputs]
    results = tuple(None if t is None else distinct.setdefault(t, len(distinct)) for t in found)
    work.outputs = tuple(distinct)
    forward, used = cut(work, [*saved_as, *given.values()])
    saved = tuple(saved_as[node] for node in used if node in saved_as)
    return ForwardGraph(forward, saved, tuple(i for i, node in given.items() if node in used), results)


def _pushed(graph: Graph, values: dict[Node, Node], tangents: dict[Node, Node]) -> dict[Node, Node]:
    """The tangents of all nodes from those of the inputs, by the rules."""
    for node in graph.live_nodes():
        moving = [tangents.get(operand) for operand in node.inputs]
        if node.dtype.kind not in "fc" or all(t is None for t in moving):
            continue
        work = values[node].graph
        seen = replay(work, node, [values[operand] for operand in node.inputs])
        tangent = RULES[node.op](seen, values[node], moving)
        if tangent is None:
            tangent = full(work, (), 0, node.dtype)
        tangents[node] = cast(broadcast_to(tangent, node.shape), node.dtype)
    return tangents


def _transposed(graph: Graph, values: dict[Node, Node], given: dict[int, Node], override: Override) -> dict[Node, Node]:
    """The tangents of the outputs by the operator's own gradient: u -> u^T J is linear, and its transpose is v -> J v."""
    work = next(iter(given.values())).graph
    pull = vjp(graph, tuple(i in given for i in range(len(graph.inputs))), None, override)
    kept = len(pull.saved)
    push = vjp(pull.graph, tuple(k >= kept for k in range(len(pull.graph.inputs))))

    operands: list[Node] = []
    for saved in push.saved:
        if saved.kind == "input" and saved.number < kept:
            which = pull.saved[saved.number]
            operands.append(values[(graph.inputs if which.kind == "input" else graph.outputs)[which.number]])
        else:  # u itself, or u^T J: what is linear may be differentiated at zero
            like = (pull.graph.inputs if saved.kind == "input" else pull.graph.outputs)[saved.number]
            operands.append(full(work, like.shape, 0, like.dtype))
    for number in push.grad_outputs:  # against a gradient stand the tangents of the inputs whose gradient it is
        parts = [given[i] for i, found in enumerate(pull.results) if i in given and found == number]
        operands.append(sum(parts[1:], start=parts[0]))
    mapping = copy_into(work, push.graph, operands)

    tangents: dict[Node, Node] = {}
    for place, number in enumerate(pull.grad_outputs):
        result = push.results[kept + place]
        if result is not None:
            tangents[graph.outputs[number]] = mapping[push.graph.outputs[result]]
    for node in graph.outputs:
        if node.dtype.kind in "fc":
            tangents.setdefault(node, full(work, node.shape, 0, node.dtype))
    return tangents


# ---------------------------------------------------------------------------------------------------------- pointwise


def _map(node: Node, output: Node, tangents: Tangents) -> Node | None:
    """The chain rule: the sum over operands of each partial derivative times the tangent."""
    operands = [as_value(operand) for operand in node.inputs]
    row = TABLE[node.attrs["fn"]]
    if touches_complex(node) and row.complex_rule is not None:
        products = _from_gradients(node, operands, output, tangents)
    else:
        products = row.products(operands, output, list(tangents))
    terms = [t for t in products if t is not None]
    return sum(terms[1:], start=terms[0]) if terms else None


def _from_gradients(node: Node, operands: Sequence[Node], output: Node, tangents: Tangents) -> Tangents:
    """The tangents of functions whose complex gradient is a rule of its own, G(grad), of which they are the transpose.

    A real result moves by Re(conj(G(1)) t). A function with its own derivative f' has G(grad) = conj(f') grad, so that
    f' t = conj(G(conj(t))). The directions are symmetric: their transpose is G itself.
    """
    fn, rule = node.attrs["fn"], TABLE[node.attrs["fn"]].complex_rule
    assert rule is not None
    if not node.dtype.is_complex:
        (slope,) = rule(*operands, output, (full(node.graph, node.shape, 1, node.dtype),))
        return [cast(conj(slope) * _only(tangents), node.dtype)]
    if fn in (Fn.SGN, Fn.CONJ):
        return rule(*operands, output, tuple(tangents))
    found = rule(*operands, output, tuple(None if t is None else conj(t) for t in tangents))
    return [None if t is None else conj(t) for t in found]


def _cast(node: Node, output: Node, tangents: Tangents) -> Node | None:
    return cast(_only(tangents), node.dtype)


# ------------------------------------------------------------------------------------------------- linear primitives


def _itself(node: Node, output: Node, tangents: Tangents) -> Node | None:
    """A linear function of its first input; what else it has (an index) has no tangent."""
    return replay(node.graph, node, [_only(tangents), *node.inputs[1:]])


def _concat(node: Node, output: Node, tangents: Tangents) -> Node | None:
    parts = [zeros(x, x.shape) if t is None else t for x, t in zip(node.inputs, tangents)]
    return concat(parts, node.attrs["axis"])


def _pair(node: Node, output: Node, tangents: Tangents) -> Node | None:
    return replay(node.graph, node, [zeros(x, x.shape) if t is None else t for x, t in zip(node.inputs, tangents)])


def _pad(node: Node, output: Node, tangents: Tangents) -> Node | None:
    """What stands around does not move."""
    return pad(_only(tangents), node.attrs["low"], node.attrs["high"], node.attrs["step"])


def _written(node: Node, output: Node, tangents: Tangents) -> Node | None:
    """A write is linear in what it writes and what it writes over."""
    base, index, src = node.inputs
    over, _, written = tangents
    parts = (zeros(base, base.shape) if over is None else over, index, zeros(src, src.shape) if written is None else written)
    return replay(node.graph, node, parts)


def _bilinear(node: Node, output: Node, tangents: Tangents) -> Node | None:
    (a, b), (da, db) = node.inputs, tangents
    left = replay(node.graph, node, (da, b)) if da is not None else None
    right = replay(node.graph, node, (a, db)) if db is not None else None
    return left + right if left is not None and right is not None else left if right is None else right


# ------------------------------------------------------------------------------------------------ reductions and scans


def _reduce(node: Node, output: Node, tangents: Tangents) -> Node | None:
    x, kind, axis, tangent = node.inputs[0], node.attrs["kind"], node.attrs["axis"], _only(tangents)
    if kind == "sum":
        return _itself(node, output, tangents)
    if x.shape[axis] == 0:
        return None
    if kind == "prod":
        return reduce(tangent * products_of_others(x, axis), "sum", (axis,), keepdim=True)
    if kind in ("max", "min"):  # ties share equally
        chosen = map_(Fn.EQ, x, broadcast_to(output, x.shape))
        count = reduce(cast(chosen, compute_dtype(x.dtype)), "sum", (axis,), keepdim=True)
        return reduce(where(chosen, wide(tangent), 0), "sum", (axis,), keepdim=True) / count
    raise NotImplementedError(f"reduce: the tangent of kind {kind!r}")


def _scan(node: Node, output: Node, tangents: Tangents) -> Node | None:
    x, kind, axis, tangent = node.inputs[0], node.attrs["kind"], node.attrs["axis"], _only(tangents)
    extent = x.shape[axis]
    if kind == "sum":
        return _itself(node, output, tangents)
    if extent == 0:
        return tangent
    if kind in ("max", "min"):  # the tangent of the last position that set or equalled the record so far
        return x.graph.add(Primitive.GATHER, (tangent, record_holder(x, output, axis)), axis=axis)
    earlier = slice_(output, axis, 0, extent - 1)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    one = full(x.graph, shape, 1, x.dtype)
    if kind == "prod":  # dy[j] = y[j-1] dx[j] + x[j] dy[j-1]
        return prefix_recurrence(x, concat([one, earlier], axis) * tangent, axis)
    if kind == "logsumexp":  # dy[j] = exp(x[j] - y[j]) dx[j] + exp(y[j-1] - y[j]) dy[j-1]: every factor is at most 1
        out = where(map_(Fn.EQ, output, -math.inf), 0, output)
        this = slice_(output, axis, 1, extent - 1)
        level = map_(Fn.EQ, this, earlier)  # also where both are infinite and their difference is NaN
        fall = where(level, 0, earlier) - where(level, 0, this)
        return prefix_recurrence(concat([one, map_(Fn.EXP, fall)], axis), map_(Fn.EXP, x - out) * tangent, axis)
    raise NotImplementedError(f"scan: the tangent of kind {kind!r}")


def _library(node: Node, output: Node, tangents: Tangents) -> Node | None:
    name = node.attrs["name"]
    if name in WITH_TANGENT:
        return library_tangent(node, output, tangents)
    if name not in LIBRARY_RULES:
        raise NotImplementedError(f"library routine {name!r} has no tangent rule")
    # The gradient rule as a graph of its own, u -> u^T J, and its transpose.
    rule = Graph()
    xs = [rule.input(x.shape, x.dtype) for x in node.inputs]
    y, u = rule.input(output.shape, output.dtype), rule.input(output.shape, output.dtype)
    parts = LIBRARY_RULES[name](replay(rule, node, xs), y, u)
    moving = [i for i, part in enumerate(parts) if part is not None and tangents[i] is not None]
    if not moving:
        return None
    rule.outputs = tuple([fit(parts[i], xs[i]) for i in moving])  # type: ignore[arg-type]
    push = vjp(rule, tuple(x is u for x in rule.inputs))
    known = [*node.inputs, output, zeros(output, output.shape)]
    operands = [known[s.number] if s.kind == "input" else zeros(node.inputs[moving[s.number]], rule.outputs[s.number].shape)
                for s in push.saved]  # fmt: skip
    operands += [tangents[moving[number]] for number in push.grad_outputs]  # type: ignore[misc]
    result = push.results[-1]
    return None if result is None else copy_into(node.graph, push.graph, operands)[push.graph.outputs[result]]


COMPOSED = {
    Primitive.ATTENTION: attention.composed, Primitive.ATTENTION_GRADIENT: attention.composed,
    Primitive.RECURRENT: recurrent.composed, Primitive.RECURRENT_GRADIENT: recurrent.composed,
}  # fmt: skip


def _composed(node: Node, output: Node, tangents: Tangents) -> Node | None:
    """The tangent of what the primitive stands for: its composition."""
    whole = Graph()
    xs = [whole.input(x.shape, x.dtype) for x in node.inputs]
    whole.outputs = (COMPOSED[node.op](node, xs),)
    push = jvp(whole, [t is not None for t in tangents], from_outputs=False)
    operands = [node.inputs[s.number] for s in push.saved]
    operands += [tangents[number] for number in push.tangents]  # type: ignore[misc]
    (result,) = push.results
    return None if result is None else copy_into(node.graph, push.graph, operands)[push.graph.outputs[result]]


RULES: dict[Primitive, Rule] = {
    Primitive.MAP: _map,
    Primitive.CAST: _cast,
    Primitive.AS_REAL: _itself,
    Primitive.AS_COMPLEX: _itself,
    Primitive.RESHAPE: _itself,
    Primitive.PERMUTE: _itself,
    Primitive.EXPAND: _itself,
    Primitive.SLICE: _itself,
    Primitive.FLIP: _itself,
    Primitive.DIAGONAL: _itself,
    Primitive.UNFOLD: _itself,
    Primitive.AS_STRIDED: _itself,
    Primitive.AGAIN: _itself,
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.PAIR: _pair,
    Primitive.REDUCE: _reduce,
    Primitive.SCAN: _scan,
    Primitive.MATMUL: _bilinear,
    **dict.fromkeys(COMPOSED, _composed),
    Primitive.CONV: _bilinear,
    Primitive.TAKE: _itself,
    Primitive.GATHER: _itself,
    Primitive.SCATTER: _written,
    Primitive.PUT: _written,
    Primitive.LIBRARY: _library,
}


def _only(tangents: Tangents) -> Node:
    """The tangent of the first input, the only one that has any."""
    tangent = tangents[0]
    assert tangent is not None
    return tangent

"""A recurrent layer over a sequence as two primitives: what they mean, and what follows from it.

    RECURRENT(a, h [, c], w [, b])                      h = cell(a[t], h), for every step t
    RECURRENT_GRADIENT(gs, gh [, gc], kept, h [, c], w [, gk])
                                                        the gradient of the first, step by step in the opposite order

a (rows, G H) is W_ih x + b_ih of all steps, packed: the rows of one step after those of another, and of every step the elements
of the batch that still have it, the longest first. `runs` says how many: (steps, elements) for each stretch of equal steps; a
padded batch of T steps is ((T, N),). h and c (N, H) are the first state, w (G H, H) and b (G H) map the state. With
p = W_hh h + b, by `mode`:

    rnn_tanh, rnn_relu   h' = tanh(a + p) or relu(a + p)
    lstm                 i, f, g, o = a + p;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')
    gru                  r, z, n of a and of p:  r, z = sigmoid(a + p);  n = tanh(a_n + r p_n);  h' = n + z (h - n)

`reverse`: from the last step to the first. The value of either is one flat vector, its results one after the other:
`results` and `gradients` name them. With `keep`, RECURRENT also gives what its gradient reads: of an LSTM c after every step
and the four gates, of a GRU r, z, n and p_n. gk is a gradient of all that, where it has one of its own because a gradient is
differentiated.

On the CPU each is one kernel. Second derivatives and tangents are compositions of other primitives, step by step: the first
call plans a graph whose nodes, and whose planning, grow as the number of steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorsmith.core.dtypes import DType
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive, base_of, copy_into
from tensorsmith.scalar import functions as f

Runs = tuple[tuple[int, int], ...]  # (steps, elements) of the stretches

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "lstm": 4, "gru": 3}  # blocks of rows of a weight
KEPT = {"rnn_tanh": 0, "rnn_relu": 0, "lstm": 4, "gru": 4}  # blocks of columns of `parts`


class Step(NamedTuple):
    """One step: where its rows start and how many they are; where those of the step before it start, and for how many
    elements there is one (the others start there)."""

    at: int
    rows: int
    before: int
    linked: int


@functools.lru_cache(maxsize=256)
def steps(runs: Runs, reverse: bool) -> tuple[Step, ...]:
    """The steps in the order they are taken."""
    found, at = [], 0
    for length, count in runs:
        for _ in range(length):
            found.append((at, count))
            at += count
    if reverse:
        found.reverse()
    before = [(0, 0), *found[:-1]]
    return tuple(Step(at, count, last, min(count, have)) for (at, count), (last, have) in zip(found, before))


def states_of(mode: str) -> int:
    """How many tensors a state is."""
    return 2 if mode == "lstm" else 1


def results(mode: str, keep: bool, rows: int, batch: int, hidden: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of what RECURRENT gives."""
    found = {"states": (rows, hidden), "hidden": (batch, hidden)}
    if mode == "lstm":
        found["cell"] = (batch, hidden)
        found |= {"cells": (rows, hidden)} if keep else {}
    if keep and KEPT[mode]:
        found["parts"] = (rows, KEPT[mode] * hidden)
    return found


def gradients(mode: str, rows: int, batch: int, hidden: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of what RECURRENT_GRADIENT gives: gradients of a, of p (of a GRU, else the same), of h and of c."""
    width = GATES[mode] * hidden
    found = {"gates": (rows, width), **({"product": (rows, width)} if mode == "gru" else {}), "hidden": (batch, hidden)}
    return found | ({"cell": (batch, hidden)} if mode == "lstm" else {})


def flat_size(shapes: dict[str, tuple[int, int]]) -> int:
    """Elements of all results."""
    return sum(math.prod(shape) for shape in shapes.values())


def shapes_of(node: Node) -> dict[str, tuple[int, int]]:
    """Names and shapes of the results of either primitive."""
    mode, gradient = node.attrs["mode"], node.op is Primitive.RECURRENT_GRADIENT
    count = states_of(mode)
    rows = node.inputs[0].shape[0]
    batch, hidden = node.inputs[2 + count if gradient else 1].shape
    return gradients(mode, rows, batch, hidden) if gradient else results(mode, node.attrs["keep"], rows, batch, hidden)


def check(op: Primitive, inputs: Sequence[Node], attrs: dict[str, Any]) -> tuple[tuple[int], DType]:
    """Shape and dtype of the flat result; ValueError or TypeError where operands do not fit."""
    mode, runs = attrs["mode"], attrs["runs"]
    count, gates = states_of(mode), GATES[mode]
    rows = sum(length * elements for length, elements in runs)
    batch = runs[0][1]
    gradient = op is Primitive.RECURRENT_GRADIENT
    hidden = inputs[1].shape[-1]
    state, w = (batch, hidden), (gates * hidden, hidden)
    if any(later > sooner for (_, sooner), (_, later) in zip(runs, runs[1:])) or not all(n > 0 for run in runs for n in run):
        raise ValueError(f"recurrent: the steps {runs} do not fall into stretches of fewer and fewer elements")
    if gradient:
        kept = flat_size(results(mode, True, rows, batch, hidden))
        expected: list[tuple[int, ...]] = [(rows, hidden), *[state] * count, (kept,), *[state] * count, w]
        expected += [(kept,)] * (len(inputs) > len(expected))
        given = gradients(mode, rows, batch, hidden)
    else:
        expected = [(rows, gates * hidden), *[state] * count, w]
        expected += [(gates * hidden,)] * (len(inputs) > len(expected))
        given = results(mode, attrs["keep"], rows, batch, hidden)
    if [node.shape for node in inputs] != expected:
        raise ValueError(f"recurrent: operands have shapes {[node.shape for node in inputs]}, expected {expected}")
    dtype = inputs[0].dtype
    if any(node.dtype is not dtype for node in inputs) or not dtype.is_floating_point or dtype.is_half:
        raise TypeError(f"recurrent: operands have dtypes {[node.dtype.name for node in inputs]}; cast them first")
    return (flat_size(given),), dtype


def parts_of(flat: Node, shapes: dict[str, tuple[int, int]]) -> dict[str, Node]:
    """The results in a flat vector."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = build.reshape(build.slice_(flat, 0, start, math.prod(shape)), shape)
        start += math.prod(shape)
    return found


def recurrent(operands: Sequence[Node], mode: str, runs: Runs, reverse: bool, keep: bool) -> Node:
    """The flat value of RECURRENT."""
    return operands[0].graph.add(Primitive.RECURRENT, operands, mode=mode, runs=runs, reverse=reverse, keep=keep)


def previous_states(states: Node, first: Node, runs: Runs, reverse: bool) -> Node:
    """For every row the state h before its step."""
    order = sorted(steps(runs, reverse))
    pieces: list[tuple[Node, int, int]] = []  # value, start and length: neighbours are joined
    for step in order:
        for source, start, length in (
            (states, step.before, step.linked), (first, step.linked, step.rows - step.linked),
        ):  # fmt: skip
            if not length:
                continue
            if pieces and pieces[-1][0] is source and sum(pieces[-1][1:]) == start:
                pieces[-1] = (source, pieces[-1][1], pieces[-1][2] + length)
            else:
                pieces.append((source, start, length))
    return build.concat([build.slice_(source, 0, start, length) for source, start, length in pieces], 0)


def gradient(
    flat: Node, operands: Sequence[Node], grads: Sequence[Node], of_kept: Node | None, mode: str, runs: Runs, reverse: bool
) -> list[Node]:
    """Gradients of a, h (and c), w and of a bias of p, from those of all states, of the last h (and c).

    flat: the value with what is kept; operands: a, h, (c,) w (and b); of_kept: a gradient of the whole flat value, where it
    has one of its own.
    """
    count = states_of(mode)
    state, w = operands[1 : 1 + count], operands[1 + count]
    shapes = results(mode, True, operands[0].shape[0], *state[0].shape)
    if of_kept is not None:
        own = parts_of(of_kept, shapes)
        grads = [x + y for x, y in zip(grads, (own[name] for name in ("states", "hidden", "cell") if name in own))]
    kept = () if of_kept is None or not KEPT[mode] else (of_kept,)
    given = flat.graph.add(
        Primitive.RECURRENT_GRADIENT, (*grads, flat, *state, w, *kept), mode=mode, runs=runs, reverse=reverse
    )
    named = parts_of(given, shapes_of(given))
    product = named.get("product", named["gates"])
    before = previous_states(parts_of(flat, shapes)["states"], state[0], runs, reverse)
    to_w = build.matmul(build.permute(product, (1, 0)), before)
    ends = [named["hidden"], *([named["cell"]] if mode == "lstm" else [])]
    return [named["gates"], *ends, to_w, build.reduce(product, "sum", (0,))]


# --- compositions -----------------------------------------------------------------------------------------------------


def _blocks(x: Node, count: int) -> list[Node]:
    width = x.shape[1] // count
    return [build.slice_(x, 1, k * width, width) for k in range(count)]


def _rows(x: Node, start: int, count: int) -> Node:
    return build.slice_(x, 0, start, count)


def _with_rows(x: Node, first: Node) -> Node:
    """x with its first rows replaced."""
    count = first.shape[0]
    return first if count == x.shape[0] else build.concat([first, _rows(x, count, x.shape[0] - count)], 0)


def _joined(parts: Sequence[Node]) -> Node:
    return build.concat([build.reshape(part, (part.numel,)) for part in parts], 0)


def _in_order(found: dict[int, Node]) -> Node:
    """The values of the steps, by where they start, as one."""
    return build.concat([found[at] for at in sorted(found)], 0)


def cell(mode: str, a: Node, p: Node, state: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The new state, and what is kept, from a, p = W_hh h (+ b) and the state."""
    if mode == "lstm":
        i, forget, g, o = _blocks(a + p, 4)
        i, forget, g, o = f.sigmoid(i), f.sigmoid(forget), f.tanh(g), f.sigmoid(o)
        new = forget * state[1] + i * g
        return [o * f.tanh(new), new], [i, forget, g, o]
    if mode == "gru":
        (a_r, a_z, a_n), (p_r, p_z, p_n) = _blocks(a, 3), _blocks(p, 3)
        reset, keep = f.sigmoid(a_r + p_r), f.sigmoid(a_z + p_z)
        new = f.tanh(a_n + reset * p_n)
        return [new + keep * (state[0] - new)], [reset, keep, new, p_n]
    return [f.tanh(a + p) if mode == "rnn_tanh" else f.relu(a + p)], []


def composed(node: Node, operands: Sequence[Node]) -> Node:
    """The value of either primitive, of other primitives."""
    if node.op is Primitive.RECURRENT_GRADIENT:
        return _composed_gradient(node, operands)
    mode, keep = node.attrs["mode"], node.attrs["keep"]
    count = states_of(mode)
    a, state, w, bias = operands[0], list(operands[1 : 1 + count]), operands[1 + count], operands[2 + count :]
    turned = build.permute(w, (1, 0))
    made: list[dict[int, Node]] = [{}, {}, {}]  # states, cells, parts
    for at, rows, _, _ in steps(node.attrs["runs"], node.attrs["reverse"]):
        now = [_rows(x, 0, rows) for x in state]
        p = build.matmul(now[0], turned)
        new, parts = cell(mode, _rows(a, at, rows), p + bias[0] if bias else p, now)
        state = [_with_rows(x, y) for x, y in zip(state, new)]
        made[0][at] = new[0]
        if count == 2:
            made[1][at] = new[1]
        if parts:
            made[2][at] = build.concat(parts, 1)
    kept = [_in_order(found) for found in made[1:] if found] if keep else []
    return _joined([_in_order(made[0]), *state, *kept])


def _composed_gradient(node: Node, operands: Sequence[Node]) -> Node:
    mode = node.attrs["mode"]
    count = states_of(mode)
    grads, carried, flat = operands[0], list(operands[1 : 1 + count]), operands[1 + count]
    first, w, given = operands[2 + count : 2 + 2 * count], operands[2 + 2 * count], operands[3 + 2 * count :]
    shapes = results(mode, True, grads.shape[0], *first[0].shape)
    kept, of_kept = parts_of(flat, shapes), parts_of(given[0], shapes) if given else {}
    to_gates: dict[int, Node] = {}
    to_product: dict[int, Node] = {}
    for at, rows, before, linked in reversed(steps(node.attrs["runs"], node.attrs["reverse"])):

        def old(name: str, initial: Node, before: int = before, linked: int = linked, rows: int = rows) -> Node:
            """The value before this step: of the step before it, or the first."""
            parts = [_rows(kept[name], before, linked)] if linked else []
            return build.concat([*parts, _rows(initial, linked, rows - linked)], 0) if linked < rows else parts[0]

        def own(name: str, number: int, value: Node, at: int = at, rows: int = rows) -> Node:
            """A value's gradient with the one that a kept part has of its own."""
            if not of_kept:
                return value
            part = _rows(of_kept[name], at, rows)
            return value + (part if name == "cells" else _blocks(part, KEPT[mode])[number])

        grad = _rows(grads, at, rows) + _rows(carried[0], 0, rows)
        now = [_rows(kept[name], at, rows) for name in ("states", "cells", "parts") if name in kept]
        rest: Node | None = None
        if mode == "lstm":
            i, forget, g, o = _blocks(now[2], 4)
            t = f.tanh(now[1])
            change = own("cells", 0, _rows(carried[1], 0, rows)) + grad * o * (1.0 - t * t)
            found = [
                own("parts", 0, change * g) * i * (1.0 - i),
                own("parts", 1, change * old("cells", first[1])) * forget * (1.0 - forget),
                own("parts", 2, change * i) * (1.0 - g * g), own("parts", 3, grad * t) * o * (1.0 - o),
            ]  # fmt: skip
            carried[1] = _with_rows(carried[1], change * forget)
        elif mode == "gru":
            reset, keep, new, p_n = _blocks(now[1], 4)
            to_new = own("parts", 2, grad * (1.0 - keep)) * (1.0 - new * new)
            to_keep = own("parts", 1, grad * (old("states", first[0]) - new)) * keep * (1.0 - keep)
            found = [own("parts", 0, to_new * p_n) * reset * (1.0 - reset), to_keep, to_new]
            rest = grad * keep
            to_product[at] = build.concat([*found[:2], own("parts", 3, to_new * reset)], 1)
        elif mode == "rnn_tanh":
            found = [grad * (1.0 - now[0] * now[0])]
        else:
            found = [build.where(f.le(now[0], 0.0), 0.0, grad)]
        to_gates[at] = build.concat(found, 1)
        back = build.matmul(to_product.get(at, to_gates[at]), w)
        carried[0] = _with_rows(carried[0], back if rest is None else back + rest)
    products = [_in_order(to_product)] if to_product else []
    return _joined([_in_order(to_gates), *products, *carried])


def composition(node: Node) -> Graph:
    """A graph of other primitives that computes what the node does."""
    whole = Graph()
    whole.outputs = (composed(node, [whole.input(x.shape, x.dtype) for x in node.inputs]),)
    return whole


def pulled(node: Node, output: Node, grad: Node) -> list[Node | None]:
    """The gradient rule of RECURRENT."""
    mode, runs, reverse = (node.attrs[name] for name in ("mode", "runs", "reverse"))
    parts = parts_of(grad, shapes_of(node))
    grads = [parts[name] for name in ("states", "hidden", "cell") if name in parts]
    flat, of_kept = output, None
    if not node.attrs["keep"]:
        flat = recurrent(node.inputs, mode, runs, reverse, True)
    elif KEPT[mode]:
        start = flat_size(results(mode, False, node.inputs[0].shape[0], *node.inputs[1].shape))
        of_kept = build.pad(build.slice_(grad, 0, start, grad.numel - start), (start,), (0,))  # the others are given apart
    found = gradient(flat, node.inputs, grads, of_kept, mode, runs, reverse)
    return list(found[: len(node.inputs)])


def pulled_gradient(node: Node, grad: Node) -> list[Node | None]:
    """The gradient rule of RECURRENT_GRADIENT: that of the composition."""
    from tensorsmith.ir.vjp import vjp  # which is written with the table of rules

    derived = vjp(composition(node), (True,) * len(node.inputs))
    operands = [*(node.inputs[s.number] if s.kind == "input" else node for s in derived.saved), grad]
    operands = operands[: len(derived.graph.inputs)]
    mapping = copy_into(grad.graph, derived.graph, operands)
    return [None if k is None else mapping[derived.graph.outputs[k]] for k in derived.results]


def batched(node: Node, operands: Sequence[Node], which: Sequence[bool], extent: int) -> Node:
    """Either primitive for `extent` examples.

    Examples are further elements of every step, each beside its like; those with weights of their own run one by one.
    """
    graph = operands[0].graph
    mode, runs = node.attrs["mode"], node.attrs["runs"]
    gradient = node.op is Primitive.RECURRENT_GRADIENT
    count = states_of(mode)
    weights = [2 + 2 * count] if gradient else range(1 + count, len(operands))
    if any(which[k] for k in weights):
        found = []
        for example in range(extent):
            one = [
                build.reshape(_rows(x, example, 1), x.shape[1:]) if flag else x for x, flag in zip(operands, which)
            ]
            found.append(build.reshape(graph.add(node.op, one, **node.attrs), (1, node.numel)))
        return build.concat(found, 0)

    def beside(x: Node) -> Node:
        """(examples, rows, columns) as (rows examples, columns)."""
        return build.reshape(build.permute(x, (1, 0, 2)), (x.shape[1] * extent, x.shape[2]))

    rows, (batch, hidden) = node.inputs[0].shape[0], node.inputs[2 + count if gradient else 1].shape
    together: list[Node] = []
    for k, (x, flag) in enumerate(zip(operands, which)):
        if k in weights:
            together.append(x)
            continue
        x = x if flag else build.broadcast_to(build.reshape(x, (1, *x.shape)), (extent, *x.shape))
        if gradient and k in (1 + count, 3 + 2 * count):  # flat values
            parts, start = [], 0
            for shape in results(mode, True, rows, batch, hidden).values():
                part = build.slice_(x, 1, start, math.prod(shape))
                parts.append(beside(build.reshape(part, (extent, *shape))))
                start += math.prod(shape)
            together.append(_joined(parts))
        else:
            together.append(beside(x))
    attrs = {**node.attrs, "runs": tuple((length, elements * extent) for length, elements in runs)}
    flat = graph.add(node.op, together, **attrs)
    whole = []
    for name, (lines, columns) in shapes_of(node).items():
        part = parts_of(flat, {k: (r * extent, c) for k, (r, c) in shapes_of(node).items()})[name]
        part = build.permute(build.reshape(part, (lines, extent, columns)), (1, 0, 2))
        whole.append(build.reshape(part, (extent, lines * columns)))
    return build.concat(whole, 1)


def is_zero(x: Node) -> bool:
    """Whether a value is the constant 0, as the gradient of a result that nobody uses."""
    base = base_of(x)
    return base.op is Primitive.CONST and base.attrs["value"] == 0

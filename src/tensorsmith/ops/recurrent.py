"""Recurrent layers over whole sequences: rnn_tanh, rnn_relu, gru and lstm.

    for each layer, for each direction:
        gates = W_ih x + b                               one product for all steps
        states = RECURRENT(gates, state, W_hh)           all steps in one kernel (`ir/recurrent.py`)

A sequence is (T, N, *), or packed: the elements of all sequences that have step t, step after step, with their numbers in
`batch_sizes`. A packed batch shrinks from step to step, and grows backwards. Layers with projections, and sequences too short
to be worth packing the weights for, run one operator a step (`recurrent_cells.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from tensorsmith.core.dtypes import type_name
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build, recurrent
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.recurrent import Runs, is_zero, parts_of, results, states_of
from tensorsmith.ops.dropout import dropout as drop
from tensorsmith.ops.joining import cat, stack
from tensorsmith.ops.linear import linear
from tensorsmith.ops.recurrent_cells import STEPS
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

State = tuple[Tensor, ...]  # h, or h and c
_FEWEST_STEPS = 3  # of a sequence that one kernel runs


def _operands(
    mode: str, x: Node, rest: Sequence[Node], runs: Runs
) -> tuple[list[Node], Node, Node, Sequence[Node]]:
    """The operands of RECURRENT, wide; x of all steps and W_ih; how p = W_hh h is a bias apart, and what W_ih x is."""
    count = states_of(mode)
    if not x.dtype.is_floating_point:
        raise NotImplementedError(f"recurrent layers are not implemented for '{type_name(x.dtype)}'")
    flat = build.wide(build.reshape(x, (sum(length * elements for length, elements in runs), x.shape[-1])))
    rest = [build.wide(each) for each in rest]
    state, (w_ih, w_hh, *bias) = [build.reshape(each, each.shape[-2:]) for each in rest[:count]], rest[count:]
    gates = build.matmul(flat, build.permute(w_ih, (1, 0)))
    return [gates + bias[0] if bias else gates, *state, w_hh, *bias[1:]], flat, w_ih, bias


def _layer(x: Node, *rest: Node, mode: str, runs: Runs, reverse: bool, keep: bool) -> tuple[Node, ...]:
    """x (..., I), h (and c) (N, H) or (1, N, H), W_ih, W_hh, perhaps b_ih and b_hh -> states (..., H), the last h (and c).

    With `keep` also what the gradient reads. Results lie apart from that, so that who holds one does not hold it all.
    """
    operands, *_ = _operands(mode, x, rest, runs)
    flat = recurrent.recurrent(operands, mode, runs, reverse, keep)
    rows, (batch, hidden) = operands[0].shape[0], operands[1].shape
    found = parts_of(flat, results(mode, keep, rows, batch, hidden))
    ends = [(found["states"], (*x.shape[:-1], hidden)), (found["hidden"], rest[0].shape)]
    ends += [(found["cell"], rest[1].shape)] if mode == "lstm" else []
    outputs = [build.reshape(y, shape) for y, shape in ends]
    copied = [k > 0 or keep or y.dtype is not x.dtype for k, y in enumerate(outputs)]
    outputs = [flat.graph.add(Primitive.CAST, (y,), dtype=x.dtype) if c else y for c, y in zip(copied, outputs)]
    return *outputs, *([flat] if keep else [])


def _layer_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], mode: str, runs: Runs, reverse: bool, keep: bool
) -> list[Node | None]:
    x, *rest = inputs
    operands, flat_x, w_ih, bias = _operands(mode, x, rest, runs)
    count = states_of(mode)
    flat = outputs[-1] if keep else recurrent.recurrent(operands, mode, runs, reverse, True)
    shapes = [(flat_x.shape[0], operands[1].shape[1]), *(state.shape for state in operands[1 : 1 + count])]
    given = [build.reshape(build.wide(g), shape) for g, shape in zip(grads, shapes)]
    of_kept = grads[-1] if keep and not is_zero(grads[-1]) else None
    to_gates, *to_state, to_w, to_bias = recurrent.gradient(flat, operands, given, of_kept, mode, runs, reverse)
    parts = [build.reshape(build.matmul(to_gates, w_ih), x.shape)]
    parts += [build.reshape(g, like.shape) for g, like in zip(to_state, rest)]
    parts += [build.matmul(build.permute(to_gates, (1, 0)), flat_x), to_w]
    if bias:
        parts += [build.reduce(to_gates, "sum", (0,)), to_bias]
    return [build.cast(part, like.dtype) for part, like in zip(parts, inputs, strict=True)]


LAYERS = {
    name: Operator(
        f"{name.lower()}_layer", partial(_layer, mode=name.lower()), partial(_layer_gradient, mode=name.lower()),
        derived_tangent=True,
    )
    for name in STEPS
}  # fmt: skip


class _Direction:
    """One direction of one layer: its weights and what a step of it is."""

    def __init__(self, mode: str, weights: Sequence[Tensor], has_biases: bool) -> None:
        self.mode = mode
        self.step = STEPS[mode]
        self.lstm = mode == "LSTM"
        self.w_ih, self.w_hh = weights[:2]
        self.b_ih = weights[2] if has_biases else None
        self.rest = (weights[3],) if has_biases else ()
        after = weights[4 if has_biases else 2 :]
        self.projection = after[0] if after else None

    def advance(self, gates: Tensor, state: State) -> State:
        found = self.step(gates, *state, self.w_hh, *self.rest)
        if not self.lstm:
            return (found,) if isinstance(found, Tensor) else (found[0],)
        hidden, cell = found[:2]
        return (hidden if self.projection is None else linear(hidden, self.projection)), cell

    def over_runs(self, x: Tensor, runs: Runs, state: State, backwards: bool) -> tuple[Tensor, State]:
        """The states h at all steps of (T, N, I) or of packed data, and the last state, by one operator."""
        bias = () if self.b_ih is None else (self.b_ih, *self.rest)
        operands = (x, *state, self.w_ih, self.w_hh, *bias)
        keep = modes.grad and any([each.requires_grad for each in operands])
        found = LAYERS[self.mode](*operands, runs=runs, reverse=backwards, keep=keep)
        return found[0], found[1 : 1 + len(state)]

    def over_steps(self, x: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
        """The states h at all steps of (T, N, I), and the last state."""
        if not x.layout.shape[0]:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        gates = linear(x, self.w_ih, self.b_ih).unbind(0)
        found: list[Tensor] = []
        for each in reversed(gates) if backwards else gates:
            state = self.advance(each, state)
            found.append(state[0])
        if backwards:
            found.reverse()
        return stack(found), state

    def over_packed(self, x: Tensor, sizes: Sequence[int], state: State, backwards: bool) -> tuple[Tensor, State]:
        """The same for packed data."""
        gates = linear(x, self.w_ih, self.b_ih).split(list(sizes))
        found: list[Tensor] = []
        if backwards:
            first, current = state, tuple(each[: sizes[-1]] for each in state)
            for each, size in zip(reversed(gates), reversed(sizes)):
                have = current[0].shape[0]
                if size > have:
                    current = tuple(cat([now, begin[have:size]]) for now, begin in zip(current, first))
                current = self.advance(each, current)
                found.append(current[0])
            found.reverse()
            return cat(found), current
        ended: list[State] = []
        for each, size in zip(gates, sizes):
            if size < state[0].shape[0]:
                ended.append(tuple(now[size:] for now in state))
                state = tuple(now[:size] for now in state)
            state = self.advance(each, state)
            found.append(state[0])
        ended.append(state)
        return cat(found), tuple(cat(list(parts)) if len(parts) > 1 else parts[0] for parts in zip(*reversed(ended)))


def _runs(x: Tensor, sizes: Sequence[int] | None) -> Runs:
    """How many elements the steps have: (steps, elements) of each stretch of equal ones."""
    if sizes is None:
        return ((x.shape[0], x.shape[1]),)
    return tuple((len(list(equal)), count) for count, equal in groupby(sizes))


def _run(
    mode: str, x: Tensor, sizes: Sequence[int] | None, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    directions = 2 if bidirectional else 1
    units = num_layers * directions
    each = len(params) // units
    if len(params) != units * each or each < (4 if has_biases else 2):
        raise RuntimeError(f"expected {'4' if has_biases else '2'} weights for each of {units} directions, got {len(params)}")
    runs = _runs(x, sizes)
    at_once = each == (4 if has_biases else 2) and sum(length for length, _ in runs) >= _FEWEST_STEPS
    at_once = at_once and all(elements for _, elements in runs)  # an empty batch has no steps to run
    alone = at_once and units == 1  # states keep the axis of the layers' directions
    starts = [(state,) if alone else state.unbind(0) for state in hx]
    ends: list[State] = []
    for layer in range(num_layers):
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            one = _Direction(mode, params[number * each : (number + 1) * each], has_biases)
            state = tuple(start[number] for start in starts)
            backwards = direction == 1
            if at_once:
                found, state = one.over_runs(x, runs, state, backwards)
            elif sizes is None:
                found, state = one.over_steps(x, state, backwards)
            else:
                found, state = one.over_packed(x, sizes, state, backwards)
            results.append(found)
            ends.append(state)
        x = results[0] if directions == 1 else cat(results, -1)
        if dropout and train and layer < num_layers - 1:
            x = drop(x, dropout)
    return x, *(ends[0] if alone else (stack(list(parts)) for parts in zip(*ends)))


def _sequence(mode: str, name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> tuple[Tensor, ...]:
    """Both signatures: of a padded batch, and of packed data, whose second argument is `batch_sizes`."""
    packed = ("batch_sizes" in keywords) or "data" in keywords or (
        len(arguments) > 3 and isinstance(arguments[3], (list, tuple))
    )
    tail = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
    names = ("data", "batch_sizes", "hx", *tail) if packed else ("input", "hx", *tail, "batch_first")
    given = dict(zip(names, arguments))
    for key, value in keywords.items():
        if key not in names or key in given:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
        given[key] = value
    missing = [key for key in names if key not in given]
    if missing:
        raise TypeError(f"{name}() missing arguments: {', '.join(missing)}")
    x = need_tensor(name, given[names[0]], names[0], 1)
    hx = given["hx"]
    if mode == "LSTM":
        if len(hx) != 2:
            raise RuntimeError("lstm expects two hidden states")
    else:
        hx = (hx,)
    sizes = given["batch_sizes"].tolist() if packed else None
    settings = [given[key] for key in tail]
    if packed or not given["batch_first"]:
        return _run(mode, x, sizes, hx, *settings)
    found, *states = _run(mode, x.transpose(0, 1), sizes, hx, *settings)
    return found.transpose(0, 1), *states


_entered = public("recurrent", method=False, kind="composite")


@_entered
def rnn_tanh(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """`rnn_tanh(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)`: tanh cells.

    Or `rnn_tanh(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)` of packed data.
    input (T, N, I), hx (layers directions, N, H); params: w_ih, w_hh and with biases b_ih, b_hh of every layer's directions.
    Returns the states of the last layer (T, N, directions H) and the last states of all. RuntimeError for sizes that differ.

        >>> w = [ts.ones(4, 3), ts.ones(4, 4)]
        >>> ts.rnn_tanh(ts.ones(5, 2, 3), ts.zeros(1, 2, 4), w, False, 1, 0.0, False, False, False)[0].shape
        tensorsmith.Size([5, 2, 4])
    """
    return _sequence("RNN_TANH", "rnn_tanh", args, kwargs)


@_entered
def rnn_relu(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """As `rnn_tanh`, of relu cells: the same arguments and results.

    >>> w = [ts.ones(4, 3), ts.ones(4, 4)]
    >>> ts.rnn_relu(ts.ones(5, 2, 3), ts.zeros(1, 2, 4), w, False, 1, 0.0, False, False, False)[0].shape
    tensorsmith.Size([5, 2, 4])
    """
    return _sequence("RNN_RELU", "rnn_relu", args, kwargs)


@_entered
def gru(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """As `rnn_tanh`, of gated recurrent units (`gru_cell`): weights have 3 H rows.

    >>> w = [ts.ones(12, 3), ts.ones(12, 4)]
    >>> ts.gru(ts.ones(5, 2, 3), ts.zeros(1, 2, 4), w, False, 1, 0.0, False, False, False)[0].shape
    tensorsmith.Size([5, 2, 4])
    """
    return _sequence("GRU", "gru", args, kwargs)


@_entered
def lstm(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """As `rnn_tanh`, of LSTM cells (`lstm_cell`): weights have 4 H rows, hx is (h, c); the results are h of all steps, h and c.

    A fifth weight of a direction, w_hr (P, H), projects h to P.

        >>> w, h = [ts.ones(16, 3), ts.ones(16, 4)], ts.zeros(1, 2, 4)
        >>> [x.shape[0] for x in ts.lstm(ts.ones(5, 2, 3), (h, h), w, False, 1, 0.0, False, False, False)]
        [5, 1, 1]
    """
    return _sequence("LSTM", "lstm", args, kwargs)

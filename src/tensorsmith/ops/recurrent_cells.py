"""One step of recurrent layers: the cells.

With a = W_ih x + b_ih (`gates`, computed for all steps at once where there are many) and b = W_hh h + b_hh:

    tanh, relu   h' = tanh(a + b) or relu(a + b)
    lstm         i, f, g, o = a + b;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')
    gru          r = sigmoid(a_r + b_r); z = sigmoid(a_z + b_z); n = tanh(a_n + r b_n);  h' = n + z (h - n)

A step is one operator: one matrix product and one pointwise kernel. Its last result, where it has more than the state, is
what its gradient would otherwise multiply again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.core.dtypes import type_name
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.linear import linear
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar import functions as f
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _hidden(hidden: Node, weight: Node, bias: Sequence[Node]) -> Node:
    """W_hh h + b_hh; cells are for floating-point numbers."""
    if not hidden.dtype.is_floating_point:
        raise NotImplementedError(f"recurrent cells are not implemented for '{type_name(hidden.dtype)}'")
    product = build.matmul(hidden, build.permute(weight, (1, 0)))
    return product + bias[0] if bias else product


def _parts(x: Node, count: int) -> list[Node]:
    width = x.shape[1] // count
    return [build.slice_(x, 1, k * width, width) for k in range(count)]


def _tanh(gates: Node, hidden: Node, weight: Node, *bias: Node) -> Node:
    return f.tanh(gates + _hidden(hidden, weight, bias))


def _relu(gates: Node, hidden: Node, weight: Node, *bias: Node) -> Node:
    return f.relu(gates + _hidden(hidden, weight, bias))


def _lstm(gates: Node, hidden: Node, cell: Node, weight: Node, *bias: Node) -> tuple[Node, Node, Node]:
    total = gates + _hidden(hidden, weight, bias)
    i, forget, g, o = (build.wide(x) for x in _parts(total, 4))
    new = f.sigmoid(forget) * build.wide(cell) + f.sigmoid(i) * f.tanh(g)
    return build.cast(f.sigmoid(o) * f.tanh(new), hidden.dtype), build.cast(new, cell.dtype), total


def _gru(gates: Node, hidden: Node, weight: Node, *bias: Node) -> tuple[Node, Node]:
    product = _hidden(hidden, weight, bias)
    (a_r, a_z, a_n), (b_r, b_z, b_n) = ([build.wide(x) for x in _parts(y, 3)] for y in (gates, product))
    reset, keep = f.sigmoid(a_r + b_r), f.sigmoid(a_z + b_z)
    new = f.tanh(a_n + reset * b_n)
    return build.cast(new + keep * (build.wide(hidden) - new), hidden.dtype), product


def _pulled(grad: Node, hidden: Node, weight: Node, bias: Sequence[Node]) -> list[Node]:
    """Gradients of h, W_hh and b_hh from that of W_hh h + b_hh."""
    parts = [build.matmul(grad, weight), build.matmul(build.permute(grad, (1, 0)), hidden)]
    return parts + [build.sum_to(grad, each.shape) for each in bias]


def _lstm_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node | None]:
    """Written out, because the derived rule adds the gradients of the four parts as four whole ones."""
    _, hidden, cell, weight, *bias = inputs
    old, new, g_hidden, g_cell = (build.wide(x) for x in (cell, outputs[1], grads[0], grads[1]))
    i, forget, g, o = (build.wide(x) for x in _parts(outputs[2], 4))
    i, forget, g, o, t = f.sigmoid(i), f.sigmoid(forget), f.tanh(g), f.sigmoid(o), f.tanh(new)
    change = g_cell + g_hidden * o * (1.0 - t * t)
    parts = [
        change * g * i * (1.0 - i), change * old * forget * (1.0 - forget), change * i * (1.0 - g * g),
        g_hidden * t * o * (1.0 - o),
    ]  # fmt: skip
    total = build.concat([build.cast(a, hidden.dtype) + b for a, b in zip(parts, _parts(grads[2], 4))], 1)
    to_hidden, *rest = _pulled(total, hidden, weight, bias)
    return [total, to_hidden, build.cast(change * forget, cell.dtype), *rest]


def _gru_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node | None]:
    gates, hidden, weight, *bias = inputs
    (a_r, a_z, a_n), (b_r, b_z, b_n) = ([build.wide(x) for x in _parts(y, 3)] for y in (gates, outputs[1]))
    grad, old = build.wide(grads[0]), build.wide(hidden)
    reset, keep = f.sigmoid(a_r + b_r), f.sigmoid(a_z + b_z)
    new = f.tanh(a_n + reset * b_n)
    to_new = grad * (1.0 - keep) * (1.0 - new * new)
    parts = [to_new * b_n * reset * (1.0 - reset), grad * (old - new) * keep * (1.0 - keep), to_new]
    to_gates = build.concat([build.cast(x, hidden.dtype) for x in parts], 1)
    parts[2] = to_new * reset
    to_product = build.concat([build.cast(a, hidden.dtype) + b for a, b in zip(parts, _parts(grads[1], 3))], 1)
    to_hidden, *rest = _pulled(to_product, hidden, weight, bias)
    return [to_gates, to_hidden + build.cast(grad * keep, hidden.dtype), *rest]


STEPS: dict[str, Operator] = {
    "RNN_TANH": Operator("rnn_tanh_step", _tanh),
    "RNN_RELU": Operator("rnn_relu_step", _relu),
    "LSTM": Operator("lstm_step", _lstm, _lstm_gradient, derived_tangent=True),
    "GRU": Operator("gru_step", _gru, _gru_gradient, derived_tangent=True),
}
GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}  # blocks of rows of a weight


def _check(name: str, mode: str, x: Tensor, hidden: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor) -> None:
    for position, (argument, value) in enumerate({"input": x, "hx": hidden[0], "w_ih": w_ih, "w_hh": w_hh}.items(), 1):
        need_tensor(name, value, argument, position)
    if x.shape[-1] != w_ih.shape[1]:
        raise RuntimeError(f"{name}: input has inconsistent input_size: got {x.shape[-1]} expected {w_ih.shape[1]}")
    for number, each in enumerate(hidden):
        if each.ndim != x.ndim or each.shape[0] != x.shape[0]:
            raise RuntimeError(f"{name}: Input batch size {x.shape[0]} doesn't match hidden{number} batch size {each.shape[0]}")
        if each.shape[-1] * GATES[mode] != w_hh.shape[0]:
            raise RuntimeError(
                f"{name}: hidden{number} has inconsistent hidden_size: got {each.shape[-1]}, expected "
                f"{w_hh.shape[0] // GATES[mode]}"
            )


def _cell(
    name: str, mode: str, x: Tensor, hidden: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    single = need_tensor(name, x).ndim == 1
    if single:
        x, hidden = x.unsqueeze(0), [need_tensor(name, each, "hx", 2).unsqueeze(0) for each in hidden]
    if modes.autocast is not None:
        x, w_ih, w_hh, b_ih, b_hh, *hidden = modes.autocast.operands(name, x, w_ih, w_hh, b_ih, b_hh, *hidden)
    _check(name, mode, x, hidden, w_ih, w_hh)
    bias = () if b_hh is None else (b_hh,)
    found = STEPS[mode](linear(x, w_ih, b_ih), *hidden, w_hh, *bias)
    states = (found,) if isinstance(found, Tensor) else found[: len(hidden)]
    if single:
        states = tuple(each.squeeze(0) for each in states)
    return states if mode == "LSTM" else states[0]  # type: ignore[no-any-return, return-value]


_entered = public("recurrent", method=False, kind="composite")


def _simple(name: str, mode: str, formula: str) -> Callable[..., Tensor]:
    def cell(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,  # noqa: A002
        b_hh: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return _cell(name, mode, input, [hx], w_ih, w_hh, b_ih, b_hh)  # type: ignore[return-value]

    blocks = f"{GATES[mode]} H" if GATES[mode] > 1 else "H"
    cell.__name__ = cell.__qualname__ = name
    cell.__doc__ = f"""{formula}

    input (N, I), hx (N, H), w_ih ({blocks}, I), w_hh ({blocks}, H), b_ih and b_hh ({blocks}): the new state (N, H).
    RuntimeError for sizes that do not fit.

        >>> ts.{name}(ts.ones(2, 3), ts.zeros(2, 4), ts.ones({GATES[mode] * 4}, 3), ts.ones({GATES[mode] * 4}, 4)).shape
        tensorsmith.Size([2, 4])
    """
    return _entered(cell)


rnn_tanh_cell = _simple("rnn_tanh_cell", "RNN_TANH", "tanh(W_ih x + b_ih + W_hh h + b_hh).")
rnn_relu_cell = _simple("rnn_relu_cell", "RNN_RELU", "relu(W_ih x + b_ih + W_hh h + b_hh).")
gru_cell = _simple(
    "gru_cell", "GRU", "n + z (h - n), with n = tanh(a_n + r b_n), r and z the sigmoids of a + b, of a = W_ih x + b_ih and "
    "b = W_hh h + b_hh.",
)  # fmt: skip


@_entered
def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,  # noqa: A002
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """h' = sigmoid(o) tanh(c'), c' = sigmoid(f) c + sigmoid(i) tanh(g), with i, f, g, o = W_ih x + b_ih + W_hh h + b_hh.

    input (N, I), hx: h and c, each (N, H), w_ih (4 H, I), w_hh (4 H, H), b_ih and b_hh (4 H): the new h and c.
    RuntimeError for sizes that do not fit.

        >>> h = ts.zeros(2, 4)
        >>> [each.shape for each in ts.lstm_cell(ts.ones(2, 3), (h, h), ts.ones(16, 3), ts.ones(16, 4))]
        [tensorsmith.Size([2, 4]), tensorsmith.Size([2, 4])]
    """
    if len(hx) != 2:
        raise RuntimeError(f"lstm_cell expects two hidden states, got {len(hx)}")
    return _cell("lstm_cell", "LSTM", input, list(hx), w_ih, w_hh, b_ih, b_hh)  # type: ignore[return-value]

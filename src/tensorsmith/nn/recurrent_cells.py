"""One step of recurrent layers as modules: RNNCell, LSTMCell, GRUCell."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import init
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.ops.creation import zeros
from tensorsmith.ops.recurrent_cells import gru_cell, lstm_cell, rnn_relu_cell, rnn_tanh_cell
from tensorsmith.tensor.tensor import Tensor


class RNNCellBase(Module):
    """Weights: weight_ih (chunks H, I), weight_hh (chunks H, H), bias_ih and bias_hh, all U(-k, k), k = 1 / sqrt(H)."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        self.weight_ih = new_parameter((rows, input_size), dtype, device)
        self.weight_hh = new_parameter((rows, hidden_size), dtype, device)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, new_parameter((rows,), dtype, device) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def _check(self, x: Tensor, **states: Tensor) -> None:
        for what, each in {"input": x, **states}.items():
            if each.ndim not in (1, 2):
                name = what.replace("_of_", "[") + ("]" if "_of_" in what else "")
                raise ValueError(f"{type(self).__name__}: Expected {name} to be 1D or 2D, got {each.ndim}D instead")

    def _start(self, x: Tensor) -> Tensor:
        return zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is True else f", bias={self.bias}")


class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu.

    Shapes: x (N, I) or (I), h (N, H) or (H), zeros where None -> h'. Initialisation: U(-k, k) with k = 1 / sqrt(H).
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002 - PyTorch's name
        self._check(input, **({} if hx is None else {"hidden": hx}))
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        cell = rnn_tanh_cell if self.nonlinearity == "tanh" else rnn_relu_cell
        return cell(input, self._start(input) if hx is None else hx, *self._weights())

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(RNNCellBase):
    """Long short-term memory: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c') (Hochreiter, Schmidhuber, 1997).

    Shapes: x (N, I) or (I), (h, c) each (N, H) or (H), zeros where None -> (h', c').
    Initialisation: U(-k, k) with k = 1 / sqrt(H).
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:  # noqa: A002
        self._check(input, **({} if hx is None else {f"hx_of_{k}": each for k, each in enumerate(hx)}))
        if hx is None:
            start = self._start(input)
            hx = start, start
        return lstm_cell(input, hx, *self._weights())


class GRUCell(RNNCellBase):
    """Gated recurrent unit: h' = n + z (h - n), n = tanh(W_in x + b_in + r (W_hn h + b_hn)) (Cho et al., 2014).

    Shapes: x (N, I) or (I), h (N, H) or (H), zeros where None -> h'. Initialisation: U(-k, k) with k = 1 / sqrt(H).
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002
        self._check(input, **({} if hx is None else {"hidden": hx}))
        return gru_cell(input, self._start(input) if hx is None else hx, *self._weights())

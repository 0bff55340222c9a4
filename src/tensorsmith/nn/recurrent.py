"""Recurrent layers: RNN, LSTM and GRU over sequences, padded or packed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import init
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.nn.packed_sequences import PackedSequence
from tensorsmith.ops import recurrent as sequences
from tensorsmith.ops.creation import zeros
from tensorsmith.ops.recurrent_cells import GATES
from tensorsmith.tensor.tensor import Tensor

_SEQUENCE: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "RNN_TANH": sequences.rnn_tanh, "RNN_RELU": sequences.rnn_relu, "LSTM": sequences.lstm, "GRU": sequences.gru,
}  # fmt: skip


def _check_settings(
    bias: Any, batch_first: Any, dropout: Any, input_size: Any, hidden_size: Any, num_layers: int, proj_size: int
) -> None:
    if not isinstance(dropout, (int, float)) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
        raise ValueError(
            f"dropout should be a number in range [0, 1] representing the probability of an element being zeroed, got {dropout}"
        )
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater "
            f"than 1, but got dropout={dropout} and num_layers={num_layers}",
            stacklevel=4,
        )
    kinds = {"bias": (bias, bool), "batch_first": (batch_first, bool), "input_size": (input_size, int),
             "hidden_size": (hidden_size, int)}  # fmt: skip
    for name, (value, kind) in kinds.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
    for name, value in {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}.items():
        if value <= 0:
            raise ValueError(f"{name} must be greater than zero, got {value}")
    if proj_size < 0:
        raise ValueError(f"proj_size should be a positive integer or zero to disable projections, got {proj_size}")
    if proj_size >= hidden_size:
        raise ValueError(f"proj_size has to be smaller than hidden_size, got {proj_size} and {hidden_size}")


class RNNBase(Module):
    """What RNN, LSTM and GRU share: weights by layer and direction, padded and packed input.

    weight_ih_l{k} (gates H, I), weight_hh_l{k} (gates H, H), bias_ih_l{k}, bias_hh_l{k} (gates H), of an LSTM with
    projections weight_hr_l{k} (P, H), each also with `_reverse`. Initialisation: U(-k, k) with k = 1 / sqrt(hidden_size).
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_settings(bias, batch_first, dropout, input_size, hidden_size, num_layers, proj_size)
        if mode not in GATES:
            raise ValueError("Unrecognized RNN mode: " + mode)
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._all_weights: list[list[str]] = []
        rows, state = GATES[mode] * hidden_size, proj_size or hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else state * self._directions
            for suffix in ("", "_reverse")[: self._directions]:
                shapes = {"weight_ih": (rows, width), "weight_hh": (rows, state)}
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}  # type: ignore[dict-item]
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                names = {f"{name}_l{layer}{suffix}": shape for name, shape in shapes.items()}
                for name, shape in names.items():
                    setattr(self, name, new_parameter(shape, dtype, device))
                self._all_weights.append(list(names))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of every layer's directions."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [getattr(self, name) for names in self._all_weights for name in names]

    def flatten_parameters(self) -> None:
        """Nothing: weights are used where they lie."""

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:  # noqa: A002 - PyTorch's name
        """ValueError for another dtype than the weights', RuntimeError for other axes or sizes than the layer's."""
        dtype = self._flat_weights[0].dtype
        if input.dtype is not dtype:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({dtype}). Convert input: input.to({dtype}), or "
                f"convert model: model.to({input.dtype})"
            )
        axes = 2 if batch_sizes is not None else 3
        if input.ndim != axes:
            raise RuntimeError(f"input must have {axes} dimensions, got {input.ndim}")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}"
            )

    def _batch(self, x: Tensor, batch_sizes: Tensor | None) -> int:
        if batch_sizes is not None:
            return int(batch_sizes[0])
        return x.shape[0 if self.batch_first else 1]

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:  # noqa: A002
        """The shape of h."""
        width = self.proj_size or self.hidden_size
        return self.num_layers * self._directions, self._batch(input, batch_sizes), width

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:  # noqa: A002
        """The shape of an LSTM's c."""
        return self.num_layers * self._directions, self._batch(input, batch_sizes), self.hidden_size

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: tuple[int, int, int], msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        """RuntimeError for a state of another shape."""
        if tuple(hx.shape) != expected_hidden_size:
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def _given_states(self, hx: Any, axes: int) -> tuple[Tensor, ...]:
        """The states of the call with the axis of the batch; RuntimeError where their axes are not the input's."""
        states = tuple(hx) if self.mode == "LSTM" else (hx,)
        if any(each.ndim != axes for each in states):
            kind = "For batched 3-D input, " if axes == 3 else "For unbatched 2-D input, "
            if self.mode == "LSTM":
                found = f"({', '.join(f'{each.ndim}-D' for each in states)})"
                raise RuntimeError(f"{kind}hx and cx should also be {axes}-D but got {found} tensors")
            raise RuntimeError(f"{kind}hx should also be {axes}-D but got {states[0].ndim}-D tensor")
        return states if axes == 3 else tuple(each.unsqueeze(1) for each in states)

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002
        lstm = self.mode == "LSTM"
        packed = input if isinstance(input, PackedSequence) else None
        x = input if packed is None else packed.data
        assert isinstance(x, Tensor)
        sizes = None if packed is None else packed.batch_sizes
        batched, axis = True, 0 if self.batch_first else 1
        if packed is None:
            if x.ndim not in (2, 3):
                name, tensor = ("RNN", " tensor") if self.mode.startswith("RNN") else (self.mode, "")
                raise ValueError(f"{name}: Expected input to be 2D or 3D, got {x.ndim}D{tensor} instead")
            batched = x.ndim == 3
            x = x if batched else x.unsqueeze(axis)
        shapes = [self.get_expected_hidden_size(x, sizes), *([self.get_expected_cell_size(x, sizes)] if lstm else [])]
        if hx is None:
            states = tuple(zeros(*shape, dtype=x.dtype, device=x.device) for shape in shapes)
        else:
            states = self._given_states(hx, 3 if batched else 2)
        self.check_input(x, sizes)
        for number, (state, shape) in enumerate(zip(states, shapes)):
            self.check_hidden_size(state, shape, f"Expected hidden{f'[{number}]' if lstm else ''} size {{}}, got {{}}")
        if packed is not None and hx is not None and packed.sorted_indices is not None:
            states = tuple(each.index_select(1, packed.sorted_indices) for each in states)
        run = _SEQUENCE[self.mode]
        settings = (self._flat_weights, self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        given = states if lstm else states[0]
        if packed is not None:
            found, *ends = run(x, sizes, given, *settings)
            if packed.unsorted_indices is not None:
                ends = [each.index_select(1, packed.unsorted_indices) for each in ends]
            result: Any = PackedSequence(found, *packed[1:])
        else:
            result, *ends = run(x, given, *settings, self.batch_first)
            if not batched:
                result, ends = result.squeeze(axis), [each.squeeze(1) for each in ends]
        return result, (tuple(ends) if lstm else ends[0])

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        usual = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False}
        for name, value in usual.items():
            if getattr(self, name) != value:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh) in `num_layers` layers, or with nonlinearity="relu" relu.

    Shapes: input (T, N, I), (N, T, I) with batch_first, (T, I), or a PackedSequence; h_0 (layers directions, N, H), zeros
    where None -> the last layer's states (T, N, directions H), and the last h of every layer and direction.
    dropout: between layers, while training.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: DType | None = None, **rest: Any,
    ) -> None:  # fmt: skip
        _no_projection(rest)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            0, device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory in `num_layers` layers: each step is that of `LSTMCell`.

    Shapes: as RNN's; the state is (h_0, c_0), and so is the last one. proj_size P: h is W_hr times the cell's h, of size P.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )


class GRU(RNNBase):
    """Gated recurrent units in `num_layers` layers: each step is that of `GRUCell`. Shapes: as RNN's."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: DType | None = None, **rest: Any,
    ) -> None:  # fmt: skip
        _no_projection(rest)
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )


def _no_projection(rest: dict[str, Any]) -> None:
    if "proj_size" in rest:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
    if rest:
        raise TypeError(f"unexpected keyword arguments: {', '.join(rest)}")

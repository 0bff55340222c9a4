"""The multi-layer perceptron: linear layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith import nn
from tensorsmith.tensor.tensor import Tensor


class MLP(nn.Module):
    """h_0 = flatten(x), h_k = dropout(relu(W_k h_(k-1) + b_k)), logits = W h + b.

    features: elements of one input; hidden: widths of the hidden layers (may be empty); classes: number of logits
    input_dropout, dropout: probability that an input, a hidden value is left out of a training step
    forward: (N, ...) with `features` elements a row -> (N, classes)
    Raises ValueError for a width below 1.
    """

    def __init__(
        self, features: int, hidden: Sequence[int], classes: int, dropout: float = 0.0, input_dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [features, *hidden, classes]
        if min(widths) < 1:
            raise ValueError(f"MLP: every width must be at least 1, got {' - '.join(map(str, widths))}")
        self.features, self.hidden, self.classes = features, tuple(hidden), classes
        layers: list[nn.Module] = [nn.Flatten()]
        if input_dropout:
            layers.append(nn.Dropout(input_dropout))
        for inside, outside in zip(widths, widths[1:-1]):
            layers += [nn.Linear(inside, outside), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers.append(nn.Linear(widths[-2], classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.layers(x)

    def extra_repr(self) -> str:
        return " - ".join(map(str, (self.features, *self.hidden, self.classes)))

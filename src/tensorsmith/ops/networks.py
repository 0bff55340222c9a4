"""The families of `nn.functional`, imported together."""

from tensorsmith.ops import (
    activations,
    channel_normalisation,
    classification,
    distances,
    dropout,
    embedding,
    linear,
    losses,
    margin_losses,
    normalisation,
    softmax,
)

__all__ = [
    "activations",
    "channel_normalisation",
    "classification",
    "distances",
    "dropout",
    "embedding",
    "linear",
    "losses",
    "margin_losses",
    "normalisation",
    "softmax",
]

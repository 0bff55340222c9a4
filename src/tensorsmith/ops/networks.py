"""The families of `nn.functional`, imported together."""

from tensorsmith.ops import activations, classification, distances, dropout, embedding, linear, losses, normalisation, softmax

__all__ = ["activations", "classification", "distances", "dropout", "embedding", "linear", "losses", "normalisation", "softmax"]

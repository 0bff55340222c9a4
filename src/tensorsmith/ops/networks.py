"""The families of `nn.functional`, imported together."""

from tensorsmith.ops import activations, classification, dropout, embedding, linear, losses, normalisation, softmax

__all__ = ["activations", "classification", "dropout", "embedding", "linear", "losses", "normalisation", "softmax"]

"""The families of `nn.functional`, imported together."""

from tensorsmith.ops import activations, classification, embedding, linear, losses, normalisation, softmax

__all__ = ["activations", "classification", "embedding", "linear", "losses", "normalisation", "softmax"]

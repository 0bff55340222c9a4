"""The families of `nn.functional`, imported together."""

from tensorsmith.ops import activations, classification, linear, losses, softmax

__all__ = ["activations", "classification", "linear", "losses", "softmax"]

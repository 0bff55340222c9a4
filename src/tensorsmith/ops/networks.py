"""The families of `nn.functional`, imported together."""

from tensorsmith.ops import activations, linear, softmax

__all__ = ["activations", "linear", "softmax"]

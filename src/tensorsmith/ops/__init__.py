"""The operators users call, by family. Importing this room binds every method onto Tensor."""

from tensorsmith.ops import conversion, creation, gradients, inplace, networks, pointwise

__all__ = ["conversion", "creation", "gradients", "inplace", "networks", "pointwise", "views"]

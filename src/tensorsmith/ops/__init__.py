"""The operators users call, by family. Importing this room binds every method onto Tensor."""

from tensorsmith.ops import conversion, creation, inplace, pointwise

__all__ = ["conversion", "creation", "inplace", "pointwise"]

"""The operators users call, by family. Importing this room binds every method onto Tensor."""

from tensorsmith.ops import (
    conversion,
    copying,
    creation,
    gradients,
    inplace,
    networks,
    pointwise,
    reductions,
    views,
)

__all__ = [
    "conversion",
    "copying",
    "creation",
    "gradients",
    "inplace",
    "networks",
    "pointwise",
    "reductions",
    "views",
]

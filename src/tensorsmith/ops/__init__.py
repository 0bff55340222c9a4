"""The operators users call, by family. Importing this room binds every method onto Tensor."""

from tensorsmith.ops import (
    contraction,
    conversion,
    copying,
    creation,
    gradients,
    indexing,
    inplace,
    joining,
    matmul,
    networks,
    pointwise,
    positions,
    random,
    reductions,
    selecting,
    views,
)

__all__ = [
    "contraction",
    "conversion",
    "copying",
    "creation",
    "gradients",
    "indexing",
    "inplace",
    "joining",
    "matmul",
    "networks",
    "pointwise",
    "positions",
    "random",
    "reductions",
    "selecting",
    "views",
]

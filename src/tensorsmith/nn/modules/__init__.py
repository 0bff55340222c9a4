"""PyTorch's address of the layers, for programs written for it; they live in the files of `nn`."""

from tensorsmith.nn.modules import module
from tensorsmith.nn.modules.module import Module

__all__ = ["Module", "module"]

"""The table with all its entries."""

from tensorsmith.interop.torch import layer_operators, tensor_operators
from tensorsmith.interop.torch.table import OPERATORS, aten

__all__ = ["OPERATORS", "aten", "layer_operators", "tensor_operators"]

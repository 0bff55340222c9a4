"""The graph as users see it: `ts.autograd.graph.Node`, `GradientEdge`, `saved_tensors_hooks`, ..."""

from tensorsmith.autograd.backward import GradientEdge, get_gradient_edge
from tensorsmith.autograd.hooks import RemovableHandle, saved_tensors_hooks
from tensorsmith.autograd.node import Node

__all__ = ["GradientEdge", "Node", "RemovableHandle", "get_gradient_edge", "saved_tensors_hooks"]

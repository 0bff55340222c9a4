"""The graph as users see it: `ts.autograd.graph.Node`, `GradientEdge`, `saved_tensors_hooks`, ..."""

from tensorsmith.autograd.backward import GradientEdge, get_gradient_edge
from tensorsmith.autograd.hooks import RemovableHandle, saved_tensors_hooks
from tensorsmith.autograd.multi_hooks import register_multi_grad_hook
from tensorsmith.autograd.node import Node
from tensorsmith.autograd.saved import increment_version
from tensorsmith.autograd.saved_hooks import disable_saved_tensors_hooks, save_on_cpu

__all__ = [
    "GradientEdge", "Node", "RemovableHandle", "disable_saved_tensors_hooks", "get_gradient_edge", "increment_version",
    "register_multi_grad_hook", "save_on_cpu", "saved_tensors_hooks",
]  # fmt: skip

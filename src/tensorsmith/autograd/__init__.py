"""Automatic differentiation over opaque nodes: the backward engine, hooks, `Function`, gradient checks.

Nothing here knows what a node computes; the little arithmetic that gradients need is lent by the operators.
"""

from tensorsmith.autograd import forward_ad, functional, graph
from tensorsmith.autograd.anomaly import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from tensorsmith.autograd.backward import GradientEdge, backward, get_gradient_edge, grad
from tensorsmith.autograd.function import Function, FunctionCtx, once_differentiable
from tensorsmith.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from tensorsmith.autograd.node import Node
from tensorsmith.autograd.variable import Variable
from tensorsmith.tensor.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_multithreading_enabled,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)

__all__ = [
    "Function", "FunctionCtx", "GradcheckError", "GradientEdge", "Node", "Variable", "backward", "detect_anomaly",
    "enable_grad", "forward_ad", "functional", "get_gradient_edge", "grad", "gradcheck", "gradgradcheck", "graph",
    "inference_mode", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "is_grad_enabled", "is_multithreading_enabled",
    "no_grad", "once_differentiable", "set_detect_anomaly", "set_grad_enabled", "set_multithreading_enabled",
]  # fmt: skip

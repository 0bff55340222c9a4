"""Stochastic gradient descent on parameters of Scalars or Tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.minitorch.module import Parameter
from tensorsmith.minitorch.scalar import Scalar
from tensorsmith.minitorch.tensor import Tensor


class Optimizer:
    """Holds the parameters that it updates."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        if isinstance(parameters, (Tensor, Scalar)):
            got = type(parameters).__name__
            raise TypeError(f"{type(self).__name__}: needs parameters, such as model.parameters(), got one {got}")
        self.parameters = parameters


class SGD(Optimizer):
    """value <- value - lr * gradient.

    A step replaces every value by a new one, which has no gradient yet: as in MiniTorch, programs that never call
    `zero_grad` are right.
    """

    def __init__(self, parameters: Sequence[Parameter], lr: float = 1.0) -> None:
        super().__init__(parameters)
        self.lr = lr

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            value: Any = parameter.value
            if getattr(value, "derivative", None) is not None:
                value.derivative = None
            if getattr(value, "grad", None) is not None:
                value.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for parameter in self.parameters:
            value: Any = parameter.value
            if isinstance(value, Tensor):
                if value.grad is not None:
                    parameter.update(value.moved(value.grad, -self.lr))
            elif getattr(value, "derivative", None) is not None:
                parameter.update(Scalar(value.data - self.lr * value.derivative))

"""Linear layers."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.core.dtypes import DType, get_default_dtype
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.module import Module
from tensorsmith.nn.parameter import Parameter
from tensorsmith.tensor.placement import place_of
from tensorsmith.tensor.tensor import Tensor, empty_tensor


def new_parameter(shape: tuple[int, ...], dtype: DType | None, device: Any = None) -> Parameter:
    """A parameter over new memory that holds anything yet."""
    place = place_of(device)
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return Parameter(empty_tensor(dtype or get_default_dtype(), shape, None, place))


class Identity(Module):
    """y = x. Any arguments are taken and ignored, so that it can stand for any layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return input


class Linear(Module):
    """y = x A^T + b.

    Shapes: x (*, in_features) -> (*, out_features); weight (out_features, in_features), bias (out_features) or None.
    Initialisation: weight and bias U(-k, k) with k = 1 / sqrt(in_features).
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = new_parameter((out_features, in_features), dtype, device)
        if bias:
            self.bias = new_parameter((out_features,), dtype, device)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # = U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """y = x1^T A x2 + b, one A per output feature.

    Shapes: x1 (*, in1_features), x2 (*, in2_features) -> (*, out_features);
    weight (out_features, in1_features, in2_features), bias (out_features) or None.
    Initialisation: U(-k, k) with k = 1 / sqrt(in1_features).
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = new_parameter((out_features, in1_features, in2_features), dtype, device)
        if bias:
            self.bias = new_parameter((out_features,), dtype, device)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )

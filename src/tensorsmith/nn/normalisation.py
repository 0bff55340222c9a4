"""Normalisation over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and biased variance over the last axes (Ba et al., 2016).

    Shapes: x (*, *normalized_shape) -> the same; weight and bias normalized_shape, or None without elementwise_affine.
    Initialisation: weight ones, bias zeros.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(name, new_parameter(self.normalized_shape, dtype, device) if wanted else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight ones, bias zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, the mean over the last axes (Zhang and Sennrich, 2019).

    Shapes: x (*, *normalized_shape) -> the same; weight normalized_shape, or None without elementwise_affine.
    eps: the dtype's machine epsilon where None. Initialisation: weight ones.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        parameter = new_parameter(self.normalized_shape, dtype, device) if elementwise_affine else None
        self.register_parameter("weight", parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight ones."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"

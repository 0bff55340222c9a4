"""Normalisation by groups of channels, and by neighbouring channels."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor


class GroupNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, statistics of a group of channels of one sample (Wu, He, 2018).

    Shapes: x (N, C, *) -> the same; weight and bias (C), or None without affine. C is divided into num_groups groups.
    Initialisation: weight ones, bias zeros. Raises ValueError where num_groups does not divide num_channels.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, new_parameter((num_channels,), dtype, device) if wanted else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight ones, bias zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"
        )


class _Neighbours(Module):
    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class LocalResponseNorm(_Neighbours):
    """y = x / (k + alpha times the mean of x^2 over `size` neighbouring channels)^beta (Krizhevsky et al., 2012).

    Shapes: x (N, C, *) of at least three axes -> the same.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)


class CrossMapLRN2d(_Neighbours):
    """y = x / (k + alpha / size times the sum of x^2 over a channel and (size - 1) // 2 on each side)^beta.

    For an odd size this is LocalResponseNorm. PyTorch's layer of this name leaves the first channel in every window behind
    it, and its gradient is that of windows moved by one; here both follow the formula.
    Shapes: x (N, C, H, W) -> the same. Raises ValueError for another number of axes.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if input.ndim != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.ndim}D instead.")
        width = 2 * ((self.size - 1) // 2) + 1
        return F.local_response_norm(input, width, self.alpha * width / self.size, self.beta, self.k)

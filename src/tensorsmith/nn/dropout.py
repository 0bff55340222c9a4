"""Dropout: values set to zero at random while training."""

from __future__ import annotations

from tensorsmith.nn import functional as F
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """While training: each element 0 with probability p, the others divided by 1 - p; in evaluation the identity."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """While training: whole channels of (N, C, L) or (C, L) 0 with probability p, the others divided by 1 - p."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """While training: whole channels of (N, C, H, W) 0 with probability p, the others divided by 1 - p."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """While training: whole channels of (N, C, D, H, W) 0 with probability p, the others divided by 1 - p."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout for SELU networks: keeps mean and variance (Klambauer et al., 2017)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels (axis 1)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)

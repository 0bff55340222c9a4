"""Distances and similarities of pairs of vectors."""

from __future__ import annotations

from tensorsmith.nn import functional as F
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor


class CosineSimilarity(Module):
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along dim. Shapes: any that broadcast -> the same without dim."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """(sum over the last axis of |x1 - x2 + eps|^p)^(1/p). Shapes: (N, D) or (D) -> (N) or (), keepdim: with 1 at the end."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)

"""Losses that hold the last layer of a classifier: for many classes, or to keep the scores of all out of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tensorsmith.core.dtypes import DType, int64
from tensorsmith.nn import functional as F
from tensorsmith.nn.containers import ModuleList, Sequential
from tensorsmith.nn.linear import Linear
from tensorsmith.nn.losses import WeightedLoss
from tensorsmith.nn.module import Module
from tensorsmith.ops.creation import zeros
from tensorsmith.ops.joining import cat
from tensorsmith.ops.linear_cross_entropy import LinearCrossEntropyOptions
from tensorsmith.tensor.tensor import Tensor


class LinearCrossEntropyLoss(WeightedLoss):
    """cross_entropy(x A^T + b, target), with A and b its own; see `nn.functional.linear_cross_entropy`.

    Shapes: x (N, in_features) or (in_features); target labels (N, *out_features) or (), or probabilities
    (N, num_classes, *out_features). options: go through the rows in chunks. Initialisation: that of Linear.
    Raises RuntimeError for a weight of another shape than (num_classes) and for label_smoothing outside [0, 1].
    """

    def __init__(
        self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False,
        device: Any = None, dtype: DType | None = None, reduction: str = "mean", weight: Tensor | None = None,
        ignore_index: int | None = None, label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:  # fmt: skip
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise RuntimeError(f"expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(f"expected label_smoothing to be in range [0, 1], got {label_smoothing}")
        super().__init__(weight, reduction=reduction)
        self.num_classes = num_classes
        self.out_features = out_features
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.linear = Linear(in_features, math.prod(out_features, start=num_classes), bias, device, dtype)
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        places = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return F.linear_cross_entropy(
            input, self.linear.weight.reshape(*places, self.linear.in_features), target,
            linear_bias=None if bias is None else bias.reshape(places), weight=self.weight, reduction=self.reduction,
            ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, options=self.options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
            f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class AdaptiveOutput(NamedTuple):
    """The log-probabilities of the targets (N) or (), and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """log p(y | x) for many classes, the frequent ones first, the others in clusters (Grave et al., 2017).

    The head scores the classes below cutoffs[0] and one score for every cluster; the tail of cluster i goes through
    in_features / div_value^(i + 1) features. log p(y) = head[cluster of y] + tail[y].
    Shapes: x (N, in_features) or (in_features), y (N) or () -> AdaptiveOutput. Initialisation: that of Linear.
    Raises ValueError for cutoffs that do not rise within 1 ... n_classes - 1, RuntimeError for shapes that do not fit and
    for a target out of range.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
        device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            any(int(c) != c for c in cutoffs) or cutoffs[0] <= 0 or cutoffs[-1] > n_classes - 1
            or any(a >= b for a, b in pairwise(cutoffs))
        ):  # fmt: skip
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each value "
                f"is between 1 and n_classes-1, got {cutoffs} for n_classes={n_classes}"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = cutoffs[0]
        self.n_clusters = len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for i, (low, high) in enumerate(pairwise(self.cutoffs)):
            width = int(in_features // div_value ** (i + 1))
            self.tail.append(
                Sequential(
                    Linear(in_features, width, False, device, dtype), Linear(width, high - low, False, device, dtype)
                )
            )

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.head.reset_parameters()
        for narrow, wide in self.tail:
            narrow.reset_parameters()
            wide.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> AdaptiveOutput:
        if target_.ndim > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if target_.ndim == 1 and input_.shape[0] != target_.shape[0]:
            raise RuntimeError("Input and target should have the same size in the batch dimension.")
        if input_.ndim != target_.ndim + 1:
            raise RuntimeError(
                f"{target_.ndim}D target tensor expects {target_.ndim + 1}D input tensors, but found inputs with size "
                f"{input_.shape}"
            )
        batched = target_.ndim > 0
        x, target = (input_, target_) if batched else (input_.unsqueeze(0), target_.unsqueeze(0))
        if target.numel() and (target.min().item() < 0 or target.max().item() >= self.n_classes):
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range "
                f"[{target.min().item()}, {target.max().item()}] were found. "
            )
        in_head = target.clone()
        output = zeros(target.shape[0], dtype=x.dtype, device=x.device)
        for i, (low, high) in enumerate(pairwise(self.cutoffs)):
            rows = ((target >= low) & (target < high)).nonzero().squeeze(1)
            if not rows.numel():
                continue
            in_head[rows] = self.shortlist_size + i
            scores = F.log_softmax(self.tail[i](x.index_select(0, rows)), dim=1)
            place = (target.index_select(0, rows) - low).to(int64)
            output = output.index_add(0, rows, scores.gather(1, place.unsqueeze(1)).squeeze(1))
        head = F.log_softmax(self.head(x), dim=1)
        output = output + head.gather(1, in_head.unsqueeze(1)).squeeze(1)
        loss = (-output).mean()
        return AdaptiveOutput(output if batched else output.squeeze(0), loss)

    def _log_prob(self, x: Tensor, head: Tensor) -> Tensor:
        scores = F.log_softmax(head, dim=1)
        parts = [scores[:, : self.shortlist_size]]
        for i, cluster in enumerate(self.tail):
            place = self.shortlist_size + i
            parts.append(F.log_softmax(cluster(x), dim=1) + scores[:, place : place + 1])
        return cat(parts, 1)

    def log_prob(self, input: Tensor) -> Tensor:  # noqa: A002
        """The log-probabilities of all classes: (N, n_classes)."""
        return self._log_prob(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:  # noqa: A002
        """The most probable class of every row (N); clusters are looked into only where the head chooses one."""
        head = self.head(input)
        found = head.argmax(dim=1)
        rows = (found >= self.shortlist_size).nonzero().squeeze(1)
        if rows.numel():
            found[rows] = self._log_prob(input.index_select(0, rows), head.index_select(0, rows)).argmax(dim=1)
        return found

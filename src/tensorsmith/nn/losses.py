"""Losses as modules: each is the function of the same meaning in `nn.functional`.

reduction: "mean" (default), "sum" or "none" of the values that the formula gives for every element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.nn import functional as F
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor


class Loss(Module):
    """Base of losses: `reduction`, also by PyTorch's former arguments size_average and reduce."""

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        super().__init__()
        if size_average is not None or reduce is not None:  # as PyTorch still reads them
            kept = reduce is None or reduce
            reduction = ("mean" if size_average is None or size_average else "sum") if kept else "none"
        self.reduction = reduction


class WeightedLoss(Loss):
    """With a weight per class as a buffer."""

    def __init__(
        self, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class MSELoss(Loss):
    """(x - y)^2. Shapes: any, the same for both."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(Loss):
    """|x - y|. Shapes: any, the same for both."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(Loss):
    """(x - y)^2 / (2 beta) where |x - y| < beta, |x - y| - beta / 2 elsewhere."""

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean", beta: float = 1.0
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(Loss):
    """(x - y)^2 / 2 where |x - y| < delta, delta (|x - y| - delta / 2) elsewhere."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class KLDivLoss(Loss):
    """y (log y - x), x log-probabilities; log_target: so are y. reduction "batchmean" divides by N."""

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
        log_target: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class NLLLoss(WeightedLoss):
    """-weight[y] x[y], x log-probabilities. Shapes: x (N, C, *), y (N, *) of class numbers.

    ignore_index: a class that does not count; "mean" divides by the sum of the weights that count.
    """

    def __init__(
        self, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100,
        reduce: bool | None = None, reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(WeightedLoss):
    """-weight[y] log softmax(x)[y]. Shapes: x (N, C, *) or (C); y class numbers (N, *) or probabilities like x.

    label_smoothing: share of the target that is spread over all classes.
    """

    def __init__(
        self, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100,
        reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.cross_entropy(
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class BCELoss(WeightedLoss):
    """-weight (y log x + (1 - y) log(1 - x)), logarithms not below -100. Shapes: any, the same for both."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(Loss):
    """BCELoss of sigmoid(x), computed without overflow; pos_weight multiplies the term of y."""

    def __init__(
        self, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None,
        reduction: str = "mean", pos_weight: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        options: dict[str, Any] = {"weight": self.weight, "pos_weight": self.pos_weight, "reduction": self.reduction}
        return F.binary_cross_entropy_with_logits(input, target, **options)


class CTCLoss(Loss):
    """-log of the probability of the labels over all their alignments with the frames (Graves et al., 2006).

    Shapes: log_probs (T, N, C) or (T, C), targets (N, S) or one after the other, input_lengths and target_lengths (N) or ().
    blank: the class between labels. reduction "mean" divides by the numbers of labels first; zero_infinity: 0 for frames too
    few for the labels.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
        target_lengths: Tensor | Sequence[int],
    ) -> Tensor:  # fmt: skip
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )

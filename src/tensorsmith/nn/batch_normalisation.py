"""Normalisation of every channel over the batch: BatchNorm1d, 2d and 3d, and their lazy forms."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType, get_default_dtype, int64
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.lazy import LazyModuleMixin
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.nn.uninitialized import UninitializedBuffer, UninitializedParameter, UninitializedTensor
from tensorsmith.ops.creation import ones, zeros
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class ChannelStatistics(Module):
    """Base of layers with a weight and a bias a channel and running statistics of every channel."""

    ranks: tuple[int, ...] = ()  # numbers of axes of an input
    expected = ""  # the same in words

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, new_parameter((num_features,), dtype, device) if wanted else None)
        dtype = dtype or get_default_dtype()
        found = (
            zeros(num_features, dtype=dtype, device=device), ones(num_features, dtype=dtype, device=device),
            zeros((), dtype=int64, device=device),
        )  # fmt: skip
        for name, each in zip(STATISTICS, found):
            self.register_buffer(name, each if track_running_stats else None)
        self.reset_parameters()

    @no_grad()
    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batches."""
        if self.running_mean is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Weight ones, bias zeros, and the running statistics forgotten."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - PyTorch's name
        if input.ndim not in self.ranks:
            raise ValueError(f"expected {self.expected} input (got {input.ndim}D input)")

    def _channel_axis(self, input: Tensor) -> int:  # noqa: A002
        return 1

    def _before_load(self, state: dict[str, Any], prefix: str) -> None:
        """States from before batches were counted lack the count."""
        if self.num_batches_tracked is not None:
            state.setdefault(prefix + "num_batches_tracked", self.num_batches_tracked)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(ChannelStatistics):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        self._check_input_dim(input)
        training, momentum = self.training, self.momentum
        mean, variance = self.running_mean, self.running_var
        if training:
            if not self.track_running_stats:
                mean = variance = None
            elif self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if momentum is None:  # the average of all batches so far
                    momentum = 1.0 / float(self.num_batches_tracked)
        elif mean is None and variance is None:
            training = True
        return F.batch_norm(
            input, mean, variance, self.weight, self.bias, training, 0.0 if momentum is None else momentum, self.eps
        )


class BatchNorm1d(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, statistics of every channel over the batch (Ioffe, Szegedy, 2015).

    Shapes: x (N, C) or (N, C, L) -> the same; weight, bias, running_mean and running_var (C).
    While training the batch's mean and biased variance are used, and the running ones move towards them (the variance with
    n - 1) by `momentum`, or by 1 / number of batches where momentum is None; in evaluation the running ones are used, and
    without track_running_stats the batch's. Initialisation: weight ones, bias zeros.
    Raises ValueError for another number of axes, or for one value a channel while training.

    >>> ts.nn.BatchNorm1d(2, affine=False)(ts.tensor([[1.0, 4.0], [3.0, 4.0]]))
    tensor([[-1.0000,  0.0000],
            [ 1.0000,  0.0000]])
    """

    ranks, expected = (2, 3), "2D or 3D"


class BatchNorm2d(_BatchNorm):
    """BatchNorm1d for images. Shapes: x (N, C, H, W) -> the same."""

    ranks, expected = (4,), "4D"


class BatchNorm3d(_BatchNorm):
    """BatchNorm1d for volumes. Shapes: x (N, C, D, H, W) -> the same."""

    ranks, expected = (5,), "5D"


class SyncBatchNorm(_BatchNorm):
    """Batch norm for inputs (N, C, ...) of any number of axes, as PyTorch has it in one process: statistics are this batch's.

    process_group: None; NotImplementedError for a group, because statistics over several processes are not implemented.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: DType | None = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        if process_group is not None:
            raise NotImplementedError("SyncBatchNorm: process_group: statistics over several processes are not implemented")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")
        if not input.shape[1]:
            raise ValueError("SyncBatchNorm number of input channels should be non-zero")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with every BatchNorm1d, 2d and 3d below it (or itself) as a SyncBatchNorm of the same parameters.

        >>> ts.nn.SyncBatchNorm.convert_sync_batchnorm(ts.nn.Sequential(ts.nn.BatchNorm2d(3)))[0].num_features
        3
        """
        found = module
        if isinstance(module, _BatchNorm):
            found = SyncBatchNorm(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group,
                bias=module.bias is not None,
            )  # fmt: skip
            for name in ("weight", "bias", *STATISTICS):
                setattr(found, name, getattr(module, name))
            found.training = module.training
        for name, child in module.named_children():
            found.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return found


class LazyChannelStatistics(LazyModuleMixin, ChannelStatistics):
    """Base of the lazy forms: num_features is the number of channels of the first input."""

    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(0, eps, momentum, False, False, device, dtype, bias=False)
        self.affine = affine
        self.track_running_stats = track_running_stats
        if affine:
            self.weight = UninitializedParameter(device=device, dtype=dtype)
            if bias:
                self.bias = UninitializedParameter(device=device, dtype=dtype)
        if track_running_stats:
            self.running_mean = UninitializedBuffer(device=device, dtype=dtype)
            self.running_var = UninitializedBuffer(device=device, dtype=dtype)
            self.num_batches_tracked = zeros((), dtype=int64, device=device)

    def reset_parameters(self) -> None:
        """Initial values, once there is memory for them."""
        if not self.has_uninitialized_params() and self.num_features:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:  # noqa: A002
        """Take num_features from the input."""
        waiting = self.has_uninitialized_params()
        if self.num_features and not waiting:
            return
        self._check_input_dim(input)
        self.num_features = input.shape[self._channel_axis(input)]
        if waiting:
            for member in (self.weight, self.bias, self.running_mean, self.running_var):
                if isinstance(member, UninitializedTensor):
                    member.materialize((self.num_features,))
            self.reset_parameters()


class LazyBatchNorm1d(LazyChannelStatistics, BatchNorm1d):
    """A BatchNorm1d whose num_features is the number of channels of its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(LazyChannelStatistics, BatchNorm2d):
    """A BatchNorm2d whose num_features is the number of channels of its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(LazyChannelStatistics, BatchNorm3d):
    """A BatchNorm3d whose num_features is the number of channels of its first input."""

    cls_to_become = BatchNorm3d

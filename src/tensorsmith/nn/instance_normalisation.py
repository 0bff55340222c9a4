"""Normalisation of every channel of every sample: InstanceNorm1d, 2d and 3d, and their lazy forms."""

from __future__ import annotations

import warnings
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn import functional as F
from tensorsmith.nn.batch_normalisation import ChannelStatistics, LazyChannelStatistics
from tensorsmith.tensor.tensor import Tensor


class _InstanceNorm(ChannelStatistics):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: DType | None = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _channel_axis(self, input: Tensor) -> int:  # noqa: A002 - PyTorch's name
        return input.ndim - self.ranks[0]

    def _before_load(self, state: dict[str, Any], prefix: str) -> None:
        super()._before_load(state, prefix)
        if not self.track_running_stats:
            found = [f'"{prefix}{name}"' for name in ("running_mean", "running_var") if prefix + name in state]
            if found:
                kind = type(self).__name__
                raise RuntimeError(
                    f"Error(s) in loading state_dict for {kind}:\n\tUnexpected running stats buffer(s) {' and '.join(found)} "
                    f"for {kind} with track_running_stats=False. Remove these keys from the state, or make the layer with "
                    "track_running_stats=True."
                )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        self._check_input_dim(input)
        axis = self._channel_axis(input)
        if input.shape[axis] != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={axis} to match num_features ({self.num_features}), but got: "
                    f"{input.shape[axis]}."
                )
            warnings.warn(
                f"input's size at dim={axis} does not match num_features. You can silence this warning by not passing in "
                "num_features, which is not used because affine=False",
                stacklevel=2,
            )
        batch = input if axis else input.unsqueeze(0)
        result = F.instance_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, 0.0 if self.momentum is None else self.momentum, self.eps,
        )  # fmt: skip
        return result if axis else result.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, statistics of every channel of every sample (Ulyanov et al., 2016).

    Shapes: x (N, C, L) or (C, L) -> the same; weight and bias (C) with affine, else None. With track_running_stats the
    running statistics (C) move by `momentum` while training and are used in evaluation; else a sample's own always are.
    Initialisation: weight ones, bias zeros.
    Raises ValueError for another number of axes, for one value a channel, and for other channels than num_features (a
    warning without affine).
    """

    ranks, expected = (2, 3), "2D or 3D"


class InstanceNorm2d(_InstanceNorm):
    """InstanceNorm1d for images. Shapes: x (N, C, H, W) or (C, H, W) -> the same."""

    ranks, expected = (3, 4), "3D or 4D"


class InstanceNorm3d(_InstanceNorm):
    """InstanceNorm1d for volumes. Shapes: x (N, C, D, H, W) or (C, D, H, W) -> the same."""

    ranks, expected = (4, 5), "4D or 5D"


class LazyInstanceNorm1d(LazyChannelStatistics, InstanceNorm1d):
    """An InstanceNorm1d whose num_features is the number of channels of its first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(LazyChannelStatistics, InstanceNorm2d):
    """An InstanceNorm2d whose num_features is the number of channels of its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(LazyChannelStatistics, InstanceNorm3d):
    """An InstanceNorm3d whose num_features is the number of channels of its first input."""

    cls_to_become = InstanceNorm3d

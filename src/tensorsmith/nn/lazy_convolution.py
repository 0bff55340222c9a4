"""Lazy forms of the convolutional layers: in_channels is the number of channels of the first input."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Extents,
)  # fmt: skip
from tensorsmith.nn.lazy import LazyModuleMixin
from tensorsmith.nn.uninitialized import UninitializedParameter, UninitializedTensor
from tensorsmith.tensor.tensor import Tensor


class _LazyConvolution(LazyModuleMixin):
    """What the layers of both directions share; stands before their class."""

    def _wait(self, out_channels: int, bias: bool, device: Any, dtype: DType | None) -> None:
        layer: Any = self
        layer.out_channels = out_channels
        layer.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            layer.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw weight and bias, once they have their sizes."""
        layer: Any = self
        if layer.in_channels and not self.has_uninitialized_params():
            super().reset_parameters()  # type: ignore[misc]

    def initialize_parameters(self, input: Tensor, *rest: Any, **options: Any) -> None:  # noqa: A002 - PyTorch's name
        """Take in_channels from the input."""
        layer: Any = self
        waiting = self.has_uninitialized_params()
        if layer.in_channels and not waiting:
            return
        rank = layer.RANK
        if input.ndim not in (rank + 1, rank + 2):
            raise RuntimeError(
                f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {type(self).__name__}, but got input of "
                f"size: {list(input.shape)}"
            )
        channels = input.shape[-rank - 1]
        if channels % layer.groups:
            raise ValueError(f"in_channels must be divisible by groups, got {channels} and {layer.groups}")
        layer.in_channels = channels
        if waiting:
            ends = (channels, layer.out_channels) if layer.TRANSPOSED else (layer.out_channels, channels)
            shape = (ends[0], ends[1] // layer.groups, *layer.kernel_size)
            for member, extents in ((layer.weight, shape), (layer.bias, (layer.out_channels,))):
                if isinstance(member, UninitializedTensor):
                    member.materialize(extents)
            self.reset_parameters()


class _LazyConv(_LazyConvolution):
    def __init__(
        self, out_channels: int, kernel_size: Extents, stride: Extents = 1, padding: Extents | str = 0,
        dilation: Extents = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(  # type: ignore[call-arg]
            0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode, device, dtype
        )
        self._wait(out_channels, bias, device, dtype)


class _LazyConvTranspose(_LazyConvolution):
    def __init__(
        self, out_channels: int, kernel_size: Extents, stride: Extents = 1, padding: Extents = 0,
        output_padding: Extents = 0, groups: int = 1, bias: bool = True, dilation: Extents = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(  # type: ignore[call-arg]
            0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode, device, dtype
        )
        self._wait(out_channels, bias, device, dtype)


class LazyConv1d(_LazyConv, Conv1d):
    """A Conv1d whose in_channels is the number of channels of its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """A Conv2d whose in_channels is the number of channels of its first input.

    >>> layer = ts.nn.LazyConv2d(4, 3)
    >>> layer(ts.ones(2, 3, 5, 5)).shape, layer
    (tensorsmith.Size([2, 4, 3, 3]), Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1)))
    """

    cls_to_become = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """A Conv3d whose in_channels is the number of channels of its first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """A ConvTranspose1d whose in_channels is the number of channels of its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """A ConvTranspose2d whose in_channels is the number of channels of its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """A ConvTranspose3d whose in_channels is the number of channels of its first input."""

    cls_to_become = ConvTranspose3d

"""Convolutional layers.

    ConvNd:           y[n, o, p] = b[o] + sum over c, k of x[n, c, p stride + k dilation - padding] w[o, c, k]
    ConvTransposeNd:  the transpose of that map

Shapes (L stands for one extent a spatial axis): x (N, C, L...) or (C, L...) -> (N, O, M...) or (O, M...), with
M = (L + 2 padding - dilation (K - 1) - 1) // stride + 1, and of the transposed layers
M = (L - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1.
weight (O, C / groups, K...), transposed (C, O / groups, K...); bias (O) or None.
Initialisation: weight and bias U(-k, k) with k = 1 / sqrt(fan_in), fan_in = weight.numel / weight.shape[0].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.core.memory_format import MemoryFormat
from tensorsmith.nn import functional as F, init
from tensorsmith.nn.linear import new_parameter
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor

Extents = int | Sequence[int]
MODES = ("zeros", "reflect", "replicate", "circular")


def _repeated(value: Extents, rank: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,) * rank


class _Convolution(Module):
    """What the layers of both directions share; RANK axes of space."""

    RANK: int
    TRANSPOSED = False
    bias: Tensor | None
    padding: Any  # one number an axis, "same" or "valid"

    def _set_up(
        self, in_channels: int, out_channels: int, kernel_size: Extents, stride: Extents, padding: Extents | str,
        dilation: Extents, output_padding: Extents, groups: int, bias: bool, padding_mode: str, device: Any,
        dtype: DType | None,
    ) -> None:  # fmt: skip
        rank = self.RANK
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _repeated(kernel_size, rank), _repeated(stride, rank)
        self.padding = padding if isinstance(padding, str) else _repeated(padding, rank)
        self.dilation, self.output_padding = _repeated(dilation, rank), _repeated(output_padding, rank)
        self.transposed, self.padding_mode = self.TRANSPOSED, padding_mode
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError(f"in_channels must be divisible by groups, got {in_channels} and {groups}")
        if out_channels % groups:
            raise ValueError(f"out_channels must be divisible by groups, got {out_channels} and {groups}")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
            if padding == "same" and any(n != 1 for n in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in MODES:
            raise ValueError(f"padding_mode must be one of {set(MODES)}, but got padding_mode='{padding_mode}'")
        channels = (in_channels, out_channels) if self.TRANSPOSED else (out_channels, in_channels)
        self.weight = new_parameter((channels[0], channels[1] // groups, *self.kernel_size), dtype, device)
        if bias:
            self.bias = new_parameter((out_channels,), dtype, device)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # = U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        rank = self.RANK
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, usual in (("padding", 0), ("dilation", 1), ("output_padding", 0)):
            value = getattr(self, name)
            if value != (usual,) * (len(value) if isinstance(value, str) else rank):
                parts.append(f"{name}={value}")
        parts += [f"groups={self.groups}"] * (self.groups != 1) + ["bias=False"] * (self.bias is None)
        parts += [f"padding_mode={self.padding_mode}"] * (self.padding_mode != "zeros")
        return ", ".join(parts)


class _Conv(_Convolution):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Extents, stride: Extents = 1, padding: Extents | str = 0,
        dilation: Extents = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, device, dtype
        )

    def _around(self) -> list[int]:
        """The padding as `pad` takes it: last axis first, before and after."""
        widths: list[int] = []
        for axis in reversed(range(self.RANK)):
            if isinstance(self.padding, str):
                total = (self.kernel_size[axis] - 1) * self.dilation[axis] if self.padding == "same" else 0
                widths += [total // 2, total - total // 2]
            else:
                widths += [self.padding[axis]] * 2
        return widths

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._around(), mode=self.padding_mode), 0  # noqa: A001
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.RANK - 1]
        return convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Convolution over one axis: x (N, C, L) or (C, L), weight (O, C / groups, K).

    padding: a number, "valid" or "same"; padding_mode: what lies beyond the ends: "zeros", "reflect", "replicate" (the last
    value again) or "circular".

    >>> ts.nn.Conv1d(16, 33, 3, stride=2)(ts.zeros(20, 16, 50)).shape
    tensorsmith.Size([20, 33, 24])
    """

    RANK = 1


class Conv2d(_Conv):
    """Convolution over two axes: x (N, C, H, W) or (C, H, W), weight (O, C / groups, R, S). Arguments as for `Conv1d`.

    >>> ts.nn.Conv2d(3, 8, 3, padding="same")(ts.zeros(2, 3, 5, 7)).shape
    tensorsmith.Size([2, 8, 5, 7])
    """

    RANK = 2


class Conv3d(_Conv):
    """Convolution over three axes: x (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, Q, R, S). As `Conv1d`.

    >>> ts.nn.Conv3d(2, 4, (1, 3, 3))(ts.zeros(1, 2, 4, 5, 6)).shape
    tensorsmith.Size([1, 4, 4, 3, 4])
    """

    RANK = 3


class _ConvTranspose(_Convolution):
    TRANSPOSED = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Extents, stride: Extents = 1, padding: Extents = 0,
        output_padding: Extents = 0, groups: int = 1, bias: bool = True, dilation: Extents = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias, padding_mode,
            device, dtype,
        )  # fmt: skip

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:  # noqa: A002
        """The padding that makes the result as large as asked for."""
        if output_size is None:
            return self.output_padding
        rank = self.RANK
        batched = input.ndim - rank
        wanted = list(output_size)
        if len(wanted) == batched + rank:
            wanted = wanted[batched:]
        if len(wanted) != rank:
            raise ValueError(
                f"ConvTranspose{rank}D: for {input.ndim}D input, output_size must have {rank} or {batched + rank} elements "
                f"(got {len(output_size)})"
            )
        each = zip(input.shape[batched:], self.stride, self.padding, self.dilation, self.kernel_size)
        least = [(n - 1) * step - 2 * around + spaced * (k - 1) + 1 for n, step, around, spaced, k in each]
        most = [n + step - 1 for n, step in zip(least, self.stride)]
        if any(not low <= n <= high for low, n, high in zip(least, wanted, most)):
            raise ValueError(
                f"requested an output size of {tuple(output_size)}, but valid sizes range from {least} to {most} (for an "
                f"input of {input.shape[batched:]})"
            )
        return tuple(n - low for n, low in zip(wanted, least))

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # noqa: A002
        more = self._output_padding(input, output_size)
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.RANK - 1]
        return convolve(input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over one axis: x (N, C, L) or (C, L), weight (C, O / groups, K).

    output_padding lengthens the result at its end, which a stride leaves open; calling the layer with `output_size` chooses it.

    >>> ts.nn.ConvTranspose1d(4, 2, 3, stride=2)(ts.zeros(1, 4, 5), output_size=(12,)).shape
    tensorsmith.Size([1, 2, 12])
    """

    RANK = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over two axes: x (N, C, H, W) or (C, H, W), weight (C, O / groups, R, S). As `ConvTranspose1d`.

    >>> ts.nn.ConvTranspose2d(4, 2, 3, stride=2)(ts.zeros(1, 4, 5, 5)).shape
    tensorsmith.Size([1, 2, 11, 11])
    """

    RANK = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over three axes: weight (C, O / groups, Q, R, S). As `ConvTranspose1d`.

    >>> ts.nn.ConvTranspose3d(4, 2, 2, stride=2)(ts.zeros(1, 4, 2, 2, 2)).shape
    tensorsmith.Size([1, 2, 4, 4, 4])
    """

    RANK = 3


__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


def _convert(module: Module, kinds: tuple[type[Module], ...], memory_format: MemoryFormat) -> Module:
    for each in module.modules():
        if isinstance(each, kinds):
            each.weight.data = each.weight.detach().clone(memory_format=memory_format)
    return module


def convert_conv2d_weight_memory_format(module: Module, memory_format: MemoryFormat) -> Module:
    """Lay the weights of all Conv2d and ConvTranspose2d in the module out in a memory format; the module itself is returned.

    A convolution's result follows its weight, so all that follows is `channels_last` then, whatever the input is.

    >>> model = ts.nn.utils.convert_conv2d_weight_memory_format(ts.nn.Conv2d(4, 4, 3), ts.channels_last)
    >>> model(ts.ones(1, 4, 8, 8)).is_contiguous(memory_format=ts.channels_last)
    True
    """
    return _convert(module, (Conv2d, ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module: Module, memory_format: MemoryFormat) -> Module:
    """Lay the weights of all Conv3d and ConvTranspose3d out in a memory format, usually `channels_last_3d`; see above.

    >>> model = ts.nn.utils.convert_conv3d_weight_memory_format(ts.nn.Conv3d(2, 2, 2), ts.channels_last_3d)
    >>> model.weight.is_contiguous(memory_format=ts.channels_last_3d)
    True
    """
    return _convert(module, (Conv3d, ConvTranspose3d), memory_format)

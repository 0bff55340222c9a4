"""Pooling layers: each is the function of the same meaning in `nn.functional`, whose docstring says the shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.nn import functional as F
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor

Sizes = int | tuple[int, ...]
OutputSize = int | None | Sequence[int | None]


def _as_tuple(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,) * rank


class _MaxPool(Module):
    _function: Callable[..., Any]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:  # noqa: A002 - PyTorch's name
        return type(self)._function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest value of every window: (N, C, L) -> (N, C, L'); with return_indices also its place."""

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest value of every window: (N, C, H, W) -> (N, C, H', W'); with return_indices also its place."""

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest value of every window: (N, C, D, H, W) -> (N, C, D', H', W'); with return_indices also its place."""

    _function = staticmethod(F.max_pool3d)


class _MaxUnpool(Module):
    _function: Callable[..., Tensor]
    _rank: int

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self.kernel_size = _as_tuple(kernel_size, self._rank)
        self.stride = _as_tuple(stride if stride is not None else kernel_size, self._rank)
        self.padding = _as_tuple(padding, self._rank)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # noqa: A002
        return type(self)._function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """The values of MaxPool1d back at their places, zeros elsewhere: (N, C, L') -> (N, C, L)."""

    _function = staticmethod(F.max_unpool1d)
    _rank = 1


class MaxUnpool2d(_MaxUnpool):
    """The values of MaxPool2d back at their places, zeros elsewhere: (N, C, H', W') -> (N, C, H, W)."""

    _function = staticmethod(F.max_unpool2d)
    _rank = 2


class MaxUnpool3d(_MaxUnpool):
    """The values of MaxPool3d back at their places, zeros elsewhere: (N, C, D', H', W') -> (N, C, D, H, W)."""

    _function = staticmethod(F.max_unpool3d)
    _rank = 3


class AvgPool1d(Module):
    """The mean of every window: (N, C, L) -> (N, C, L')."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = _as_tuple(kernel_size, 1)
        self.stride = _as_tuple(stride if stride is not None else kernel_size, 1)
        self.padding = _as_tuple(padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    _function: Callable[..., Tensor]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return type(self)._function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of every window: (N, C, H, W) -> (N, C, H', W')."""

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of every window: (N, C, D, H, W) -> (N, C, D', H', W')."""

    _function = staticmethod(F.avg_pool3d)


class _LPPool(Module):
    _function: Callable[..., Tensor]

    def __init__(self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return type(self)._function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """(sum of x**p)**(1/p) over every window: (N, C, L) -> (N, C, L')."""

    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """(sum of x**p)**(1/p) over every window: (N, C, H, W) -> (N, C, H', W')."""

    _function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """(sum of x**p)**(1/p) over every window: (N, C, D, H, W) -> (N, C, D', H', W')."""

    _function = staticmethod(F.lp_pool3d)


class _AdaptiveAvgPool(Module):
    _function: Callable[..., Tensor]

    def __init__(self, output_size: OutputSize) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return type(self)._function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of output_size windows: (N, C, L) -> (N, C, output_size)."""

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of output_size windows: (N, C, H, W) -> (N, C, *output_size)."""

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of output_size windows: (N, C, D, H, W) -> (N, C, *output_size)."""

    _function = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(Module):
    _function: Callable[..., Any]

    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:  # noqa: A002
        return type(self)._function(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest values of output_size windows: (N, C, L) -> (N, C, output_size); with return_indices also their places."""

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest values of output_size windows: (N, C, H, W) -> (N, C, *output_size); return_indices: also their places."""

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest values of output_size windows: (N, C, D, H, W) -> (N, C, *output_size); return_indices: also their places."""

    _function = staticmethod(F.adaptive_max_pool3d)


class _FractionalMaxPool(Module):
    _function: Callable[..., Any]
    _rank: int

    def __init__(
        self, kernel_size: Sizes, output_size: Sizes | None = None, output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, rank = type(self).__name__, self._rank
        self.kernel_size = _as_tuple(kernel_size, rank)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        if (output_size is None) == (output_ratio is None):
            words = (
                "requires specifying either an output size, or a pooling ratio"
                if output_size is None
                else ("only one of output_size and output_ratio may be specified")
            )
            raise ValueError(f"{name} {words}" if output_size is None else words)
        self.output_size = None if output_size is None else _as_tuple(output_size, rank)
        ratios = [output_ratio] * rank if isinstance(output_ratio, int | float) else output_ratio
        self.output_ratio = None if ratios is None else tuple(ratios)  # type: ignore[arg-type]
        if self.output_ratio is not None and not all(0 < r < 1 for r in self.output_ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Any:  # noqa: A002
        return type(self)._function(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest value of windows at random places (Graham, 2014): (N, C, H, W) -> (N, C, *output_size)."""

    _function = staticmethod(F.fractional_max_pool2d)
    _rank = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest value of windows at random places (Graham, 2014): (N, C, D, H, W) -> (N, C, *output_size)."""

    _function = staticmethod(F.fractional_max_pool3d)
    _rank = 3

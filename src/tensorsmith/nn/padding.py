"""Padding of the axes of space: zeros, a constant, the reflection, the border or the other end.

padding: an int for all sides, or (left, right), (left, right, top, bottom), (left, right, top, bottom, front, back).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.nn import functional as F
from tensorsmith.nn.module import Module
from tensorsmith.tensor.tensor import Tensor

Padding = int | Sequence[int]


class _Pad(Module):
    _mode: str
    _rank: int

    def __init__(self, padding: Padding) -> None:
        super().__init__()
        sides = 2 * self._rank
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != sides:
            raise ValueError(f"{type(self).__name__}: padding is an int or {sides} ints, got {padding}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: Padding, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: Padding) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad1d(_ConstantPad):
    """`value` around the last axis of (N, C, L)."""

    _rank = 1


class ConstantPad2d(_ConstantPad):
    """`value` around the last 2 axes of (N, C, H, W)."""

    _rank = 2


class ConstantPad3d(_ConstantPad):
    """`value` around the last 3 axes of (N, C, D, H, W)."""

    _rank = 3


class ZeroPad1d(_ZeroPad):
    """Zeros around the last axis of (N, C, L)."""

    _rank = 1


class ZeroPad2d(_ZeroPad):
    """Zeros around the last 2 axes of (N, C, H, W)."""

    _rank = 2


class ZeroPad3d(_ZeroPad):
    """Zeros around the last 3 axes of (N, C, D, H, W)."""

    _rank = 3


class ReflectionPad1d(_Pad):
    """The reflection of the input, without its border, around the last axis of (N, C, L)."""

    _mode = "reflect"
    _rank = 1


class ReflectionPad2d(_Pad):
    """The reflection of the input, without its border, around the last 2 axes of (N, C, H, W)."""

    _mode = "reflect"
    _rank = 2


class ReflectionPad3d(_Pad):
    """The reflection of the input, without its border, around the last 3 axes of (N, C, D, H, W)."""

    _mode = "reflect"
    _rank = 3


class ReplicationPad1d(_Pad):
    """The border of the input repeated around the last axis of (N, C, L)."""

    _mode = "replicate"
    _rank = 1


class ReplicationPad2d(_Pad):
    """The border of the input repeated around the last 2 axes of (N, C, H, W)."""

    _mode = "replicate"
    _rank = 2


class ReplicationPad3d(_Pad):
    """The border of the input repeated around the last 3 axes of (N, C, D, H, W)."""

    _mode = "replicate"
    _rank = 3


class CircularPad1d(_Pad):
    """The other end of the input around the last axis of (N, C, L)."""

    _mode = "circular"
    _rank = 1


class CircularPad2d(_Pad):
    """The other end of the input around the last 2 axes of (N, C, H, W)."""

    _mode = "circular"
    _rank = 2


class CircularPad3d(_Pad):
    """The other end of the input around the last 3 axes of (N, C, D, H, W)."""

    _mode = "circular"
    _rank = 3

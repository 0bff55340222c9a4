"""Windows of signals: bartlett, blackman, hamming, hann and kaiser, n points; `periodic` leaves a period's last point out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType, get_default_dtype
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.creation import copy_array, from_numpy
from tensorsmith.ops.registry import public
from tensorsmith.tensor.placement import place_of
from tensorsmith.tensor.tensor import Tensor


def _window(
    name: str, length: int, periodic: bool, shape: Callable[[np.ndarray], np.ndarray], dtype: DType | None, device: Any,
    requires_grad: bool,
) -> Tensor:  # fmt: skip
    """The values of `shape` at 0 (first point) to 1 (last point of the whole period), computed in float64."""
    place = place_of(device)
    dtype = dtype or get_default_dtype()
    if dtype.kind not in "fc":
        raise RuntimeError(f"{name} expects floating point dtypes, got: {dtype.name}")
    refuse("arange_cpu", dtype, "c")
    if length < 0:
        raise RuntimeError(f"{name} requires non-negative window_length, got window_length={length}")
    values = np.ones(length) if length <= 1 else shape(np.arange(length) / (length if periodic else length - 1))
    return copy_array(values).to(dtype).to(place).requires_grad_(requires_grad)


def _enter(name: str, what: str, shape: Callable[[np.ndarray], np.ndarray]) -> None:
    def function(
        window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:  # fmt: skip
        return _window(name, window_length, periodic, shape, dtype, device, requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    public("creation", method=False, kind="library", differentiable=False)(function)


def _cosines(x: np.ndarray, *weights: float) -> np.ndarray:
    total = np.zeros_like(x)
    for k, weight in enumerate(weights):
        total += (-1) ** k * weight * np.cos(2 * math.pi * k * x)
    return total


_enter("hann_window", "1/2 - 1/2 cos(2 pi x).", lambda x: _cosines(x, 0.5, 0.5))
_enter("blackman_window", "0.42 - 0.5 cos(2 pi x) + 0.08 cos(4 pi x).", lambda x: np.abs(_cosines(x, 0.42, 0.5, 0.08)))
_enter("bartlett_window", "1 - |2 x - 1|: a triangle.", lambda x: 1 - np.abs(2 * x - 1))


@public("creation", method=False, kind="library", differentiable=False)
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: DType | None = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """alpha - beta cos(2 pi x)."""
    return _window(
        "hamming_window", window_length, periodic, lambda x: _cosines(x, alpha, beta), dtype, device, requires_grad
    )


@public("creation", method=False, kind="library", differentiable=False)
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """I0(beta sqrt(1 - (2 x - 1)**2)) / I0(beta)."""
    from tensorsmith.ops.registry import TABLE

    def bessel(x: np.ndarray) -> np.ndarray:
        return np.asarray(TABLE["i0"].function(from_numpy(np.ascontiguousarray(x))).numpy())

    def shape(x: np.ndarray) -> np.ndarray:
        inside = np.sqrt(np.maximum(1 - (2 * x - 1) ** 2, 0))
        return bessel(beta * inside) / bessel(np.array([float(beta)]))

    return _window("kaiser_window", window_length, periodic, shape, dtype, device, requires_grad)

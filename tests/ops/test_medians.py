"""Medians of all elements and modes against PyTorch: shared gradients, nothing at all, no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal

import tensorsmith as ts

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_the_gradient_of_the_whole_is_shared_among_equals(name: str) -> None:
    tied = np.round(normal(4, 5))
    for values in (tied, normal(4, 5), np.array([2.0, 1.0, 2.0, 2.0]), np.array(3.0)):
        agree(lambda L, x: getattr(L, name)(x), values)
        agree(lambda L, x: getattr(L, name)(x.t() if x.ndim == 2 else x), values, dtype="float32")


def test_median_with_nan() -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan, 1.0])
    agree(lambda L, x: L.median(x), values)
    agree(lambda L, x: L.nanmedian(x), values)
    agree(lambda L, x: L.nanmedian(x), np.full(3, np.nan))


@pytest.mark.parametrize("name", ["median", "nanmedian"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint8"])
def test_the_median_of_nothing(name: str, shape: tuple[int, ...], dtype: str) -> None:
    agree(lambda L, x: getattr(L, name)(x), np.zeros(shape, dtype))


def test_along_an_axis_the_gradient_goes_to_the_index() -> None:
    x = ts.tensor([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]], requires_grad=True)
    values, indices = ts.median(x, 1)
    values.sum().backward()
    assert x.grad.sum(1).tolist() == [1.0, 1.0]
    assert x.grad.gather(1, indices.unsqueeze(1)).flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)])
def test_the_mode_of_no_rows(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):

        def mode(L: Any, x: Any, axis: int = axis) -> tuple[Any, ...]:
            return tuple(L.mode(x, axis))

        agree(mode, np.zeros(shape))


def test_the_mode_of_rows_along_every_axis() -> None:
    values = np.random.default_rng(1).integers(0, 3, (4, 5, 6)).astype(np.float64)
    for axis in range(3):
        agree(lambda L, x: L.mode(x, axis)[0], values)
        agree(lambda L, x: L.mode(x, axis, True)[0], values)

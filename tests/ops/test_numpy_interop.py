"""Tensors among NumPy's arrays, scalars and functions, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from both_libraries import agree, refuse

import tensorsmith as ts

torch = pytest.importorskip("torch")

DOUBLES, SINGLES, WHOLE = np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3], np.float32), np.array([1, 2, 3])


def t(L):
    return L.tensor([1.0, 2.5, 3.0])


def k(L):
    return L.tensor([1, 2, 3])


@pytest.mark.parametrize("array", [DOUBLES, SINGLES, WHOLE, np.array(1.5), np.array(2)], ids=str)
def test_arrays_on_the_right_take_part_by_the_promotion_of_numpy(array: np.ndarray) -> None:
    for function in (
        lambda L: t(L) + array, lambda L: t(L) - array, lambda L: t(L) * array, lambda L: t(L) / array, lambda L: t(L) ** array,
        lambda L: k(L) + array, lambda L: k(L) * array, lambda L: k(L) == array, lambda L: t(L) // array,
    ):  # fmt: skip
        agree(function, gradient=False)
    if array.ndim:
        agree(lambda L: t(L) @ array, gradient=False)
        agree(lambda L: L.ones(2, 3) @ array, gradient=False)


def test_arrays_on_the_left_give_what_they_give_on_the_right() -> None:
    x = ts.tensor([1.0, 2.5, 3.0])  # PyTorch refuses most of these
    for array in (DOUBLES, SINGLES, WHOLE):
        for ours, theirs in ((array + x, x + array), (array * x, x * array), (array @ x, x @ array)):
            assert isinstance(ours, ts.Tensor) and ours.dtype is theirs.dtype and ours.tolist() == theirs.tolist()
    assert (DOUBLES - x).tolist() == [0.0, -0.5, 0.0]


SCALARS = [np.float64(2.5), np.float32(2.5), np.float16(2.5), np.int64(2), np.int8(2), np.uint8(2)]


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_scalars_are_numbers(scalar: np.generic) -> None:
    for function in (
        lambda L: scalar * t(L), lambda L: t(L) * scalar, lambda L: scalar - k(L), lambda L: k(L) + scalar,
        lambda L: scalar < t(L), lambda L: t(L) <= scalar, lambda L: scalar / t(L), lambda L: t(L).half() * scalar,
    ):  # fmt: skip
        agree(function, gradient=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda L: np.exp(t(L)), lambda L: np.sin(k(L)), lambda L: np.add(t(L), DOUBLES), lambda L: np.add(DOUBLES, t(L)),
        lambda L: np.sqrt(L.tensor(2.5)), lambda L: np.abs(-t(L)), lambda L: np.isnan(t(L)), lambda L: np.argmax(t(L)),
        lambda L: np.maximum(t(L), DOUBLES), lambda L: np.reshape(t(L), (3, 1)), lambda L: np.matmul(L.ones(2, 3), SINGLES),
        lambda L: np.cumsum(t(L)), lambda L: np.power(t(L), 2), lambda L: np.logical_not(t(L) > 2),
        lambda L: np.bitwise_and(k(L), 1), lambda L: np.add.reduce(t(L)),
    ],
)  # fmt: skip
def test_functions_of_numpy_give_tensors(function) -> None:
    agree(function, gradient=False)


def test_arrays_of_tensors() -> None:
    for dtype in (None, np.int32, np.float64):
        np.testing.assert_array_equal(np.asarray(t(ts), dtype=dtype), np.asarray(t(torch), dtype=dtype))
        assert np.asarray(t(ts), dtype=dtype).dtype == np.asarray(t(torch), dtype=dtype).dtype
    assert np.asarray(ts.tensor([2**64 - 1], dtype=ts.uint64))[0] == 2**64 - 1
    np.testing.assert_array_equal(WHOLE[k(ts) - 1], WHOLE)
    shared = t(ts)
    np.asarray(shared)[0] = 9
    assert shared[0].item() == 9


def test_functions_take_tensors_only() -> None:
    for function in (
        lambda L: L.add(t(L), DOUBLES), lambda L: t(L).mul(SINGLES), lambda L: t(L).add_(DOUBLES),
        lambda L: L.maximum(t(L), DOUBLES), lambda L: np.exp(t(L).requires_grad_()),
        lambda L: t(L).requires_grad_() * DOUBLES, lambda L: L.where(t(L) > 1, DOUBLES, 0.0),
    ):  # fmt: skip
        refuse(function)

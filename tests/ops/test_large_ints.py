"""Python ints of 64 unsigned bits as operands: wrapped where the result is of integers, a float where it is floating."""

from __future__ import annotations

import numpy as np
import pytest
from both_libraries import agree, refuse

import tensorsmith as ts

torch = pytest.importorskip("torch")

LARGE = [2**63, 2**63 + 1025, 2**64 - 1]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "float32", "float64"])
def test_as_pytorch(dtype: str, number: int) -> None:
    def x(L):
        return L.tensor([1, 3], dtype=getattr(L, dtype))

    for function in (
        lambda L: x(L) + number, lambda L: number - x(L), lambda L: x(L) * number, lambda L: x(L) / number,
        lambda L: x(L) == number, lambda L: x(L) < number, lambda L: number >= x(L), lambda L: x(L).add(x(L), alpha=number),
        lambda L: x(L).add_(number), lambda L: x(L).mul_(number),
    ):  # fmt: skip
        agree(function, gradient=False)


def test_the_gradient_is_recorded_once() -> None:
    agree(lambda L, x: (x * 2**63).sum(), np.array([1.0, 2.0]))


def test_bool_has_no_common_type_with_it() -> None:
    refuse(lambda L: L.tensor([True]) + 2**63, "Promotion")


@pytest.mark.parametrize("number", LARGE)
def test_written_numbers(number: int) -> None:
    for function in (
        lambda L: L.full((2,), number, dtype=L.uint64), lambda L: L.full((2,), number, dtype=L.float32),
        lambda L: L.zeros(2).fill_(number), lambda L: L.zeros(2, dtype=L.uint64).fill_(number),
        lambda L: L.tensor([number, 1], dtype=L.uint64), lambda L: L.tensor(number, dtype=L.float64),
        lambda L: L.tensor([number], dtype=L.uint64).tolist(), lambda L: L.tensor(number, dtype=L.uint64).item(),
        lambda L: L.tensor([number], dtype=L.uint64).to(L.float64), lambda L: L.tensor([number], dtype=L.uint64) == number,
        lambda L: L.tensor([number], dtype=L.uint64).float().to(L.float64), lambda L: L.tensor([number], dtype=L.bool),
    ):  # fmt: skip
        agree(function, gradient=False)
    refuse(lambda L: L.full((2,), number), "overflow")
    refuse(lambda L: L.zeros(2, dtype=L.int64).fill_(number), "overflow")
    refuse(lambda L: L.tensor([number]), "Overflow")
    refuse(lambda L: L.tensor(number, dtype=L.int32), "Overflow")


def test_uint64_where_pytorch_has_no_operator() -> None:
    a, b = ts.tensor([2**64 - 1, 2**63], dtype=ts.uint64), ts.tensor([2, 3], dtype=ts.uint64)
    assert (a + b).tolist() == [1, 2**63 + 3]
    assert (a // b).tolist() == [(2**64 - 1) // 2, 2**63 // 3] and (a % b).tolist() == [1, 2**63 % 3]
    assert (a > b).tolist() == [True, True] and (a > 2**63).tolist() == [True, False]
    assert a.max().item() == 2**64 - 1 and a.argmin().item() == 1
    assert ts.arange(2**63, 2**63 + 3, dtype=ts.uint64).tolist() == [2**63, 2**63 + 1, 2**63 + 2]


def test_more_than_64_bits() -> None:
    for function in (lambda L: L.tensor([1]) + 2**64, lambda L: L.full((2,), 2**64), lambda L: L.tensor([1.0]) * 2**70):
        refuse(function)
    refuse(lambda L: L.tensor([2**64], dtype=L.uint64))
    refuse(lambda L: L.tensor([-1], dtype=L.uint64))
    agree(lambda L: L.tensor([1.5, 2**70]), gradient=False)

"""float16 and bfloat16 where counts and sums leave them: float16 ends at 65504, bfloat16 counts to 256.

What an operator gives in half precision is what it gives in float64 on the same numbers, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.nn import functional as F

MANY = 70_000
HALVES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def computed(function: Callable[..., Any], arrays: tuple[np.ndarray, ...], half: str, dtype: str) -> list[np.ndarray]:
    """The result and its gradients, in `dtype`, of numbers that `half` holds."""
    leaves = [ts.from_numpy(a).to(getattr(ts, half)).to(getattr(ts, dtype)).requires_grad_() for a in arrays]
    result = function(*leaves)
    found = [result]
    if result.requires_grad:
        found += [g for g in ts.autograd.grad(result, leaves, ts.ones_like(result), allow_unused=True) if g is not None]
    return [x.detach().to(ts.float64).numpy() for x in found]


def check(function: Callable[..., Any], *arrays: np.ndarray, half: str, slack: float = 4.0) -> None:
    """In half precision as in float64, up to a few roundings of the largest values."""
    largest = {"float16": 65504.0, "bfloat16": 3.38e38}[half]
    for found, wanted in zip(computed(function, arrays, half, half), computed(function, arrays, half, "float64")):
        beyond = np.abs(wanted) > largest
        assert np.isinf(found[beyond]).all()
        scale = max(1.0e-7, float(np.abs(wanted[~beyond]).max(initial=0.0)))
        np.testing.assert_allclose(found[~beyond], wanted[~beyond], rtol=0, atol=slack * HALVES[half] * scale)


def constant(value: float, *shape: int) -> np.ndarray:
    return np.full(shape or (MANY,), value)


def steps(base: float) -> np.ndarray:
    """Three values in turn around a mean whose sum over the row no float16 holds."""
    return base + np.arange(MANY) % 3


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "median"])
def test_ties_are_counted_beyond_the_type(name: str, half: str) -> None:
    check(lambda x: getattr(ts, name)(x), constant(1.0), half=half)


@pytest.mark.parametrize("half", HALVES)
def test_a_shared_norm_of_infinite_order(half: str) -> None:
    check(lambda x: ts.norm(x, float("inf")), constant(-2.0), half=half)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["var", "std"])
def test_moments_and_their_gradients(name: str, half: str) -> None:
    check(lambda x: getattr(ts, name)(x), steps(100.0), half=half)
    check(lambda x: getattr(ts, name)(x, 1), np.stack([steps(100.0), steps(40.0)]), half=half)
    check(lambda x: getattr(ts, name + "_mean")(x)[0], steps(100.0), half=half)


@pytest.mark.parametrize("half", HALVES)
def test_covariance(half: str) -> None:
    check(ts.cov, np.stack([steps(100.0), steps(40.0)]), half=half)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [ts.softmax, ts.log_softmax])
def test_softmax_of_a_long_row(function: Callable[..., Any], half: str) -> None:
    check(lambda x: (function(x, 0) * 1.0)[:5], constant(1.0), half=half)
    check(lambda x: (function(x, 1) * 1.0)[:, :5], np.stack([steps(1.0), steps(4.0)]), half=half)


def test_the_gradient_of_log_softmax_sums_in_float32() -> None:
    x = ts.zeros(MANY, dtype=ts.float16, requires_grad=True)
    ts.log_softmax(x, 0).backward(ts.full((MANY,), 2.0, dtype=ts.float16))  # sums to 140000
    assert x.grad.abs().max().item() < 1e-2


PLACES = np.zeros(MANY, np.int64)


def places() -> ts.Tensor:
    return ts.from_numpy(PLACES)


WRITES: dict[str, Callable[..., Any]] = {
    "index_add": lambda x, y: x.index_add(0, places(), y),
    "scatter_add": lambda x, y: x.scatter_add(0, places(), y),
    "index_put": lambda x, y: x.index_put((places(),), y, accumulate=True),
    "put": lambda x, y: x.put(places(), y, accumulate=True),
    "scatter_reduce sum": lambda x, y: x.scatter_reduce(0, places(), y, "sum"),
    "scatter_reduce mean": lambda x, y: x.scatter_reduce(0, places(), y, "mean"),
    "scatter_reduce amax": lambda x, y: x.scatter_reduce(0, places(), y, "amax", include_self=False),
    "index_reduce mean": lambda x, y: x.index_reduce(0, places(), y, "mean"),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", WRITES)
def test_many_values_meet_at_one_place(name: str, half: str) -> None:
    check(WRITES[name], constant(0.0, 3), constant(0.5), half=half)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["index_add_", "scatter_add_"])
def test_many_values_meet_in_place(name: str, half: str) -> None:
    def write(y: ts.Tensor) -> ts.Tensor:
        return getattr(ts.zeros(3, dtype=y.dtype), name)(0, places(), y)

    check(write, constant(0.5), half=half)


READS: dict[str, Callable[..., Any]] = {
    "indexing": lambda x: x[places()],
    "index_select": lambda x: x.index_select(0, places()),
    "gather": lambda x: x.gather(0, places()),
    "take": lambda x: x.take(places()),
    "embedding": lambda x: F.embedding(places(), x.reshape(-1, 1)),
    "embedding by frequency": lambda x: F.embedding(places(), x.reshape(-1, 1), scale_grad_by_freq=True),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", READS)
def test_the_gradient_of_one_element_read_many_times(name: str, half: str) -> None:
    check(lambda x: READS[name](x) * 0.5, constant(1.0, 3), half=half)


@pytest.mark.parametrize("half", HALVES)
def test_a_long_sum_of_parts(half: str) -> None:
    check(lambda x: x.sum(), constant(0.25), half=half)
    check(lambda x: x.sum(0), np.full((MANY, 3), 0.25), half=half)


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "divide": lambda L, x: x / 70000,
    "divide a number": lambda L, x: 70000.0 / (x * 1000),
    "multiply": lambda L, x: x * 0.1,
    "multiply by a tensor": lambda L, x: x * L.tensor(0.1),
    "multiply by an integer": lambda L, x: (x * 0.01) * L.tensor(70000),
    "in place": lambda L, x: (x * 1).div_(70000),
    "add": lambda L, x: x + 0.0004,
    "sum over count": lambda L, x: x.sum() / 70000,
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_number_beside_half_precision_keeps_its_digits(name: str, compiled: bool, half: str) -> None:
    torch = pytest.importorskip("torch")
    values = [0.1, 1.0, -0.5, 3.0, 20.0]
    wanted = ARITHMETIC[name](torch, torch.tensor(values, dtype=getattr(torch, half)))

    def function(x: ts.Tensor) -> ts.Tensor:
        return ARITHMETIC[name](ts, x)

    found = (ts.compile(function) if compiled else function)(ts.tensor(values, dtype=getattr(ts, half)))
    assert str(found.dtype).split(".")[-1] == half
    np.testing.assert_allclose(
        found.to(ts.float64).numpy(), wanted.double().numpy(), rtol=2 * HALVES[half], atol=6e-8
    )  # a compiled chain rounds once


def test_comparisons_round_the_number() -> None:
    x = ts.tensor([0.1, 1.0], dtype=ts.float16)
    assert (x == 0.1).tolist() == [True, False] and (x < 0.1).tolist() == [False, False]

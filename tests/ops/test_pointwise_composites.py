"""Composed elementwise operators and comparisons against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal, refuse

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 3.0])
UNARY = {
    "square": lambda L, x: x.square(),
    "frac": lambda L, x: x.frac(),
    "deg2rad": lambda L, x: x.deg2rad(),
    "rad2deg": lambda L, x: x.rad2deg(),
    "sgn": lambda L, x: x.sgn(),
    "sinc": lambda L, x: x.sinc(),
    "signbit": lambda L, x: x.signbit(),
    "isposinf": lambda L, x: x.isposinf(),
    "isneginf": lambda L, x: x.isneginf(),
    "angle": lambda L, x: x.angle(),
    "nan_to_num": lambda L, x: x.nan_to_num(1.5, posinf=7.0),
    "logit": lambda L, x: x.logit(1e-3),
    "round": lambda L, x: x.round(decimals=2),
    "round before the point": lambda L, x: (x * 100).round(decimals=-1),
    "trunc division": lambda L, x: x.div(0.7, rounding_mode="trunc"),
    "floor division": lambda L, x: L.div(x, 0.7, rounding_mode="floor"),
    "float_power": lambda L, x: (x * x).float_power(1.5),
    "rsub": lambda L, x: L.rsub(x, 2.0, alpha=3.0),
    "true_divide": lambda L, x: L.true_divide(x, 3),
    "isclose": lambda L, x: L.isclose(x, x * (1 + 1e-9), equal_nan=True),
}


@pytest.mark.parametrize("name", UNARY)
def test_of_one_tensor(name: str) -> None:
    agree(UNARY[name], normal(3, 4) * 2)
    agree(UNARY[name], EDGES, gradient=False)
    agree(UNARY[name], normal(3, 4).astype(np.float32).T)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_polygamma(n: int) -> None:
    points = np.array([0.1, 0.5, 1.0, 2.5, 9.0, 30.0, -0.3, -1.7, -5.5])
    agree(lambda L, x: L.polygamma(n, x), points)


def test_mvlgamma() -> None:
    agree(lambda L, x: x.mvlgamma(3), np.array([1.5, 2.0, 7.0]))


BINARY = {
    "fmax": lambda L, x, y: L.fmax(x, y),
    "fmin": lambda L, x, y: L.fmin(x, y),
    "xlogy": lambda L, x, y: L.xlogy(x, y.abs()),
    "xlog1py": lambda L, x, y: L.special.xlog1py(x, y.abs()),
    "heaviside": lambda L, x, y: L.heaviside(x.detach(), y.detach()),
    "ldexp": lambda L, x, y: L.ldexp(x, y.detach().round()),
    "logaddexp2": lambda L, x, y: L.logaddexp2(x, y),
    "trunc division": lambda L, x, y: L.div(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", BINARY)
def test_of_two_tensors(name: str) -> None:
    agree(BINARY[name], normal(3, 4), normal(4, seed=1))
    grid = np.meshgrid(EDGES, EDGES)
    agree(BINARY[name], grid[0].copy(), grid[1].copy(), gradient=False)


def test_integer_division() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    for mode in ("trunc", "floor", None):
        agree(lambda L, x, y: L.div(x, y, rounding_mode=mode), a, b)  # noqa: B023
    agree(lambda L, x: x.square(), a)


def test_equality() -> None:
    agree(lambda L, x: L.equal(x, x), normal(3))
    agree(lambda L, x: L.equal(x, x[:2]), normal(3))
    agree(lambda L, x: L.allclose(x, x + 1e-9), normal(3))
    agree(lambda L, x: L.allclose(x, x + 1), normal(3))
    agree(lambda L, x: L.numel(x), normal(3, 4))


REFUSED: dict[str, Any] = {
    "a rounding mode": lambda L: L.ones(2).div(2, rounding_mode="up"),
    "isclose of dtypes": lambda L: L.isclose(L.ones(2), L.ones(2).double()),
    "negative tolerance": lambda L: L.isclose(L.ones(2), L.ones(2), rtol=-1.0),
    "negative order": lambda L: L.polygamma(-1, L.ones(2)),
    "positive of bool": lambda L: L.positive(L.tensor([True])),
    "a string": lambda L: L.fmax(L.ones(2), "a"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])

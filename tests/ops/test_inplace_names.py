"""In-place forms that only differ in name or write a truth value as a number, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_libraries import agree

LEFT, RIGHT = np.array([[0.3, -0.5, 0.25], [0.0, 0.9, -0.2]]), np.array([0.3, 0.7, 0.1])
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater", "greater_equal"]
SYNONYMS = ["absolute", "negative", "arcsin", "arccos", "arctan", "arcsinh", "arctanh", "fix"]


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool"])
def test_comparisons_write_zero_or_one(name: str, dtype: str) -> None:
    def against(L: Any, x: Any, y: Any) -> Any:
        return getattr(x.clone(), name + "_")(y)

    agree(against, (LEFT * 4).astype(dtype), (RIGHT * 4).astype(dtype), gradient=False)
    agree(lambda L, x: getattr(x.clone(), name + "_")(1), (LEFT * 4).astype(dtype), gradient=False)


@pytest.mark.parametrize("name", ["eq", "gt"])
def test_a_comparison_ends_the_gradient(name: str) -> None:
    agree(lambda L, x, y: getattr(x * 1, name + "_")(y) * 2 + x, LEFT, RIGHT)


@pytest.mark.parametrize("name", SYNONYMS)
def test_synonyms(name: str) -> None:
    gradient = name not in ("arcsinh", "arctanh")  # PyTorch has none of these in place
    agree(lambda L, x: getattr(x * 1, name + "_")(), LEFT, gradient=gradient)


@pytest.mark.parametrize("name", ["multiply", "subtract", "divide", "arctan2"])
def test_synonyms_of_two_operands(name: str) -> None:
    agree(lambda L, x, y: getattr(x * 1, name + "_")(y), LEFT, RIGHT)


def test_logical_not_in_place() -> None:
    for dtype in ("float32", "int64", "bool"):
        agree(lambda L, x: x.clone().logical_not_(), LEFT.astype(dtype), gradient=False)


@pytest.mark.parametrize("name", ["entr", "ndtr"])
def test_special_functions(name: str) -> None:
    edges = np.array([0.0, -0.0, 1.0, 0.5, 2.5, -1.0, np.inf, -np.inf, np.nan, 1e-30, 30.0, -30.0])
    for dtype in ("float64", "float32"):
        agree(lambda L, x: getattr(L.special, name)(x), edges, dtype=dtype, gradient=False)
    agree(lambda L, x: getattr(L.special, name)(x), np.array([0.2, 0.9, 1.0, 3.0]))
    agree(lambda L, x: getattr(L.special, name)(x), np.array([0, 1, 3]))


def test_names_of_the_special_namespace() -> None:
    for name in ("softmax", "log_softmax", "logsumexp"):
        agree(lambda L, x: getattr(L.special, name)(x, 1), LEFT)
    agree(lambda L, x: L.special.digamma(x), np.array([0.5, 1.0, 7.5]))

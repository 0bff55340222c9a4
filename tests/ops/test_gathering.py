"""gather, scatter, index_select and order along an axis against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal, refuse

import tensorsmith as ts

CASES: dict[str, tuple[Any, ...]] = {
    "gather": (lambda L, a: a.gather(1, L.tensor([[0, 2], [1, 1]])), (2, 3)),
    "gather a smaller index": (lambda L, a: a.gather(0, L.tensor([[0, 1, 1]])), (2, 3)),
    "scatter": (lambda L, a, b: a.scatter(1, L.tensor([[0, 2, 1], [1, 0, 2]]), b), (2, 3), (2, 3)),
    "scatter a value": (lambda L, a: a.scatter(1, L.tensor([[0, 2], [1, 0]]), 2.5), (2, 3)),
    "scatter_add": (lambda L, a, b: a.scatter_add(1, L.tensor([[0, 0, 1], [1, 1, 1]]), b), (2, 3), (2, 3)),
    "scatter_": (lambda L, a, b: (a * 1).scatter_(1, L.tensor([[2, 1, 0], [0, 1, 2]]), b), (2, 3), (2, 3)),
    "index_select": (lambda L, a: a.index_select(1, L.tensor([2, 0, 2])), (2, 3)),
    "index_add": (lambda L, a, b: a.index_add(1, L.tensor([0, 0]), b, alpha=2), (2, 3), (2, 2)),
    "index_add_": (lambda L, a, b: (a * 1).index_add_(0, L.tensor([1, 1]), b), (2, 3), (2, 3)),
    "index_copy": (lambda L, a, b: a.index_copy(1, L.tensor([2, 0]), b), (2, 3), (2, 2)),
    "index_fill": (lambda L, a: a.index_fill(1, L.tensor([2, 0]), 1.5), (2, 3)),
    "index_reduce": (lambda L, a, b: a.index_reduce(0, L.tensor([0, 1, 0]), b, "amax"), (2, 3), (3, 3)),
    "take": (lambda L, a: a.take(L.tensor([[0, -1], [2, 2]])), (2, 3)),
    "put": (lambda L, a, b: a.put(L.tensor([0, 5]), b), (2, 3), (2,)),
    "put that accumulates": (lambda L, a, b: a.put(L.tensor([1, 1]), b, accumulate=True), (2, 3), (2,)),
    "take_along_dim": (lambda L, a: L.take_along_dim(a, L.tensor([[0], [1]]), 1), (2, 3)),
    "zero dims": (lambda L, a: a.gather(0, L.tensor(0)), ()),
    "sort": (lambda L, a: tuple(a.sort()), (3, 5)),
    "sort descending": (lambda L, a: tuple(a.sort(0, True)), (3, 5)),
    "topk": (lambda L, a: tuple(a.topk(2)), (3, 5)),
    "topk smallest": (lambda L, a: tuple(a.topk(2, 0, False)), (3, 5)),
    "kthvalue": (lambda L, a: tuple(a.kthvalue(2)), (3, 5)),
    "median": (lambda L, a: a.median(), (3, 4)),
    "median along an axis": (lambda L, a: tuple(a.median(1, True)), (3, 6)),
    "nanmedian": (lambda L, a: tuple(a.nanmedian(1)), (3, 6)),
    "mode": (lambda L, a: tuple(a.mode(1)), (3, 6)),
    "msort": (lambda L, a: L.msort(a), (4, 2)),
    "quantile": (lambda L, a: a.quantile(0.3, 1), (3, 6)),
    "quantiles": (lambda L, a: a.quantile(L.tensor([0.1, 0.5], dtype=a.dtype), 0, True), (3, 6)),
    "diff": (lambda L, a: a.diff(2, 1), (3, 6)),
    "cov": (lambda L, a: a.cov(), (3, 6)),
    "corrcoef": (lambda L, a: a.corrcoef(), (3, 6)),
    "trapezoid": (lambda L, a, b: L.trapezoid(a, b), (3, 6), (6,)),
    "cumulative_trapezoid": (lambda L, a: L.cumulative_trapezoid(a, dx=0.5), (3, 6)),
    "gradient": (lambda L, a: L.gradient(a, spacing=0.5), (3, 6)),
    "dist": (lambda L, a, b: L.dist(a, b, 3), (3, 6), (3, 6)),
    "renorm": (lambda L, a: a.renorm(2, 0, 1.5), (3, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    function, *shapes = CASES[name]
    agree(function, *(normal(*s, seed=i) for i, s in enumerate(shapes)), strides=False)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    def function(L: Any, a: Any, b: Any) -> Any:
        return a.scatter_reduce(1, L.tensor([[0, 0, 1], [1, 1, 1]]), b, reduce, include_self=include_self)

    agree(function, normal(2, 3), normal(2, 3, seed=1))
    zeros = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    if include_self or reduce not in ("amax", "amin"):  # there PyTorch gives a share to what takes no part
        agree(function, zeros, zeros[:, ::-1].copy())


def test_nan_sorts_last() -> None:
    array = np.array([3.0, np.nan, 1.0, np.inf])
    agree(lambda L, x: tuple(x.sort()), array, gradient=False)
    agree(lambda L, x: tuple(x.sort(descending=True)), array, gradient=False)
    agree(lambda L, x: (x.median(), x.nanmedian()), array, gradient=False)


INTEGERS = np.array([[3, 1, 2, 1], [0, 5, 5, 2]])
COUNTED = {
    "argsort": lambda L, x: x.argsort(dim=1, stable=True),
    "unique": lambda L, x: x.unique(return_inverse=True, return_counts=True),
    "unique of an axis": lambda L, x: L.unique(L.cat([x, x]), dim=0, return_counts=True),
    "unique_consecutive": lambda L, x: L.unique_consecutive(x.flatten(), return_inverse=True, return_counts=True),
    "isin": lambda L, x: L.isin(x, L.tensor([1, 5])),
    "bincount": lambda L, x: x.flatten().bincount(minlength=8),
    "weighted bincount": lambda L, x: x.flatten().bincount(L.arange(8.0)),
    "nonzero": lambda L, x: x.nonzero(),
    "nonzero as tuple": lambda L, x: x.nonzero(as_tuple=True),
    "argwhere": lambda L, x: L.argwhere(x),
    "searchsorted": lambda L, x: L.searchsorted(L.tensor([1, 2, 5]), x, right=True),
    "searchsorted rows": lambda L, x: L.searchsorted(x.sort(1).values, x),
    "bucketize": lambda L, x: L.bucketize(x, L.tensor([1, 2, 5]), out_int32=True),
    "tril_indices": lambda L, x: L.tril_indices(3, 4, -1),
    "triu_indices": lambda L, x: L.triu_indices(3, 4, 1),
    "histc": lambda L, x: x.double().histc(4, 0, 4),
    "cummax": lambda L, x: tuple(x.cummax(1)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_positions_and_counts(name: str) -> None:
    agree(COUNTED[name], INTEGERS, strides=False)


REFUSED = {
    "gather by floats": lambda L: L.ones(2, 2).gather(1, L.tensor([[0.5]])),
    "gather of another rank": lambda L: L.ones(2, 2).gather(1, L.tensor([0])),
    "index_select outside": lambda L: L.ones(2, 2).index_select(0, L.tensor([2])),
    "index_select by a matrix": lambda L: L.ones(2, 2).index_select(0, L.tensor([[0]])),
    "take outside": lambda L: L.ones(2, 2).take(L.tensor([9])),
    "scatter of another dtype": lambda L: L.ones(2, 2).scatter(1, L.tensor([[0]]), L.ones(1, 1).double()),
    "topk too many": lambda L: L.ones(2, 2).topk(5),
    "kthvalue zero": lambda L: L.ones(2, 2).kthvalue(0),
    "bincount of negatives": lambda L: L.tensor([-1]).bincount(),
    "quantile outside": lambda L: L.ones(3).quantile(1.5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])


def test_positions_outside_are_errors_of_pytorchs_class_that_say_where() -> None:
    x = ts.ones(2, 2)
    for error, call in (
        (RuntimeError, lambda: x.gather(1, ts.tensor([[5]]))),
        (RuntimeError, lambda: x.scatter(1, ts.tensor([[5]]), 1.0)),
        (IndexError, lambda: x.index_select(1, ts.tensor([5]))),
        (RuntimeError, lambda: x.index_add(1, ts.tensor([5]), ts.ones(2, 1))),
    ):
        with pytest.raises(error, match="index 5 is out of bounds for dimension 1 with size 2"):
            call()

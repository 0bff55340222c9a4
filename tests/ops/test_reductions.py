"""Reductions against PyTorch: values, dtypes, gradients at ties and edges, errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal, refuse
from hypothesis import given, settings, strategies as st

import tensorsmith as ts

DIMS = [0, -1, (0, 2), (0, 1), (1,), (0, 1, 2)]
OVER_AXES = ["sum", "mean", "nansum", "nanmean", "amax", "amin", "all", "any", "var", "std", "logsumexp"]
TIES = np.random.default_rng(3).integers(0, 3, (2, 3, 4)).astype(np.float64)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("name", OVER_AXES)
def test_reductions_over_axes(name: str, dim: object, keepdim: bool) -> None:
    agree(lambda L, x: getattr(x, name)(dim=dim, keepdim=keepdim), normal(2, 3, 4))
    agree(lambda L, x: getattr(x, name)(dim=dim, keepdim=keepdim), TIES)


WHOLE = ["sum", "mean", "prod", "nansum", "nanmean", "all", "any", "var", "std", "max", "min", "argmax", "argmin", "norm"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"])
@pytest.mark.parametrize("name", WHOLE)
def test_reductions_of_everything(name: str, dtype: str) -> None:
    array = np.abs(normal(3, 5) * 2)
    agree(lambda L, x: getattr(x.detach().to(getattr(L, dtype)), name)(), array)


ALONG = ["max", "min", "prod", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]


@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reductions_and_scans_along_one_axis(name: str, dim: int) -> None:
    for array in (normal(2, 3, 4), TIES):
        agree(lambda L, x: tuple_of(getattr(x, name)(dim)), array)


def tuple_of(result: object) -> object:
    return tuple(result) if isinstance(result, tuple) else result


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf, -math.inf, "fro"])
@pytest.mark.parametrize("dim", [None, 1, (0, 2)], ids=str)
def test_norms(p: object, dim: object) -> None:
    agree(lambda L, x: x.norm(p=p, dim=dim), normal(2, 3, 4))
    if p not in ("fro", 0):
        agree(lambda L, x: L.linalg.vector_norm(x, p, dim), normal(2, 3, 4))


def test_the_norm_of_zeros_has_gradient_zero() -> None:
    agree(lambda L, x: x.norm(), np.zeros(3))


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5])
def test_moments_with_a_correction(correction: float) -> None:
    for name in ("var", "std"):
        agree(lambda L, x: getattr(x, name)(1, correction=correction), normal(2, 3, 4))  # noqa: B023
    for name in ("var_mean", "std_mean"):
        agree(lambda L, x: tuple(getattr(L, name)(x, (0, 2), correction=correction)), normal(2, 3, 4))  # noqa: B023
    agree(lambda L, x: x.var(unbiased=False), normal(4))


def test_standard_deviation_of_equal_numbers_has_gradient_zero() -> None:
    agree(lambda L, x: x.std(0), np.ones((3, 2)))


def test_variance_is_right_far_from_zero() -> None:
    array = (normal(1000) + 1e4).astype(np.float32)
    assert abs(ts.tensor(array).var().item() - array.astype(np.float64).var(ddof=1)) < 1e-3


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "amax", "amin", "mean", "argmax", "argmin", "logsumexp", "norm"])
def test_nan_is_passed_on(name: str) -> None:
    array = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
    arguments = (1,) if name != "norm" else ()
    agree(lambda L, x: tuple_of(getattr(x, name)(*arguments)), array, gradient=False)


def test_logsumexp_of_infinities() -> None:
    array = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [1e4, -1e4], [0.0, 0.0]])
    agree(lambda L, x: x.logsumexp(1), array, gradient=False)
    agree(lambda L, x: x.logsumexp(1), array[2:])


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "all", "any", "nansum", "count_nonzero", "var"])
def test_reductions_of_nothing(name: str) -> None:
    for shape in ((0,), (0, 3), (2, 0)):
        agree(lambda L, x: getattr(x, name)(), np.zeros(shape))
        agree(lambda L, x: getattr(x, name)(dim=0), np.zeros(shape))


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin", "argmax", "argmin"])
def test_extremes_of_nothing_are_refused(name: str) -> None:
    refuse(lambda L: getattr(L.zeros(0), name)(), "dim")
    refuse(lambda L: getattr(L.zeros(2, 0), name)(dim=1), "dim")
    agree(lambda L, x: tuple_of(getattr(x, name)(dim=1)), np.zeros((0, 2)), gradient=False)


def test_max_of_two_tensors_and_named_results() -> None:
    agree(lambda L, x, y: L.max(x, y), normal(2, 3), normal(3, seed=1))
    found = ts.tensor([[1.0, 5.0], [7.0, 2.0]]).max(1)
    assert found.values.tolist() == [5.0, 7.0] and found.indices.tolist() == [1, 0]
    low, high = ts.tensor([3.0, -1.0]).aminmax()
    assert (low.item(), high.item()) == (-1.0, 3.0)


def test_half_types_accumulate_in_float32() -> None:
    assert ts.full((4096,), 1.0, dtype=ts.float16).sum().item() == 4096.0
    assert ts.full((4096,), 1.0, dtype=ts.bfloat16).mean().item() == 1.0


def test_dtype_converts_first() -> None:
    agree(lambda L, x: x.detach().to(L.uint8).sum(dtype=L.int32), np.full(300, 200.0))
    agree(lambda L, x: x.sum(0, dtype=L.float64), normal(3, 2).astype(np.float32))
    agree(lambda L, x: x.detach().long().mean(dtype=L.float32), np.arange(5.0))
    agree(lambda L, x: x.cumsum(0, dtype=L.float64), normal(3).astype(np.float32))


REFUSED = {
    "mean of ints": lambda L: L.arange(3).mean(),
    "variance of ints": lambda L: L.arange(3).var(),
    "an axis twice": lambda L: L.ones(2, 3).sum((0, 0)),
    "an axis out of range": lambda L: L.ones(2, 3).sum(2),
    "argmax of bool": lambda L: L.ones(2).bool().argmax(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4), st.sampled_from(["sum", "mean", "var", "prod"]),
    st.randoms(use_true_random=False), st.booleans(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_any_layout(shape: list[int], name: str, random: Any, expanded: bool) -> None:
    axes = list(range(len(shape)))
    random.shuffle(axes)
    dims = [d for d in axes if random.random() < 0.5] or [axes[0]]
    array = normal(*shape)

    def reduce(L: Any, x: Any) -> Any:
        y = x.permute(axes)[..., ::2] if not expanded else x.permute(axes).unsqueeze(-1).expand(*(shape[a] for a in axes), 3)
        return y.prod(dims[0]) if name == "prod" else getattr(y, name)(dims)

    agree(reduce, array)


def test_count_nonzero_counts() -> None:
    for dim in itertools.chain([None], DIMS):
        agree(lambda L, x: x.count_nonzero(dim), TIES)  # noqa: B023

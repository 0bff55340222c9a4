"""normalize, cosine_similarity and pairwise_distance against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, same_error, torch

import tensorsmith as ts
from tensorsmith.eager.entries import plan_for
from tensorsmith.eager.operator import operators
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_normalize(p: float, dim: int):
    for array in (normal(3, 5), normal(2, 3, 4), normal(4, 3).T):
        compare(F.normalize, TF.normalize, array, p=p, dim=dim, gradients=1 if np.isinf(p) else 2)


def test_normalize_of_zeros_and_short_vectors():
    array = normal(3, 4)
    array[1] = 0
    compare(F.normalize, TF.normalize, array, gradients=1)
    compare(F.normalize, TF.normalize, normal(3, 4) * 0.01, eps=0.5)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_cosine_similarity(dim: int):
    compare(F.cosine_similarity, TF.cosine_similarity, normal(3, 4, 5), normal(3, 4, 5), dim=dim)
    compare(F.cosine_similarity, TF.cosine_similarity, normal(3, 4, 5), normal(4, 5), dim=dim)
    compare(F.cosine_similarity, TF.cosine_similarity, normal(3, 1, 5), normal(1, 4, 1), dim=dim)


def test_cosine_similarity_with_zeros():
    x = normal(3, 4)
    x[1] = 0
    compare(F.cosine_similarity, TF.cosine_similarity, x, normal(3, 4), gradients=1)


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0])
@pytest.mark.parametrize("keepdim", [False, True])
def test_pairwise_distance(p: float, keepdim: bool):
    for a, b in (((3, 5), (3, 5)), ((5,), (5,)), ((3, 5), (5,)), ((2, 1, 5), (3, 5))):
        compare(F.pairwise_distance, TF.pairwise_distance, normal(*a), normal(*b), p=p, keepdim=keepdim)
    same = normal(2, 3)
    compare(F.pairwise_distance, TF.pairwise_distance, same, same, p=p, keepdim=keepdim, gradients=1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str):
    x, y = normal(20, 50), normal(20, 50)
    compare(F.normalize, TF.normalize, x, dtype=dtype, gradients=1)
    compare(F.pairwise_distance, TF.pairwise_distance, x, y, dtype=dtype, gradients=1)
    tolerance = {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype)
    compare(F.cosine_similarity, TF.cosine_similarity, x, y, dtype=dtype, gradients=1, tolerance=tolerance)


@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, 0.0, float("inf")])
def test_pdist(p: float):
    for shape in ((4, 3), (1, 3), (2, 5)):
        compare(F.pdist, TF.pdist, normal(*shape), p=p, gradients=1)


def test_each_way_is_one_kernel():
    layout = ts.zeros(32, 64).layout
    cases = [("normalize", 1, {"axis": 1, "eps": 1e-12}), ("cosine_similarity", 2, {"dim": 1, "eps": 1e-8}),
             ("pairwise_distance", 2, {"eps": 1e-6, "keepdim": False})]  # fmt: skip
    for name, count, attrs in cases:
        operator = operators()[name]
        kinds = [layout] * count
        program = operator.program(kinds, attrs)
        assert len(plan_for(operator, program, kinds).steps) == 1, name
        backward = program.backward((True,) * count, (True,))
        given = kinds + [ts.zeros(*program.graph.outputs[0].shape).layout]
        assert len(plan_for(backward, backward.program(given, {}), given).steps) == 1, name


def test_refused_as_pytorch_does():
    whole = ts.ones(2, 3, dtype=ts.int64)
    other = torch.ones(2, 3, dtype=torch.int64)
    same_error(lambda: F.normalize(whole), lambda: TF.normalize(other))
    same_error(lambda: F.cosine_similarity(whole, whole), lambda: TF.cosine_similarity(other, other))
    same_error(lambda: F.normalize(ts.ones(2), dim=1), lambda: TF.normalize(torch.ones(2), dim=1))

"""embedding against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, same_error, torch

import tensorsmith as ts
from tensorsmith.autograd.backward import grad
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(8)


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 3, 2), (0,), (5, 0)])
@pytest.mark.parametrize("keywords", [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"scale_grad_by_freq": True}])
def test_values_and_gradients(shape: tuple[int, ...], keywords: dict):
    index, weight = np.asarray(RANDOM.integers(0, 6, shape)), RANDOM.standard_normal((6, 3))
    compare(F.embedding, TF.embedding, index, weight, gradients=1, **keywords)
    if "scale_grad_by_freq" not in keywords:
        compare(F.embedding, TF.embedding, index, weight, **keywords)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str):
    weight = RANDOM.standard_normal((20, 16))
    for index in (RANDOM.integers(0, 20, (5, 7)), RANDOM.integers(0, 20, 9).astype(np.int32)):
        compare(F.embedding, TF.embedding, index, weight, dtype=dtype, gradients=1)


def test_other_layouts():
    index = RANDOM.integers(0, 6, (4, 6)).T
    compare(F.embedding, TF.embedding, index, RANDOM.standard_normal((3, 6)).T)
    compare(F.embedding, TF.embedding, index[::2, ::2], RANDOM.standard_normal((12, 6))[::2, ::2])


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_max_norm_scales_the_rows_used(norm_type: float):
    weight, index = RANDOM.standard_normal((6, 3)) * 3, np.array([1, 1, 4])
    mine, expected = ts.tensor(weight, dtype=ts.float64), torch.tensor(weight)
    for _ in range(2):
        ours = F.embedding(ts.tensor(index), mine, max_norm=1.5, norm_type=norm_type)
        theirs = TF.embedding(torch.tensor(index), expected, max_norm=1.5, norm_type=norm_type)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
        np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-6)


def test_repeated_positions_add_up():
    weight = ts.zeros(3, 2, requires_grad=True)
    (found,) = grad([F.embedding(ts.tensor([1, 1, 1, 0]), weight)], [weight], [ts.ones(4, 2)])
    assert found.tolist() == [[1, 1], [3, 3], [0, 0]]


@pytest.mark.parametrize("index", [[0, 3], [-1], [[0], [7]]])
def test_a_position_out_of_range(index: list):
    same_error(
        lambda: F.embedding(ts.tensor(index), ts.zeros(3, 2)),
        lambda: TF.embedding(torch.tensor(index), torch.zeros(3, 2)),
    )


def test_refused_as_pytorch_does():
    with pytest.raises(RuntimeError, match="scalar types: Long, Int; but got tensorsmith.FloatTensor"):
        F.embedding(ts.zeros(2), ts.zeros(3, 2))
    same_error(
        lambda: F.embedding(ts.tensor([0]), ts.zeros(3, 2, 2)),
        lambda: TF.embedding(torch.tensor([0]), torch.zeros(3, 2, 2)),
    )
    for padding in (3, -4):
        with pytest.raises(AssertionError, match="within num_embeddings"):
            F.embedding(ts.tensor([0]), ts.zeros(3, 2), padding_idx=padding)
    with pytest.raises(NotImplementedError, match="sparse"):
        F.embedding(ts.tensor([0]), ts.zeros(3, 2, requires_grad=True), sparse=True)
    assert F.embedding(ts.tensor([0]), ts.zeros(3, 2), sparse=True).tolist() == [[0, 0]]
    with pytest.raises(TypeError, match="argument 'weight'"):
        F.embedding(ts.tensor([0]), 3.0)

"""embedding_bag against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from network_oracle import compare, torch

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(8)
WEIGHT = RANDOM.standard_normal((6, 3))
INDEX, OFFSETS = np.array([1, 1, 4, 2, 2, 0, 5]), np.array([0, 3, 3, 5, 7])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("keywords", [{}, {"padding_idx": 2}, {"padding_idx": -5}, {"include_last_offset": True}])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_bags_of_different_lengths(mode, keywords, dtype):
    def run(functional):
        return lambda index, weight, offsets: functional.embedding_bag(index, weight, offsets, mode=mode, **keywords)

    if not (mode == "max" and "padding_idx" in keywords and dtype == "bfloat16"):
        compare(run(F), run(TF), INDEX, WEIGHT, OFFSETS, dtype=dtype, gradients=1)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", [(2, 4), (1, 1), (0, 2)])
def test_bags_of_one_length(mode, shape):
    index = RANDOM.integers(0, 6, shape)
    for keywords in ({}, {"padding_idx": 1}):
        compare(F.embedding_bag, TF.embedding_bag, index, WEIGHT, mode=mode, gradients=1, **keywords)


@pytest.mark.parametrize("keywords", [{}, {"padding_idx": 2}])
def test_factors(keywords):
    def run(functional):
        return lambda index, weight, offsets, factors: functional.embedding_bag(
            index, weight, offsets, mode="sum", per_sample_weights=factors, **keywords
        )

    compare(run(F), run(TF), INDEX, WEIGHT, OFFSETS, RANDOM.standard_normal(7), gradients=1)


def test_gradients_divided_by_frequency():
    # By that of the row itself; PyTorch reads the count at another position where a row is used twice.
    weight = ts.tensor(WEIGHT, requires_grad=True)
    bags = F.embedding_bag(ts.tensor(INDEX), weight, ts.tensor(OFFSETS), mode="sum", scale_grad_by_freq=True)
    bags.sum().backward()
    used = np.isin(np.arange(6), INDEX).astype(float)
    np.testing.assert_allclose(weight.grad.numpy(), np.repeat(used[:, None], 3, 1))


def test_bags_of_no_positions():
    for mode in ("sum", "mean", "max"):
        assert F.embedding_bag(ts.zeros(3, 0, dtype=ts.int64), ts.tensor(WEIGHT), mode=mode).tolist() == [[0, 0, 0]] * 3


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.data(), st.sampled_from(["sum", "mean", "max"]))
def test_random_bags(index, data, mode):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(index)), max_size=5)))
    offsets, positions = np.array([0, *cuts]), np.array(index, np.int32)
    compare(
        lambda i, w, o: F.embedding_bag(i, w, o, mode=mode), lambda i, w, o: TF.embedding_bag(i, w, o, mode=mode),
        positions, WEIGHT[::-1].T.copy().T, offsets.astype(np.int32), gradients=1,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_derivatives(mode):
    index, offsets = ts.tensor(INDEX), ts.tensor(OFFSETS)
    weight = ts.tensor(WEIGHT, requires_grad=True)

    def bags(weight):
        return F.embedding_bag(index, weight, offsets, mode=mode, padding_idx=0) ** 2

    assert ts.autograd.gradcheck(bags, (weight,), check_forward_ad=True) and ts.autograd.gradgradcheck(bags, (weight,))


def test_max_norm_scales_the_rows_used():
    mine, expected = ts.tensor(WEIGHT * 3), torch.tensor(WEIGHT * 3)
    ours = F.embedding_bag(ts.tensor(INDEX), mine, ts.tensor(OFFSETS), max_norm=1.5)
    theirs = TF.embedding_bag(torch.tensor(INDEX), expected, torch.tensor(OFFSETS), max_norm=1.5)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
    np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("index", "offsets", "options"),
    [
        ([0, 1], None, {}), ([[0, 1]], [0], {}), ([0, 1], [[0]], {}), ([[[0]]], None, {}), ([0, 1], [0], {"mode": "prod"}),
        ([0, 1], [1], {}), ([0, 1], [0, 3], {}), ([0.0, 1.0], [0], {}), ([0, 7], [0], {}), ([0, -1], [0], {}),
        ([0, 1], [0], {"mode": "max", "scale_grad_by_freq": True}), ([0, 1], [0], {"mode": "max", "sparse": True}),
        ([0, 1], [0], {"padding_idx": 9}),
    ],
)  # fmt: skip
def test_refused_as_pytorch_does(index, offsets, options):
    def call(lib, functional):
        places = None if offsets is None else lib.tensor(offsets)
        functional.embedding_bag(lib.tensor(index), lib.tensor(WEIGHT), places, **options)

    with pytest.raises(Exception) as wanted:
        call(torch, TF)
    with pytest.raises(type(wanted.value)):
        call(ts, F)


@pytest.mark.parametrize(("mode", "count"), [("mean", 2), ("sum", 3)])
def test_factors_that_do_not_fit(mode, count):
    def call(lib, functional):
        functional.embedding_bag(
            lib.tensor([0, 1]), lib.tensor(WEIGHT), lib.tensor([0]), mode=mode,
            per_sample_weights=lib.ones(count, dtype=lib.float64),
        )  # fmt: skip

    with pytest.raises((ValueError, NotImplementedError)) as wanted:
        call(torch, TF)
    with pytest.raises(type(wanted.value), match="per_sample_weights"):
        call(ts, F)


def test_sparse_gradients_are_refused():
    weight = ts.tensor(WEIGHT, requires_grad=True)
    with pytest.raises(NotImplementedError, match="sparse"):
        F.embedding_bag(ts.tensor([[0, 1]]), weight, sparse=True)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_layer(mode):
    theirs, ours = torch.nn.EmbeddingBag(6, 3, mode=mode, padding_idx=-2), ts.nn.EmbeddingBag(6, 3, mode=mode, padding_idx=-2)
    assert repr(ours) == repr(theirs) and not ours.weight[4].any()
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    found, wanted = ours(ts.tensor(INDEX), ts.tensor(OFFSETS)), theirs(torch.tensor(INDEX), torch.tensor(OFFSETS))
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    frozen = ts.nn.EmbeddingBag.from_pretrained(ts.tensor(WEIGHT), mode=mode)
    assert not frozen.weight.requires_grad and frozen(ts.tensor([[1]])).tolist() == [WEIGHT[1].tolist()]


def test_the_older_order_of_arguments():
    results = []
    for lib in (ts, torch):
        index, weight, offsets = (lib.from_numpy(a) for a in (INDEX, WEIGHT, OFFSETS))
        factors = lib.from_numpy(WEIGHT.reshape(-1)[:7].copy())
        with pytest.warns(UserWarning, match="Argument order of nn.functional.embedding_bag was changed"):
            bags = lib.nn.functional.embedding_bag(weight, index, offsets, mode="sum", per_sample_weights=factors)
        results.append(bags.numpy())
    np.testing.assert_allclose(*results)

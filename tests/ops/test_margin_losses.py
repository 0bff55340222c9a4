"""Losses of margins, pairs, triplets and other likelihoods against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from network_oracle import compare, same_error, torch

import tensorsmith as ts
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it

TF = torch.nn.functional
RANDOM = np.random.default_rng(11)
MODES = ("mean", "sum", "none")


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def signs(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.choice([-1.0, 1.0], shape))


@pytest.mark.parametrize("mode", MODES)
def test_two_operands(mode: str):
    for shape in ((3, 5), (), (4,)):
        fixed = {"reduction": mode, "track": [True, False]}
        compare(F.soft_margin_loss, TF.soft_margin_loss, normal(*shape), signs(*shape), **fixed)
        compare(F.hinge_embedding_loss, TF.hinge_embedding_loss, normal(*shape), signs(*shape), margin=0.4, **fixed)
        counts = np.asarray(RANDOM.integers(0, 5, shape)).astype(float)
        for full in (False, True):
            compare(F.poisson_nll_loss, TF.poisson_nll_loss, normal(*shape), counts, full=full, **fixed)
            rate = np.asarray(RANDOM.uniform(0.2, 3, shape))
            compare(F.poisson_nll_loss, TF.poisson_nll_loss, rate, counts, full=full, log_input=False, **fixed)


@pytest.mark.parametrize("mode", MODES)
def test_pairs(mode: str):
    keywords = {"reduction": mode, "track": [True, True, False]}
    for margin in (0, 0.3):
        compare(F.margin_ranking_loss, TF.margin_ranking_loss, normal(6), normal(6), signs(6), margin=margin, **keywords)
        compare(F.cosine_embedding_loss, TF.cosine_embedding_loss, normal(6, 4), normal(6, 4), signs(6), margin=margin,
                **keywords)  # fmt: skip
    compare(F.cosine_embedding_loss, TF.cosine_embedding_loss, normal(4), normal(4), signs(), **keywords)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("p", [2, 1, 3])
def test_triplets(mode: str, swap: bool, p: float):
    operands = [normal(5, 4) for _ in range(3)]
    compare(F.triplet_margin_loss, TF.triplet_margin_loss, *operands, p=p, swap=swap, reduction=mode, gradients=1)
    compare(
        lambda *xs: F.triplet_margin_with_distance_loss(*xs, swap=swap, reduction=mode),
        lambda *xs: TF.triplet_margin_with_distance_loss(*xs, swap=swap, reduction=mode),
        *operands,
        gradients=1,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("full", [False, True])
def test_gaussian(mode: str, full: bool):
    for shape in ((3, 5), (3,), (3, 1)):
        variance = RANDOM.uniform(0.2, 2, shape)
        compare(F.gaussian_nll_loss, TF.gaussian_nll_loss, normal(3, 5), normal(3, 5), variance, full=full, reduction=mode)
    compare(F.gaussian_nll_loss, TF.gaussian_nll_loss, normal(3, 5), normal(3, 5), 0.7, full=full, reduction=mode)
    small = np.array([[1e-9, 0.0, 1.0, 0.5, 2.0]] * 3)
    compare(F.gaussian_nll_loss, TF.gaussian_nll_loss, normal(3, 5), normal(3, 5), small, reduction=mode, gradients=1)


@pytest.mark.parametrize("mode", MODES)
def test_several_labels(mode: str):
    target = (RANDOM.uniform(size=(4, 5)) > 0.5).astype(float)
    compare(F.multilabel_soft_margin_loss, TF.multilabel_soft_margin_loss, normal(4, 5), target, reduction=mode,
            track=[True, False])  # fmt: skip
    compare(
        lambda x, t, w: F.multilabel_soft_margin_loss(x, t, w, reduction=mode),
        lambda x, t, w: TF.multilabel_soft_margin_loss(x, t, w, reduction=mode),
        normal(4, 5), target, RANDOM.uniform(0.2, 1, 5), track=[True, False, False],
    )  # fmt: skip
    for p in (1, 2):
        for margin in (1.0, 0.3):
            labels = RANDOM.integers(0, 5, 4)
            compare(F.multi_margin_loss, TF.multi_margin_loss, normal(4, 5), labels, p=p, margin=margin, reduction=mode,
                    gradients=1)  # fmt: skip
    compare(F.multi_margin_loss, TF.multi_margin_loss, normal(5), np.array(3), reduction=mode, gradients=1)
    compare(
        lambda x, t, w: F.multi_margin_loss(x, t, weight=w, reduction=mode),
        lambda x, t, w: TF.multi_margin_loss(x, t, weight=w, reduction=mode),
        normal(4, 5), labels, RANDOM.uniform(0.2, 1, 5), track=[True, False, False], gradients=1,
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_listed_labels(mode: str):
    listed = np.array([[3, 0, -1, 1], [1, -1, 2, 2], [-1, 0, 1, 2], [0, 1, 2, 3]])
    compare(F.multilabel_margin_loss, TF.multilabel_margin_loss, normal(4, 4), listed, reduction=mode, gradients=1)
    compare(F.multilabel_margin_loss, TF.multilabel_margin_loss, normal(4), listed[0], reduction=mode, gradients=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dtypes(dtype: str):
    compare(F.soft_margin_loss, TF.soft_margin_loss, normal(30), signs(30), dtype=dtype, gradients=1, track=[True, False])
    compare(F.triplet_margin_loss, TF.triplet_margin_loss, *(normal(5, 9) for _ in range(3)), dtype=dtype, gradients=1,
            tolerance=1e-2 if dtype == "float16" else None)  # fmt: skip


def test_refused():
    with pytest.raises(RuntimeError, match="should have same dimension"):
        F.margin_ranking_loss(ts.zeros(3), ts.zeros(3), ts.zeros(3, 1))
    with pytest.raises(RuntimeError, match="1D target tensor expects 2D input"):
        F.cosine_embedding_loss(ts.zeros(3), ts.zeros(3), ts.zeros(3))
    same_error(
        lambda: F.triplet_margin_loss(*[ts.zeros(2, 3)] * 3, margin=-1.0),
        lambda: TF.triplet_margin_loss(*[torch.zeros(2, 3)] * 3, margin=-1.0),
    )
    for variance in (-1.0, np.full((2, 3), -1.0, np.float32), np.ones((2, 2), np.float32)):
        mine, expected = (ts.tensor(variance), torch.tensor(variance)) if isinstance(variance, np.ndarray) else (variance,) * 2
        same_error(
            lambda: F.gaussian_nll_loss(ts.zeros(2, 3), ts.zeros(2, 3), mine),  # noqa: B023
            lambda: TF.gaussian_nll_loss(torch.zeros(2, 3), torch.zeros(2, 3), expected),  # noqa: B023
        )
    same_error(lambda: F.multi_margin_loss(ts.zeros(2, 3), ts.tensor([0, 1]), p=3),
               lambda: TF.multi_margin_loss(torch.zeros(2, 3), torch.tensor([0, 1]), p=3))  # fmt: skip
    with pytest.raises(RuntimeError, match="target out of range: .*index"):
        F.multi_margin_loss(ts.zeros(2, 3), ts.tensor([0, 3]))

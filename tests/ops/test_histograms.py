"""Histograms against PyTorch: counts, edges, weights, density and refusals."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

RANDOM = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
WEIGHT = np.random.default_rng(1).random(40).astype(np.float32)


def same(found, wanted):
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted):
            same(a, b)
        return
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6, atol=3e-7)


CASES = {
    "bins": lambda L, x, w: L.histogram(x[:, 0], 7),
    "range": lambda L, x, w: L.histogram(x[:, 0], bins=5, range=(-1.0, 0.5)),
    "empty range": lambda L, x, w: L.histogram(x[:, 0], bins=5, range=(0.5, 0.5)),
    "edges": lambda L, x, w: L.histogram(x, L.tensor([-1.0, 0.0, 0.1, 2.0])),
    "weight": lambda L, x, w: L.histogram(x[:, 0], 4, weight=w),
    "density": lambda L, x, w: L.histogram(x[:, 0], L.tensor([-1.0, 0.0, 3.0]), weight=w, density=True),
    "nothing": lambda L, x, w: L.histogram(x[:0, 0], 3),
    "upper edge": lambda L, x, w: L.histogram(L.tensor([0.0, 1.0, 2.0]), 2),
    "two dimensions": lambda L, x, w: L.histogramdd(x, [3, 4]),
    "one number": lambda L, x, w: L.histogramdd(x, 3, weight=w),
    "edges of both": lambda L, x, w: L.histogramdd(x, [L.tensor([-1.0, 0.0, 1.0]), L.tensor([-0.5, 0.5])], density=True),
    "ranges": lambda L, x, w: L.histogramdd(x, [2, 2], range=[-1.0, 1.0, 0.0, 2.0]),
}
REFUSED = {
    "no bins": lambda L, x, w: L.histogram(x[:, 0], 0),
    "one edge": lambda L, x, w: L.histogram(x[:, 0], L.tensor([1.0])),
    "falling range": lambda L, x, w: L.histogram(x[:, 0], 3, range=(2.0, 1.0)),
    "not finite": lambda L, x, w: L.histogram(L.tensor([float("nan")]), 3),
    "weights of another shape": lambda L, x, w: L.histogram(x[:, 0], 3, weight=w[:3]),
    "weights of another dtype": lambda L, x, w: L.histogram(x[:, 0], 3, weight=L.ones(40, dtype=L.int64)),
    "edges of another dtype": lambda L, x, w: L.histogram(x[:, 0], L.tensor([1, 2])),
    "matrix of edges": lambda L, x, w: L.histogram(x[:, 0], L.tensor([[1.0, 2.0]])),
    "integers": lambda L, x, w: L.histogram(L.tensor([1, 2]), 3),
    "a vector": lambda L, x, w: L.histogramdd(x[0], [2]),
    "bins of three": lambda L, x, w: L.histogramdd(x, [2, 2, 2]),
    "half a range": lambda L, x, w: L.histogramdd(x, [2, 2], range=[0.0, 1.0, 0.0]),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    wanted = CASES[case](torch, torch.from_numpy(RANDOM), torch.from_numpy(WEIGHT))
    same(CASES[case](ts, ts.from_numpy(RANDOM), ts.from_numpy(WEIGHT)), wanted)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    with pytest.raises((RuntimeError, NotImplementedError)) as wanted:
        REFUSED[case](torch, torch.from_numpy(RANDOM), torch.from_numpy(WEIGHT))
    with pytest.raises(type(wanted.value)):
        REFUSED[case](ts, ts.from_numpy(RANDOM), ts.from_numpy(WEIGHT))

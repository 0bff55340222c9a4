"""NumPy's names of `dim` and `keepdim`, which PyTorch takes too."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "argmax", "cumsum", "logsumexp", "std", "all"])
def test_axis(name):
    ours, theirs = getattr(ts.tensor(X), name)(axis=1), getattr(torch.tensor(X), name)(axis=1)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_axis_and_keepdims():
    assert ts.tensor(X).mean(axis=0, keepdims=True).shape == (1, 3)
    assert ts.tensor(X).max(axis=1).values.tolist() == [3.0, 6.0]
    assert ts.softmax(ts.tensor(X), axis=0).sum(axis=0).tolist() == pytest.approx([1, 1, 1])
    assert ts.cat([ts.tensor(X), ts.tensor(X)], axis=1).shape == (2, 6)
    assert ts.stack([ts.tensor(X)] * 2, axis=0).shape == (2, 2, 3)


def test_both_names_are_refused():
    with pytest.raises(TypeError, match="both dim= and axis="):
        ts.tensor(X).sum(dim=0, axis=1)

"""`autograd.grad(..., is_grads_batched=True)`: many seeds in one backward, as PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts


def run(lib, **options):
    x = lib.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=lib.float64, requires_grad=True)
    w = lib.tensor([0.5, 1.0, 2.0], dtype=lib.float64, requires_grad=True)
    y, z = (x * w).sin(), (x**2).sum(1)
    seeds = [lib.arange(4 * y.numel(), dtype=lib.float64).reshape(4, 2, 3), lib.ones(4, 2, dtype=lib.float64)]
    found = lib.autograd.grad((y, z), (x, w), seeds, is_grads_batched=True, **options)
    if options.get("create_graph"):
        found += lib.autograd.grad(found[0].sum(), (x, w))
    return [g.detach().numpy() for g in found]


@pytest.mark.parametrize("options", [{}, {"create_graph": True}])
def test_same_as_torch(options):
    for found, expected in zip(run(ts, **options), run(torch, **options), strict=True):
        np.testing.assert_allclose(found, expected)


def test_unused_inputs():
    x, unused = ts.ones(3, requires_grad=True), ts.ones(2, requires_grad=True)
    options = {"grad_outputs": ts.eye(3), "is_grads_batched": True, "retain_graph": True}
    y = x * 2
    found = ts.autograd.grad(y, (unused, x), allow_unused=True, **options)
    assert found[0] is None and found[1].tolist() == (np.eye(3) * 2).tolist()
    assert ts.autograd.grad(y, (unused, x), materialize_grads=True, **options)[0].tolist() == [[0, 0]] * 3
    with pytest.raises(RuntimeError, match="not have been used"):
        ts.autograd.grad(y, (unused, x), **options)


def test_the_seeds_have_a_batch_axis():
    x = ts.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        ts.autograd.grad(x * 2, x, ts.ones(4, 2), is_grads_batched=True)

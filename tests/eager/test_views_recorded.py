"""Views record a light node: a new position costs no graph, and gradients are those of PyTorch, twice over."""

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.eager.record import ViewNode

X = np.arange(24, dtype=np.float64).reshape(4, 6) / 7


@pytest.mark.parametrize(
    "view",
    [lambda x: x[1], lambda x: x[1:3, ::2], lambda x: x.t(), lambda x: x.reshape(8, 3), lambda x: x.diagonal(1),
     lambda x: x[:, 2:5][1], lambda x: x.unsqueeze(1).expand(4, 3, 6), lambda x: x.unfold(1, 3, 2), lambda x: x[None]],
)  # fmt: skip
def test_first_and_second_gradients(view):
    def gradients(lib, array):
        x = lib.tensor(array, requires_grad=True)
        (first,) = lib.autograd.grad((view(x) ** 3).sum(), x, create_graph=True)
        (second,) = lib.autograd.grad((view(first) ** 2).sum(), x)
        (plain,) = lib.autograd.grad((view(lib.tensor(array, requires_grad=True)) * 2).sum(), x, allow_unused=True)
        x.grad = None
        (view(x) ** 3).sum().backward()
        return first.detach().numpy(), second.numpy(), x.grad.numpy(), plain

    for ours, theirs in zip(gradients(ts, X), gradients(torch, X)):
        if theirs is None:
            assert ours is None
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_new_positions_build_no_graph():
    x = ts.rand(500, 3, requires_grad=True)
    rows = [x[i] for i in range(500)]
    assert all(isinstance(row.grad_fn, ViewNode) for row in rows)
    sum(row.sum() for row in rows).backward()
    assert (x.grad == 1).all()

"""A broadcast product followed by a sum is a matrix product, and is never materialised."""

import numpy as np
import pytest

import tensorsmith as ts

A, B = ts.arange(30.0).reshape(5, 6) / 7 - 2, ts.arange(42.0).reshape(6, 7) / 5 - 4
C = ts.arange(180.0).reshape(2, 3, 5, 6) / 50 - 1


def scaled(a, b):
    return ((a * 2)[:, None, :] * b.t()[None].exp()).sum(-1)


FOUND = {
    "rows by columns": (lambda A, B, C: (A[:, :, None] * B[None]).sum(1), 1),
    "sides exchanged": (lambda A, B, C: (B.t()[:, None] * A[None]).sum(-1), 1),
    "kept axis": (lambda A, B, C: (A[:, :, None] * B[None]).sum(1, keepdim=True) + 1, 1),
    "batch": (lambda A, B, C: (C[0][:, :, :, None] * C[1].transpose(1, 2)[:, None, :, :]).sum(2), 1),
    "the inner sum alone": (lambda A, B, C: (C[0][:, :, :, None] * B[None, None]).sum((0, 2)), 1),
    "summed over the batch": (lambda A, B, C: (C[0][:, :, :, None] * C[1].transpose(1, 2)[:, None]).sum((0, 2)), 1),
    "functions under the broadcast": (lambda A, B, C: scaled(A, B), 1),
    "a vector": (lambda A, B, C: (A * B[:, 0]).sum(1), 0),  # a fused sum is as good
    "not broadcast": (lambda A, B, C: (A * A.exp()).sum(0), 0),
    "mean": (lambda A, B, C: (A[:, :, None] * B[None]).mean(1), 1),
    "integers": (lambda A, B, C: (A.long()[:, :, None] * B.long()[None]).sum(1), 0),
}


@pytest.mark.parametrize("name", FOUND)
def test_contractions(name):
    function, count = FOUND[name]
    compiled = ts.compile(function, verify=True)
    found, plan = compiled(A, B, C), compiled.plans[0]
    np.testing.assert_allclose(found.tolist(), function(A, B, C).tolist(), rtol=1e-5, atol=1e-5)
    assert plan.report.fired["contraction"]["product and sum"] == count
    assert any(step.name.startswith("matmul") for step in plan.plan.steps) == bool(count)
    assert plan.plan.memory.without_reuse <= 3000  # never the product of all pairs


def test_the_gradient_has_the_products_too():
    def function(a, b):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        return ts.autograd.grad(((a[:, :, None] * b[None]).sum(1) ** 2).sum(), (a, b))

    compiled = ts.compile(function)
    for x, y in zip(compiled(A, B), function(A, B)):
        np.testing.assert_allclose(x.tolist(), y.tolist(), rtol=1e-4, atol=1e-4)
    assert compiled.plans[0].report.fired["contraction"]["product and sum"] == 3


def test_infinities_and_nan_come_through():
    a, b = A.clone(), B.clone()
    a[1, 2], a[3, 0], b[2, 4] = float("inf"), float("nan"), 0.0
    found, expected = [
        ts.compile(lambda a, b: (a[:, :, None] * b[None]).sum(1), disable=off)(a, b).tolist() for off in ((), "contraction")
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.isnan(found[1][4]) and np.isinf(found[1][0]) and np.isnan(found[3]).all()

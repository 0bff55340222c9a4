"""gcd, lcm, unravel_index, windows, vander, distances and matrix norms against PyTorch."""

import numpy as np
import pytest
import torch

import tensorsmith as ts


@pytest.mark.parametrize("name", ["gcd", "lcm"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_divisors(name, dtype):
    a, b = [0, 4, 6, 100, 7], [0, 6, 0, 90, 3]
    if dtype != "uint8":
        a, b = [*a, -4, -6, 5], [*b, 6, -4, -100]
    got = getattr(ts, name)(ts.tensor(a, dtype=getattr(ts, dtype)), ts.tensor(b, dtype=getattr(ts, dtype)))
    want = getattr(torch, name)(torch.tensor(a, dtype=getattr(torch, dtype)), torch.tensor(b, dtype=getattr(torch, dtype)))
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    x = ts.tensor(a)
    getattr(x, name + "_")(ts.tensor(b))
    assert x.tolist()[:5] == got.tolist()[:5] or dtype in ("int8", "uint8")
    with pytest.raises(NotImplementedError, match="not implemented for 'Float'"):
        getattr(ts, name)(ts.tensor([1.0]), ts.tensor([1]))


def test_unravel_index():
    flat = np.array([[0, 7], [23, 11]])
    got, want = ts.unravel_index(ts.tensor(flat), (2, 3, 4)), torch.unravel_index(torch.tensor(flat), (2, 3, 4))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(TypeError, match="integer dtype"):
        ts.unravel_index(ts.tensor(1.0), (2,))
    with pytest.raises(ValueError, match="negative"):
        ts.unravel_index(ts.tensor(1), (2, -1))


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows(name):
    for length in (0, 1, 2, 5, 12):
        for periodic in (True, False):
            got = getattr(ts, f"{name}_window")(length, periodic, dtype=ts.float64).numpy()
            want = getattr(torch, f"{name}_window")(length, periodic, dtype=torch.float64).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)
    for bad in ({"window_length": -1}, {"window_length": 3, "dtype": ts.int64}):
        with pytest.raises(RuntimeError, match=f"{name}_window"):
            getattr(ts, f"{name}_window")(**bad)


def test_vander():
    for given in ({}, {"N": 2}, {"N": 0}, {"increasing": True}):
        for x in ([1, 2, 3], [0.5, 2.0]):
            got, want = ts.vander(ts.tensor(x), **given), torch.vander(torch.tensor(x), **given)
            np.testing.assert_array_equal(got.numpy(), want.numpy())
    rows = ts.linalg.vander(ts.tensor([[1.0, 2.0], [3.0, 4.0]]), N=3)
    np.testing.assert_array_equal(rows.numpy(), [[[1, 1, 1], [1, 2, 4]], [[1, 3, 9], [1, 4, 16]]])
    for function, shape, count in ((ts.vander, (2, 2), 2), (ts.vander, (2,), -1), (ts.linalg.vander, (2,), 1)):
        with pytest.raises(RuntimeError):
            function(ts.ones(shape), N=count)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_cdist(p):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    b[1] = a[0, 1]  # a distance of 0
    results = []
    for L in (ts, torch):
        x, y = L.tensor(a, requires_grad=True), L.tensor(b, requires_grad=True)
        d = L.cdist(x, y, p)
        grads = L.autograd.grad((d * d).sum() + d.sum(), (x, y)) if p else ()
        results.append([d.detach().numpy(), *[g.numpy() for g in grads]])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_cdist_refusals():
    for x, y, p in ((ts.ones(2, 3), ts.ones(4, 2), 2), (ts.ones(2, 3).long(), ts.ones(4, 3), 2), (ts.ones(3), ts.ones(4, 3), 2),
                    (ts.ones(2, 3), ts.ones(4, 3), -1)):  # fmt: skip
        with pytest.raises(RuntimeError, match="X1|cdist"):
            ts.cdist(x, y, p)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")])
@pytest.mark.parametrize("keepdim", [False, True])
def test_matrix_norms(order, keepdim):
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    for dim in ((-2, -1), (2, 0)):
        got = ts.linalg.matrix_norm(ts.tensor(x), order, dim, keepdim)
        want = torch.linalg.matrix_norm(torch.tensor(x), order, dim, keepdim)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)
    with pytest.raises(RuntimeError, match="2-tuple"):
        ts.linalg.matrix_norm(ts.tensor(x), order, 0)

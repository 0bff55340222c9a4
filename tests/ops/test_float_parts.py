"""frexp and hash_tensor, singular values, chunks and masked indexing against PyTorch."""

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.autograd import gradcheck


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_frexp(dtype):
    values = [1.5, 0.0, -0.0, -3.0, float("inf"), float("-inf"), float("nan"), 6e-8, 1e-40]
    got = ts.frexp(ts.tensor(values, dtype=getattr(ts, dtype)))
    want = torch.frexp(torch.tensor(values, dtype=getattr(torch, dtype)))
    assert got.exponent.dtype is ts.int32 and got.mantissa.dtype is getattr(ts, dtype)
    np.testing.assert_array_equal(got.exponent.numpy(), want.exponent.numpy())
    np.testing.assert_array_equal(got.mantissa.double().numpy(), want.mantissa.double().numpy())
    with pytest.raises(RuntimeError, match="floating"):
        ts.frexp(ts.tensor([1]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "float32", "float64"])
def test_hash_tensor(dtype):
    values = np.array([[1, 0, 3], [5, 7, 7]])
    for given in ({}, {"dim": 0}, {"dim": 1, "keepdim": True}, {"dim": (0, 1)}):
        got = ts.hash_tensor(ts.tensor(values, dtype=getattr(ts, dtype)), **given)
        want = torch.hash_tensor(torch.tensor(values, dtype=getattr(torch, dtype)), **given)
        assert got.dtype is ts.uint64 and tuple(got.shape) == tuple(want.shape)
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    with pytest.raises(RuntimeError, match="mode"):
        ts.hash_tensor(ts.tensor([1.0]), mode=1)


def test_nuclear_norm():
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    for given in ({"dim": (0, 2)}, {"dim": (2, 1), "keepdim": True}):
        a, b = ts.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        got, want = ts.norm(a, "nuc", **given), torch.norm(b, "nuc", **given)
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5)
        got.sum().backward()
        want.sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-5)
    for bad in (ts.ones(3), ts.ones(2, 2, 2), ts.eye(2).half()):
        with pytest.raises(RuntimeError, match=r"linalg\.matrix_norm"):
            ts.norm(bad, "nuc")


def test_singular_values():
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(
        ts.linalg.svdvals(ts.tensor(x)).numpy(), torch.linalg.svdvals(torch.tensor(x)).numpy(), rtol=1e-5
    )
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        ts.linalg.svdvals(ts.ones(3))
    with pytest.raises(RuntimeError, match="non-finite"):
        ts.linalg.svdvals(ts.tensor([[float("nan")]]))


def test_written_over_strides():
    # PyTorch gives the base the gradient of the elements that are written over; its own gradcheck refuses that.
    x, part = ts.randn(3, 3, dtype=ts.float64, requires_grad=True), ts.randn(2, 2, dtype=ts.float64, requires_grad=True)
    assert gradcheck(lambda x, part: ts.as_strided_scatter(x, part, (2, 2), (1, 2), 1), (x, part))


def test_chunk_cat():
    shapes = [(3, 2), (1, 2), (4,), (5, 1, 2)]
    arrays = [np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in shapes]
    got = ts._chunk_cat([ts.tensor(a) for a in arrays], 0, 2)
    np.testing.assert_array_equal(got.numpy(), torch._chunk_cat([torch.tensor(a) for a in arrays], 0, 2).numpy())
    for bad in (([ts.ones(2)], 0, 0), ([ts.ones(2), ts.ones(2).long()], 0, 1), ([ts.ones(2, 1), ts.ones(3, 1)], 1, 1)):
        with pytest.raises(RuntimeError, match="_chunk_cat expects"):
            ts._chunk_cat(*bad)


def test_masked_indexing():
    x, mask, places = np.arange(6.0).reshape(2, 3), [[True, False], [False, True]], [[[0, 9], [-9, -1]], [[1, 1], [5, -2]]]

    def both(L):
        given = L.tensor(x, requires_grad=True)
        index = [L.tensor(p) for p in places]
        read = L._unsafe_masked_index(given, L.tensor(mask), index, -1.0) if L is ts else \
            torch.ops.aten._unsafe_masked_index(given, L.tensor(mask), index, -1.0)
        put = (L if L is ts else torch.ops.aten)._unsafe_masked_index_put_accumulate(given, L.tensor(mask), index, read)
        (grad,) = L.autograd.grad(put.sum() + (read * read).sum(), given)
        return [t.detach().numpy() for t in (read, put, grad)]

    for got, want in zip(both(ts), both(torch)):
        np.testing.assert_array_equal(got, want)

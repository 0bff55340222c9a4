"""Running sums, products, extremes and log-sum-exps against PyTorch: every dtype, layout and axis, special values."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
SHAPES = [(1,), (7,), (33,), (3, 5), (5, 70), (70, 5), (2, 9, 130), (4, 1, 3)]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def data(dtype, shape):
    rng = np.random.default_rng(0)
    if dtype in TOLERANCE:
        return rng.uniform(0.5, 1.5, shape) * np.where(rng.random(shape) < 0.1, -1, 1)
    low, high = {"bool": (0, 2), "uint8": (0, 4)}.get(dtype, (-3, 4))
    return rng.integers(low, high, shape)


def scanned(L, name, x, dim):
    given = name in ("cumsum", "cumprod") and x.dtype is not L.bool
    keywords = {"dtype": x.dtype} if given else {}
    found = getattr(L, name)(x, dim, **keywords)
    return [v.double().numpy() for v in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize(("name", "dtype"), [
    (name, dtype) for name in SCANS for dtype in DTYPES if dtype in TOLERANCE or name != "logcumsumexp"
])  # fmt: skip
def test_every_layout_and_axis(name, dtype):
    tolerance = TOLERANCE.get(dtype, 0)
    for shape in SHAPES:
        x = data(dtype, shape)
        mine, theirs = ts.tensor(x).to(getattr(ts, dtype)), torch.tensor(x).to(getattr(torch, dtype))
        layouts = [(mine, theirs), (mine.transpose(0, -1), theirs.transpose(0, -1)), (mine[..., ::2], theirs[..., ::2])]
        for a, b in layouts:
            for dim in range(len(shape)):
                for got, want in zip(scanned(ts, name, a, dim), scanned(torch, name, b, dim), strict=True):
                    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=f"{shape} {dim}")


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_special_values(name, dtype):
    exact = {"float64": 1e-15, "float32": 2e-7}[dtype] if name == "logcumsumexp" else 0
    x = np.array([1, np.nan, 2, np.inf, -np.inf, -0.0, 0.0])
    for values in (x, x[::-1].copy(), np.tile(x, 5), x[2:], np.full(20, -np.inf), np.tile(x[5:], 9)):
        for shape in ((-1,), (-1, 1), (1, -1)):
            a = ts.tensor(values, dtype=getattr(ts, dtype)).reshape(shape)
            b = torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)
            for dim in range(len(shape)):
                for got, want in zip(scanned(ts, name, a, dim), scanned(torch, name, b, dim), strict=True):
                    np.testing.assert_allclose(got, want, rtol=exact)


def test_a_sum_starts_from_zero():
    found = ts.cumsum(ts.tensor([-0.0, -0.0] * 20), 0).numpy()
    assert not np.signbit(found).any()


def test_the_state_is_wider():
    x = np.full(100_000, 0.1, np.float32)
    np.testing.assert_array_equal(ts.cumsum(ts.tensor(x), 0).numpy(), np.cumsum(x.astype(np.float64)).astype(np.float32))


def test_far_apart_logarithms():
    for dtype in ("float32", "float64"):
        x = [-1e4, 0.0, 1e4, 3.0, 1e4, -1e4, 2e4, -3e38] * 3 + [2.1e4 + 3 * k for k in range(20)]
        got = ts.logcumsumexp(ts.tensor(x, dtype=getattr(ts, dtype)), 0).numpy()
        np.testing.assert_allclose(got, torch.logcumsumexp(torch.tensor(x, dtype=getattr(torch, dtype)), 0).numpy(), rtol=1e-6)


def test_threads_change_nothing():
    x = ts.tensor(np.random.default_rng(0).standard_normal((64, 3000)).astype(np.float32))
    before = ts.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            ts.set_num_threads(threads)
            results.append([ts.cumsum(x, dim).numpy().copy() for dim in (0, 1)])
    finally:
        ts.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)

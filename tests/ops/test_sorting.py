"""Sorts, ranks and distinct values against PyTorch: stable, NaN largest, every dtype, shape and axis."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"]
SHAPES = [(), (1,), (9,), (200,), (3, 5), (40, 7), (2, 3, 64)]


def data(dtype, shape, way):
    rng = np.random.default_rng(0)
    x = np.asarray(rng.standard_normal(shape) * 3)
    if "float" in dtype:
        if way == "special":
            x = np.where(rng.random(shape) < 0.2, np.nan, np.where(rng.random(shape) < 0.2, -0.0, np.round(x)))
            x = np.where(rng.random(shape) < 0.2, np.inf, x)
        return x
    x = np.round(x).astype(np.int64)
    if dtype in ("uint8", "bool"):
        return np.abs(x)
    return x * 10**17 if way == "special" and dtype == "int64" else x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["plain", "special"])
def test_sort_and_ranks(dtype, way):
    for shape in SHAPES:
        x = data(dtype, shape, way)
        mine, theirs = ts.tensor(x).to(getattr(ts, dtype)), torch.tensor(x).to(getattr(torch, dtype))
        for dim in range(max(len(shape), 1)):
            extent = shape[dim] if shape else 1
            for descending in (False, True):
                values, places = ts.sort(mine, dim, descending)
                wanted = torch.sort(theirs, dim=dim, descending=descending, stable=True)
                np.testing.assert_array_equal(places.numpy(), wanted[1].numpy())
                np.testing.assert_array_equal(values.double().numpy(), wanted[0].double().numpy())
                for k in {1, max(1, extent // 9), extent} if dtype != "bool" else ():
                    top = ts.topk(mine, k, dim, largest=descending)
                    first = places.narrow(dim, 0, k) if shape else places
                    np.testing.assert_array_equal(top.indices.numpy(), first.numpy())
            if dtype != "bool":
                k = max(1, extent // 2)
                got, want = ts.kthvalue(mine, k, dim).values, torch.kthvalue(theirs, k, dim).values
                np.testing.assert_array_equal(got.double().numpy(), want.double().numpy())


def test_wide_keys_with_ties_stay_in_order():
    x = np.random.default_rng(1).choice(np.array([-1e300, 0.5, 1e-300, 1e300]), 500)
    np.testing.assert_array_equal(ts.argsort(ts.tensor(x)).numpy(), np.argsort(x, kind="stable"))
    spread = np.random.default_rng(2).integers(-(2**62), 2**62, 300)
    np.testing.assert_array_equal(ts.argsort(ts.tensor(spread), descending=True).numpy(), np.argsort(-spread, kind="stable"))


@pytest.mark.parametrize("given", [
    {}, {"return_inverse": True}, {"return_counts": True}, {"return_inverse": True, "return_counts": True}, {"dim": 1},
])  # fmt: skip
def test_unique(given):
    x = np.random.default_rng(0).integers(0, 3, (2, 7))
    got, want = ts.unique(ts.tensor(x), **given), torch.unique(torch.tensor(x), **given)
    got, want = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["unique", "unique_consecutive"])
def test_distinct_values_of_every_dtype(name, dtype):
    for shape in ((), (0,), (1,), (40, 5)):
        x = np.abs(data(dtype, shape, "plain"))
        mine, theirs = ts.tensor(np.round(x)).to(getattr(ts, dtype)), torch.tensor(np.round(x)).to(getattr(torch, dtype))
        got, want = (getattr(lib, name)(v, return_inverse=True, return_counts=True) for lib, v in ((ts, mine), (torch, theirs)))
        for a, b in zip(got, want, strict=True):
            assert a.dtype.name == str(b.dtype).removeprefix("torch.")
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_array_equal(a.double().numpy(), b.double().numpy())
        alone = getattr(ts, name)(mine)
        np.testing.assert_array_equal(alone.double().numpy(), want[0].double().numpy())


def test_every_nan_is_distinct():
    x = [np.nan, 1.0, np.nan, -0.0, 0.0, 1.0]
    found, inverse, counts = ts.unique(ts.tensor(x), return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(found.numpy(), [0.0, 1.0, np.nan, np.nan])
    assert counts.tolist() == [2, 2, 1, 1]
    assert inverse.tolist() == [2, 1, 3, 0, 0, 1]

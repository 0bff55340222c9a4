"""Ranks of drawn rows against a stable NumPy sort and PyTorch: every dtype, axis and stride, ties, NaN, both directions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts

torch = pytest.importorskip("torch")

FLOATS = ["float32", "float64", "float16", "bfloat16"]
DTYPES = [*FLOATS, "int8", "uint8", "int16", "int32", "int64", "bool"]
EXTENTS = [1, 2, 5, 16, 31, 33, 64, 65, 100, 257, 600, 1030, 7000]


def rows(dtype: str, shape: tuple[int, ...], spread: float, seed: int) -> np.ndarray:
    """Values in steps of `spread`, so that some are equal; of floats some are NaN, infinite or -0.0."""
    random = np.random.default_rng(seed)
    x = np.asarray(random.standard_normal(shape) * 3)
    x = np.round(x / spread) * spread if spread else x
    if dtype in FLOATS and seed % 2:
        x = np.where(random.random(shape) < 0.1, random.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], shape), x)
    if dtype not in FLOATS:
        x = np.round(x * {"int64": 1e17, "int32": 1e8}.get(dtype, 10.0) if not spread else x * 10)
        x = np.abs(x) if dtype in ("uint8", "bool") else x
    return x


def both(x: np.ndarray, dtype: str) -> tuple[ts.Tensor, torch.Tensor]:
    return ts.tensor(x).to(getattr(ts, dtype)), torch.tensor(x).to(getattr(torch, dtype))


def expected(x: torch.Tensor, axis: int, descending: bool) -> np.ndarray:
    """Positions of a stable sort: NaN largest, -0.0 equal to 0.0. NumPy's, on what PyTorch made of the values."""
    values = x.double().numpy() if x.is_floating_point() else x.to(torch.int64).numpy()
    keys = np.moveaxis(values, axis, -1)
    nan = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(keys.shape, bool)
    keys = np.where(nan, 0, keys)
    order = np.lexsort((-keys if descending else keys, ~nan if descending else nan), axis=-1)
    return np.moveaxis(order, -1, axis)


@settings(max_examples=45, deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from(EXTENTS), st.booleans(), st.sampled_from([0.0, 0.5, 100.0]), st.data())
def test_ranks(dtype: str, extent: int, descending: bool, spread: float, data: st.DataObject) -> None:
    lead = data.draw(st.sampled_from([(), (1,), (3,), (11,), (2, 9)] if extent < 2000 else [(), (2,)]), "lead")
    axis = data.draw(st.integers(0, len(lead)), "axis")
    x = rows(dtype, (*lead[:axis], extent, *lead[axis:]), spread, data.draw(st.integers(0, 7), "seed"))
    mine, theirs = both(x, dtype)
    if lead and data.draw(st.booleans(), "transposed"):
        mine, theirs = mine.transpose(0, -1), theirs.transpose(0, -1)
        axis = {0: len(lead), len(lead): 0}.get(axis, axis)
    if data.draw(st.booleans(), "stepped"):
        cut = (*[slice(None)] * axis, slice(None, None, 2))
        mine, theirs = mine[cut], theirs[cut]
    extent = theirs.shape[axis]
    wanted = expected(theirs, axis, descending)
    values, places = ts.sort(mine, axis, descending)
    np.testing.assert_array_equal(places.numpy(), wanted)
    sorted_values = torch.sort(theirs, dim=axis, descending=descending, stable=True).values
    np.testing.assert_array_equal(values.double().numpy(), sorted_values.double().numpy())
    np.testing.assert_array_equal(ts.argsort(mine, axis, descending).numpy(), wanted)
    if dtype == "bool":
        return
    k = data.draw(st.integers(1, extent), "k")
    for count in {k, max(1, extent // 40)}:
        top = ts.topk(mine, count, axis, largest=descending)
        np.testing.assert_array_equal(top.indices.numpy(), wanted.take(range(count), axis))
        np.testing.assert_array_equal(top.values.double().numpy(), sorted_values.narrow(axis, 0, count).double().numpy())
    found = ts.kthvalue(mine, k, axis)
    np.testing.assert_array_equal(found.indices.numpy(), expected(theirs, axis, False).take(k - 1, axis))
    np.testing.assert_array_equal(found.values.double().numpy(), torch.kthvalue(theirs, k, axis).values.double().numpy())
    for name in ("median", "nanmedian"):
        got, want = (getattr(lib, name)(x, axis).values.double().numpy() for lib, x in ((ts, mine), (torch, theirs)))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("arranged", ["up", "down", "equal", "outlier", "all nan", "two values"])
def test_rows_in_order_and_rows_that_hardly_differ(arranged: str, descending: bool) -> None:
    n = 3000
    x = np.linspace(100.0, 101.0, n)
    x = {
        "up": x, "down": x[::-1].copy(), "equal": np.full(n, 3.5), "outlier": np.where(np.arange(n) == 7, -1e30, x),
        "all nan": np.full(n, np.nan), "two values": np.where(np.arange(n) % 3 == 0, 1.0, -0.0),
    }[arranged]  # fmt: skip
    for dtype in ("float32", "float64"):
        mine, theirs = both(x, dtype)
        wanted = expected(theirs, 0, descending)
        for k in (1, 7, 100, 1500, n):
            np.testing.assert_array_equal(ts.topk(mine, k, largest=descending).indices.numpy(), wanted[:k])
        np.testing.assert_array_equal(ts.kthvalue(mine, 1500).indices.numpy(), expected(theirs, 0, False)[1499])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_ends_of_integers(dtype: str) -> None:
    limits = np.iinfo(dtype)
    ends = np.array([limits.min, limits.min + 1, -1, 0, 1, limits.max - 1, limits.max], dtype)
    x = np.random.default_rng(0).choice(ends, 900)
    mine, theirs = ts.tensor(x), torch.tensor(x)
    for descending in (False, True):
        wanted = torch.sort(theirs, descending=descending, stable=True).indices.numpy()
        np.testing.assert_array_equal(ts.argsort(mine, descending=descending).numpy(), wanted)
        for k in (3, 400):
            np.testing.assert_array_equal(ts.topk(mine, k, largest=descending).indices.numpy(), wanted[:k])


def test_results_do_not_depend_on_threads() -> None:
    x = np.random.default_rng(0).integers(0, 50, (300, 500)).astype(np.float32)
    before = ts.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            ts.set_num_threads(threads)
            mine = ts.tensor(x)
            found.append([ts.argsort(mine, 1), ts.argsort(mine, 0), ts.topk(mine, 5).indices, ts.kthvalue(mine, 200).indices])
            found[-1].append(ts.searchsorted(ts.arange(50.0), mine))
    finally:
        ts.set_num_threads(before)
    for one, two in zip(*found):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(DTYPES[:-1]), st.sampled_from([0, 1, 2, 7, 8, 64, 1000]), st.sampled_from([0, 1, 9, 400]), st.data())
def test_places_in_sorted_sequences(dtype: str, extent: int, count: int, data: st.DataObject) -> None:
    lead = data.draw(st.sampled_from([(), (3,), (2, 4)]), "lead")
    seed, right = data.draw(st.integers(0, 7), "seed"), data.draw(st.booleans(), "right")
    sequence = np.sort(np.nan_to_num(rows(dtype, (*lead, extent), 0.5, 2 * seed)), -1)
    values = rows(dtype, (*lead, count), 0.5, seed)
    (a, c), (b, d) = both(sequence, dtype), both(values, dtype)
    np.testing.assert_array_equal(ts.searchsorted(a, b, right=right).numpy(), torch.searchsorted(c, d, right=right).numpy())
    if lead:  # one sequence, values that do not lie in order
        first, given_ = a[(0,) * len(lead)], b.transpose(0, -1)
        wanted = torch.bucketize(d.transpose(0, -1).contiguous(), c[(0,) * len(lead)].contiguous(), right=right)
        np.testing.assert_array_equal(ts.bucketize(given_, first, right=right).numpy(), wanted.numpy())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_is_last_among_sorted_values(dtype: str, side: str) -> None:
    values = np.array([-1.0, 2.0, 5.0, np.inf, np.nan])
    for sequence in ([1.0, 2.0, 2.0, np.nan, np.nan, np.nan], [np.nan], [1.0, np.inf], [0.0, np.nan]):
        found = ts.searchsorted(ts.tensor(sequence).to(getattr(ts, dtype)), ts.tensor(values).to(getattr(ts, dtype)), side=side)
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(sequence, values, side))

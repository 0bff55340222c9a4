"""Sorts, first k, single ranks and searches on CUDA."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiles import compile_all
from strided_arrays import laid_out, strides_of

from emulator.run import run_lowered
from tensorsmith.core import dtypes
from tensorsmith.kernels.spec_order import RankSpec, SearchSpec
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.ranks import lower_ranks
from tensorsmith.targets.cuda.search import lower_search

DTYPES = [dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float64, dtypes.int64, dtypes.int16, dtypes.uint8,
          dtypes.uint32, dtypes.bool_]  # fmt: skip


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


def ranks(extent, start, length, dtype=dtypes.float32, rows=3, descending=False):
    return RankSpec(dtype, descending, (rows, extent), 1, start, length, (extent, 1), (length, 1))


def way(spec, multiprocessors=132):
    return lower_ranks(spec, DeviceProperties(multiprocessors=multiprocessors)).launches[0].name.removeprefix("kernel_ranks_")


def test_the_way_follows_the_ranks():
    assert way(ranks(4096, 0, 4096)) == "block"
    assert way(ranks(4096, 0, 4096, dtypes.int64)) == "keys"
    assert way(ranks(50000, 0, 50, rows=500)) == "select_whole"
    assert way(ranks(50000, 0, 50)) == "select_parts"
    assert way(ranks(50000, 25000, 1)) == "select_whole"
    assert way(ranks(50000, 7, 50)) == "keys"
    assert way(ranks(1 << 20, 1000, 1, rows=1)) == "keys" and way(ranks(1 << 20, 1000, 1, rows=500)) == "select_whole"


def test_another_shape_is_no_other_text():
    for length in (7, 5000, 9000):
        texts = [{each.source for each in lower_ranks(ranks(extent, 0, length)).launches} for extent in (9000, 10000)]
        assert length == 9000 or texts[0] == texts[1]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_way_compiles(dtype):
    for descending in (False, True):
        for spec in (ranks(100, 0, 100, dtype), ranks(9000, 0, 9000, dtype), ranks(9000, 0, 9, dtype, descending=descending)):
            compile_all(lower_ranks(spec), ("sm_75", "sm_90a"))
        compile_all(lower_search(SearchSpec(dtype, descending, 9, (40,), (0,), (1,), (1,))), ("sm_75", "sm_90a"))


def values(rng, dtype, shape, many_equal):
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind != "f":
        limits = np.iinfo(dtype.numpy)
        low, high = (0, 3) if many_equal else (limits.min, limits.max)
        return rng.integers(low, high, shape, dtype=dtype.numpy, endpoint=True)
    x = rng.integers(-2, 2, shape) * np.where(rng.random(shape) < 0.5, -0.0, 1) if many_equal else rng.standard_normal(shape)
    x = np.where(rng.random(shape) < 0.02, np.nan, np.where(rng.random(shape) < 0.02, -np.inf, x))
    return x.astype(dtype.numpy)


def order(row, descending):
    """A stable order in which NaN is the largest."""
    keys = row.astype(np.float64) if row.dtype.itemsize < 8 or row.dtype.kind == "f" else row
    if keys.dtype.kind == "f":
        nan = np.isnan(keys)
        keys = np.where(nan, 0, -keys if descending else keys) + 0.0
        return np.lexsort((np.arange(len(row)), keys, ~nan if descending else nan))
    return np.argsort(~keys if descending else keys, kind="stable")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_ranks_against_numpy(emulated, dtype, descending):
    rng = np.random.default_rng(11)
    for shape, start, length, many_equal, source_order, result_order in (
        ((7, 5, 1), 0, 5, True, None, None), ((60, 5, 3), 1, 2, True, None, None), ((1, 3000, 1), 0, 3000, False, None, None),
        ((3, 1100, 1), 0, 7, descending, None, None), ((3, 1100, 1), 500, 1, not descending, None, None),
        ((2, 9000, 1), 0, 9000, descending, None, None), ((2, 9000, 1), 0, 300, not descending, None, None),
        ((1, 9000, 2), 4000, 1, descending, None, None), ((2, 9000, 1), 4000, 7, False, None, None),
        ((3, 600, 4), 0, 20, descending, (2, 0, 1), (1, 2, 0)),
    ):  # fmt: skip
        x = laid_out(values(rng, dtype, shape, many_equal), source_order)
        found = laid_out(np.full((shape[0], length, shape[2]), -1), result_order)
        again = found.copy(order="K")
        spec = RankSpec(dtype, descending, shape, 1, start, length, strides_of(x), strides_of(found))
        assert run_lowered(lower_ranks(spec), [x, found]) == 0
        assert run_lowered(lower_ranks(spec, DeviceProperties(multiprocessors=1)), [x, again]) == 0
        np.testing.assert_array_equal(found, again)
        want = np.apply_along_axis(order, 1, x.astype(np.float64) if dtype.is_half else x, descending)
        np.testing.assert_array_equal(found, want[:, start : start + length], f"{spec}")


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=lambda d: d.name)
def test_searches_against_numpy(emulated, dtype, right):
    rng = np.random.default_rng(13)
    for many_equal in (False, True):
        sequence, wanted = values(rng, dtype, (300,), many_equal), values(rng, dtype, (40, 5), many_equal)
        sequence = sequence[order(sequence, False)]
        found = np.full((5, 40), -1).T
        spec = SearchSpec(dtype, right, 300, (40, 5), (0, 0), (5, 1), strides_of(found))
        assert run_lowered(lower_search(spec), [sequence, wanted, found]) == 0
        exact = np.float64 if dtype.kind == "f" else dtype.numpy
        want = np.searchsorted(sequence.astype(exact), wanted.astype(exact), "right" if right else "left")
        np.testing.assert_array_equal(found, want)

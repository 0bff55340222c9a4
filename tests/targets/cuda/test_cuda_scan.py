"""Scans on CUDA: every kind, dtype and way compiles, and the way follows shape and strides."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiles import compile_all
from strided_arrays import laid_out, strides_of

from emulator.run import run_lowered
from tensorsmith.core import dtypes
from tensorsmith.kernels.spec_scan import JOINED, PLACES, ScanSpec
from tensorsmith.targets.cuda.scan import lower_scan


def scan(kind, rows, extent, dtype=dtypes.float32):
    return ScanSpec(kind, (rows, extent), 1, dtype, (extent, 1), (extent, 1))


@pytest.mark.parametrize("kind", [*JOINED, *PLACES])
def test_every_way_compiles(kind):
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.int64, dtypes.uint8):
        if kind != "logsumexp" or dtype.is_floating_point:
            for rows, extent in ((5, 7), (5, 100), (500, 5000), (1, 1000000)):
                compile_all(lower_scan(scan(kind, rows, extent, dtype)), ("sm_75", "sm_90a"))


def test_long_rows_are_cut_where_they_are_few():
    assert len(lower_scan(scan("sum", 1, 1000000)).launches) == 3
    assert len(lower_scan(scan("sum", 5000, 10000)).launches) == 1
    assert len(lower_scan(scan("sum", 1, 3000)).launches) == 1
    places = lower_scan(scan("argmax", 1, 1000000))
    assert len(places.scratch) == 2 and places.words == 2


def test_rows_beside_each_other_have_a_thread_each():
    across = ScanSpec("sum", (1000, 4096), 0, dtypes.float32, (4096, 1), (4096, 1))
    assert "member" not in lower_scan(across).launches[0].source
    assert "member" in lower_scan(scan("sum", 4096, 1000)).launches[0].source


def test_another_shape_is_no_other_text():
    texts = [{launch.source for launch in lower_scan(scan("sum", 2, extent)).launches} for extent in (1000000, 1500000)]
    assert texts[0] == texts[1]


# --- numbers, on the emulated device -----------------------------------------------------------------------------------

UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp}


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


def reference(kind, x, axis):
    if kind in PLACES:
        record = (UFUNCS[PLACES[kind]].accumulate(x, axis) == x) | (x != x)
        place = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        return np.maximum.accumulate(np.where(record, place, 0), axis)
    return UFUNCS[kind].accumulate(x, axis, dtype=x.dtype)


@pytest.mark.parametrize("kind", [*JOINED, *PLACES])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float64, dtypes.int64, dtypes.uint8])
def test_against_numpy(emulated, kind, dtype):
    if kind == "logsumexp" and dtype.kind != "f":
        return
    rng = np.random.default_rng(5)
    for shape, axis, source_order, result_order in (
        ((7, 5), 1, None, None), ((7, 5, 9), 1, None, None), ((3, 100), 1, None, None), ((100, 30), 0, None, None),
        ((3, 1100), 1, None, None), ((2, 5000), 1, None, None), ((20000,), 0, None, None), ((3000, 9), 0, None, None),
        ((4, 70, 6), 1, (2, 0, 1), (1, 2, 0)), ((1,), 0, None, None),
    ):  # fmt: skip
        x = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 10, shape)
        if kind in ("max", "argmax", "argmin") and dtype.kind == "f":
            x = np.where(rng.random(shape) < 0.5, -np.inf, np.where(rng.random(shape) < 0.01, np.nan, x))
        x = laid_out((1 + x * 0.01 if kind == "prod" and dtype.kind == "f" else x).astype(dtype.numpy), source_order)
        spec = ScanSpec(kind, shape, axis, dtype, strides_of(x), (0,) * len(shape))
        y = laid_out(np.zeros(shape, spec.result_dtype.numpy), result_order)
        spec = ScanSpec(kind, shape, axis, dtype, strides_of(x), strides_of(y))
        assert run_lowered(lower_scan(spec), [x, y]) == 0
        want = reference(kind, x.astype(np.float64) if dtype.kind == "f" else x, axis)
        if dtype.kind != "f" or kind in PLACES:
            np.testing.assert_array_equal(y, want)
        else:
            tolerance = {2: 1e-2, 4: 2e-6, 8: 1e-12}[dtype.itemsize]
            near = tolerance * (1 + np.abs(x.astype(np.float64)).sum() * 1e-2) if kind == "sum" else tolerance
            np.testing.assert_allclose(y.astype(np.float64), want, rtol=tolerance, atol=near)


def test_of_equal_zeros_the_later_one_is_the_extreme(emulated):
    x = np.array([0.0, -0.0, -1.0], np.float32)
    y = np.empty(3, np.float32)
    run_lowered(lower_scan(ScanSpec("max", (3,), 0, dtypes.float32, (1,), (1,))), [x, y])
    assert list(np.signbit(y)) == [False, True, True]

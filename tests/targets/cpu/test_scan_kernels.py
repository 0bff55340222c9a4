"""Scan kernels on their own: every schedule and kind against NumPy, and what they are compiled of."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.kernels.spec_scan import JOINED, PLACES, ScanSpec
from tensorsmith.targets.cpu.scan import lower_scan


@pytest.mark.parametrize("kind", [*JOINED, *PLACES])
def test_schedules_follow_the_strides(kind):
    def way(domain, axis, source, result):
        return lower_scan(ScanSpec(kind, domain, axis, dtypes.float32, source, result)).schedule.rpartition("_")[2]

    assert way((1000,), 0, (1,), (1,)) == "along"
    assert way((50, 100), 1, (100, 1), (100, 1)) == "along"
    assert way((100, 50), 0, (50, 1), (50, 1)) == "across"
    assert way((100,), 0, (3,), (1,)) == "elements"


def test_one_kernel_serves_all_sizes():
    a = lower_scan(ScanSpec("sum", (1000,), 0, dtypes.float32, (1,), (1,)))
    b = lower_scan(ScanSpec("sum", (3, 77), 1, dtypes.float32, (77, 1), (77, 1)))
    assert a.function_address == b.function_address


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind must be one of"):
        ScanSpec("mean", (3,), 0, dtypes.float32, (1,), (1,))


def test_the_state_of_each_dtype():
    for kind, dtype, state in (
        ("sum", dtypes.float32, dtypes.float64), ("max", dtypes.float32, dtypes.float32),
        ("prod", dtypes.float16, dtypes.float32), ("argmin", dtypes.int8, dtypes.int8),
    ):  # fmt: skip
        assert ScanSpec(kind, (3,), 0, dtype, (1,), (1,)).state_dtype is state


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize("extent", [1, 2, 15, 16, 17, 64, 1000])
def test_masks_and_chunks(rows, extent):
    x = np.random.default_rng(0).integers(-5, 6, (rows, extent)).astype(np.float32)
    mine = ts.tensor(x)
    np.testing.assert_array_equal(ts.cumsum(mine, 1).numpy(), np.cumsum(x, 1))
    np.testing.assert_array_equal(ts.cumsum(mine, 0).numpy(), np.cumsum(x, 0))
    np.testing.assert_array_equal(ts.cummax(mine, 1).values.numpy(), np.maximum.accumulate(x, 1))
    places = ts.cummin(mine, 0).indices.numpy()
    np.testing.assert_array_equal(np.take_along_axis(x, places, 0), np.minimum.accumulate(x, 0))

"""Scans on CUDA: every kind, dtype and way compiles, and the way follows shape and strides."""

from __future__ import annotations

import pytest
from cuda_compiles import compile_all

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

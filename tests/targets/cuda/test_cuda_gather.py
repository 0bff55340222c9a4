"""Gathers and scatters on CUDA: every way compiles, and which way is taken follows shape and strides."""

from __future__ import annotations

import pytest
from cuda_compiles import compile_all

from tensorsmith.core import dtypes
from tensorsmith.kernels.spec import Operand
from tensorsmith.kernels.spec_index import MODES, IndexOperand, IndexSpec
from tensorsmith.targets.cuda.gather import lower_index


def embedding(mode, rows, columns, size, dtype=dtypes.float32, index_dtype=dtypes.int64, wrap=False):
    index = IndexOperand(Operand(index_dtype, (1, 0)), columns, size, wrap)
    return IndexSpec(mode, (rows, columns), Operand(dtype, (0, 1)), (index,), Operand(dtype, (columns, 1)))


def along(mode, rows, columns, size, dtype=dtypes.float32):
    """gather(dim=1) and what scatters to it."""
    index = IndexOperand(Operand(dtypes.int64, (columns, 1)), 1, size, True)
    return IndexSpec(mode, (rows, columns), Operand(dtype, (size, 0)), (index,), Operand(dtype, (columns, 1)))


def pick(mode, rows, classes, dtype=dtypes.float32):
    index = IndexOperand(Operand(dtypes.int64, (1,)), 1, classes)
    return IndexSpec(mode, (rows,), Operand(dtype, (classes,)), (index,), Operand(dtype, (1,)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.bool_, dtypes.int64, dtypes.int16])
def test_every_way_compiles(mode, dtype):
    for spec in (
        embedding(mode, 700, 24, 50, dtype), embedding(mode, 700, 7, 50, dtype, dtypes.int32, True),
        along(mode, 40, 6, 9, dtype), along(mode, 3, 700, 9, dtype), pick(mode, 40, 9, dtype),
    ):  # fmt: skip
        compile_all(lower_index(spec))


def test_points_that_cannot_meet_take_one_launch():
    assert len(lower_index(embedding("gather", 700, 24, 50)).launches) == 1
    for mode in ("scatter", "scatter_add"):
        assert len(lower_index(pick(mode, 40, 9)).launches) == 1
        assert lower_index(pick(mode, 40, 9)).scratch == ()
    assert len(lower_index(along("scatter_add", 4000, 6, 9)).launches) == 1  # few meet: a thread adds them
    assert len(lower_index(embedding("scatter_add", 700, 24, 50, dtypes.int32)).launches) == 1  # integers: any order


def test_points_that_meet_have_an_order():
    found = [launch.name for launch in lower_index(embedding("scatter", 700, 24, 50)).launches]
    assert found == ["kernel_zeros", "kernel_index_mark", "kernel_index_last"]
    found = [launch.name for launch in lower_index(embedding("scatter_add", 700, 24, 50)).launches]
    assert found[0] == "kernel_scatter_add_keys" and found[-2:] == ["kernel_scatter_add_stretches", "kernel_scatter_add_runs"]


def test_another_shape_is_no_other_text():
    texts = {launch.source for rows in (3, 70, 7000) for launch in lower_index(embedding("gather", rows, 24, 5)).launches}
    assert len(texts) == 1
    few, many = (lower_index(embedding("scatter_add", rows, 24, 50)) for rows in (700, 70000))
    assert {launch.source for launch in few.launches} == {launch.source for launch in many.launches}


def test_rows_that_begin_anywhere_are_moved_by_single_elements():
    assert "points<4>" in lower_index(embedding("gather", 70, 24, 50)).launches[0].source
    assert "points<2>" in lower_index(embedding("gather", 70, 26, 50)).launches[0].source
    assert "points<1>" in lower_index(embedding("gather", 70, 25, 50)).launches[0].source

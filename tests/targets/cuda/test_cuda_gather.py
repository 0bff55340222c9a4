"""Gathers and scatters on CUDA: every way compiles, and which way is taken follows shape and strides."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiles import compile_all

from emulator.run import run_lowered
from tensorsmith.core import dtypes
from tensorsmith.kernels.errors import FIRST_POINT
from tensorsmith.kernels.spec import Operand
from tensorsmith.kernels.spec_index import MODES, IndexOperand, IndexSpec
from tensorsmith.targets.cuda.gather import lower_index
from tensorsmith.targets.cuda.kernel import DeviceProperties
from tensorsmith.targets.cuda.scatter_add import lower_scatter_reduce


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
    assert [launch.name for launch in lower_index(along("scatter_add", 400, 600, 9)).launches] == ["kernel_scatter_add_rows"]
    assert len(lower_index(embedding("scatter_add", 700, 24, 50, dtypes.int32)).launches) == 1  # integers: any order


def test_points_that_meet_have_an_order():
    found = [launch.name for launch in lower_index(embedding("scatter", 700, 24, 50)).launches]
    assert found == ["kernel_zeros", "kernel_index_mark", "kernel_index_last"]
    found = [launch.name for launch in lower_index(embedding("scatter_add", 700, 24, 50)).launches]
    assert found == [f"kernel_scatter_add_{name}" for name in ("sort", "stretches", "runs")]
    found = [launch.name for launch in lower_index(embedding("scatter_add", 7000, 24, 50)).launches]
    assert found[0] == "kernel_scatter_add_keys" and found[-2:] == ["kernel_scatter_add_stretches", "kernel_scatter_add_runs"]


def test_another_shape_is_no_other_text():
    texts = {launch.source for rows in (3, 70, 7000) for launch in lower_index(embedding("gather", rows, 24, 5)).launches}
    assert len(texts) == 1
    few, many = (lower_index(embedding("scatter_add", rows, 24, 50)) for rows in (7000, 70000))
    assert {launch.source for launch in few.launches} == {launch.source for launch in many.launches}


def test_rows_that_begin_anywhere_are_moved_by_single_elements():
    assert "points<4>" in lower_index(embedding("gather", 70, 24, 50)).launches[0].source
    assert "points<2>" in lower_index(embedding("gather", 70, 26, 50)).launches[0].source
    assert "points<1>" in lower_index(embedding("gather", 70, 25, 50)).launches[0].source


# --- numbers, on the emulated device -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulated():
    import emulator

    emulator.activate()


def values(rng, dtype, count):
    if dtype.kind == "f":
        return rng.standard_normal(count).astype(dtype.numpy)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, count).astype(dtype.numpy)


def by_loops(spec, table, index, other):
    """What the spec says, point by point: (table, other, codes of errors)."""
    compute = np.float64 if spec.dtype.kind == "f" and spec.mode == "scatter_add" else table.dtype
    table, other, codes = table.astype(compute), other.copy(), set()
    (given,) = spec.indices
    counted = [n if s else 1 for n, s in zip(spec.domain, given.operand.strides)]
    for point in np.ndindex(*spec.domain):
        at = int(index[np.dot(point, given.operand.strides)])
        at += given.size if given.wrap and at < 0 else 0
        if not 0 <= at < given.size:
            position = [p if s else 0 for p, s in zip(point, given.operand.strides)]
            codes.add(FIRST_POINT + int(np.ravel_multi_index(position, counted)))
            continue
        place, here = int(np.dot(point, spec.table.strides)) + at * given.step, int(np.dot(point, spec.other.strides))
        if spec.mode == "gather":
            other[here] = table[place]
        elif spec.mode == "scatter":
            table[place] = other[here]
        else:
            table[place] = table[place] | other[here] if spec.dtype.kind == "b" else table[place] + other[here].astype(compute)
    return table, other, codes


def extent_of(domain, strides):
    return 1 + sum((n - 1) * s for n, s in zip(domain, strides))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float64, dtypes.bool_, dtypes.int32, dtypes.int16])
@pytest.mark.parametrize("wrong", [False, True])
def test_against_loops(emulated, mode, dtype, wrong):
    rng = np.random.default_rng(7)
    middle = IndexOperand(Operand(dtypes.int64, (45, 1, 0)), 6, 7, True)
    everywhere = IndexOperand(Operand(dtypes.int64, (0,)), 1, 3)
    for spec in (
        embedding(mode, 5, 8, 9, dtype), embedding(mode, 100, 24, 9, dtype, dtypes.int32, True),
        embedding(mode, 700, 5, 5, dtype), embedding(mode, 4200, 2, 300, dtype),
        along(mode, 6, 50, 40, dtype), along(mode, 50, 3, 40, dtype), along(mode, 17, 150, 7, dtype), pick(mode, 40, 9, dtype),
        IndexSpec(mode, (3, 45, 6), Operand(dtype, (42, 0, 1)), (middle,), Operand(dtype, (270, 6, 1))),
        IndexSpec(mode, (40,), Operand(dtype, (0,)), (everywhere,), Operand(dtype, (1,))),
    ):  # fmt: skip
        (index,) = spec.indices
        shift = int(rng.integers(0, 4))  # bases are aligned to an element only
        table = values(rng, dtype, shift + extent_of(spec.domain, spec.table.strides) + index.step * (index.size - 1))[shift:]
        other = values(rng, dtype, shift + extent_of(spec.domain, spec.other.strides))[shift:]
        lowest = -index.size if index.wrap else 0
        places = rng.integers(lowest, index.size, extent_of(spec.domain, index.operand.strides))
        places = places.astype(index.operand.dtype.numpy)
        if wrong:
            places[rng.integers(0, len(places))] = index.size + 3
        want_table, want_other, codes = by_loops(spec, table, places, other)
        code = run_lowered(lower_index(spec), [table, places, other])
        assert code in codes if codes else code == 0
        if mode == "gather":
            np.testing.assert_array_equal(other, want_other)
        elif mode == "scatter_add" and dtype.kind == "f":
            tolerance = {2: 1e-2, 4: 1e-6, 8: 1e-14}[dtype.itemsize] * (1 + np.abs(want_table).max())
            np.testing.assert_allclose(table.astype(np.float64), want_table, rtol=0, atol=tolerance)
        else:
            np.testing.assert_array_equal(table, want_table.astype(table.dtype))


def test_sums_are_the_same_bit_for_bit_however_the_work_falls_to_blocks(emulated):
    rng = np.random.default_rng(3)
    spec = embedding("scatter_add", 900, 4, 7)
    table, other = rng.standard_normal(28).astype(np.float32), rng.standard_normal(3600).astype(np.float32)
    index, found = rng.integers(0, 7, 900), set()
    for multiprocessors in (1, 4, 132):
        sums = table.copy()
        assert run_lowered(lower_index(spec, DeviceProperties(multiprocessors=multiprocessors)), [sums, index, other]) == 0
        found.add(sums.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.int64, dtypes.bool_])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("kind", ["prod", "amax", "amin"])
def test_products_and_extremes_at_shared_places(emulated, dtype, include_self, kind):
    rng = np.random.default_rng(9)
    for spec in (
        along("scatter_add", 3, 200, 40, dtype),
        along("scatter_add", 18, 70, 9, dtype),
        embedding("scatter_add", 100, 5, 3, dtype),
    ):
        (index,) = spec.indices
        table = values(rng, dtype, extent_of(spec.domain, spec.table.strides) + index.step * (index.size - 1))
        other = values(rng, dtype, extent_of(spec.domain, spec.other.strides))
        if kind == "prod" and dtype.kind == "f":
            table, other = (np.exp(x * 0.05).astype(dtype.numpy) for x in (table, other))
        places = rng.integers(0, index.size, extent_of(spec.domain, index.operand.strides))
        want, join = table.astype(np.float64), {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[kind]
        fresh = np.full(len(table), not include_self)
        for point in np.ndindex(*spec.domain):
            at = int(np.dot(point, spec.table.strides)) + int(places[np.dot(point, index.operand.strides)]) * index.step
            value = np.float64(other[np.dot(point, spec.other.strides)])
            want[at] = value if fresh[at] else join(want[at], value)
            fresh[at] = False
        if kind == "prod" and dtype.kind == "i":
            continue  # these wrap, which float64 does not
        assert run_lowered(lower_scatter_reduce(spec, kind, include_self), [table, places, other]) == 0
        np.testing.assert_allclose(table.astype(np.float64), want, rtol={1: 0, 2: 2e-3, 4: 1e-5, 8: 0}[dtype.itemsize])

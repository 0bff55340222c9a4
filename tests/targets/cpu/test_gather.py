"""Gather and scatter kernels against loops in Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from spec_runner import Guarded, extent_of, machines, run

from tensorsmith.core import dtypes
from tensorsmith.kernels.spec import Operand
from tensorsmith.kernels.spec_index import IndexOperand, IndexSpec
from tensorsmith.targets.cpu.gather import compiled_index_kernels, lower_index

MACHINES = machines()


def execute(spec: IndexSpec, table: np.ndarray, indices: list[np.ndarray], other: np.ndarray, on=None) -> int | None:
    words = [table.ctypes.data, *(i.ctypes.data for i in indices), other.ctypes.data]
    return run(lower_index(spec, on), *words)


def embedding_spec(mode, n, d, v, dtype, index_dtype=dtypes.int64, wrap=False):
    index = IndexOperand(Operand(index_dtype, (1, 0)), d, v, wrap)
    return IndexSpec(mode, (n, d), Operand(dtype, (0, 1)), (index,), Operand(dtype, (d, 1)))


@pytest.mark.parametrize("on", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16, dtypes.uint8, dtypes.bool_])
@pytest.mark.parametrize("n,d,v", [(1, 1, 1), (5, 7, 3), (33, 384, 50), (700, 130, 9)])
def test_embedding_and_its_backward(n, d, v, dtype, on):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 5, (v, d)).astype(dtype.numpy)
    index = rng.integers(0, v, n)
    out = np.zeros((n, d), dtype.numpy)
    assert execute(embedding_spec("gather", n, d, v, dtype), table, [index], out, on) is None
    np.testing.assert_array_equal(out, table[index])
    grad = np.zeros((v, d), dtype.numpy)
    rows = (rng.integers(0, 2, (n, d))).astype(dtype.numpy)
    assert execute(embedding_spec("scatter_add", n, d, v, dtype), grad, [index], rows, on) is None
    expected = np.zeros((v, d), np.bool_ if dtype.kind == "b" else np.float64)
    np.add.at(expected, index, rows.astype(expected.dtype))
    if dtype is dtypes.bfloat16:  # rounds at every addition: exact up to 256
        expected = np.minimum(expected, 256)
    if dtype is dtypes.uint8:
        expected = expected % 256
    np.testing.assert_array_equal(grad.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("index_dtype", [dtypes.int32, dtypes.int64])
def test_gather_and_scatter_along_an_axis(dim, index_dtype):
    rng = np.random.default_rng(1)
    table = rng.standard_normal((6, 7, 8)).astype(np.float32)
    shape = (4, 5, 6)
    index = rng.integers(0, table.shape[dim], shape).astype(index_dtype.numpy)
    strides = tuple(0 if a == dim else s // 4 for a, s in enumerate(table.strides))
    dense = (30, 6, 1)
    operand = IndexOperand(Operand(index_dtype, dense), table.strides[dim] // 4, table.shape[dim])
    f32 = dtypes.float32
    out = np.zeros(shape, np.float32)
    spec = IndexSpec("gather", shape, Operand(f32, strides), (operand,), Operand(f32, dense))
    assert execute(spec, table, [index], out) is None
    sub = table[tuple(slice(0, n) if a != dim else slice(None) for a, n in enumerate(shape))]
    np.testing.assert_array_equal(out, np.take_along_axis(sub, index.astype(np.int64), dim))
    for mode in ("scatter", "scatter_add"):
        target, expected = table.copy(), table.copy()
        spec = IndexSpec(mode, shape, Operand(f32, strides), (operand,), Operand(f32, dense))
        assert execute(spec, target, [index], out) is None
        for p in itertools.product(*(range(n) for n in shape)):
            q = list(p)
            q[dim] = int(index[p])
            expected[tuple(q)] = out[p] + (expected[tuple(q)] if mode == "scatter_add" else 0)
        np.testing.assert_array_equal(target, expected)


def test_class_pick_and_two_indices():
    table = np.arange(30, dtype=np.float32).reshape(5, 6)
    t = np.array([0, 5, 2, 3, 1])
    out = np.zeros(5, np.float32)
    f32 = dtypes.float32
    one = IndexOperand(Operand(dtypes.int64, (1,)), 1, 6)
    assert execute(IndexSpec("gather", (5,), Operand(f32, (6,)), (one,), Operand(f32, (1,))), table, [t], out) is None
    np.testing.assert_array_equal(out, table[np.arange(5), t])
    a, b = np.array([4, -1, 0, 2, 2]), np.array([0, -6, 1, 2, 5])
    pair = (
        IndexOperand(Operand(dtypes.int64, (1,)), 6, 5, True),
        IndexOperand(Operand(dtypes.int64, (1,)), 1, 6, True),
    )
    spec = IndexSpec("gather", (5,), Operand(f32, (0,)), pair, Operand(f32, (1,)))
    assert execute(spec, table, [a, b], out) is None
    np.testing.assert_array_equal(out, table[a, b])


@pytest.mark.parametrize("bad", [9, -1, 2**40])
def test_index_out_of_range_is_reported_by_position(bad):
    table = np.ones((9, 20), np.float32)
    index = np.array([[1, 2, 3], [4, bad, 5]])
    out = np.zeros((2, 3, 20), np.float32)
    operand = IndexOperand(Operand(dtypes.int64, (3, 1, 0)), 20, 9)
    f32 = dtypes.float32
    spec = IndexSpec("gather", (2, 3, 20), Operand(f32, (0, 0, 1)), (operand,), Operand(f32, (60, 20, 1)))
    assert execute(spec, table, [index], out) == 1 + 4
    assert out[1, 1].sum() == 0 and out[1, 2].sum() == 20


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 9), st.booleans(), st.integers(0, 2**20))
def test_rows_stay_inside_their_buffers(n, d, v, at_end, seed):
    rng = np.random.default_rng(seed)
    f32 = dtypes.float32
    spec = embedding_spec("gather", n, d, v, f32, dtypes.int32)
    table, out = Guarded(f32, v * d, at_end), Guarded(f32, n * d, at_end)
    index = Guarded(dtypes.int32, n, at_end)
    table.array[:] = rng.standard_normal(v * d)
    index.array[:] = rng.integers(0, v, n)
    assert extent_of(spec.other, spec.domain)[0] == n * d
    code = run(lower_index(spec, MACHINES[seed % len(MACHINES)]), table.address, index.address, out.address)
    assert code is None
    np.testing.assert_array_equal(out.array.reshape(n, d), table.array.reshape(v, d)[index.array])
    for buffer in (table, out, index):
        buffer.release()


def test_other_sizes_share_the_kernel():
    lower_index(embedding_spec("gather", 10, 16, 5, dtypes.float32))
    before = compiled_index_kernels()
    lower_index(embedding_spec("gather", 1000, 384, 500, dtypes.float32))
    assert compiled_index_kernels() == before

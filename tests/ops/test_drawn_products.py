"""Products of drawn shapes, strides, broadcasts and dtypes against float64 (integers: NumPy) and beside PyTorch.

A float result may differ from the exact one by `ROUNDING` of the sum of the magnitudes, sum |a||b|: some roundings of
float32 or float64 sums (in any order, so K**0.5 of them), or for the half types one rounding of the result and those of a
float32 sum. Integers wrap and are equal.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from hypothesis import example, given, settings, strategies as st

import tensorsmith as ts

DTYPES = ["float32", "float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"]
ROUNDING = {"float32": 2.0**-23, "float64": 2.0**-52}  # for each square root of K
RESULT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of the exact value
EXTENTS = st.one_of(st.integers(0, 5), st.integers(1, 20), st.sampled_from([16, 31, 33, 48, 64, 65, 97, 130]))
DEPTHS = st.one_of(EXTENTS, st.sampled_from([255, 512, 513, 700]))


@st.composite
def matrices(draw, batch: tuple[int, ...], rows: int, columns: int):
    """Stored shape and the axes, steps and starts that make (*batch, rows, columns) of it."""
    turned = draw(st.booleans())
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in range(2)]
    starts = [draw(st.integers(0, 2)) for _ in range(2)]
    stored = (columns, rows) if turned else (rows, columns)
    full = tuple(start + step * n + draw(st.integers(0, 1)) for start, step, n in zip(starts, steps, stored))
    return (*batch, *full), starts, steps, stored, turned


@st.composite
def products(draw):
    """Two matrices, or vectors, that can be multiplied, with batches that broadcast."""
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    M, K, N = draw(EXTENTS), draw(DEPTHS), draw(EXTENTS)
    left = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in batch)[draw(st.integers(0, len(batch))) :]
    right = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in batch)[draw(st.integers(0, len(batch))) :]
    vectors = draw(st.sampled_from([(False, False)] * 5 + [(True, False), (False, True), (True, True)]))
    M, N = max(M, int(vectors[0])), max(N, int(vectors[1]))  # a vector is the first row, or column
    a, b = draw(matrices(left, M, K)), draw(matrices(right, K, N))
    return a, b, vectors, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**20))


def look(x, starts, steps, stored, turned):
    """The view of a stored array or tensor: the same indexing in NumPy, PyTorch and Tensorsmith."""
    (r0, c0), (dr, dc), (rows, columns) = starts, steps, stored
    x = x[..., r0 : r0 + dr * rows : dr, c0 : c0 + dc * columns : dc]
    return x.swapaxes(-1, -2) if turned else x


def fill(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return rng.standard_normal(shape).astype(kind)


def torch_of(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


HALF_COLUMN = ((3, 9, 2), [0, 0], [1, 1], (9, 2), False), ((2, 2), [0, 0], [1, 1], (2, 2), False)


@example((*HALF_COLUMN, (False, True), "float16", 0))  # a strided vector of a half type
@settings(max_examples=120, deadline=None)
@given(products())
def test_products(case):
    a, b, vectors, dtype, seed = case
    rng = np.random.default_rng(seed)
    arrays = [fill(rng, shape, dtype) for shape, *_ in (a, b)]

    def operands(stored):
        x, y = look(stored[0], *a[1:]), look(stored[1], *b[1:])
        if vectors[0]:
            x = x[(0,) * (x.ndim - 2)][0]
        if vectors[1]:
            y = y[(0,) * (y.ndim - 2)][:, 0]
        return x, y

    x, y = operands(arrays)
    u, v = operands([ts.tensor(array) for array in arrays])
    p, q = operands([torch_of(array) for array in arrays])
    ours, theirs = ts.matmul(u, v), torch.matmul(p, q)
    assert tuple(ours.shape) == tuple(theirs.shape) and str(ours.dtype).split(".")[1] == dtype
    if x.dtype.kind in "iu":
        np.testing.assert_array_equal(ours.numpy(), np.matmul(x, y))
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        return
    got = ours.double().numpy()
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    exact, magnitude = np.matmul(wide_x, wide_y), np.matmul(np.abs(wide_x), np.abs(wide_y))
    roundings = 2 + x.shape[-1] ** 0.5
    bound = roundings * ROUNDING.get(dtype, 2.0**-23) * magnitude + RESULT.get(dtype, 0.0) * np.abs(exact)
    if dtype == "float64":  # the oracle is rounded too
        bound = 2 * bound
    bound = bound + (2.0**-24 if dtype == "float16" else 0.0)  # its subnormal numbers
    assert (np.abs(got - exact) <= bound).all()
    # PyTorch sums the half types in ways of its own, so beside it each may be off by roundings of the magnitudes.
    apart = 2 * bound + (2 * RESULT[dtype] * magnitude if dtype in RESULT else 0.0)
    assert (np.abs(got - theirs.double().numpy()) <= apart).all()

"""The scalar table on tensors: any shapes, dtypes and placements, against the reference and against PyTorch."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.eager.operator import operators
from tensorsmith.ops.creation import array_of
from tensorsmith.scalar.table import TABLE, Fn, Typing

sys.path.append(str(Path(__file__).parent))
import harness  # noqa: E402

ROWS = [row for row in TABLE.values() if row.fn is not Fn.WHERE]
SHAPES = [(), (1,), (7,), (0,), (3, 0), (2, 3), (1, 5), (5, 1), (2, 1, 3), (3, 4, 2), (2, 2, 2, 2), (65,), (3, 33)]
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 1e4, -0.001, 2.0, -2.5])


@st.composite
def calls(draw):
    row = draw(st.sampled_from(ROWS))
    shape = draw(st.sampled_from(SHAPES))
    kinds = (ts.int64, ts.int32, ts.uint8) if row.typing is Typing.INTEGER else harness_dtypes
    return row, shape, draw(st.sampled_from(kinds)), draw(st.sampled_from(harness.PLACEMENTS)), draw(st.integers(0, 99))


harness_dtypes = (ts.float32, ts.float64, ts.float16, ts.bfloat16, ts.int64, ts.int32, ts.uint8)


@settings(max_examples=250, deadline=None)
@given(calls())
def test_any_placement(call):
    row, shape, dtype, placement, seed = call
    operator = operators()[row.name]
    (sample,) = [s.at(shape) for s in harness.samples(operator)][:1]
    try:
        harness.check_against_reference(operator, sample, dtype, placement, seed)
    except (RuntimeError, NotImplementedError, ZeroDivisionError) as error:
        refused = dtype.kind in "iu" or row.fn in (Fn.NEXTAFTER,)
        assert refused, error


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([r for r in ROWS if r.arity == 2]), st.data())
def test_broadcasting_and_mixed_dtypes_against_pytorch(row, data):
    """Values, dtype and strides of a binary function of operands that differ in shape, dtype and placement."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    results = []
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    operands = []
    for _ in range(2):
        kept = [n if data.draw(st.booleans()) or data.draw(st.booleans()) else 1 for n in shape]
        kept = kept[data.draw(st.integers(0, len(kept))) :] if data.draw(st.integers(0, 3)) == 0 else kept
        name = data.draw(st.sampled_from(["float32", "float64", "int64", "uint8"]))
        name = "int64" if row.typing is Typing.INTEGER else name
        order = data.draw(st.permutations(range(len(kept))))
        array = random.integers(1, 7, [kept[i] for i in order]).astype(name)
        operands.append(array.transpose([order.index(i) for i in range(len(kept))]))
    for L in (ts, torch):
        function = getattr(L, row.name, None) or getattr(L.special, row.name)
        try:
            results.append(function(*(L.from_numpy(a) for a in operands)))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            results.append(error)
    ours, theirs = results
    if isinstance(theirs, Exception):
        return  # what PyTorch refuses may work here
    assert not isinstance(ours, Exception), repr(ours)
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]
    assert tuple(ours.shape) == tuple(theirs.shape)
    strides = [[s for n, s in zip(r.shape, r.stride()) if n > 1] for r in results]
    assert strides[0] == strides[1]
    tolerance = 1e-12 if theirs.dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(array_of(ours).astype(np.float64), theirs.double().numpy(), rtol=tolerance)


# Where the sign of a zero is not defined, or differs in PyTorch from one vector width to another.
_OWN_EDGES = {"maximum", "minimum", "relu", "lgamma", "digamma", "erfinv", "polygamma", "hypot", "logaddexp"}


@pytest.mark.parametrize("row", [r for r in ROWS if r.typing is not Typing.INTEGER], ids=lambda r: r.name)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_special_values_against_pytorch(row, name):
    first = np.repeat(SPECIAL, len(SPECIAL)) if row.arity == 2 else SPECIAL
    operands = [first, np.tile(SPECIAL, len(SPECIAL))][: row.arity]
    results = []
    for L in (ts, torch):
        function = getattr(L, row.name, None) or getattr(L.special, row.name, None) or getattr(L.nn.functional, row.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(function(*(L.tensor(a.tolist(), dtype=getattr(L, name)) for a in operands)))
    ours, theirs = (np.array(r.tolist(), np.float64) for r in results)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs)), (first[np.isnan(ours) != np.isnan(theirs)], ours, theirs)
    tolerance = 1e-5 if name == "float32" else 1e-12
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=1e-37)
    zero = (theirs == 0) & (ours == 0)
    if row.name not in _OWN_EDGES:
        np.testing.assert_array_equal(np.signbit(ours[zero]), np.signbit(theirs[zero]))


@pytest.mark.parametrize("name", ["add", "exp", "where", "mul", "tanh", "maximum"])
def test_large_tensors(name):
    """Sizes at which work falls into several chunks, vectors have remainders, and rows are long."""
    operator = operators()[name]
    (sample,) = harness.samples(operator)
    for shape in [(300_001,), (1025, 513), (3, 100_003), (100_003, 3)]:
        for placement in ("contiguous", "transposed", "sliced"):
            harness.check_against_reference(operator, sample.at(shape), ts.float32, placement)


def test_symbols_methods_and_functions_are_one():
    x, y = ts.tensor([1.0, -2.0, 3.0]), ts.tensor([2.0, 2.0, -2.0])
    for symbol, name in {
        "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "div", "__floordiv__": "floor_divide",
        "__mod__": "remainder", "__pow__": "pow", "__lt__": "lt", "__eq__": "eq", "__ge__": "ge",
    }.items():  # fmt: skip
        expected = getattr(ts, name)(x, y).tolist()
        assert getattr(x, symbol)(y).tolist() == expected or "nan" in str(expected)
        assert getattr(x, name)(y).tolist() == expected or "nan" in str(expected)
    assert (-x).tolist() == [-1, 2, -3] and abs(x).tolist() == [1, 2, 3] and (2 - x).tolist() == [1, 4, -1]
    assert (~ts.tensor([True, False])).tolist() == [False, True]
    z = x.clone()
    z += y
    z *= 2
    z -= 1.0
    z /= 4
    assert z.tolist() == [1.25, -0.25, 0.25] and z._version == 4


def test_alpha():
    for L in (ts, torch):
        x, y = L.tensor([1.0, 2.0]), L.tensor([3.0, 4.0])
        assert L.add(x, y, alpha=2).tolist() == [7, 10] and x.sub(y, alpha=0.5).tolist() == [-0.5, 0]
        assert x.clone().add_(y, alpha=-1).tolist() == [-2, -2]
        with pytest.raises(RuntimeError, match="alpha"):
            L.tensor([1]).add(L.tensor([1]), alpha=0.5)

"""dtypes and promotion against PyTorch's table, on every pair."""

import itertools

import pytest
import torch

from tensorsmith.core import dtypes

TORCH = {d.name: getattr(torch, d.name) for d in dtypes.ALL}


@pytest.mark.parametrize("a", dtypes.ALL, ids=lambda d: d.name)
def test_promote_types_as_pytorch(a):
    for b in dtypes.ALL:
        try:
            expected = torch.promote_types(TORCH[a.name], TORCH[b.name])
        except RuntimeError:
            with pytest.raises(RuntimeError, match="Promotion"):
                dtypes.promote_types(a, b)
            continue
        assert TORCH[dtypes.promote_types(a, b).name] is expected, (a, b)


@pytest.mark.parametrize("a", dtypes.ALL, ids=lambda d: d.name)
def test_result_type_of_tensors_zero_dim_tensors_and_numbers(a):
    full = torch.zeros(2, dtype=TORCH[a.name])
    for b in dtypes.ALL:
        zero_dim = torch.zeros((), dtype=TORCH[b.name])
        try:
            expected = torch.result_type(full, zero_dim)
        except RuntimeError:
            continue
        if expected is torch.complex32:
            continue
        assert TORCH[dtypes.promote_operands([a], [b]).name] is expected, (a, b)
    for number in (True, 3, 2.5, 1j):
        expected = torch.result_type(full, number)
        if expected is torch.complex32:  # a dtype that PyTorch itself hardly computes with, and we do not have
            expected = torch.complex64
        assert TORCH[dtypes.promote_operands([a], [], [dtypes.of_python_scalar(number)]).name] is expected, (a, number)
        zero_dim = torch.zeros((), dtype=TORCH[a.name])
        expected = torch.result_type(zero_dim, number)
        if expected is torch.complex32:
            expected = torch.complex64
        assert TORCH[dtypes.promote_operands([], [a], [dtypes.of_python_scalar(number)]).name] is expected, (a, number)


def test_limits_as_pytorch():
    for d in dtypes.ALL:
        if d.kind == "f":
            ours, theirs = dtypes.finfo(d), torch.finfo(TORCH[d.name])
            for name in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution"):
                assert getattr(ours, name) == getattr(theirs, name), (d, name)
        elif d.kind in "iu":
            ours, theirs = dtypes.iinfo(d), torch.iinfo(TORCH[d.name])
            assert (ours.bits, ours.min, ours.max) == (theirs.bits, theirs.min, theirs.max)


def test_the_default_dtype_is_a_floating_one():
    with pytest.raises(TypeError, match="only floating-point types"):
        dtypes.set_default_dtype(dtypes.int32)
    assert dtypes.get_default_dtype() is dtypes.float32


def test_every_dtype_is_found_by_its_numpy_counterpart():
    for d in dtypes.ALL:
        assert dtypes.from_numpy_dtype(d.numpy) is d
        assert d.itemsize == d.numpy.itemsize
    pairs = itertools.combinations(dtypes.ALL, 2)
    assert all(a.code != b.code for a, b in pairs)

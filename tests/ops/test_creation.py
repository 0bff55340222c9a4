"""Tensors from nothing and from data, as PyTorch makes them."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import tensorsmith as ts

sys.path.append(str(Path(__file__).parents[1] / "autograd"))
from torch_twin import outcome, twin  # noqa: E402

NAMES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def described(x):
    return str(x.dtype).split(".")[-1], list(x.shape), list(x.stride()), x.requires_grad, x.double().tolist()


def compare(call):
    """`call(L)` with both libraries: the same tensor, or an error of the same class."""
    ours, theirs = outcome(lambda: call(ts)), outcome(lambda: call(torch))
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), f"PyTorch: {theirs!r}, ours {ours}"
        return
    assert not isinstance(ours, Exception), f"{ours!r}, PyTorch's {theirs}"
    a, b = described(ours), described(theirs)
    assert a[:4] == b[:4], f"ours {a}, PyTorch's {b}"
    np.testing.assert_array_equal(np.array(a[4]), np.array(b[4]))


@pytest.mark.parametrize("name", NAMES)
def test_filled(name):
    for call in (
        lambda L, d: L.zeros(2, 3, dtype=d), lambda L, d: L.ones((2, 3), dtype=d), lambda L, d: L.full((2,), 3, dtype=d),
        lambda L, d: L.full((), 1, dtype=d), lambda L, d: L.eye(3, 2, dtype=d), lambda L, d: L.zeros(0, 4, dtype=d),
        lambda L, d: L.arange(5, dtype=d), lambda L, d: L.arange(1, 9, 3, dtype=d), lambda L, d: L.scalar_tensor(1, dtype=d),
        lambda L, d: L.zeros_like(L.ones(2, 3, dtype=d).t()), lambda L, d: L.full_like(L.ones(3, dtype=d), 1),
        lambda L, d: L.ones_like(L.ones(2, 1, 3).expand(2, 4, 3), dtype=d), lambda L, d: L.tensor([[1, 0], [1, 1]], dtype=d),
    ):  # fmt: skip
        if name != "bool" or isinstance(outcome(lambda call=call: call(torch, torch.bool)), torch.Tensor):
            compare(lambda L, call=call: call(L, getattr(L, name)))


def test_inferred_dtypes():
    for data in (1, 1.0, True, [1, 2], [1, 2.0], [True, False], [True, 2], [], [[]], [[1], [2]], ((1, 2), (3, 4)), range(3),
                 np.float64(1.0), np.int32(3), np.array([1, 2], np.uint8), [np.float32(1)], float("nan"),
                 [float("inf"), 1], 2**62, -(2**63)):  # fmt: skip
        compare(lambda L, data=data: L.tensor(data))
    for data in ([1, [2]], [[1, 2], [3]], "text", None, object(), ["a"], [2**63], 2**64, [None]):
        assert isinstance(outcome(lambda data=data: torch.tensor(data)), Exception)
        assert isinstance(outcome(lambda data=data: ts.tensor(data)), Exception), data


@settings(max_examples=150, deadline=None)
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-7, 7), st.booleans())
def test_arange(start, end, step, halves):
    scale = 0.5 if halves else 1
    compare(lambda L: L.arange(start * scale, end * scale, step * scale))


@settings(max_examples=100, deadline=None)
@given(st.floats(-100, 100), st.floats(-100, 100), st.integers(0, 40))
def test_linspace_in_float64(start, end, steps):
    ours = ts.linspace(start, end, steps, dtype=ts.float64).numpy()
    theirs = torch.linspace(start, end, steps, dtype=torch.float64).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    if steps > 1:
        assert ours[0] == start and ours[-1] == end


def test_out_of_creating_functions():
    def run(L, log):
        for call in (
            lambda o: L.zeros(3, out=o), lambda o: L.ones(2, 2, out=o), lambda o: L.full((3,), 2.5, out=o),
            lambda o: L.arange(3, out=o), lambda o: L.linspace(0, 1, 5, out=o), lambda o: L.eye(2, out=o),
        ):  # fmt: skip
            for dtype in (L.float32, L.float64):
                o = L.ones(3, dtype=dtype) * 7
                assert call(o) is o
                log(o, list(o.shape), str(o.dtype).split(".")[-1], o.requires_grad)
        log(type(outcome(lambda: L.zeros(3, dtype=L.float64, out=L.zeros(3)))).__name__)

    twin(run)



def test_refusals():
    for call in (
        lambda L: L.zeros(-1), lambda L: L.zeros(2.5), lambda L: L.zeros("a"), lambda L: L.arange(0, 1, 0),
        lambda L: L.arange(0, 1, -1), lambda L: L.arange(float("nan")), lambda L: L.linspace(0, 1, -1), lambda L: L.eye(-1),
        lambda L: L.tensor([1], requires_grad=True), lambda L: L.full((2,), 300, dtype=L.int8),
        lambda L: L.tensor(300, dtype=L.int8), lambda L: L.tensor(float("nan"), dtype=L.int32),
        lambda L: L.empty_strided((2, 2), (1,)), lambda L: L.from_numpy(np.zeros(3)[::-1]), lambda L: L.from_numpy([1]),
        lambda L: L.from_numpy(np.array(["a"])),
    ):  # fmt: skip
        ours, theirs = outcome(lambda call=call: call(ts)), outcome(lambda call=call: call(torch))
        assert isinstance(theirs, Exception)
        assert type(ours) is type(theirs), f"ours {ours!r}, PyTorch's {theirs!r}"


def test_memory_is_shared_with_numpy():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (array, array.T, array[::2, 1:], np.broadcast_to(array[:, :1], (3, 4)).copy()):
        x = ts.from_numpy(view)
        x.add_(1.0)
        np.testing.assert_array_equal(view, x.numpy())
        back = x.numpy()
        back *= 2
        np.testing.assert_array_equal(np.array(x.tolist(), np.float32), back)
    kept = ts.arange(3.0).numpy()  # the tensor is gone, its memory is not
    ts.zeros(3), ts.ones(3)  # noqa: B018
    assert kept.tolist() == [0, 1, 2]
    assert ts.as_tensor(array).data_ptr() == array.ctypes.data and ts.tensor(array).data_ptr() != array.ctypes.data
    wide = np.zeros((2, 3), np.int64)
    assert ts.from_numpy(wide).dtype is ts.int64
    with pytest.raises(RuntimeError, match="requires grad"):
        ts.ones(2, requires_grad=True).numpy()
    with pytest.raises(TypeError, match="BFloat16"):
        ts.ones(2, dtype=ts.bfloat16).numpy()


def test_a_size_seen_before_does_not_admit_a_float():
    assert ts.ones(2).tolist() == [1.0, 1.0]
    for _ in range(2):
        with pytest.raises(TypeError, match="size must be ints"):
            ts.ones(2.0)

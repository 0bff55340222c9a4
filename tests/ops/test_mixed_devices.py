"""Tensors of several devices in one call are refused, and what NumPy computes goes where its operands are."""

from __future__ import annotations

from typing import Any

import pytest

import tensorsmith as ts

F = ts.nn.functional


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


CALLS: dict[str, Any] = {
    "add": lambda x, other: x + other,
    "matmul": lambda x, other: x @ other,
    "masked_select": lambda x, other: x.masked_select(other > 1),
    "masked_scatter": lambda x, other: x.masked_scatter(other > 1, x),
    "masked_scatter source": lambda x, other: x.masked_scatter(x > 1, other),
    "isin": ts.isin,
    "bincount": lambda x, other: ts.bincount(x.long().flatten(), other.flatten()),
    "repeat_interleave": lambda x, other: x.repeat_interleave(other[0].long(), 0),
    "equal": lambda x, other: ts.equal(x, other[0]),
    "index": lambda x, other: x.index_select(0, other[0].long().clamp(0, 1)),
    "embedding": lambda x, other: F.embedding(other.long().clamp(0, 1), x),
    "where": lambda x, other: ts.where(x > 0, x, other),
    "linear": F.linear,
    "out": lambda x, other: ts.add(x, x, out=other),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda:1")], ids="-".join)
def test_a_call_with_tensors_of_two_devices_is_refused(name, devices):
    x, other = (ts.arange(4, dtype=ts.float32, device=device).reshape(2, 2) for device in devices)
    with pytest.raises(RuntimeError, match=r"(?i)same device|device"):
        CALLS[name](x, other)
    assert x.tolist() == other.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    CALLS[name](x, other.to(x.device))


def test_what_numpy_computes_does_not_depend_on_the_default_device():
    try:
        ts.set_default_device("cuda")
        for device in ("cpu", "cuda"):
            found = ts.tensor([3, 3, 1, 1, 1, 2], device=device).unique_consecutive(return_inverse=True, return_counts=True)
            assert [each.tolist() for each in found] == [[3, 1, 2], [0, 0, 1, 1, 1, 2], [2, 3, 1]]
            assert all(each.device.type == device for each in found)
    finally:
        ts.set_default_device("cpu")

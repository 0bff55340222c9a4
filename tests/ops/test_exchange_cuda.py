"""Memory of a CUDA device shared with other libraries; on the emulated device."""

from __future__ import annotations

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.ops.exchange import from_cuda_array_interface


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


class Other:
    """Another library's array: the interfaces of a tensor of ours, changed as asked."""

    def __init__(self, tensor, **changes):
        self.tensor = tensor
        self.changes = changes

    @property
    def __cuda_array_interface__(self):
        return self.tensor.__cuda_array_interface__ | self.changes


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "complex64"])
def test_array_interface(device, dtype):
    x = ts.arange(12, device=device).reshape(3, 4).to(getattr(ts, dtype))
    found = x.__cuda_array_interface__
    assert (found["version"], found["shape"], found["strides"], found["stream"]) == (3, (3, 4), None, 1)
    assert np.dtype(found["typestr"]) == x.dtype.numpy
    assert found["data"] == (x.data_ptr(), False)
    y = ts.as_tensor(Other(x.t()))
    assert (y.device, y.ptr, y.stride()) == (x.device, x.ptr, (1, 4))
    assert y.cpu().tolist() == x.cpu().t().tolist()
    y.zero_()
    assert not x.cpu().any()


def test_array_interface_refuses():
    with pytest.raises(RuntimeError, match="requires a gradient"):
        ts.ones(2, device="cuda", requires_grad=True).__cuda_array_interface__  # noqa: B018
    with pytest.raises(TypeError, match="no bfloat16"):
        ts.ones(2, device="cuda", dtype=ts.bfloat16).__cuda_array_interface__  # noqa: B018
    x = ts.ones(4, device="cuda")
    for changes in ({"strides": (-4,)}, {"strides": (6,)}, {"mask": x}):
        with pytest.raises(BufferError):
            from_cuda_array_interface(Other(x, **changes))


def test_array_interface_waits_for_the_owners_stream(monkeypatch):
    from tensorsmith.targets.cuda.streams import Stream

    waited = []
    monkeypatch.setattr(Stream, "wait_stream", lambda self, other: waited.append((self.cuda_stream, other.cuda_stream)))
    x, side = ts.ones(4, device="cuda"), Stream(0)
    ts.as_tensor(Other(x, stream=side.cuda_stream))
    ts.as_tensor(Other(x, stream=1))
    ts.as_tensor(Other(x, stream=None))
    assert waited == [(0, side.cuda_stream)]


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_dlpack(device):
    x = ts.arange(24.0, device=device).reshape(2, 3, 4).permute(2, 0, 1)
    assert x.__dlpack_device__() == (2, x.device.index)
    y = ts.from_dlpack(x)
    assert (y.device, y.ptr, y.stride(), y.shape) == (x.device, x.ptr, x.stride(), x.shape)
    y.zero_()
    assert not x.cpu().any()
    assert ts.from_dlpack(x.__dlpack__()).ptr == x.ptr
    assert ts.from_dlpack(x, device="cpu").device == ts.device("cpu")
    with pytest.raises(BufferError, match="without a copy"):
        ts.from_dlpack(x, device="cpu", copy=False)
    on_host = np.from_dlpack(x, device="cpu")
    assert on_host.tolist() == x.cpu().tolist()


def test_dlpack_orders_streams():
    x = ts.ones(1000, device="cuda")
    side = ts.cuda.Stream()
    x.__dlpack__(stream=side.cuda_stream)
    assert type(x.storage.free).__name__ == "_Recorded"  # reused only when that stream is done
    z = ts.ones(1000, device="cuda")
    z.__dlpack__(stream=1)
    z.__dlpack__(stream=-1)
    assert type(z.storage.free).__name__ != "_Recorded"
    with pytest.raises(BufferError, match="ambiguous"):
        z.__dlpack__(stream=0)


def test_pinned_memory():
    x = ts.ones(5).pin_memory()
    assert x.__dlpack_device__()[0] == 1
    assert ts.from_dlpack(x).ptr == x.ptr
    assert np.from_dlpack(x).tolist() == [1] * 5

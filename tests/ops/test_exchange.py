"""Memory shared with other libraries through DLPack."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

import tensorsmith as ts

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torch_and_back(dtype):
    x = ts.arange(12).reshape(3, 4).to(getattr(ts, dtype))
    seen = torch.from_dlpack(x)
    assert (seen.dtype, seen.shape, seen.stride()) == (getattr(torch, dtype), (3, 4), (4, 1))
    assert seen.data_ptr() == x.data_ptr()
    assert seen.tolist() == x.tolist()
    back = ts.from_dlpack(seen)
    assert (back.dtype, back.tolist(), back.data_ptr()) == (x.dtype, x.tolist(), x.data_ptr())


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_back(dtype):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    x = ts.from_dlpack(array)
    assert x.tolist() == array.tolist()
    array[1, 2] = 0
    assert x[1, 2].item() == 0
    seen = np.from_dlpack(x)
    assert seen.dtype == array.dtype
    assert np.shares_memory(seen, array)


def test_views_and_empty_shapes():
    x = ts.arange(24).reshape(2, 3, 4)
    for view in (x.permute(2, 0, 1), x[:, 1:, ::2], x[0, 1, 2], x[:0], ts.ones(3, 1).expand(3, 5)):
        seen = torch.from_dlpack(view)
        assert (tuple(seen.shape), seen.stride() if view.numel() > 1 else ()) == (
            tuple(view.shape), view.stride() if view.numel() > 1 else (),
        )  # fmt: skip
        assert seen.tolist() == view.tolist()
        assert ts.from_dlpack(seen).tolist() == view.tolist()


def test_memory_lives_as_long_as_either_side():
    x = ts.full((1000,), 3.0)
    storage = weakref.ref(x.storage)
    seen = torch.from_dlpack(x)
    del x
    gc.collect()
    assert storage() is not None
    assert seen.sum().item() == 3000
    del seen
    gc.collect()
    assert storage() is None
    array = np.ones(1000)
    alive = weakref.ref(array.view(type("Array", (np.ndarray,), {})))
    assert alive() is None
    y = ts.from_dlpack(torch.full((1000,), 2.0))
    gc.collect()
    assert y.sum().item() == 2000


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 2)])
def test_a_capsule_is_taken_once_and_freed_where_nobody_takes_it(version):
    x = ts.ones(5)
    storage = weakref.ref(x.storage)
    capsule = x.__dlpack__(max_version=version)
    assert ts.from_dlpack(capsule).tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="that nobody has taken yet"):
        ts.from_dlpack(capsule)
    unused = x.__dlpack__(max_version=version)
    assert ("dltensor_versioned" in repr(unused)) == (version is not None and version[0] >= 1)
    del x, capsule
    gc.collect()
    assert storage() is not None
    del unused
    gc.collect()
    assert storage() is None


def test_copies():
    x = ts.ones(3)
    copied = torch.from_dlpack(ts.from_dlpack(x, copy=True))
    copied[0] = 5
    assert x.tolist() == [1, 1, 1]
    assert np.from_dlpack(x, copy=True).base is not None
    assert ts.from_dlpack(x, device="cpu", copy=False).data_ptr() == x.data_ptr()


def test_read_only_memory_is_told():
    array = np.arange(3.0)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        assert ts.from_dlpack(array).tolist() == [0, 1, 2]
    assert ts.from_dlpack(array, copy=True).tolist() == [0, 1, 2]


def test_what_is_refused():
    with pytest.raises(BufferError, match="requires a gradient"):
        ts.ones(2, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="a stream has no meaning"):
        ts.ones(2).__dlpack__(stream=1)
    with pytest.raises(BufferError, match="without a copy"):
        ts.ones(2).__dlpack__(dl_device=(2, 0), copy=False)
    with pytest.raises(BufferError, match="negative strides"):
        ts.from_dlpack(np.arange(4)[::-1])
    with pytest.raises(AttributeError, match="lives on the CPU"):
        ts.ones(2).__cuda_array_interface__  # noqa: B018
    assert not hasattr(ts.ones(2), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="__dlpack__.* needs the value"):
        ts.compile(lambda x: torch.from_dlpack(x))(ts.ones(2))


def test_the_consumer_may_outlive_python():
    program = "import torch, tensorsmith as ts; keep = torch.from_dlpack(ts.ones(4)); import builtins; builtins.keep = keep"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")

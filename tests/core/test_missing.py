"""Names of PyTorch: those a script asks for first, and what is said about those that are not here."""

import math

import numpy as np
import pytest

import tensorsmith as ts


@pytest.mark.parametrize(("module", "name", "reason"), [
    (ts.nn, "DataParallel", "CPU"), (ts.nn.functional, "scaled_mm", "8-bit"),
    (ts, "FloatTensor", "ts.tensor"),
    (ts, "xpu", "CPU"), (ts, "jit", "ts.compile"), (ts.linalg, "inv", "numpy.linalg"),
])  # fmt: skip
def test_what_is_not_here_yet_is_named(module, name, reason):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute '{name}': .*{reason}") as caught:
        getattr(module, name)
    assert caught.value.name == name and caught.value.obj is module  # "Did you mean" works


def test_other_names_get_the_plain_error():
    with pytest.raises(AttributeError, match=r"^module 'tensorsmith.nn' has no attribute 'Liner'$"):
        ts.nn.Liner  # noqa: B018


def test_constants_and_devices():
    assert (ts.inf, ts.pi, ts.e) == (math.inf, math.pi, math.e) and math.isnan(ts.nan)
    assert ts.ones(3)[ts.newaxis].shape == (1, 3)
    assert ts.device("cpu") is ts.ones(1).device and ts.device("cuda:1").index == 1 == ts.device("cuda", 1).index
    assert ts.cuda.is_available() == (ts.cuda.device_count() > 0)
    for ask in (ts.ones(1).cuda, ts.nn.Linear(1, 1).cuda, lambda: ts.ones(1, device="cuda")):
        if ts.cuda.is_available():
            assert next(iter(ask().parameters())).is_cuda if isinstance(ask(), ts.nn.Module) else ask().is_cuda
            continue
        with pytest.raises(RuntimeError, match="CUDA devices need NVIDIA"):
            ask()


@pytest.mark.parametrize("name", ["cpu:1", "gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:x", "cpu:"])
def test_devices_that_are_none(name):
    with pytest.raises(RuntimeError):
        ts.ones(1, device=name)


def test_python_types_as_dtypes():
    assert ts.zeros(2, dtype=float).dtype is ts.float64 and ts.tensor([1.5], dtype=int).tolist() == [1]
    assert ts.ones(2).to(bool).dtype is ts.bool and ts.ones(2).to(dtype=float).dtype is ts.float64
    for make in (lambda d: ts.tensor([1], dtype=d), lambda d: ts.zeros(1, dtype=d), lambda d: ts.ones(1).to(d)):
        with pytest.raises(TypeError, match=r"dtype such as tensorsmith.float32, not numpy.float32"):
            make(np.float32)


def test_sizes_that_cannot_be():
    with pytest.raises(RuntimeError, match=r"overflowed with sizes=\[10000000000, 10000000000\]"):
        ts.zeros(10**10, 10**10)
    with pytest.raises(RuntimeError, match=r"negative dimension -1: \[-1, 3\]"):
        ts.nn.Linear(3, -1)
    with pytest.raises(TypeError, match="'size' must be tuple of ints, not int"):
        ts.randint(0, 3, 2)

"""Autocast on tensors of a device: every case gives what the same policy gives on the CPU.

`--device cuda` runs all cases on the card, `--device cuda-emulated` on the emulated device; otherwise a few run there.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from autocast_cases import CASES

import tensorsmith as ts
from tensorsmith.amp import autocast_mode, casting

FEW = ("matmul mixed", "linear", "softmax", "layer_norm", "sum", "cat", "mse_loss", "cross_entropy", "pow number", "addcmul")
ALL = os.environ.get("TENSORSMITH_TEST_DEVICE") == "cuda"


@pytest.fixture(autouse=True, scope="module")
def device():
    if not ALL:
        import emulator

        emulator.activate()


class Library:
    """Ours, with tensors made on a device."""

    def __init__(self, device):
        self.device = device

    def __getattr__(self, name):
        if name == "tensor":
            return lambda *args, **options: ts.tensor(*args, device=self.device, **options)
        return getattr(ts, name)


def outcome(case, dtype, low, device):
    rng = np.random.default_rng(0)

    def of(name):
        return lambda *shape: ts.tensor(rng.standard_normal(shape).astype(np.float32), device=device).to(getattr(ts, name))

    try:
        with ts.autocast("cuda", dtype=getattr(ts, low)):
            found = CASES[case](Library(device), of(dtype), of(low), of("float32"))
    except Exception as error:  # noqa: BLE001 - whether both raise is compared
        return error
    found = found[0] if isinstance(found, tuple) else found
    assert found.device.type == device
    return found.detach().cpu()


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES if ALL else FEW)
def test_as_on_the_cpu(case, low, monkeypatch):
    for dtype in ("float32", low):
        with monkeypatch.context() as patched:
            patched.setattr(casting, "device_type_of", lambda layout: "cuda")
            patched.setattr(casting, "_castings", {})
            patched.setattr(autocast_mode, "is_available", lambda: True)
            expected = outcome(case, dtype, low, "cpu")
        found = outcome(case, dtype, low, "cuda")
        assert isinstance(found, Exception) == isinstance(expected, Exception), (found, expected)
        if isinstance(found, Exception):
            continue
        assert found.dtype is expected.dtype
        a, b = (x.numpy() if x.dtype.is_complex else x.double().numpy() for x in (found, expected))
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)

"""Kernels of depthwise convolutions whose channels lie last, against the float64 reference, guards around results."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tensorsmith.core import dtypes
from tensorsmith.core.views import Strided
from tensorsmith.kernels.epilogue import COLUMN, EXTRAS, WHOLE, Body
from tensorsmith.kernels.spec import Instr, Kind
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.cpu.depthwise_last import Taps
from tensorsmith.targets.cpu.depthwise_last_plan import plan_depthwise_last

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _machine, _strides, execute, normal, reference  # noqa: E402

# (batch, height, width, channels), kernel, stride, padding, dilation
CASES = {
    "whole vectors": ((2, 7, 7, 32), (3, 3), (1, 1), (1, 1), (1, 1)),
    "a ragged last vector": ((1, 9, 10, 19), (3, 3), (1, 1), (1, 1), (1, 1)),
    "stride 2": ((2, 14, 13, 17), (3, 3), (2, 2), (1, 1), (1, 1)),
    "5x5": ((1, 8, 9, 16), (5, 5), (1, 1), (2, 2), (1, 1)),
    "5x5, stride 2": ((1, 11, 12, 8), (5, 5), (2, 2), (2, 2), (1, 1)),
    "dilation": ((1, 9, 9, 16), (3, 3), (1, 1), (2, 2), (2, 2)),
    "no padding": ((1, 6, 5, 16), (3, 3), (1, 1), (0, 0), (1, 1)),
    "wide padding": ((1, 3, 2, 5), (3, 3), (1, 1), (4, 3), (1, 1)),
    "axes that differ": ((1, 8, 7, 16), (1, 3), (2, 3), (0, 1), (1, 2)),
    "one pixel": ((3, 1, 1, 16), (3, 3), (1, 1), (1, 1), (1, 1)),
}


def run(
    name: str, dtype: str, isa: str, body: Body | None = None, beside: tuple[np.ndarray, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The kernel's result (N, H, W, C), and the reference's before the body."""
    (batch, height, width, channels), kernel, stride, low, dilation = CASES[name]
    x, w = normal(batch, height, width, channels, dtype=dtype), normal(*kernel, channels, dtype=dtype)
    attrs = {"stride": stride, "low": low, "high": low, "dilation": dilation, "step": (1, 1), "groups": channels}
    expected = reference(x.transpose(0, 3, 1, 2), w.transpose(2, 0, 1)[:, None], attrs).transpose(0, 2, 3, 1)
    outer = np.full((batch, expected.shape[1], expected.shape[2] + 1, channels + 3), 7, dtype)
    y = outer[:, :, :-1, :channels] if not beside else np.empty(expected.shape, dtype)
    y[:] = np.nan
    places = [
        Strided(tuple(a.shape[i] for i in (0, 3, 1, 2)), tuple(_strides(a)[i] for i in (0, 3, 1, 2))) for a in (x, y)
    ]
    taps = Taps(kernel, stride, dilation)
    planned = plan_depthwise_last(dtypes.BY_NUMPY[x.dtype], *places, channels, taps, low, body or "", _machine(isa))
    extra = dict(zip(EXTRAS, [y, *beside, *[y] * len(EXTRAS)]))
    execute(planned, {"x": x, "w": w, "y": y, **extra}, reverse=True)
    if not beside:
        assert (outer[:, :, -1] == 7).all() and (outer[:, :, :, channels:] == 7).all(), "wrote beside the results"
    return y, expected


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, isa: str):
    dtype = "float64" if name == "5x5" else "float32"
    found, expected = run(name, dtype, isa)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if dtype == "float64" else 2e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["a ragged last vector", "stride 2"])
def test_a_body_of_results(name: str, isa: str):
    channels, kind = CASES[name][0][3], dtypes.float32
    loads = tuple(Instr(Kind.LOAD, kind, index=k) for k in range(3))
    scaled, held = Instr(Kind.APPLY, kind, (0, 1), fn=Fn.MUL), Instr(Kind.APPLY, kind, (3, 2), fn=Fn.MAXIMUM)
    body = Body((*loads, scaled, held), 4, (COLUMN, WHOLE))
    _, shaped = run(name, "float32", isa)
    scale, floor = normal(channels), normal(*shaped.shape)
    found, expected = run(name, "float32", isa, body, (scale, floor))
    np.testing.assert_allclose(found, np.maximum(expected * scale, floor), rtol=0, atol=5e-5)

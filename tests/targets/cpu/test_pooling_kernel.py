"""The kernel of max pooling against windows in NumPy: every vector width, any windows and strides, guards, NaN."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tensorsmith.core import dtypes
from tensorsmith.targets.cpu.pooling import plan_max_pool

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _machine, _strides, execute  # noqa: E402


def reference(x: np.ndarray, shape: tuple[int, int], attrs: dict[str, Any]) -> np.ndarray:
    """The largest of every window; -inf outside of x."""
    far = 200
    padded = np.pad(x, ((0, 0), (0, 0), (far, far), (far, far)), constant_values=-np.inf)
    result = np.full((*x.shape[:2], *shape), -np.inf, x.dtype)
    (s0, s1), (low0, low1), (d0, d1) = (attrs[name] for name in ("stride", "low", "dilation"))
    for a in range(attrs["kernel"][0]):
        for b in range(attrs["kernel"][1]):
            i, j = far - low0 + a * d0, far - low1 + b * d1
            tap = padded[:, :, i : i + s0 * shape[0] : s0, j : j + s1 * shape[1] : s1]
            result = np.maximum(result, tap)
    return result


def check(x: np.ndarray, shape: tuple[int, int], attrs: dict[str, Any], isa: str) -> None:
    outer = np.full((x.shape[0] + 2, x.shape[1] + 2, shape[0], shape[1] + 40), 7, x.dtype)
    y = outer[1:-1, 1:-1, :, 20:-20]
    y[:] = 8
    dtype = dtypes.float32 if x.dtype == np.float32 else dtypes.float64
    kernel = plan_max_pool(dtype, x.shape, y.shape, attrs, _strides(x), _strides(y), _machine(isa))
    for reverse in (False, True):
        execute(kernel, {"x": x, "y": y}, reverse)
        np.testing.assert_array_equal(y, reference(x, shape, attrs))
        y[:] = 7
        assert (outer == 7).all(), "wrote outside the result"


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, int], dict[str, Any]]:
    number = lambda low, high: draw(st.integers(low, high))
    pair = lambda low, high: (number(low, high), number(low, high))
    x = np.random.default_rng(number(0, 9)).standard_normal((number(1, 3), number(1, 4), *pair(1, 45)))
    x = x.astype(draw(st.sampled_from(["float32", "float64"])))
    x[x > 2] = np.nan
    x[x < -2] = -np.inf
    if draw(st.booleans()):
        x = np.ascontiguousarray(np.swapaxes(x, 0, 1)).swapaxes(0, 1)
    attrs = {"kernel": pair(1, 5), "stride": (number(1, 3), number(1, 2)), "low": pair(-2, 4), "dilation": pair(1, 3)}
    return x, pair(1, 50), attrs


@settings(max_examples=80, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS))
def test_any_windows(p: tuple[np.ndarray, tuple[int, int], dict[str, Any]], isa: str):
    check(*p, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_many_planes_are_several_parts(isa: str):
    x = np.random.default_rng(0).standard_normal((3, 50, 40, 41), dtype=np.float32)
    attrs = {"kernel": (3, 3), "stride": (2, 2), "low": (1, 1), "dilation": (1, 1)}
    check(x, (20, 21), attrs, isa)
    kernel = plan_max_pool(dtypes.float32, x.shape, (3, 50, 20, 21), attrs, _strides(x), (21000, 420, 21, 1), _machine(isa))
    assert kernel.chunks > 2

"""Kernels of depthwise convolutions against the float64 reference: every vector width, any strides, guards around results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.targets.cpu.conv import problem
from tensorsmith.targets.cpu.depthwise_plan import plan_depthwise

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _machine, _strides, execute, normal, reference  # noqa: E402


def check(
    x: np.ndarray, w: np.ndarray, attrs: dict[str, Any], isa: str, bias: np.ndarray | None = None, relu: bool = False,
    apart: bool = False, reverse: bool = False,
) -> np.ndarray:  # fmt: skip
    """The kernel's result is the reference's; nothing around it is written. apart: the rows of the result have gaps."""
    rank = x.ndim - 2
    attrs = {"stride": (1,) * rank, "low": (0,) * rank, "dilation": (1,) * rank, **attrs}
    attrs = {"high": attrs["low"], "step": (1,) * rank, **attrs}
    expected = reference(x, w, attrs)
    gap = 3 if apart else 0
    outer = np.full((expected.shape[0] + 2, *expected.shape[1:-1], expected.shape[-1] + gap), 7, x.dtype)
    y = outer[1:-1, ..., : expected.shape[-1]]
    y[:] = np.nan
    described = problem(
        x.shape, w.shape, y.shape[2:], attrs, _strides(x), _strides(w)[0], _strides(y), x.itemsize, side_by_side=False
    )
    name = "_".join([*(["bias"] if bias is not None else []), *(["relu"] if relu else [])])
    spread = (1, 1, *attrs["step"])[-2:]
    kernel = plan_depthwise(dtypes.BY_NUMPY[x.dtype], described, name or None, _machine(isa), (spread[0], spread[1]))
    given = {"x": x, "w": w, "y": y, **({"bias": bias} if bias is not None else {})}
    execute(kernel, given, reverse)
    expected = expected if bias is None else expected + bias.astype("f8").reshape(-1, *(1,) * rank)
    expected = np.maximum(expected, 0) if relu else expected
    result = y.copy()
    tolerance = 1e-12 if x.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)))
    y[:] = 7
    assert (outer == 7).all(), "wrote outside the result"
    assert kernel.flops == 2 * expected.size * int(np.prod(w.shape[2:]))
    assert "of the part" in kernel.loops
    return result


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """A depthwise convolution of one or two axes, of any kernel, stride, dilation, padding and multiplier."""
    rank = draw(st.integers(1, 2))
    number = lambda low, high: draw(st.integers(low, high))
    kernel, stride, dilation = ([number(1, n) for _ in range(rank)] for n in (5, 3, 2))
    low, high = ([number(-1, 3) for _ in range(rank)] for _ in range(2))
    least = [(k - 1) * d + 1 - a - b for k, d, a, b in zip(kernel, dilation, low, high)]
    step = [1] * rank
    if draw(st.booleans()):
        stride, step = step, stride
    space = [max(n, 3) + number(0, 30 // s) for n, s in zip(least, step)]
    dtype = draw(st.sampled_from(["float32", "float64"]))
    channels = number(1, 3)
    x, w = normal(number(1, 3), channels, *space, dtype=dtype), normal(channels * number(1, 3), 1, *kernel, dtype=dtype)
    if draw(st.booleans()):  # channels last
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    attrs = {"stride": stride, "low": low, "high": high, "dilation": dilation, "groups": channels, "step": step}
    return x, w, {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS), st.booleans(), st.booleans(), st.booleans())
def test_any_problem(
    p: tuple[np.ndarray, np.ndarray, dict[str, Any]], isa: str, biased: bool, relu: bool, apart: bool
):  # fmt: skip
    x, w, attrs = p
    check(x, w, attrs, isa, normal(w.shape[0], dtype=str(x.dtype)) if biased else None, relu, apart)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("side", "kernel"), [(7, 3), (5, 5), (130, 7)])
def test_narrow_planes_and_parts_of_wide_ones_in_any_order(isa: str, side: int, kernel: int):
    x, w = normal(2, 3, side, side), normal(3, 1, kernel, kernel)
    attrs = {"low": (kernel // 2,) * 2, "groups": 3}
    found = [check(x, w, attrs, isa, reverse=reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


def test_threads_do_not_change_a_bit():
    x, w = ts.from_numpy(normal(2, 32, 60, 60)), ts.from_numpy(normal(32, 1, 3, 3))
    before = ts.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            ts.set_num_threads(threads)
            found.append(ts.nn.functional.conv2d(x, w, padding=1, groups=32).numpy())
    finally:
        ts.set_num_threads(before)
    assert np.array_equal(*found)

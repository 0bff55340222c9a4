"""Kernels of gradients of weights against the float64 reference: every vector width, any strides, guards around results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.targets.cpu.conv_dot_plan import dot_problem, plan_dot

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _machine, _strides, execute, normal, reference  # noqa: E402


def check(x: np.ndarray, g: np.ndarray, attrs: dict[str, Any], isa: str, reverse: bool = False) -> np.ndarray:
    """The kernel on slabs of rows, for any problem."""

    def plan(dtype: Any, *given: Any) -> Any:
        *problem, y, machine = given
        x_shape, g_shape, taps, attributes, x_strides, g_strides = problem
        described, others = dot_problem(x_shape, g_shape, taps, attributes, x_strides, g_strides)
        return plan_dot(dtype, described, others, y, taps, machine)

    return check_plan(plan, x, g, attrs, isa, reverse)


def check_plan(
    plan: Callable[..., Any], x: np.ndarray, g: np.ndarray, attrs: dict[str, Any], isa: str, reverse: bool
) -> np.ndarray:
    """x (C / groups, groups N, *S), g (O, N, *P): the convolution of them, with nothing around it written.

    plan(dtype, shapes of x and g, taps, attributes, strides of x, g and y, machine): the kernel
    """
    rank = x.ndim - 2
    attrs = {"stride": (1,) * rank, "low": (0,) * rank, "dilation": (1,) * rank, "groups": 1, **attrs}
    attrs = {"high": attrs["low"], "step": (1,) * rank, **attrs}
    expected = reference(x, g, attrs)
    outer = np.full([expected.shape[1] + 2, expected.shape[0] + 2, *expected.shape[2:]], 7, x.dtype)
    y = outer[1:-1, 1:-1].swapaxes(0, 1)  # as the weight itself lies
    y[:] = np.nan
    taps = expected.shape[2:]
    given = (x.shape, g.shape, taps, attrs, _strides(x), _strides(g), _strides(y))
    kernel = plan(dtypes.BY_NUMPY[x.dtype], *given, _machine(isa))
    execute(kernel, {"x": x, "w": g, "y": y}, reverse)
    result = y.copy()
    tolerance = 1e-12 if x.dtype == np.float64 else 2e-5
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)))
    y[:] = 7
    assert (outer == 7).all(), "wrote outside the result"
    assert kernel.flops == 2 * expected.size * int(np.prod(g.shape[1:]))
    return result


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """The gradient of a weight of a convolution of any rank, stride, padding, dilation and groups."""
    rank = draw(st.integers(1, 3))
    number = lambda low, high: draw(st.integers(low, high))
    groups, inner, outer, images = number(1, 3), number(1, 5), number(1, 9), number(1, 5)
    taps, stride, dilation = ([number(1, n) for _ in range(rank)] for n in (4, 3, 3))
    low = [number(-1, 2) for _ in range(rank)]
    positions = [number(1, 36 // rank**2) for _ in range(rank)]
    reach = [(k - 1) * d + (p - 1) * s + 1 - a for k, d, s, a, p in zip(taps, dilation, stride, low, positions)]
    space = [max(1, n - number(-1, 2)) for n in reach]
    high = [n - m for n, m in zip(reach, space)]
    dtype = draw(st.sampled_from(["float32", "float64"]))
    x, g = normal(inner, groups * images, *space, dtype=dtype), normal(outer * groups, images, *positions, dtype=dtype)
    if draw(st.booleans()):
        x, g = (np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 0, -1)), -1, 0) for a in (x, g))
    attrs = {"stride": dilation, "low": low, "high": high, "dilation": stride, "groups": groups}
    return x, g, {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS))
def test_any_problem(p: tuple[np.ndarray, np.ndarray, dict[str, Any]], isa: str):
    check(*p, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("images", "extent"), [(1, 50), (3, 21), (5, 14), (40, 6)])
def test_parts_and_blocks_in_any_order(isa: str, images: int, extent: int):
    x, g = normal(40, images, extent, extent), normal(11, images, extent, extent)
    found = [check(x, g, {"low": (1, 1)}, isa, reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


def test_gradients_of_weights_run_here_and_do_not_depend_on_threads():
    x, w = ts.from_numpy(normal(4, 16, 24, 24)), ts.from_numpy(normal(20, 16, 3, 3)).requires_grad_()
    before = ts.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            ts.set_num_threads(threads)
            w.grad = None
            y = ts.nn.functional.conv2d(x, w, padding=1)
            y.backward(y.detach())
            found.append(w.grad.numpy().copy())
    finally:
        ts.set_num_threads(before)
    assert np.array_equal(*found)

"""Gradients of weights on whole planes against the float64 reference: every vector width, any sizes, guards around results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tensorsmith.targets.cpu.conv_planes_plan import plan_planes, takes_planes

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _strides, normal  # noqa: E402
from test_conv_dot import check_plan  # noqa: E402


def check(x: np.ndarray, g: np.ndarray, attrs: dict[str, Any], isa: str, reverse: bool = False) -> np.ndarray:
    """The kernel on whole planes, for a problem that it takes."""

    def plan(dtype: Any, *given: Any) -> Any:
        x_shape, g_shape, _, attributes, x_strides, g_strides, *_ = given
        assert takes_planes(x_shape, g_shape, attributes, x_strides, g_strides)
        return plan_planes(dtype, *given)

    return check_plan(plan, x, g, attrs, isa, reverse)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """The gradient of a weight whose results are as wide as its input: any padding, dilation, groups, images apart or not."""
    number = lambda low, high: draw(st.integers(low, high))
    groups, inner, outer, images = number(1, 3), number(1, 9), number(1, 13), number(1, 5)
    rank, width, tap_count, reach = number(1, 2), number(1, 40), number(1, 5), number(1, 3)
    low_w = number(-1, (tap_count - 1) * reach + 1)
    space, positions, stride, low = [width], [width], [reach], [low_w]
    taps = [tap_count]
    if rank == 2:
        taps.insert(0, number(1, 4))
        stride.insert(0, number(1, 3))
        low.insert(0, number(-2, 3))
        positions.insert(0, number(1, 40))
        reached = (taps[0] - 1) * stride[0] + positions[0] - low[0]
        space.insert(0, max(1, reached - number(-2, 3)))
    high = [(k - 1) * d + p - a - n for k, d, p, a, n in zip(taps, stride, positions, low, space)]
    dtype = draw(st.sampled_from(["float32", "float64"]))
    x, g = normal(groups * images, inner, *space, dtype=dtype), normal(images, outer * groups, *positions, dtype=dtype)
    if draw(st.booleans()):  # as they lie in a training step
        return x.swapaxes(0, 1), g.swapaxes(0, 1), attrs_of(stride, low, high, groups)
    return (*(np.ascontiguousarray(a.swapaxes(0, 1)) for a in (x, g)), attrs_of(stride, low, high, groups))


def attrs_of(stride: list[int], low: list[int], high: list[int], groups: int) -> dict[str, Any]:
    return {"stride": tuple(stride), "low": tuple(low), "high": tuple(high), "groups": groups}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS))
def test_any_problem(p: tuple[np.ndarray, np.ndarray, dict[str, Any]], isa: str):
    check(*p, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("inner", "outer", "images", "extent"), [(1, 16, 9, 28), (3, 16, 2, 33), (40, 11, 5, 14), (70, 9, 1, 50)]
)
def test_parts_and_blocks_in_any_order(isa: str, inner: int, outer: int, images: int, extent: int):
    x, g = normal(inner, images, extent, extent), normal(outer, images, extent, extent)
    found = [check(x, g, {"low": (1, 1)}, isa, reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


def test_what_lies_otherwise_is_not_taken():
    x, g = normal(4, 2, 8, 8), normal(4, 2, 8, 8)
    attrs = {"dilation": (1, 1)}
    assert takes_planes(x.shape, g.shape, attrs, _strides(x), _strides(g))
    assert not takes_planes(x.shape, g.shape, {"dilation": (2, 2)}, _strides(x), _strides(g))
    assert not takes_planes(x.shape, g[..., :7].shape, attrs, _strides(x), _strides(g[..., :7]))
    assert not takes_planes(x.shape, g.shape, attrs, _strides(x.swapaxes(2, 3)), _strides(g))

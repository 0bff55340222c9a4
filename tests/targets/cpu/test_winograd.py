"""Winograd's convolution against the float64 reference: every vector width, any strides, guards, and its error bound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core import dtypes
from tensorsmith.targets.cpu.winograd_plan import plan_winograd

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _machine, _strides, execute, normal, reference  # noqa: E402

G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def check(
    x: np.ndarray, w: np.ndarray, low: tuple[int, int], high: tuple[int, int], isa: str, bias: np.ndarray | None = None,
    relu: bool = False, reverse: bool = False,
) -> np.ndarray:  # fmt: skip
    """The kernel's result, which is the reference's; nothing around it is written."""
    attrs: dict[str, Any] = {name: (1, 1) for name in ("stride", "dilation", "step")} | {"groups": 1}
    expected = reference(x, w, attrs | {"low": low, "high": high})
    batch, out, height, width = expected.shape
    outer = np.full((batch + 2, out + 2, height, width + 40), 7, np.float32)
    y = outer[1:-1, 1:-1, :, 20:-20]
    y[:] = np.nan
    u = np.einsum("ai,ocij,bj->aboc", G, w.astype("f8"), G).reshape(16, *w.shape[:2]).astype("float32")
    name = "_".join([*(["bias"] if bias is not None else []), *(["relu"] if relu else [])])
    kernel = plan_winograd(
        dtypes.float32, x.shape, y.shape, low, _strides(x), _strides(y), name or None, _machine(isa)
    )
    given = {"x": x, "w": u, "y": y, **({"bias": bias} if bias is not None else {})}
    execute(kernel, given, reverse)
    if bias is not None:
        expected = expected + bias.astype("f8").reshape(-1, 1, 1)
    expected = np.maximum(expected, 0) if relu else expected
    result = y.copy()
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(expected).max()))
    y[:] = 7
    assert (outer == 7).all(), "wrote outside the result"
    return result


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    number = lambda low, high: draw(st.integers(low, high))
    low, high = (number(-1, 2), number(-1, 2)), (number(-1, 2), number(-1, 2))
    space = [max(2, 3 - a - b) + number(0, 45) for a, b in zip(low, high)]
    x, w = normal(number(1, 3), number(1, 6), *space), normal(draw(st.sampled_from([1, 3, 12, 13, 26])), 1, 3, 3)
    w = normal(w.shape[0], x.shape[1], 3, 3)
    if draw(st.booleans()):
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    return x, w, low, high


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(ISAS), st.booleans(), st.booleans())
def test_any_problem(p: tuple[Any, ...], isa: str, biased: bool, relu: bool):
    check(*p, isa, normal(p[1].shape[0]) if biased else None, relu)


@pytest.mark.parametrize("isa", ISAS)
def test_parts_in_any_order(isa: str):
    x, w = normal(2, 32, 40, 37), normal(30, 32, 3, 3)
    found = [check(x, w, (1, 1), (1, 1), isa, reverse=reverse) for reverse in (False, True)]
    assert np.array_equal(*found)


def test_where_it_is_used_its_error_is_about_that_of_the_direct_sum():
    x, w, b = normal(1, 64, 56, 56), normal(64, 64, 3, 3) / 24, normal(64)
    ours = ts.nn.functional.conv2d(*map(ts.from_numpy, (x, w, b)), padding=1).numpy()
    ones = {name: (1, 1) for name in ("stride", "dilation", "step", "low", "high")}
    expected = reference(x, w, ones | {"groups": 1}) + b.astype("f8").reshape(-1, 1, 1)
    assert np.abs(ours - expected).max() < 8e-6  # for results of unit variance


def test_the_rule_is_fixed_and_gradients_follow():
    from tensorsmith.ir.convolution import convolution
    from tensorsmith.ir.graph import Graph
    from tensorsmith.passes.convolutions import takes_winograd

    def taken(x: tuple[int, ...], w: tuple[int, ...], dtype: Any = dtypes.float32, **changed: Any) -> bool:
        graph = Graph()
        attrs = {name: (1, 1) for name in ("stride", "low", "high", "dilation", "step")} | {"groups": 1} | changed
        return takes_winograd(convolution(graph.input(x, dtype), graph.input(w, dtype), **attrs))

    assert taken((1, 32, 28, 28), (32, 32, 3, 3))
    assert not taken((1, 32, 28, 28), (32, 32, 3, 3), dtypes.float64)
    assert not taken((1, 32, 28, 28), (32, 32, 3, 3), stride=(2, 1))
    assert not taken((1, 32, 28, 28), (32, 32, 3, 3), dilation=(1, 2))
    assert not taken((1, 64, 28, 28), (32, 32, 3, 3), groups=2)
    assert not taken((1, 8, 28, 28), (32, 8, 3, 3)) and not taken((1, 32, 8, 8), (32, 32, 3, 3))
    torch = pytest.importorskip("torch")
    x, w = normal(2, 32, 30, 27), normal(28, 32, 3, 3) / 17
    ours, theirs = ([lib.from_numpy(a.copy()).requires_grad_() for a in (x, w)] for lib in (ts, torch))
    for lib, leaves in ((ts, ours), (torch, theirs)):
        y = lib.nn.functional.conv2d(*leaves, padding=1)
        (y * y).sum().backward()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=2e-5 * float(b.grad.abs().max()))

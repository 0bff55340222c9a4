"""Which maxima are recognised as pooling, and which are left as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import DType, float16, float32, float64, int32
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ops.pooling_windows import largest, windows_of
from tensorsmith.passes.pooling import lower_pooling
from tensorsmith.scalar.table import Fn

F = ts.nn.functional


def pooled(shape: tuple[int, ...], kernel: Any, stride: Any, padding: Any, dtype: DType = float32) -> Graph:
    graph = Graph()
    x = graph.input(shape, dtype)
    dilation = (1,) * len(kernel)
    graph.outputs = (largest(x, windows_of(shape, kernel, stride, padding, dilation, False)),)
    return graph


def nodes(graph: Graph) -> list[Node]:
    return [node for node in lower_pooling(graph).live_nodes() if node.op is Primitive.LIBRARY]


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (0, 1)])
def test_windows_become_one_node(dtype: DType, padding: tuple[int, int]):
    graph = pooled((2, 3, 20, 21), (3, 3), (2, 2), padding, dtype)
    (node,) = nodes(graph)
    assert node.attrs["name"] == "max_pool" and node.shape == graph.outputs[0].shape
    assert node.attrs["kernel"] == (3, 3) and node.attrs["stride"] == (2, 2) and node.attrs["low"] == padding
    assert node.inputs[0].op is Primitive.INPUT
    live = lower_pooling(graph).live_nodes()
    assert len(live) == 2, "neither taps nor padding are left"


def test_what_the_kernel_does_not_take_is_left():
    for graph in (
        pooled((2, 3, 20, 21), (3, 3), (3, 3), (1, 1)),
        pooled((2, 3, 20, 21), (3, 3), (2, 2), (1, 1), float16),
        pooled((2, 3, 20, 21), (3, 3), (2, 2), (0, 0), int32),
        pooled((2, 3, 20, 7), (3, 3), (2, 2), (1, 1)),
        pooled((2, 3, 8, 20, 21), (2, 2, 2), (2, 2, 2), (0, 0, 0)),
        pooled((2, 3, 20, 21), (3, 1), (1, 1), (0, 0)),
    ):
        assert lower_pooling(graph) is graph


def test_other_maxima_are_left():
    def maxima(starts: list[tuple[int, int]], value: float = float("-inf"), twice: bool = False) -> Graph:
        graph = Graph()
        x = graph.input((2, 3, 20, 20), float32)
        padded = build.pad(x, (0, 0, 1, 1), (0, 0, 1, 1), value=value)
        taps = [build.slice_(build.slice_(padded, 2, i, 9), 3, j, 9) for i, j in starts]
        partial = [taps[0]]
        for tap in taps[1:]:
            partial.append(build.map_(Fn.MAXIMUM, partial[-1], tap))
        graph.outputs = (partial[-1], partial[-2]) if twice else (partial[-1],)
        return graph

    square = [(i, j) for i in (0, 2) for j in (0, 3)]
    (node,) = nodes(maxima(square))
    assert node.attrs["low"] == (1, 1) and node.attrs["dilation"] == (2, 3)
    (node,) = nodes(maxima(square, value=0.5))
    assert node.attrs["low"] == (0, 0) and node.inputs[0].op is Primitive.PAD, "padding that may be the largest"
    assert not nodes(maxima([*square[:3], (2, 4)])), "no grid"
    assert not nodes(maxima([(0, 0), (0, 1), (0, 3), (0, 4)])), "not evenly spaced"
    assert not nodes(maxima([(0, 0), (0, 1), (0, 1), (0, 0)])), "taps twice"
    assert not nodes(maxima(square, twice=True)), "a part of the taps is asked for too"


def values() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((2, 5, 23, 30)).astype("f4")
    x[0, 0, 3, 4] = np.nan
    x[1, :, 10:] = -np.inf
    return x


@pytest.mark.parametrize("way", [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 2, 2), (3, 2, 1, 2), (3, 2, 1, 1, True)])
def test_eager_and_compiled_results_are_pytorchs(way: tuple[Any, ...]):
    torch = pytest.importorskip("torch")
    x = values()
    expected = torch.nn.functional.max_pool2d(torch.from_numpy(x), *way).numpy()
    np.testing.assert_array_equal(F.max_pool2d(ts.from_numpy(x), *way).numpy(), expected)
    found = ts.compile(lambda v: F.max_pool2d((v * 2).relu(), *way) + 1)(ts.from_numpy(x)).numpy()
    doubled = torch.from_numpy(x * 2).relu()
    np.testing.assert_array_equal(found, torch.nn.functional.max_pool2d(doubled, *way).numpy() + 1)


def test_images_in_any_layout():
    x = values()
    expected = F.max_pool2d(ts.from_numpy(x), 3, 2, 1).numpy()
    last = ts.from_numpy(x).contiguous(memory_format=ts.channels_last)
    np.testing.assert_array_equal(F.max_pool2d(last, 3, 2, 1).numpy(), expected)
    wide = ts.from_numpy(np.repeat(x, 2, 3))[..., ::2]
    np.testing.assert_array_equal(F.max_pool2d(wide, 3, 2, 1).numpy(), expected)
    turned = ts.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1))).transpose(0, 1)
    np.testing.assert_array_equal(F.max_pool2d(turned, 3, 2, 1).numpy(), expected)
    np.testing.assert_array_equal(F.max_pool2d(ts.from_numpy(x[0]), 3, 2, 1).numpy(), expected[0])

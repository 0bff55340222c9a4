"""The contiguous copy of a convolution's weights, from any strides, and where plans use it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tensorsmith.core import dtypes
from tensorsmith.ir.convolution import convolution, turned
from tensorsmith.ir.graph import Graph
from tensorsmith.passes.convolutions import lower_convolutions
from tensorsmith.targets.cpu.conv_weight import plan_conv_weight
from tensorsmith.targets.reference import interpret

sys.path.append(str(Path(__file__).parent))
from test_conv import ISAS, _machine, _strides, execute, normal  # noqa: E402

SEEN = {
    "turned": lambda w: w.swapaxes(0, 1)[..., ::-1, ::-1],
    "turned and in part": lambda w: w.swapaxes(0, 1)[..., ::-2, 1:],
    "as it lies": lambda w: w,
    "expanded": lambda w: np.broadcast_to(w[:1], w.shape),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("shape", [(5, 37, 3, 3), (70, 90, 2, 2), (3, 2, 4, 5), (33, 1, 2, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_strides(isa: str, seen: str, shape: tuple[int, ...], dtype: str):
    w = SEEN[seen](normal(*shape, dtype=dtype))
    found = np.full(w.size + 16, 7, dtype)
    start = w if w.size == 0 else w[tuple(slice(0, 1) for _ in range(w.ndim))]
    execute(plan_conv_weight(dtypes.BY_NUMPY[w.dtype], w.shape, _strides(w), _machine(isa)), {"w": start, "u": found}, True)
    assert np.array_equal(found[: w.size].reshape(w.shape), w) and (found[w.size :] == 7).all()


def test_turned_weights_of_direct_convolutions_are_copied_by_it():
    graph = Graph()
    x, w = graph.input((1, 40, 9, 9), dtypes.float64), graph.input((40, 30, 3, 3), dtypes.float64)
    ones = (1, 1)
    graph.outputs = (convolution(x, turned(w, 1), ones, ones, ones, ones, ones, 1),)
    lowered = lower_convolutions(graph)
    assert [node.attrs["name"] for node in lowered.live_nodes() if "name" in node.attrs] == ["conv_weight"]
    arrays = [normal(*node.shape, dtype="float64") for node in (x, w)]
    assert np.array_equal(interpret(graph, arrays)[0], interpret(lowered, arrays)[0])

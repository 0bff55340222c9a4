"""Kernels over rows: what is fused around reductions, and that the fused plans compute what the reference does."""

from __future__ import annotations

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import float64
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.ops.creation import array_of
from tensorsmith.runtime.plan import Plan, build_plan
from tensorsmith.scalar import functions as f
from tensorsmith.targets.reference import interpret
from tensorsmith.tensor.tensor import empty_tensor

SHAPE = (6, 7)


def graph_with(shapes: list[tuple[int, ...]]) -> tuple[Graph, list[Node]]:
    graph = Graph()
    return graph, [graph.input(shape, float64) for shape in shapes]


def planned(graph: Graph) -> Plan:
    """The plan for contiguous inputs, after comparing what it computes with the reference."""
    plan = build_plan(graph, [Strided(n.shape, contiguous_strides(n.shape)) for n in graph.inputs])
    random = np.random.default_rng(3)
    tensors = [ts.tensor(random.standard_normal(n.shape), dtype=ts.float64) for n in graph.inputs]
    results = [empty_tensor(n.dtype, n.shape) for n in graph.outputs]
    new: dict[int, int] = {o.buffer: r.ptr for o, r in zip(plan.outputs, results)}
    plan.run([t.ptr for t in tensors] + [new[k] for k in range(len(plan.new_bytes))])
    for result, expected in zip(results, interpret(graph, [array_of(t) for t in tensors])):
        np.testing.assert_allclose(array_of(result), expected, rtol=1e-12, atol=1e-12)
    return plan


def total(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def test_the_mean_of_a_row_loss_has_one_kernel_for_the_rows():
    graph, (x,) = graph_with([SHAPE])
    highest = build.reduce(x, "max", (1,), keepdim=True)
    loss = f.log(total(f.exp(x - highest), 1)) + highest
    graph.outputs = (build.reduce(loss, "sum"),)
    assert len(planned(graph).steps) == 2


def test_row_values_that_another_reduction_needs_are_stored_by_the_row_kernel():
    graph, (x, g) = graph_with([SHAPE, SHAPE])
    deviation = x - total(x, 1) * (1 / 7)
    scale = f.rsqrt(total(deviation * deviation, 1) + 1.0)
    graph.outputs = (deviation * scale * total(g, 1), build.reduce(g * (deviation * scale), "sum", (0,)))
    plan = planned(graph)
    assert len(plan.steps) == 2
    assert plan.workspace_bytes < 1024  # values a row, nothing of the size of x


def test_a_small_value_is_stored_before_a_large_one():
    graph, (x, row) = graph_with([SHAPE, (6, 1)])
    scaled = x * f.rsqrt(row * row + 1.0)
    graph.outputs = (build.reduce(scaled, "sum", (0,)), build.reduce(f.abs(scaled), "max", (1,)))
    assert planned(graph).workspace_bytes < 7 * 6 * 8 + 128


def test_a_row_kernel_may_use_what_it_writes():
    graph, (x,) = graph_with([SHAPE])
    y = x / total(f.abs(x), 1)
    graph.outputs = (y, -y)
    assert len(planned(graph).steps) == 1


@pytest.mark.parametrize("shape", [(6, 1), (1, 7), (1, 1), (7, 7)])
def test_extents_of_one_and_squares(shape: tuple[int, int]):
    graph, (x, g) = graph_with([shape, shape])
    deviation = x - total(x, 1) * 0.5
    scale = f.rsqrt(total(deviation * deviation, 1) + 1.0)
    across = build.reduce(g * deviation, "sum", (0,), keepdim=True)
    graph.outputs = (deviation * scale, across, total(across * scale, 1), total(deviation * across, 0))
    planned(graph)

"""Attention of halves in halves: when, and that it gives what it gave."""

from __future__ import annotations

import numpy as np
import pytest

from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32
from tensorsmith.ir import build
from tensorsmith.ir.attention import attention, gradient
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.passes.half_attention import halve_attention
from tensorsmith.targets.reference.interpret import interpret

L, S, E, F = 5, 7, 4, 6


def operands(graph: Graph, dtype: DType, masked: bool) -> list[Node]:
    """Halves made wide; the keys are shared by the heads."""
    q, k, v = (graph.input(shape, dtype) for shape in ((2, 3, L, E), (2, 1, S, E), (2, 3, S, F)))
    wide = [build.wide(q), build.broadcast_to(build.wide(k), (2, 3, S, E)), build.wide(v)]
    return [*wide, graph.input((2, 3, L, S), bool_)] if masked else wide


def forward(dtype: DType, masked: bool = True, beside: bool = False) -> Graph:
    graph = Graph()
    q, k, v, *mask = operands(graph, dtype, masked)
    out, lse = attention(q, k, v, mask, not masked, 0.5, beside)
    graph.outputs = [build.cast(out, dtype), lse]
    return graph


def backward(dtype: DType, masked: bool = True, beside: bool = False) -> Graph:
    graph = Graph()
    given = operands(graph, dtype, masked)
    out, grad = (build.wide(graph.input((2, 3, L, F), dtype)) for _ in range(2))
    lse = graph.input((2, 3, L), float32)
    found = gradient(given, out, lse, (grad, None), not masked, 0.5, beside)
    graph.outputs = [build.cast(part, dtype) for part in found if part is not None]
    return graph


def values(graph: Graph) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    found = []
    for node in graph.inputs:
        drawn = generator.standard_normal(node.shape)
        found.append(drawn < 0.8 if node.dtype is bool_ else drawn.astype(node.dtype.numpy))
    return found


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("build_graph", [forward, backward])
def test_it_means_the_same_in_halves(build_graph, dtype: DType, masked: bool, beside: bool) -> None:
    graph = build_graph(dtype, masked, beside)
    halved = halve_attention(graph)
    (node,) = (n for n in halved.live_nodes() if n.op in (Primitive.ATTENTION, Primitive.ATTENTION_GRADIENT))
    assert node.dtype is dtype
    assert not any(n.op is Primitive.CAST and n.dtype is float32 and n.numel == node.inputs[0].numel for n in node.inputs)
    given = values(graph)
    for a, b in zip(interpret(graph, given), interpret(halved, given)):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-6, atol=1e-6)


def test_no_result_is_cast_that_is_stored_rounded() -> None:
    out, _ = halve_attention(forward(bfloat16)).outputs
    while out.op is not Primitive.ATTENTION:
        assert out.op is not Primitive.CAST
        out = out.inputs[0]


def test_others_stay() -> None:
    graph = Graph()
    q = graph.input((2, 3, L, E), float32)
    graph.outputs = list(attention(q, q, q, (), True, 1.0, False))
    assert halve_attention(graph) is graph
    mixed = Graph()
    q, k = mixed.input((2, 3, L, E), float16), mixed.input((2, 3, L, E), float32)
    mixed.outputs = list(attention(build.wide(q), k, k, (), True, 1.0, False))
    assert halve_attention(mixed) is mixed


def test_large_log_sum_exps_of_float16_are_kept() -> None:
    graph = Graph()
    q = graph.input((1, 1, 1, 1), float16)
    _, lse = attention(build.wide(q), build.wide(q), build.wide(q), (), False, 1.0, False)
    graph.outputs = [lse]
    given = [np.full((1, 1, 1, 1), 1999.0, np.float16)]
    (found,) = interpret(halve_attention(graph), given)
    assert found.item() == pytest.approx(float(given[0].item()) ** 2, rel=1e-7)

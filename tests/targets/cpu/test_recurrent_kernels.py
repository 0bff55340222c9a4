"""The primitives of recurrent layers on their own: kernel, composition and reference agree for any steps and sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.recurrent import GATES, composed, flat_size, results, shapes_of, states_of, steps
from tensorsmith.runtime.plan import build_plan
from tensorsmith.targets.reference import interpret

MODES = list(GATES)


def primitive(mode, runs, reverse, hidden, dtype, gradient, keep=True, bias=False):
    """A graph of the primitive alone. bias: with its last operand."""
    graph = Graph()
    rows, batch = sum(length * count for length, count in runs), runs[0][1]
    wide, state = GATES[mode] * hidden, [(batch, hidden)] * states_of(mode)
    attrs = {"mode": mode, "runs": runs, "reverse": reverse}
    if gradient:
        kept = flat_size(results(mode, True, rows, batch, hidden))
        shapes = [(rows, hidden), *state, (kept,), *state, (wide, hidden), *([(kept,)] if bias else [])]
        op = Primitive.RECURRENT_GRADIENT
    else:
        shapes = [(rows, wide), *state, (wide, hidden), *([(wide,)] if bias else [])]
        op, attrs = Primitive.RECURRENT, {**attrs, "keep": keep}
    graph.outputs = (graph.add(op, [graph.input(shape, dtype) for shape in shapes], **attrs),)
    return graph


def composition(graph):
    other = Graph()
    other.outputs = (composed(graph.outputs[0], [other.input(x.shape, x.dtype) for x in graph.inputs]),)
    return other


def run(graph, arrays):
    plan = build_plan(graph, [Strided(x.shape, contiguous_strides(x.shape)) for x in graph.inputs])
    dtype = graph.outputs[0].dtype
    given = [ts.tensor(array).to(dtype) for array in arrays]
    result = ts.full(graph.outputs[0].shape, float("nan"), dtype=dtype)
    plan.run([given[i].ptr for i in plan.tensor_inputs] + [result.ptr])
    return result.numpy()


def drawn(graph, random):
    return [random.standard_normal(x.shape) * (0.5 if len(x.shape) == 2 else 0.9) for x in graph.inputs]


RUNS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 14)), min_size=1, max_size=4, unique_by=lambda run: run[1]).map(
    lambda found: tuple(sorted(found, key=lambda run: -run[1]))
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MODES), RUNS, st.booleans(), st.integers(1, 37), st.booleans(), st.booleans(), st.integers(0, 99))
def test_kernels_agree_with_the_reference(mode, runs, reverse, hidden, gradient, option, seed):
    graph = primitive(mode, runs, reverse, hidden, ts.float64, gradient, keep=option, bias=option)
    arrays = drawn(graph, np.random.default_rng(seed))
    expected = interpret(graph, arrays)[0]
    np.testing.assert_allclose(run(graph, arrays), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(interpret(composition(graph), arrays)[0], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_float32(mode, gradient):
    graph = primitive(mode, ((3, 17), (2, 5)), False, 40, ts.float32, gradient)
    arrays = [array.astype(np.float32) for array in drawn(graph, np.random.default_rng(1))]
    expected = interpret(graph, arrays)[0]
    np.testing.assert_allclose(run(graph, arrays), expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@pytest.mark.parametrize("mode", MODES)
def test_threads_change_nothing(mode):
    before = ts.get_num_threads()
    try:
        for gradient in (False, True):
            graph = primitive(mode, ((9, 33), (1, 16)), gradient, 96, ts.float32, gradient)
            arrays = drawn(graph, np.random.default_rng(2))
            found = []
            for threads in (1, 2):
                ts.set_num_threads(threads)
                found.append(run(graph, arrays))
            np.testing.assert_array_equal(*found)
    finally:
        ts.set_num_threads(before)


def test_steps_and_results():
    assert steps(((2, 3), (1, 2)), False) == ((0, 3, 0, 0), (3, 3, 0, 3), (6, 2, 3, 2))
    assert steps(((2, 3), (1, 2)), True) == ((6, 2, 0, 0), (3, 3, 6, 2), (0, 3, 3, 3))
    graph = primitive("gru", ((2, 3), (1, 2)), False, 4, ts.float32, True)
    assert shapes_of(graph.outputs[0]) == {"gates": (8, 12), "product": (8, 12), "hidden": (3, 4)}


@pytest.mark.parametrize(("change", "error"), [({"runs": ((2, 2), (1, 3))}, ValueError), ({"runs": ((9, 3),)}, ValueError)])
def test_what_does_not_fit(change, error):
    graph = primitive("gru", ((2, 3), (1, 2)), False, 4, ts.float32, False)
    node = graph.outputs[0]
    with pytest.raises(error, match="recurrent"):
        graph.add(node.op, node.inputs, **{**node.attrs, **change})

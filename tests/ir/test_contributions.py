"""Gradients of slices are joined where they do not meet, and the second derivative of T steps is as long as T."""

from __future__ import annotations

import numpy as np
import pytest

from tensorsmith.core import dtypes
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.recurrent import composition, recurrent
from tensorsmith.ir.vjp import vjp
from tensorsmith.passes import fusion, walk
from tensorsmith.targets.reference.interpret import interpret

SLICES = {  # start and length along axis 1, what is joined
    "all of it": ([(0, 2), (2, 3), (5, 2)], {Primitive.CONCAT: 1}),
    "gaps": ([(4, 2), (1, 2)], {Primitive.CONCAT: 1, Primitive.PAD: 1}),
    "meeting": ([(0, 4), (3, 4)], {Primitive.PAD: 2}),
    "meeting, then not": ([(0, 4), (3, 2), (5, 2)], {Primitive.CONCAT: 1, Primitive.PAD: 1}),
    "one": ([(1, 3)], {Primitive.PAD: 1}),
}


@pytest.mark.parametrize("name", SLICES)
def test_gradients_of_slices(name):
    slices, expected = SLICES[name]
    graph = Graph()
    x = graph.input((2, 7), dtypes.float64)
    graph.outputs = tuple(build.slice_(x, 1, start, length) * (k + 2.0) for k, (start, length) in enumerate(slices))
    derived = vjp(graph, (True,))
    ops = [node.op for node in derived.graph.live_nodes()]
    assert {op: ops.count(op) for op in (Primitive.CONCAT, Primitive.PAD) if op in ops} == expected
    rng, total = np.random.default_rng(0), np.zeros((2, 7))
    grads = [rng.standard_normal((2, length)) for _, length in slices]
    for k, ((start, length), grad) in enumerate(zip(slices, grads)):
        total[:, start : start + length] += grad * (k + 2.0)
    (found,) = interpret(derived.graph, [grads[k] for k in derived.grad_outputs])
    np.testing.assert_allclose(found, total)


def work(mode: str, count: int, monkeypatch) -> tuple[int, int]:
    """Nodes of the graph of a second derivative, and how many values its analysis goes through."""
    graph, hidden = Graph(), 2
    gates = {"lstm": 4, "gru": 3}[mode] * hidden
    states = [(3, hidden)] * (2 if mode == "lstm" else 1)
    node = recurrent(
        [graph.input(shape, dtypes.float32) for shape in ((3 * count, gates), *states, (gates, hidden))], mode,
        ((count, 3),), False, False,
    )  # fmt: skip
    second = composition(node)
    for _ in range(2):
        second = vjp(second, (True,) * len(second.inputs)).graph
    visits = 0
    visit = walk.Walk.visit

    def counted(self, *given):
        nonlocal visits
        visits += 1
        visit(self, *given)

    monkeypatch.setattr(walk.Walk, "visit", counted)
    fusion.fuse(second, {x: Strided(x.shape, contiguous_strides(x.shape)) for x in second.inputs})
    monkeypatch.undo()
    return len(second.live_nodes()), visits


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_second_derivatives_of_twice_the_steps_are_twice_the_work(mode, monkeypatch):
    (nodes, visits), (more_nodes, more_visits) = work(mode, 6, monkeypatch), work(mode, 12, monkeypatch)
    assert more_nodes < 2.2 * nodes and more_visits < 2.5 * visits

"""Batched graphs: every primitive has a rule, and a batched graph gives what the graph gives for every example."""

from __future__ import annotations

import numpy as np
import pytest

from tensorsmith.core.dtypes import float64, int64
from tensorsmith.ir.batching import LIBRARY_RULES, RULES, SOURCES, batch
from tensorsmith.ir.convolution import convolution
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.verify import verify
from tensorsmith.targets.reference import interpret
from tensorsmith.targets.reference.library import ROUTINES


def test_every_primitive_has_a_rule():
    assert set(RULES) | SOURCES == set(Primitive) and not set(RULES) & SOURCES
    assert set(LIBRARY_RULES) <= set(ROUTINES)


def check(build, *operands: tuple[tuple[int, ...], object], batched: tuple[bool, ...], extent: int = 3):
    """The batched graph against the graph on every example."""
    graph = Graph()
    inputs = [graph.input(shape, dtype) for shape, dtype in operands]
    found = build(*inputs)
    graph.outputs = found if isinstance(found, tuple) else (found,)
    many = batch(graph, batched, extent)
    verify(many)
    random = np.random.default_rng(0)
    arrays = []
    for (shape, dtype), flag in zip(operands, batched):
        shape = (extent, *shape) if flag else shape
        arrays.append(random.integers(0, 2, shape) if dtype is int64 else random.normal(size=shape))
    together = interpret(many, arrays)
    for i in range(extent):
        alone = interpret(graph, [a[i] if flag else a for a, flag in zip(arrays, batched)])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[i], b)


FLOATS, INDEX = ((2, 3, 4), float64), ((2,), int64)


@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take_and_put(batched, axis):
    check(lambda x, i: x.graph.add(Primitive.TAKE, (x, i), axis=axis), FLOATS, INDEX, batched=batched)
    for reduce in ("set", "add"):
        shape = tuple(2 if a == axis else n for a, n in enumerate(FLOATS[0]))
        check(
            lambda x, i, s: x.graph.add(Primitive.PUT, (x, i, s), axis=axis, reduce=reduce),
            FLOATS, INDEX, (shape, float64), batched=(*batched, False) if reduce == "add" else (True, False, batched[0]),
        )  # fmt: skip


@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)])
def test_matmul(batched):
    for lead in ((), (2,)):
        check(
            lambda a, b: a.graph.add(Primitive.MATMUL, (a, b)),
            ((*lead, 3, 4), float64), ((*lead, 4, 5), float64), batched=batched,
        )  # fmt: skip


@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv(batched, groups):
    check(
        lambda x, w: convolution(x, w, (2, 1), (1, 0), (0, 1), (1, 2), (1, 2), groups),
        ((2, 4, 5, 3), float64), ((6, 4 // groups, 2, 3), float64), batched=batched,
    )  # fmt: skip


def test_what_depends_on_no_example_is_repeated():
    graph = Graph()
    x = graph.input((2,), float64)
    graph.outputs = (x + 1.0, graph.iota(4))
    many = batch(graph, (True,), 3)
    assert [node.shape for node in many.outputs] == [(3, 2), (3, 4)]
    assert interpret(many, [np.zeros((3, 2))])[1].tolist() == [[0, 1, 2, 3]] * 3


def test_a_routine_without_a_rule_runs_per_example(monkeypatch):
    def sort(x):
        return x.graph.add(Primitive.LIBRARY, (x,), name="argsort", axis=0, descending=True, shape=x.shape, dtype=int64)

    check(sort, ((5, 2), float64), batched=(True,))
    monkeypatch.delitem(LIBRARY_RULES, "argsort")
    check(sort, ((5, 2), float64), batched=(True,))

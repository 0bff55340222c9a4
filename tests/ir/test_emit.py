"""Graphs printed as Python are readable, and running the text gives the graph back."""

import math

import pytest
from same import same

from tensorsmith.core.dtypes import bfloat16, bool_, float32, float64, int8, int64
from tensorsmith.ir import build as b
from tensorsmith.ir.emit import as_python
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.vjp import vjp
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.table import TABLE, Fn, Typing


def again(graph):
    """The graph that the printed source builds."""
    namespace: dict = {}
    exec(as_python(graph, "build"), namespace)
    result = Graph()
    inputs = [result.input(node.shape, node.dtype, node.attrs["param"]) for node in graph.inputs]
    result.outputs = namespace["build"](result, *inputs)
    return result


def softmax(x):
    e = f.exp(x - b.reduce(x, "max", (1,), keepdim=True))
    return e / b.reduce(e, "sum", (1,), keepdim=True)


def test_a_readable_softmax():
    graph = Graph()
    graph.outputs = (softmax(graph.input((2, 3), float32)),)
    assert as_python(graph, "softmax") == (
        "from tensorsmith.ir.build import broadcast_to, reduce\n"
        "from tensorsmith.scalar import functions as f\n"
        "\n\n"
        "def softmax(graph, x0):\n"
        '    """x0 float32[2, 3]"""\n'
        '    v1 = reduce(x0, "max", (1,), keepdim=True)\n'
        "    v2 = broadcast_to(v1, (2, 3))\n"
        "    v3 = x0 - v2\n"
        "    v4 = f.exp(v3)\n"
        '    v5 = reduce(v4, "sum", (1,), keepdim=True)\n'
        "    v6 = broadcast_to(v5, (2, 3))\n"
        "    v7 = v4 / v6\n"
        "    return (v7,)\n"
    )
    assert same(graph, again(graph))


@pytest.mark.parametrize("fn", list(Fn), ids=lambda fn: fn.value)
def test_every_scalar_function(fn):
    typing = TABLE[fn].typing
    graph = Graph()
    dtype = int64 if typing is Typing.INTEGER else bool_ if fn.value.startswith("logical") else bfloat16
    x, y, c = graph.input((2, 3), dtype), graph.input((3,), dtype), graph.input((2, 1), bool_)
    operands = [c, x, y] if typing is Typing.SELECT else [x, y][: TABLE[fn].arity]
    outputs = [b.map_(fn, *operands)]
    if len(operands) > 1:
        one = True if dtype is bool_ else -1 if dtype is int64 else -1.5
        outputs += [b.map_(fn, *operands[:-1], one), b.map_(fn, *operands[:-2], one, y)]
    graph.outputs = tuple(outputs)
    assert same(graph, again(graph))


def test_numbers_that_promotion_would_change_are_spelled_out():
    graph = Graph()
    x, scalar = graph.input((2,), int8), graph.input((), float32, param=True)
    seven, half = graph.constant(7, int64), graph.constant(0.5, float64)
    graph.outputs = (
        b.cast(x, int64) + seven,
        b.full(graph, (2,), 0.5, float64) * half,
        scalar * graph.constant(0.1, float32),
        b.where(x < 0, graph.constant(math.inf, float32), graph.constant(-math.inf, float32)),
        b.cast(x, float32) * math.nan + -0.0,
    )
    assert same(graph, again(graph))


def test_every_other_primitive():
    graph = Graph()
    x, index, key = graph.input((4, 4), float64), graph.input((3,), int64), graph.input((3,), int64)
    rows = graph.add(Primitive.TAKE, (x, index), axis=0)
    square = b.reshape(x, (16,))
    wide = b.reshape(index, (1, 3))
    graph.outputs = (
        b.permute(x, (1, 0)),
        b.slice_(x, 1, 1, 2, 2),
        graph.add(Primitive.SLICE, (x,), axis=0, start=0, length=4, step=1),
        b.flip(x, (0, 1)),
        b.pad(x, (1, 0), (0, 2), (1, 3)),
        b.concat([x, rows], 0),
        b.reduce(x, "argmin", (0,), keepdim=True),
        graph.add(Primitive.SCAN, (x,), kind="logsumexp", axis=1),
        b.matmul(x, b.permute(x, (1, 0))),
        graph.add(Primitive.PERMUTE, (b.permute(x, (1, 0)),), axes=(1, 0)),
        graph.add(Primitive.RESHAPE, (square,), shape=(2, 8)),
        graph.add(Primitive.DIAGONAL, (x,), offset=-1, axis1=0, axis2=1),
        graph.add(Primitive.UNFOLD, (x,), axis=0, size=2, step=1),
        graph.add(Primitive.AS_STRIDED, (x,), shape=(2,), strides=(3,), offset=1),
        graph.add(Primitive.AGAIN, (x,), part=1),
        graph.add(Primitive.PUT, (x, index, rows), axis=0, reduce="add"),
        graph.add(Primitive.GATHER, (x, wide), axis=0),
        graph.add(Primitive.SCATTER, (x, wide, b.slice_(b.slice_(x, 0, 0, 1), 1, 0, 3)), axis=0, reduce="set"),
        graph.add(Primitive.PAIR, (x, x)),
        graph.add(Primitive.RANDOM, (key, index)),
        graph.add(Primitive.LIBRARY, (x,), name="argsort", axis=1, descending=True, shape=(4, 4), dtype=int64),
        graph.add(Primitive.CAST, (graph.constant(1.5, float64),), dtype=float32),
        graph.add(Primitive.CAST, (x,), dtype=float64),
        b.cast(x, bool_),
        graph.iota(5) * 2,
        b.full(graph, (2, 2), True, bool_),
        x,
    )
    assert same(graph, again(graph))


def test_a_backward_graph():
    graph = Graph()
    x, w = graph.input((2, 3), float32), graph.input((3, 4), float32)
    graph.outputs = (softmax(b.matmul(x, w)),)
    backward = vjp(graph, (True, True)).graph
    assert same(backward, again(backward))


def test_same_tells_graphs_apart():
    def build(function):
        graph = Graph()
        graph.outputs = (function(graph.input((2,), float32)),)
        return graph

    assert same(build(lambda x: f.exp(x) + 1.0), build(lambda x: f.exp(x) + 1.0))
    assert not same(build(lambda x: f.exp(x) + 1.0), build(lambda x: f.exp(x) + 2.0))
    assert not same(build(lambda x: x + 0.0), build(lambda x: x + -0.0))

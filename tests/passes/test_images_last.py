"""Which values of a graph with convolutions of halves lie with their channels last."""

from tensorsmith.core.dtypes import bfloat16, float32
from tensorsmith.ir import build
from tensorsmith.ir.convolution import convolution, of_weight
from tensorsmith.ir.graph import Graph
from tensorsmith.passes.images_last import images_last
from tensorsmith.scalar.table import Fn


def two_convolutions(dtype):
    graph = Graph()
    x, w, v = graph.input((2, 8, 6, 6), dtype), graph.input((16, 8, 3, 3), dtype), graph.input((8, 16, 1, 1), dtype)
    first = convolution(x, w, *[(1, 1)] * 5, 1)
    active = build.map_(Fn.RELU, first)
    second = convolution(active, v, (1, 1), (0, 0), (0, 0), (1, 1), (1, 1), 1)
    flat = build.reshape(second, (2, 8 * 36))
    result = build.map_(Fn.EXP, flat)
    graph.outputs = (result,)
    return graph, (first, active, second), result


def found(graph):
    consumers = {}
    for node in graph.live_nodes():
        for operand in node.inputs:
            consumers.setdefault(operand, []).append(node)
    return images_last(graph.live_nodes(), consumers, graph.outputs)


def test_convolutions_and_what_lies_between():
    graph, images, result = two_convolutions(bfloat16)
    places = found(graph)
    assert set(map(id, places)) == set(map(id, images))
    assert places[images[0]].strides == (16 * 36, 1, 6 * 16, 16) and places[images[0]].shape == (2, 16, 6, 6)


def test_float32_stays_row_major():
    graph, _, _ = two_convolutions(float32)
    assert not found(graph)


def test_computed_weights_and_their_gradients():
    graph = Graph()
    x, w, grad = graph.input((2, 8, 6, 6), bfloat16), graph.input((16, 8, 3, 3), float32), graph.input((2, 16, 4, 4), bfloat16)
    narrow = build.cast(w, bfloat16)
    attrs = {"stride": (1, 1), "low": (0, 0), "dilation": (1, 1), "step": (1, 1), "groups": 1}
    y = convolution(x, narrow, (1, 1), (0, 0), (0, 0), (1, 1), (1, 1), 1)
    of_w = of_weight((3, 3), grad, x, attrs)
    graph.outputs = (build.map_(Fn.EXP, y), build.cast(of_w, float32))
    places = found(graph)
    assert places[narrow].strides == (72, 1, 24, 8)
    turned = of_w.inputs[0]  # (C, O, *K), so that (O, C, *K) has its channels last
    assert turned.shape == (8, 16, 3, 3) and places[turned].strides == (1, 72, 24, 8)

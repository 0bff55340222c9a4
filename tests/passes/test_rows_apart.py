"""Rows that products alone read do not meet in one set of the cache; what anybody else reads lies as ever."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import float32
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.passes.fusion import fuse
from tensorsmith.scalar import functions as f

F = ts.nn.functional
WIDE, NARROW = ts.nn.Linear(64, 1024), ts.nn.Linear(1024, 64)


def place_between(width: int, also=None):
    """How exp(x) lies, which a packed product reads through a reshape."""
    graph = Graph()
    x, w = graph.input((2, 20, width), float32), graph.input((width, 64), float32)
    y = f.exp(x)
    product = graph.add(Primitive.MATMUL, (build.reshape(y, (40, width)), w), packed=True)
    graph.outputs = (product,) if also is None else (product, also(y))
    contiguous = {node: Strided(node.shape, (20 * width, width, 1)[3 - node.ndim :]) for node in graph.inputs}
    return fuse(graph, contiguous).place(y)


def test_rows_a_multiple_of_the_sets_apart_get_one_line_more():
    assert place_between(1024).strides == (20 * 1040, 1040, 1)
    assert place_between(1000).strides == (20_000, 1000, 1)


@pytest.mark.parametrize("also", [lambda y: y, lambda y: build.reduce(y, "sum", (0,)), lambda y: build.reshape(y, (20, 2048))])
def test_what_another_reads_lies_as_ever(also):
    assert place_between(1024, also).strides == (20 * 1024, 1024, 1)


@pytest.mark.parametrize("shape", [(40, 64), (2, 20, 64), (2, 3, 5, 64), (300, 64)])
@pytest.mark.parametrize("inner", [F.gelu, lambda x: F.layer_norm(x.sigmoid(), (1024,)), lambda x: F.softmax(x, -1)])
def test_products_of_such_rows(shape, inner):
    compiled, x = ts.compile(lambda x: NARROW(inner(WIDE(x)))), ts.randn(*shape)
    with ts.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), NARROW(inner(WIDE(x))).numpy(), rtol=1e-4, atol=1e-5)

"""Which kernels along rows are joined with sums over these rows, and where the pair stands among the other steps."""

from __future__ import annotations

import pytest

from tensorsmith.core.dtypes import float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.passes.fusion import Fusion, fuse
from tensorsmith.passes.sums_over_rows import with_sums
from tensorsmith.passes.walk import Group
from tensorsmith.scalar import functions as f

SHAPE = (6, 8)


def graph_of(*shapes: tuple[int, ...]) -> tuple[Graph, list[Node]]:
    graph = Graph()
    return graph, [graph.input(shape, float32) for shape in shapes]


def total(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def fused(graph: Graph) -> Fusion:
    return fuse(graph, {n: Strided(n.shape, contiguous_strides(n.shape)) for n in graph.inputs})


def joined(graph: Graph, why: str = "") -> list[Group]:
    groups = with_sums(fused(graph), lambda fusion, group: why)
    made: set[Node] = set(graph.inputs)
    for group in groups:  # in an order that can be run
        assert group.leaves - set(group.roots) <= made
        made |= set(group.roots)
    return groups


def norm(x: Node, g: Node) -> tuple[Node, Node, Node]:
    """A gradient along the rows, and two sums over them."""
    deviation = x - total(x, 1) * 0.125
    scale = f.rsqrt(total(deviation * deviation, 1) + 1.0)
    unit = deviation * scale
    return (g - unit * total(g * unit, 1)) * scale, total(g * unit, 0), total(g, 0)


def test_the_gradient_of_a_norm_is_one_step():
    graph, (x, g) = graph_of(SHAPE, SHAPE)
    graph.outputs = norm(x, g)
    assert len(fused(graph).groups) == 2
    (group,) = joined(graph)
    assert set(group.roots) == set(graph.outputs)  # what is one value a row is in no memory
    assert group.leaves == {x, g} and group.reduce_axes == (1,)
    assert [part.reduce_axes for part in group.parts] == [(1,), (0,)]


def test_values_of_rows_that_others_read_stay_in_memory():
    graph, (x, g) = graph_of(SHAPE, SHAPE)
    along, weights, bias = norm(x, g)
    scale = next(node for node in graph.nodes if node.shape == (6, 1) and "rsqrt" in repr(node))
    graph.outputs = (along, weights, bias, scale)
    (group,) = joined(graph)
    assert scale in group.roots


def test_a_refusal_is_kept_with_the_sums():
    graph, (x, g) = graph_of(SHAPE, SHAPE)
    graph.outputs = norm(x, g)
    rows, sums = joined(graph, "the rows are blue")
    assert not rows.parts and not sums.parts
    assert (rows.apart, sums.apart) == ("", "the rows are blue")


def test_nothing_is_shared_by_other_values_or_other_points():
    graph, (x, g) = graph_of(SHAPE, SHAPE)
    graph.outputs = (x - total(x, 1), total(g, 0))
    assert len(joined(graph)) == 2
    graph, (x, g) = graph_of((6, 8, 3), (6, 8, 3))
    graph.outputs = (x - total(x, 2), total(x, 0))  # axis 1 is neither's
    assert len(joined(graph)) == 2


def test_sums_of_what_the_rows_make():
    graph, (x,) = graph_of(SHAPE)
    power = f.exp(x - build.reduce(x, "max", (1,), keepdim=True))
    y = power / total(power, 1)
    graph.outputs = (y, total(y, 0))
    (group,) = joined(graph)
    assert set(group.roots) == set(graph.outputs)


def test_sums_that_the_rows_need_come_before_them():
    graph, (x,) = graph_of(SHAPE)
    centred = x - total(x, 0)
    graph.outputs = (centred - total(centred, 1),)
    assert all(not group.parts for group in joined(graph))


def test_sums_move_to_the_rows_or_the_rows_to_them():
    graph, (x, w) = graph_of(SHAPE, (8, 8))
    along = x - total(x, 1)
    product = build.matmul(along, w)  # reads the rows, and the sums read it: neither can move
    graph.outputs = (along, total(product * x, 0))
    assert all(not group.parts for group in joined(graph))
    graph, (x, w) = graph_of(SHAPE, (8, 8))
    along = x - total(x, 1)
    product = build.matmul(along, w)  # reads the rows: the sums come to them
    graph.outputs = (along, product, total(x, 0))
    first, second = joined(graph)
    assert first.parts and second.anchor is not None
    graph, (x, w) = graph_of(SHAPE, (8, 8))
    product = build.matmul(x, w)
    along = x - total(x, 1)
    graph.outputs = (along, product, total(product * x, 0))  # the rows come to the sums
    *_, last = joined(graph)
    assert last.parts


@pytest.mark.parametrize("axes", [(0,), (0, 1)])
def test_all_axes_but_that_of_the_rows(axes):
    graph, (x,) = graph_of((1, 6, 8) if axes == (0,) else (4, 6, 8))
    along = x - total(x, 2)
    graph.outputs = (along, total(x, 1) if axes == (0,) else total(total(x, 0), 1))
    assert sum(bool(group.parts) for group in joined(graph)) == 1

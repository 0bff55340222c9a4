"""A kernel along rows and one of sums as one description: what is shared, what is refused."""

from __future__ import annotations

from tensorsmith.core.dtypes import bfloat16, float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.kernels.assemble import assemble
from tensorsmith.kernels.joint import JointKernel, join
from tensorsmith.kernels.spec import Kind
from tensorsmith.passes.fusion import fuse
from tensorsmith.scalar import functions as f


def total(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def joint(graph: Graph, needed: int | None = None) -> JointKernel | None:
    """The two kernels of a graph as one; needed: how many outputs are needed beside the sums."""
    fusion = fuse(graph, {n: Strided(n.shape, contiguous_strides(n.shape)) for n in graph.inputs})
    rows, sums = sorted(fusion.groups, key=lambda group: group.reduce_axes, reverse=True)
    written = set(rows.roots) if needed is None else set(graph.outputs[:needed])
    return join(assemble(fusion, rows), assemble(fusion, sums), written)


def norm(dtype, shape=(6, 8)) -> Graph:
    graph = Graph()
    x, g = (graph.input(shape, dtype) for _ in range(2))
    wide, grad = build.wide(x), build.wide(g)
    deviation = wide - total(wide, 1) * 0.125
    scale = f.rsqrt(total(deviation * deviation, 1) + 1.0)
    unit = deviation * scale
    graph.outputs = (
        build.cast((grad - unit * total(grad * unit, 1)) * scale, dtype), build.cast(total(grad * unit, 0), dtype),
        build.cast(total(grad, 0), dtype),
    )  # fmt: skip
    return graph


def test_operands_are_read_once_and_values_of_rows_are_not_stored():
    for dtype in (float32, bfloat16):
        found = joint(norm(dtype), 1)
        assert found is not None
        spec = found.spec
        assert [operand.dtype for operand in spec.rows.inputs] == [dtype, dtype]
        assert sum(instr.kind is Kind.LOAD for instr in spec.rows.body) == 2
        assert len(spec.rows.stores) == 1 and len(found.rows.writes) == 1
        assert [kind for _, kind in spec.summed] == ["sum", "sum"]
        assert all(spec.rows.body[value].dtype is float32 for value, _ in spec.summed)
        assert [operand.dtype for operand in spec.ends.inputs] == [float32, float32]
        assert [store.operand.dtype for store in spec.ends.stores] == [dtype, dtype]


def test_partial_results_are_rows_of_their_own():
    found = joint(norm(float32))
    assert found is not None
    joining = found.spec.joining(5)
    assert joining.domain == (5, 8) and joining.reduce_axes == (0,)
    assert joining.inputs[0].strides == (8, 1) and joining.stores[0].operand.strides == (0, 1)
    assert "over all rows: sum of" in str(found.spec)


def test_what_follows_the_sums_reads_further_operands():
    graph = Graph()
    x, old = graph.input((6, 8), float32), graph.input((1, 8), float32)
    graph.outputs = (x - total(x, 1), old + total(x * x, 0) * 0.5)
    found = joint(graph)
    assert found is not None
    assert [read.node for read in found.ends.reads] == [old]
    assert found.spec.ends.inputs[1].strides == (0, 1)


def test_sums_of_rounded_results_are_of_what_is_stored():
    graph = Graph()
    x = graph.input((6, 8), bfloat16)
    y = build.cast(build.wide(x) - total(build.wide(x), 1), bfloat16)
    graph.outputs = (y, total(build.wide(y), 0))
    found = joint(graph)
    assert found is not None
    ((value, _),) = found.spec.summed
    source = found.spec.rows.body[found.spec.rows.body[value].args[0]]
    assert source.kind is Kind.CAST and source.dtype is bfloat16


def test_places_of_extremes_are_refused():
    graph = Graph()
    x = graph.input((6, 8), float32)
    graph.outputs = (x - total(x, 1), build.reduce(x, "argmax", (0,)))
    assert joint(graph) is None

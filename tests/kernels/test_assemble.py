"""From groups of nodes to kernels: operands, bodies, places of what is written."""

import numpy as np

import tensorsmith as ts
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph
from tensorsmith.kernels.assemble import assemble
from tensorsmith.kernels.spec import Kind
from tensorsmith.passes.fusion import fuse
from tensorsmith.runtime.plan import build_plan
from tensorsmith.scalar import functions as f


def kernels(graph, strides=None, outputs=None):
    places = {n: Strided(n.shape, s) for n, s in zip(graph.inputs, strides or [])}
    for node in graph.inputs:
        places.setdefault(node, Strided(node.shape, ts.zeros(*node.shape).stride()))
    fusion = fuse(graph, places, outputs)
    return [assemble(fusion, group) for group in fusion.groups]


def test_equal_subexpressions_and_operands_occur_once():
    graph = Graph()
    x = graph.input((4, 3), ts.float32)
    graph.outputs = (f.exp(x) * f.exp(x) + x,)
    (kernel,) = kernels(graph)
    kinds = [i.kind for i in kernel.spec.body]
    assert kinds.count(Kind.LOAD) == 1 and kinds.count(Kind.APPLY) == 3
    assert len(kernel.reads) == 1


def test_views_become_strides_and_offsets():
    graph = Graph()
    x = graph.input((4, 6), ts.float32)
    graph.outputs = (f.neg(build.transpose(build.slice_(x, 1, 2, 2, 2), 0, 1)),)
    (kernel,) = kernels(graph)
    assert kernel.spec.domain == (2, 4)
    assert kernel.spec.inputs[0].strides == (2, 6) and kernel.reads[0].offset == 2


def test_a_flip_walks_backwards():
    graph = Graph()
    x = graph.input((5,), ts.float32)
    graph.outputs = (build.flip(x, (0,)) * 2.0,)
    (kernel,) = kernels(graph)
    assert kernel.spec.inputs[0].strides == (-1,) and kernel.reads[0].offset == 4


def test_broadcast_operands_have_stride_zero_and_scalars_are_parameters():
    graph = Graph()
    x, y = graph.input((4, 3), ts.float32), graph.input((3,), ts.float32)
    number = graph.input((), ts.float64, param=True)
    graph.outputs = (x * y + number,)
    places = {x: Strided((4, 3), (3, 1)), y: Strided((3,), (1,))}
    fusion = fuse(graph, places)
    kernel = assemble(fusion, fusion.groups[0])
    assert [o.strides for o in kernel.spec.inputs] == [(3, 1), (0, 1)]
    assert kernel.spec.params == (ts.float64,) and kernel.params == [number]


def test_row_outputs_do_not_vary_along_the_reduced_axis():
    graph = Graph()
    x = graph.input((4, 3), ts.float32)
    total = build.reduce(x, "sum", (1,), keepdim=True)
    graph.outputs = (total, x / total)
    (kernel,) = kernels(graph)
    assert kernel.spec.reduce_axis == 1
    assert {s.row for s in kernel.spec.stores} == {True, False}
    row = next(s for s in kernel.spec.stores if s.row)
    assert row.operand.strides[1] == 0


def test_half_precision_is_computed_in_float32_and_rounded_once():
    graph = Graph()
    x = graph.input((4,), ts.float16)
    graph.outputs = (f.exp(x) * x,)
    (kernel,) = kernels(graph)
    assert {i.dtype for i in kernel.spec.body if i.kind is Kind.APPLY} == {ts.float32}
    assert kernel.spec.body[kernel.spec.stores[0].value].dtype is ts.float16


def test_an_output_may_lie_anyhow():
    graph = Graph()
    x = graph.input((4, 3), ts.float32)
    y = build.reshape(f.exp(x), (3, 4))
    graph.outputs = (y,)
    array = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
    for strides in [(4, 1), (1, 3), (8, 2)]:  # row-major, transposed, with gaps
        plan = build_plan(graph, [Strided((4, 3), (3, 1))], {0: Strided((3, 4), strides)})
        out = np.zeros(32, np.float32)
        source = ts.from_numpy(array)
        plan.run([source.ptr, ts.from_numpy(out).ptr])
        seen = np.lib.stride_tricks.as_strided(out, (3, 4), [4 * s for s in strides])
        np.testing.assert_allclose(seen, np.exp(array).reshape(3, 4), rtol=1e-6)


def test_a_product_may_lie_anyhow():
    graph = Graph()
    a, b = graph.input((3, 5), ts.float32), graph.input((5, 4), ts.float32)
    graph.outputs = (build.matmul(a, b),)
    x, y = np.random.default_rng(0).random((3, 5), np.float32), np.random.default_rng(1).random((5, 4), np.float32)
    plan = build_plan(graph, [Strided((3, 5), (5, 1)), Strided((5, 4), (4, 1))], {0: Strided((3, 4), (1, 3))})
    out = np.zeros(12, np.float32)
    plan.run([ts.from_numpy(x).ptr, ts.from_numpy(y).ptr, ts.from_numpy(out).ptr])
    np.testing.assert_allclose(out.reshape(4, 3).T, x @ y, rtol=1e-5)


def test_names_say_what_a_kernel_does():
    graph = Graph()
    x = graph.input((4,), ts.float32)
    graph.outputs = (f.exp(x), build.reshape(f.tanh(x), (2, 2)))
    (kernel,) = kernels(graph)
    assert kernel.spec.name == "exp_tanh"

"""Which kernels a graph becomes: how many, of which kind, and that they compute what the graph says."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import float32
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided
from tensorsmith.eager.entries import plan_for
from tensorsmith.eager.operator import operators
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph
from tensorsmith.passes.fusion import Repeats, fuse
from tensorsmith.runtime.plan import build_plan
from tensorsmith.scalar import functions as f
from tensorsmith.targets.cpu.compiler import statistics
from tensorsmith.targets.reference import interpret

ROWS = ts.zeros(8, 16).layout
LABELS = ts.zeros(8, dtype=ts.int64).layout
VECTOR = ts.zeros(16).layout
IMAGES = ts.zeros(5, 6, 4, 7).layout
LAST = ts.zeros(5, 6, 4, 7).contiguous(memory_format=ts.channels_last).layout
CHANNELS = ts.zeros(6).layout
AFFINE = {"eps": 1e-5, "has_weight": True}


def forward_and_backward(name, kinds, attrs):
    """Step names of an operator's plan and of its gradient's, from that of the first result."""
    operator = operators()[name]
    program = operator.program(kinds, attrs)
    needs = tuple(k.dtype.kind == "f" for k in kinds)
    backward = program.backward(needs, (True,) + (False,) * (len(program.graph.outputs) - 1))
    layouts = [ts.zeros(n.shape, dtype=n.dtype).layout for n in backward.backward.graph.inputs]
    layouts = [kinds[0] if layout.shape == kinds[0].shape and layout.dtype is kinds[0].dtype else layout for layout in layouts]
    plans = plan_for(operator, program, kinds), plan_for(backward, backward.program(layouts, {}), layouts)
    return tuple(len(plan.steps) for plan in plans), tuple(tuple(s.name for s in plan.steps) for plan in plans)


@pytest.mark.parametrize(
    "name, kinds, attrs, counts",
    [
        ("softmax", [ROWS], {"dim": 1, "dtype": None}, (1, 1)),
        ("log_softmax", [ROWS], {"dim": 1, "dtype": None}, (1, 1)),
        ("logsumexp", [ROWS], {"axes": (1,), "keepdim": False}, (1, 1)),
        ("gelu", [ROWS], {"approximate": "none"}, (1, 1)),
        ("mean", [ROWS], {"axes": (1,), "keepdim": False, "dtype": None}, (1, 1)),
        ("var", [ROWS], {"axes": (1,), "correction": 1.0, "keepdim": False}, (1, 1)),
        ("layer_norm", [ROWS, VECTOR, VECTOR], {"axes": 1, "eps": 1e-5, "centred": True, "has_weight": True}, (1, 2)),
        ("layer_norm", [ROWS, VECTOR], {"axes": 1, "eps": 1e-5, "centred": False, "has_weight": True}, (1, 2)),
        ("sum", [ROWS], {"axes": (0, 1), "keepdim": False, "dtype": None}, (1, 0)),  # its gradient is a view
        ("sum", [IMAGES], {"axes": (0, 2, 3), "keepdim": False, "dtype": None}, (1, 0)),
        ("batch_norm", [IMAGES, CHANNELS, CHANNELS], {**AFFINE, "one_kernel": True, "rows": 0}, (1, 1)),
        ("batch_norm", [LAST, CHANNELS, CHANNELS], {**AFFINE, "one_kernel": True, "rows": 0}, (1, 1)),
        ("batch_norm", [ROWS, VECTOR, VECTOR], {**AFFINE, "one_kernel": True, "rows": 0}, (1, 1)),
        ("group_norm", [IMAGES, CHANNELS, CHANNELS], {**AFFINE, "groups": 2}, (1, 2)),  # input, parameters
        ("group_norm", [IMAGES, CHANNELS, CHANNELS], {**AFFINE, "groups": 6}, (1, 2)),
    ],
)
def test_number_of_kernels(name, kinds, attrs, counts):
    assert forward_and_backward(name, kinds, attrs)[0] == counts


def test_linear_adds_its_bias_on_the_tile():
    kinds = [ROWS, ts.zeros(4, 16).layout, ts.zeros(4).layout]
    assert forward_and_backward("linear", kinds, {})[1] == (("matmul_bias",), ("matmul", "matmul", "sum"))


def test_a_convolution_adds_its_bias_on_the_tile():
    kinds = [ts.zeros(2, 3, 9, 9).layout, ts.zeros(4, 3, 3, 3).layout, ts.zeros(4).layout]
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    assert forward_and_backward("convolution", kinds, attrs)[1][0] == ("conv_bias",)
    halves = [ts.zeros(*k.shape, dtype=ts.float16).layout for k in kinds]
    assert "matmul" in forward_and_backward("convolution", halves, attrs)[1][0]


def test_cross_entropy_reads_its_rows_once():
    _, (forward, backward) = forward_and_backward(
        "cross_entropy", [ROWS, LABELS], {"mode": "mean", "ignore_index": -100, "smoothing": 0.0}
    )
    assert len(forward) <= 4 and "gather" in forward  # positions, picked values, rows, mean
    assert len(backward) == 2  # what a row weighs, and the rows


# --- graphs made by hand, against the reference ------------------------------------------------------------------------


def run(graph, arrays, strides=None):
    """The outputs of a graph by its plan, with new contiguous buffers; also the plan."""
    places = [Strided(n.shape, strides[i] if strides else contiguous_strides(n.shape)) for i, n in enumerate(graph.inputs)]
    plan = build_plan(graph, places)
    tensors = [ts.from_numpy(a) for a in arrays]
    storages = [ts.empty(max(n // 4, 1), dtype=ts.float32) for n in plan.new_bytes]
    plan.run([tensors[i].ptr for i in plan.tensor_inputs] + [s.ptr for s in storages])
    found = []
    for output in plan.outputs:
        assert output.input is None
        flat = storages[output.buffer].numpy()
        found.append(np.lib.stride_tricks.as_strided(flat[output.strided.offset :], output.strided.shape,
                                                     [4 * s for s in output.strided.strides]).copy())  # fmt: skip
    return found, plan


def check(graph, *shapes, steps=None, seed=0):
    random = np.random.default_rng(seed)
    arrays = [random.uniform(0.5, 1.5, s).astype(np.float32) for s in shapes]
    found, plan = run(graph, arrays)
    for a, b in zip(found, interpret(graph, arrays)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    if steps is not None:
        assert len(plan.steps) == steps, plan.describe()
    return plan


def graph_of(*shapes):
    graph = Graph()
    return graph, [graph.input(s, ts.float32) for s in shapes]


def test_views_are_never_work():
    graph, (x,) = graph_of((4, 6))
    y = build.reshape(build.transpose(build.slice_(x, 0, 1, 2), 0, 1), (6, 2, 1))
    graph.outputs = (y + y,)
    check(graph, (4, 6), steps=1)


def test_a_reshape_of_a_permuted_value_is_a_copy_of_its_own():
    graph, (x,) = graph_of((4, 6))
    graph.outputs = (build.reshape(build.transpose(f.exp(x), 0, 1), (4, 6)) * x,)
    plan = check(graph, (4, 6), steps=2)
    assert plan.workspace_bytes >= 4 * 6 * 4


def test_an_input_that_strides_cannot_reshape_is_copied():
    graph, (x,) = graph_of((4, 6))
    graph.outputs = (build.reshape(x, (24,)) * 2.0,)
    array = np.asfortranarray(np.arange(24, dtype=np.float32).reshape(4, 6))
    found, plan = run(graph, [array], [(1, 4)])
    np.testing.assert_array_equal(found[0], array.reshape(24) * 2)
    assert len(plan.steps) <= 2


def test_nested_reductions_over_one_axis_are_one_kernel():
    graph, (x,) = graph_of((5, 7))
    centred = x - build.reduce(x, "sum", (1,), keepdim=True) / 7.0
    scale = f.sqrt(build.reduce(centred * centred, "sum", (1,), keepdim=True))
    graph.outputs = (build.reduce(centred / scale, "max", (1,), keepdim=False),)
    check(graph, (5, 7), steps=1)


def test_reductions_over_two_axes_are_two_kernels():
    graph, (x,) = graph_of((5, 7))
    graph.outputs = (build.reduce(f.exp(build.reduce(x, "sum", (1,))), "sum", (0,)),)
    check(graph, (5, 7), steps=2)


def test_pad_and_concat_compute_their_parts_on_the_way():
    graph, (x, y) = graph_of((3, 4), (3, 2))
    graph.outputs = (build.pad(f.exp(x), (1, 0), (0, 2)), build.concat([x * 2.0, f.tanh(y), x], 1))
    check(graph, (3, 4), (3, 2), steps=5)  # a fill and a part, and three parts


def test_a_reduction_inside_a_concatenation():
    graph, (x,) = graph_of((3, 4))
    graph.outputs = (build.concat([build.reduce(x, "sum", (1,), keepdim=True), x], 1),)
    check(graph, (3, 4))


def test_several_outputs_of_the_same_points_are_one_kernel():
    graph, (x, y) = graph_of((3, 4), (3, 4))
    graph.outputs = (x + y, x * y, f.exp(x))
    check(graph, (3, 4), (3, 4), steps=1)
    graph, (x,) = graph_of((3, 4))
    graph.outputs = (build.reduce(x, "sum", (1,)), x * 2.0)
    check(graph, (3, 4), steps=1)


def test_an_expensive_value_is_not_computed_by_two_kernels():
    graph, (x,) = graph_of((3, 4))
    e = f.exp(x)
    graph.outputs = (build.reduce(e, "sum", (0,)), build.reduce(e, "sum", (1,)))
    plan = check(graph, (3, 4))
    fusion = fuse(graph, {x: Strided((3, 4), (4, 1))})
    assert e in fusion.materialised
    assert len(plan.steps) <= 3


def test_a_cheap_value_is_computed_again():
    graph, (x,) = graph_of((3, 4))
    doubled = x + x
    graph.outputs = (build.reduce(doubled, "sum", (0,)), build.reduce(doubled, "sum", (1,)))
    assert doubled not in fuse(graph, {x: Strided((3, 4), (4, 1))}).materialised
    check(graph, (3, 4), steps=2)


def test_a_large_body_is_cut():
    graph, (x,) = graph_of((6,))
    y = x
    for _ in range(300):
        y = f.sin(y) + x
    graph.outputs = (y,)
    plan = check(graph, (6,))
    assert 3 <= len(plan.steps) <= 12


def test_long_and_empty_reductions():
    graph, (x,) = graph_of((3, 70_001))
    graph.outputs = (build.reduce(x, "sum", (1,)), build.reduce(x, "max", (1,)))
    check(graph, (3, 70_001))
    graph, (x,) = graph_of((3, 0))
    graph.outputs = (build.reduce(x, "sum", (1,)) + 1.0, build.reduce(x, "prod", (1,)))
    check(graph, (3, 0))


def test_no_kernel_is_compiled_for_another_extent_or_rank():
    def use(*shape):
        x = ts.ones(*shape)
        y = (x * 1.25 + x).exp()
        y.softmax(-1)
        y.sum(-1)

    use(3, 25)
    before = statistics().linked
    for shape in [(4, 26), (7, 33), (2, 900), (19, 64)]:
        use(*shape)
    assert statistics().linked == before
    use(2, 3, 44)  # another rank: contiguous axes merge
    assert statistics().linked == before


def test_a_product_that_is_only_reshaped_is_written_where_the_result_lies():
    g = Graph()
    x, w = g.input((1, 6, 4, 5), ts.float32), g.input((8, 6), ts.float32)
    product = build.matmul(w, build.reshape(x, (6, 20)))
    g.outputs = (build.reshape(product, (1, 8, 4, 5)),)
    places = [Strided(node.shape, contiguous_strides(node.shape)) for node in g.inputs]
    result = Strided((1, 8, 4, 5), contiguous_strides((1, 8, 4, 5)))
    assert len(build_plan(g, places, {0: result}).steps) == 1
    last = Strided(result.shape, (160, 1, 40, 8))  # channels last: written, and copied from there
    assert len(build_plan(g, places, {0: last}).steps) == 2


def test_what_is_computed_again_where_memory_is_dear():
    """exp(x) is needed by a sum over everything and, with that sum, once more: read again, or computed again from x."""
    graph = Graph()
    x, y = graph.input((64, 128), float32), graph.input((64, 128), float32)
    places = {node: Strided((64, 128), (128, 1)) for node in (x, y)}
    once, of_two = f.exp(x), f.exp(x + y)
    totals = [build.reduce(build.reshape(e, (64 * 128,)), "sum", (0,)) for e in (once, of_two)]
    graph.outputs = tuple(e * build.broadcast_to(t, e.shape) for e, t in zip((once, of_two), totals))
    gpu = Repeats(most=12, function=4, read=1.25)
    assert {once, of_two} <= fuse(graph, places).materialised
    found = fuse(graph, places, repeats=gpu).materialised
    assert once not in found and of_two in found  # the second would read two values for one
    assert once in fuse(graph, places, repeats=Repeats(most=3, function=4, read=1.25)).materialised  # arithmetic is dear

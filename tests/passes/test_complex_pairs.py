"""Complex graphs on pairs of real values: every primitive against the reference, where outputs lie, how many kernels run."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorsmith as ts
from tensorsmith.core.dtypes import complex64, complex128, float32, float64, from_numpy_dtype, int64
from tensorsmith.core.views import Strided
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.passes.complex_pairs import lower_pairs
from tensorsmith.runtime.plan import build_plan
from tensorsmith.runtime.requests import KernelStep
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.reference import interpret


def random(*shape, dtype=np.complex128, seed=0):
    generator = np.random.default_rng(seed)
    return (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(dtype)


def graph_of(make, arrays):
    graph = Graph()
    outputs = make(graph, *(graph.input(a.shape, from_numpy_dtype(a.dtype)) for a in arrays))
    graph.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return graph


def places(arrays):
    return [Strided(a.shape, tuple(s // a.itemsize for s in a.strides)) for a in arrays]


def address(array):
    return array.__array_interface__["data"][0]


def run(plan, arrays):
    """The plan's outputs for NumPy arrays, as NumPy arrays."""
    new = [np.zeros(max(n, 16), np.uint8) for n in plan.new_bytes]
    plan.run([address(arrays[i]) for i in plan.tensor_inputs] + [address(n) for n in new])
    results = []
    for output in plan.outputs:
        memory = new[output.buffer] if output.input is None else arrays[output.input].ravel("K").view(np.uint8)
        seen, size = output.strided, output.dtype.itemsize
        flat = memory[: len(memory) // size * size].view(output.dtype.numpy)
        results.append(
            np.lib.stride_tricks.as_strided(flat[seen.offset :], seen.shape, [size * s for s in seen.strides]).copy()
        )
    return results


def check(make, arrays, required=None):
    """Values as the reference of the complex graph has them, by kernels only; the plan."""
    graph = graph_of(make, arrays)
    lowered = lower_pairs(graph, required or ())
    assert lowered is not None and not any(node.dtype.is_complex for node in lowered.live_nodes())
    plan = build_plan(graph, places(arrays), required)
    for node, expected, found in zip(graph.outputs, interpret(graph, arrays), run(plan, arrays)):
        assert found.dtype == node.dtype.numpy and found.shape == expected.shape
        tolerance = 1e-5 if any(a.dtype in (np.complex64, np.float32) for a in (found, *arrays)) else 1e-13
        scale = np.abs(expected).max(initial=1.0)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
    return plan


def multiply(graph, *nodes):
    return graph.add(Primitive.MAP, nodes, fn=Fn.MUL)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("n", [1, 2, 7, 16, 67, 1000])
def test_a_product_is_one_kernel_at_any_length(n, dtype):
    plan = check(multiply, [random(n, dtype=dtype), random(n, dtype=dtype, seed=1)])
    assert len(plan.steps) == 1 and isinstance(plan.steps[0], KernelStep)
    assert plan.steps[0].kernel.kernel.schedule == "pointwise"
    if n > 1:  # whole vectors of both parts, of what is left of the last vector too
        text = plan.steps[0].kernel.text
        assert text.count("shufflevector") >= 6 and "masked.gather" not in text and "masked.scatter" not in text


def test_sums_act_on_whole_pairs():
    arrays = [random(6, 5, dtype=np.complex64), random(6, 5, dtype=np.complex64, seed=1)]
    plan = check(lambda g, x, y: -(x + y) - x, arrays)
    assert len(plan.steps) == 1 and plan.graph.outputs[0].op is Primitive.MAP  # on (6, 5, 2)


VIEWS = {
    "reshape": lambda g, x: build.reshape(x, (4, 2, 3)),
    "permute": lambda g, x: build.permute(x, (1, 0)),
    "expand": lambda g, x: build.broadcast_to(build.reshape(x, (6, 1, 4)), (6, 3, 4)),
    "slice": lambda g, x: build.slice_(x, 1, 1, 2, 2),
    "flip": lambda g, x: build.flip(x, (0, 1)),
    "diagonal": lambda g, x: g.add(Primitive.DIAGONAL, (x,), offset=-1, axis1=0, axis2=1),
    "unfold": lambda g, x: g.add(Primitive.UNFOLD, (x,), axis=0, size=3, step=2),
    "as_strided": lambda g, x: g.add(Primitive.AS_STRIDED, (x,), shape=(3, 2), strides=(5, 2), offset=3),
    "again": lambda g, x: g.add(Primitive.AGAIN, (x,), part=1),
    "reshape of permuted": lambda g, x: build.reshape(build.permute(x, (1, 0)), (3, 8)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("base", ["input", "computed", "permuted input"])
def test_views(name, base):
    def make(graph, x):
        value = multiply(graph, x, x) if base == "computed" else x
        seen = VIEWS[name](graph, value)
        return seen, multiply(graph, seen, seen), build.reduce(seen, "sum", (0,))

    array = random(6, 4)
    check(make, [np.asfortranarray(array) if base == "permuted input" else array])


def test_a_view_of_a_result_stays_a_view():
    plan = check(lambda g, x: build.permute(multiply(g, x, x), (1, 0)), [random(6, 4)])
    assert plan.outputs[0].strided.strides == (1, 4)


def test_an_input_seen_differently_is_no_work():
    plan = check(lambda g, x: build.permute(build.slice_(x, 0, 1, 3, 2), (1, 0)), [random(6, 4)])
    assert plan.steps == [] and plan.outputs[0].input == 0
    assert plan.outputs[0].strided == Strided((4, 3), (1, 8), 4)


MOVES = {
    "pad": lambda g, x, i: build.pad(x, (1, 0), (2, 3), (2, 1)),
    "concat": lambda g, x, i: build.concat([x, multiply(g, x, x), build.flip(x, (0,))], 1),
    "take": lambda g, x, i: g.add(Primitive.TAKE, (x, build.reshape(i, (24,))), axis=0),
    "put": lambda g, x, i: g.add(
        Primitive.PUT, (x, build.reshape(build.slice_(i, 1, 0, 1), (6,)), x), axis=0, reduce="add"
    ),
    "gather": lambda g, x, i: g.add(Primitive.GATHER, (x, i), axis=0),
    "scatter": lambda g, x, i: g.add(Primitive.SCATTER, (x, i, multiply(g, x, x)), axis=0, reduce="add"),
    "where": lambda g, x, i: build.where(build.map_(Fn.GT, i, 2), x, multiply(g, x, x)),
    "where of inputs": lambda g, x, i: build.where(build.map_(Fn.GT, i, 2), x, build.flip(x, (0,))),
    "scan": lambda g, x, i: g.add(Primitive.SCAN, (x,), kind="sum", axis=0),
    "scan of computed": lambda g, x, i: g.add(Primitive.SCAN, (multiply(g, x, x),), kind="sum", axis=1),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_moves(name, dtype):
    indices = np.random.default_rng(0).integers(0, 6, (6, 4))
    check(lambda g, x, i: MOVES[name](g, x, i), [random(6, 4, dtype=dtype), indices])


def test_an_index_out_of_range_is_named():
    arrays = [random(6, 4), np.zeros((6, 4), np.int64)]
    arrays[1][5, 2] = 6
    plan = build_plan(graph_of(lambda g, x, i: MOVES["gather"](g, x, i), arrays), places(arrays))
    with pytest.raises(IndexError, match=r"index 6 at position \[5, 2\] .*size 6"):
        run(plan, arrays)


def test_an_index_out_of_range_is_named_where_indices_repeat():
    arrays = [random(6, 4).real, np.zeros((6, 1), np.int64)]
    arrays[1][5, 0] = 6
    graph = graph_of(lambda g, x, i: g.add(Primitive.GATHER, (x, build.broadcast_to(i, (6, 4))), axis=0), arrays)
    with pytest.raises(IndexError, match=r"index 6 at position \[5, 0\]"):
        run(build_plan(graph, places(arrays)), arrays)


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 7), (130, 3), (3, 70000), (70000, 2), (2, 3, 4)])
def test_sums(shape):
    x = random(*shape, dtype=np.complex64)
    for axis in range(len(shape)):
        check(lambda g, x, axis=axis: build.reduce(x, "sum", (axis,)), [x])
        check(lambda g, x, axis=axis: build.reduce(multiply(g, x, x), "sum", (axis,), keepdim=True), [x])
    check(lambda g, x: build.reduce(x, "sum"), [x])


def test_a_sum_over_nothing():
    check(lambda g, x: build.reduce(x, "sum", (1,)), [random(3, 0)])
    check(lambda g, x: build.reduce(multiply(g, x, x), "sum", (0,)), [random(0, 3)])


def test_a_row_kernel_normalises():
    def make(graph, x):
        total = build.reduce(x, "sum", (1,), keepdim=True)
        return graph.add(Primitive.MAP, (x, build.broadcast_to(total, x.shape)), fn=Fn.DIV)

    check(make, [random(5, 33, dtype=np.complex64)])


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 4, 5), (17, 33, 9), (64, 64, 64), (5, 0, 2), (1, 40, 50), (2, 70, 33)])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_matmul(m, k, n, batch, dtype):
    arrays = [random(*batch, m, k, dtype=dtype), random(*batch, k, n, dtype=dtype, seed=1)]
    plan = check(lambda g, a, b: build.matmul(a, b), arrays)
    assert sum(step.name == "matmul" for step in plan.steps) <= 1


def test_matmul_of_transposed_and_computed_matrices():
    def make(graph, a, b):
        return build.matmul(build.transpose(a, 0, 1), build.transpose(multiply(graph, b, b), 0, 1))

    check(make, [random(4, 6), random(5, 4)])


CASTS = [(complex64, complex128), (complex128, complex64), (complex64, float32), (complex64, float64), (complex128, ts.bool)]


@pytest.mark.parametrize("source, target", [*CASTS, (float32, complex64), (float64, complex64), (int64, complex128)])
def test_casts(source, target):
    array = random(4, 3).astype(source.numpy) if source.is_complex else np.arange(12).reshape(4, 3).astype(source.numpy)
    check(lambda g, x: (build.cast(x, target),), [array])
    if source.is_complex:
        check(lambda g, x: (build.cast(multiply(g, x, x), target),), [array])


def test_constants():
    check(lambda g, x: x * build.full(g, x.shape, 2 - 3j, complex64), [random(5, dtype=np.complex64)])
    check(lambda g, x: (x, build.full(g, (2, 2), 1 + 2j, complex128)), [random(5)])


def test_outputs_over_an_input():
    """In place: every vector is read before it is written, also where the parts change places."""
    x = random(1003)
    y = random(1003, seed=1)
    graph = graph_of(multiply, [x, y])
    plan = build_plan(graph, places([x, y]), {0: Strided((1003,), (1,))})
    expected = x * y
    assert not plan.workspace_bytes
    plan.run([address(x), address(y), address(x)])
    np.testing.assert_allclose(x, expected, rtol=1e-13)


def test_strided_outputs():
    x = random(4, 6)
    required = {0: Strided((4, 6), (1, 4))}
    plan = check(lambda g, x: build.permute(build.permute(multiply(g, x, x), (1, 0)), (1, 0)), [x], required)
    assert plan.outputs[0].strided.strides == (1, 4) and len(plan.steps) == 1


def test_updates_replace_an_input():
    x = random(50)
    graph = graph_of(lambda g, x: multiply(g, x, x), [x])
    plan = build_plan(graph, places([x]), {0: Strided((50,), (1,))}, {0: 0})
    expected = x * x
    assert plan.outputs[0].input == 0
    plan.run([address(x)])
    np.testing.assert_allclose(x, expected, rtol=1e-13)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (7, 4), (4, 37), (3, 1000), (0, 3), (3, 0)])
def test_products(shape):
    array = np.exp(1j * random(*shape).real) * 1.001
    for axis in range(len(shape)):
        check(lambda g, x, axis=axis: build.reduce(x, "prod", (axis,)), [array])


def running_product(graph, x):
    return graph.add(Primitive.SCAN, (x,), kind="prod", axis=0)


def test_what_has_no_lowering_is_left_alone():
    assert lower_pairs(graph_of(running_product, [random(3)])) is None


def test_what_has_no_lowering_stays_complex_between_kernels():
    x = random(6, 4)
    graph = graph_of(lambda g, x: multiply(g, running_product(g, multiply(g, x, x)), x), [x])
    plan = build_plan(graph, places([x]))
    assert [step.name for step in plan.steps if not isinstance(step, KernelStep)].count("scan") == 1
    (found,) = run(plan, [x])
    np.testing.assert_allclose(found, np.cumprod(x * x, 0) * x, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_programs(data):
    """Random compositions give the reference's values."""
    unary = [
        lambda g, x: multiply(g, x, x), lambda g, x: -x, lambda g, x: build.permute(x, (1, 0)),
        lambda g, x: build.flip(x, (0,)), lambda g, x: build.reshape(x, (x.shape[1], x.shape[0])),
        lambda g, x: build.broadcast_to(build.reduce(x, "sum", (0,), keepdim=True), x.shape),
        lambda g, x: build.slice_(build.concat([x, x + x], 1), 1, 1, x.shape[1]),
        lambda g, x: build.matmul(x, build.permute(x, (1, 0))) if x.shape[0] == x.shape[1] else x + 1,
    ]  # fmt: skip
    steps = data.draw(st.lists(st.tuples(st.sampled_from(unary), st.booleans()), min_size=1, max_size=6))
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))

    def make(graph, x):
        values = [x * 0.25]
        for function, combine in steps:
            made = function(graph, values[-1]) * 0.25
            same = [v for v in values if v.shape == made.shape]
            values.append(multiply(graph, made, same[0]) if combine and same else made)
        return values[-1], values[len(values) // 2]

    check(make, [random(*shape)])

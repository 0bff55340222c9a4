"""SimpleOps and FastOps compute the same, equal to NumPy: maps, zips, reduces, products, convolutions, storages."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tensorsmith import minitorch as mt
from tensorsmith.minitorch import fast_ops, operators, tensor_ops

FAST = mt.TensorBackend(mt.FastOps)
BACKENDS = [pytest.param(mt.SimpleBackend, id="simple"), pytest.param(FAST, id="fast")]
ONE, TWO, REDUCTIONS = mt.MathTestVariable._comp_testing()

shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


def drawn(shape, backend, seed, order=None):
    """A tensor of random numbers, the storage in another order of dimensions; and its values."""
    order = order or tuple(range(len(shape)))
    rng = np.random.default_rng(seed)
    array = rng.uniform(-4, 4, [shape[i] for i in order])
    data = mt.TensorData(array.reshape(-1), array.shape).permute(*np.argsort(order).tolist())
    return mt.Tensor(data, backend=backend), array.transpose(np.argsort(order))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=20, deadline=None)
@given(shape=shapes, seed=st.integers(0, 1000), data=st.data())
def test_every_function_of_the_course_equals_python(backend, shape, seed, data):
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    a, x = drawn(shape, backend, seed, order)
    b, y = drawn(shape, backend, seed + 1)
    for _, number, function in ONE:
        np.testing.assert_allclose(function(a).to_numpy(), np.vectorize(number)(x), rtol=1e-12, atol=1e-12)
    for _, number, function in TWO:
        np.testing.assert_allclose(function(a, b).to_numpy(), np.vectorize(number)(x, y), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(a.sum(0).to_numpy(), x.sum(0, keepdims=True), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(a.mean().to_numpy(), [x.mean()], rtol=1e-12, atol=1e-12)
    assert (a + 1)._tensor.is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_central_differences(backend):
    for shape, order in (((2, 3), (1, 0)), ((2, 1, 3), (2, 0, 1)), ((4,), (0,))):
        a, _ = drawn(shape, backend, 1, order)
        b, _ = drawn((shape[-1],), backend, 2)
        for _, _, function in ONE + REDUCTIONS:
            mt.grad_check(function, a)
        for _, _, function in TWO:
            mt.grad_check(function, a, b)
            mt.grad_check(function, b, a)
        mt.grad_check(lambda t: t.permute(*reversed(range(t.dims))).contiguous().view(t.size) * 2.0, a)
    m, n = drawn((2, 3, 4), backend, 3)[0], drawn((4, 2), backend, 4)[0]
    mt.grad_check(lambda x, y: x @ y, m, n)
    image, weight = drawn((2, 2, 4, 4), backend, 5)[0], drawn((3, 2, 2, 3), backend, 6)[0]
    mt.grad_check(mt.conv2d, image, weight)
    mt.grad_check(mt.conv1d, drawn((2, 2, 5), backend, 7)[0], drawn((3, 2, 2), backend, 8)[0])
    for function in (
        lambda t: mt.avgpool2d(t, (2, 2)),
        lambda t: mt.maxpool2d(t, (2, 1)),
        lambda t: mt.max(t, 2),
        lambda t: mt.softmax(t, 1) * t,
        lambda t: mt.logsoftmax(t, 3) * t,
    ):
        mt.grad_check(function, image)


@pytest.mark.parametrize("backend", BACKENDS)
def test_convolutions_equal_the_definition(backend):
    x, image = drawn((2, 2, 5, 4), backend, 1)
    w, weight = drawn((3, 2, 2, 3), backend, 2)
    padded = np.pad(image, ((0, 0), (0, 0), (0, 1), (0, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))
    np.testing.assert_allclose(mt.conv2d(x, w).to_numpy(), np.einsum("bchwij,ocij->bohw", windows, weight), rtol=1e-12)
    out = mt.zeros((2, 3, 5, 4))
    mt.tensor_conv2d(*out.tuple(), out.size, *x.tuple(), *w.tuple(), True)
    padded = np.pad(image, ((0, 0), (0, 0), (1, 0), (2, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))
    expected = np.einsum("bchwij,ocij->bohw", windows, weight[:, :, ::-1, ::-1])
    np.testing.assert_allclose(out.to_numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_smaller_result_of_a_convolution_on_storages_is_its_first_part(backend):
    """The gradient of a weight is asked for at the places of the weight."""
    x, weight = drawn((2, 3, 5, 4), backend, 1)[0], drawn((4, 3, 2, 3), backend, 2)[0]
    d, _ = drawn((2, 4, 5, 4), backend, 3)
    weight.requires_grad_(True)
    mt.conv2d(x, weight).backward(d)
    out = mt.zeros((3, 4, 2, 3))
    x, d = x.permute(1, 0, 2, 3), d.permute(1, 0, 2, 3)
    mt.tensor_conv2d(*out.tuple(), out.size, *x.tuple(), *d.tuple(), False)
    np.testing.assert_allclose(out.permute(1, 0, 2, 3).to_numpy(), weight.grad.to_numpy(), rtol=1e-12)


def clipped(x):
    if x > 2.0:
        return 2.0
    elif x < -2.0:
        return -2.0
    return 0.3 * x


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_scalar_function_is_lifted_branches_and_constants_too(backend):
    a, x = drawn((3, 3), backend, 5)
    np.testing.assert_array_equal(backend.ops.map(clipped)(a).to_numpy(), np.vectorize(clipped)(x))
    np.testing.assert_array_equal(backend.ops.map(lambda v: 0.1 if v > 0 else 0.2)(a).to_numpy(), np.where(x > 0, 0.1, 0.2))
    np.testing.assert_array_equal(backend.ops.map(lambda v: 0.7)(a).to_numpy(), np.full((3, 3), 0.7))
    out = mt.zeros((2, 3, 3), backend)
    backend.ops.map(math.tanh)(a, out)
    np.testing.assert_allclose(out.to_numpy(), np.broadcast_to(np.tanh(x), (2, 3, 3)), rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_folds_that_are_no_reduction_of_the_engine_go_step_by_step(backend):
    a, x = drawn((3, 4), backend, 6)
    got = backend.ops.reduce(lambda so_far, v: 0.5 * so_far + v, 1.0)(a, 1).to_numpy()
    expected = np.ones((3, 1))
    for i in range(4):
        expected = 0.5 * expected + x[:, i : i + 1]
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for function, start, numpy in ((operators.mul, 1.0, np.prod), (operators.max, -1e9, np.max), (min, 0.5, np.min)):
        got = backend.ops.reduce(lambda p, q, f=function: f(p, q), start)(a, 0).to_numpy()
        wanted = numpy(x, axis=0, keepdims=True)
        np.testing.assert_allclose(got, np.minimum(wanted, start) if function is min else wanted, rtol=1e-12)


@pytest.mark.parametrize("module", [tensor_ops, fast_ops])
def test_lifted_functions_on_storages(module):
    out, a = np.zeros(6), np.arange(3.0)
    module.tensor_map(operators.neg)(out, np.array([2, 3]), np.array([3, 1]), a, np.array([1, 3]), np.array([3, 1]))
    np.testing.assert_array_equal(out, [0, -1, -2] * 2)
    module.tensor_zip(operators.add)(
        out, np.array([2, 3]), np.array([1, 2]), a, (3,), (1,), np.array([10.0, 20.0]), (2, 1), (1, 1)
    )
    np.testing.assert_array_equal(out.reshape(3, 2).T, [[10, 11, 12], [20, 21, 22]])
    total = np.array([100.0, 200.0, 300.0])
    module.tensor_reduce(operators.add)(total, (1, 3), (3, 1), np.arange(6.0), (2, 3), (3, 1), 0)
    np.testing.assert_array_equal(total, [103, 205, 307])


def test_a_student_s_own_operations_make_a_backend():
    class Doubled(mt.SimpleOps):
        @staticmethod
        def zip(fn):
            inner = mt.SimpleOps.zip(fn)
            return lambda a, b: inner(inner(a, b), mt.zeros((1,))) if fn is operators.add else inner(a, b)

    backend = mt.TensorBackend(Doubled)
    t = mt.tensor([[1.0, 2.0]], backend=backend)
    mt.grad_check(lambda a: (a + 1.0) * a, t)


def test_what_became_of_a_function_is_read_off_its_kernel():
    lifted = fast_ops.tensor_zip(lambda x, y: x * y + 2.5)
    with pytest.raises(RuntimeError, match="call the zip first"):
        lifted.parallel_diagnostics()
    a = mt.zeros((1 << 20,))
    lifted(*a.tuple(), *a.tuple(), *a.tuple())
    text = lifted.parallel_diagnostics(level=3)
    assert "fused: 2 functions" in text and "2.5" in text and "apply mul" in text and "lanes" in text
    assert "chunks, taken by as many threads" in text
    a = mt.zeros((8,))
    lifted(*a.tuple(), *a.tuple(), *a.tuple())
    assert "parallel: no" in lifted.parallel_diagnostics()


def test_training_reaches_every_data_set_s_shape_and_learns_one():
    random.seed(3)
    for make in mt.datasets.values():
        graph = make(40)
        assert len(graph.X) == len(graph.y) == graph.N == 40 and set(graph.y) <= {0, 1}
    graph = mt.datasets["Simple"](40)
    weights = mt.Parameter(mt.rand((2, 1), FAST) - 0.5, "weights")
    bias = mt.Parameter(mt.zeros((1,), FAST))
    optimizer = mt.SGD([weights, bias], 1.0)
    X, y = mt.tensor(graph.X, FAST), mt.tensor(graph.y, FAST)
    losses = []
    for _ in range(60):  # without zero_grad: a step leaves no gradient behind
        out = (X @ weights.value + bias.value).sigmoid().view(40)
        loss = -((out * y) + (out - 1.0) * (y - 1.0)).log()
        (loss / 40).sum().view(1).backward()
        losses.append(loss.sum()[0])
        optimizer.step()
        assert weights.value.grad is None
    assert losses[-1] < 0.5 * losses[0] and weights.value.name == "weights"

"""vjp: what is saved, pruning, accumulation, overrides, gradients of gradients, and no recursion."""

import numpy as np
import pytest

from tensorsmith.core.dtypes import complex64, float32, float64, int64
from tensorsmith.ir import build as b
from tensorsmith.ir.graph import Graph, Primitive
from tensorsmith.ir.vjp import Saved, vjp
from tensorsmith.scalar import functions as f
from tensorsmith.targets.reference import interpret


def graph_of(function, *shapes, dtype=float64, params=()):
    graph = Graph()
    inputs = [graph.input(shape, dtype, param=i in params) for i, shape in enumerate(shapes)]
    outputs = function(*inputs)
    graph.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return graph


def inputs(*numbers):
    return tuple(Saved("input", i) for i in numbers)


OUTPUT = (Saved("output", 0),)
SAVED = {  # as PyTorch's derivatives.yaml
    "add": (lambda x, y: x + y, (True, True), ()),
    "sub": (lambda x, y: x - y, (True, True), ()),
    "neg": (lambda x, y: -x, (True, False), ()),
    "mul": (lambda x, y: x * y, (True, True), inputs(0, 1)),
    "mul, left only": (lambda x, y: x * y, (True, False), inputs(1)),
    "mul, right only": (lambda x, y: x * y, (False, True), inputs(0)),
    "div": (lambda x, y: x / y, (True, True), inputs(0, 1)),
    "div, left only": (lambda x, y: x / y, (True, False), inputs(1)),
    "pow, base only": (lambda x, y: x**2.0, (True, False), inputs(0)),
    "pow, exponent only": (lambda x, y: x**y, (False, True), inputs(0, 1) + OUTPUT),
    "exp": (lambda x, y: f.exp(x), (True, False), OUTPUT),
    "sigmoid": (lambda x, y: f.sigmoid(x), (True, False), OUTPUT),
    "tanh": (lambda x, y: f.tanh(x), (True, False), OUTPUT),
    "relu": (lambda x, y: f.relu(x), (True, False), OUTPUT),
    "sqrt": (lambda x, y: f.sqrt(x), (True, False), OUTPUT),
    "rsqrt": (lambda x, y: f.rsqrt(x), (True, False), OUTPUT),
    "reciprocal": (lambda x, y: f.reciprocal(x), (True, False), OUTPUT),
    "log": (lambda x, y: f.log(x), (True, False), inputs(0)),
    "sin": (lambda x, y: f.sin(x), (True, False), inputs(0)),
    "abs": (lambda x, y: f.abs(x), (True, False), inputs(0)),
    "maximum": (lambda x, y: f.maximum(x, y), (True, True), inputs(0, 1)),
    "sum": (lambda x, y: b.reduce(x, "sum", (0,)), (True, False), ()),
    "amax": (lambda x, y: b.reduce(x, "max", (0,)), (True, False), inputs(0) + OUTPUT),
    "amax, keepdim": (lambda x, y: b.reduce(x, "max", (0,), keepdim=True), (True, False), inputs(0) + OUTPUT),
    "exp, reshaped and permuted": (lambda x, y: b.permute(b.reshape(f.exp(x), (9, 1)), (1, 0)), (True, False), OUTPUT),
    "cumsum": (lambda x, y: x.graph.add(Primitive.SCAN, (x,), kind="sum", axis=0), (True, False), ()),
    "matmul": (lambda x, y: b.matmul(x, y), (True, True), inputs(0, 1)),
    "matmul, left only": (lambda x, y: b.matmul(x, y), (True, False), inputs(1)),
    "reshape": (lambda x, y: b.reshape(x, (9,)), (True, False), ()),
    "slice": (lambda x, y: b.slice_(x, 0, 1, 2), (True, False), ()),
    "pad": (lambda x, y: b.pad(x, (1, 1), (0, 0)), (True, False), ()),
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_values(name):
    function, needs, saved = SAVED[name]
    backward = vjp(graph_of(function, (3, 3), (3, 3)), needs)
    assert backward.saved == saved
    assert backward.grad_outputs == (0,)
    assert [result is not None for result in backward.results] == list(needs)
    assert len(backward.graph.inputs) == len(saved) + 1


def test_intermediates_are_computed_again_from_inputs():
    backward = vjp(graph_of(lambda x: f.exp(f.sin(x)), (3,)), (True,))
    assert backward.saved == (Saved("input", 0), Saved("output", 0))
    assert [node.attrs.get("fn") for node in backward.graph if node.op is Primitive.MAP].count(f.Fn.EXP) == 0


def test_intermediates_are_computed_again_from_outputs_where_they_can_be():
    def function(x):
        y = f.exp(x)
        return y, f.sin(y * 2.0)

    backward = vjp(graph_of(function, (3,)), (True,), grads=(False, True))
    assert backward.saved == OUTPUT


def test_an_index_that_is_an_output_is_saved():
    def function(x):
        place = b.reduce(x, "argmax", (0,), keepdim=True)
        return x.graph.add(Primitive.GATHER, (x, place), axis=0), place

    assert vjp(graph_of(function, (3, 2)), (True,)).saved == (Saved("output", 1),)


def test_take_saves_the_index_but_not_the_table():
    graph = Graph()
    x, index = graph.input((5, 2), float32), graph.input((3,), int64)
    graph.outputs = (graph.add(Primitive.TAKE, (x, index), axis=0),)
    backward = vjp(graph, (True, False))
    assert backward.saved == inputs(1)
    assert backward.results == (0, None)


def test_a_runtime_scalar_stays_one():
    backward = vjp(graph_of(lambda x, s: x * s, (3,), (), params=(1,)), (True, False))
    assert backward.saved == inputs(1)
    assert backward.graph.inputs[0].attrs["param"] and not backward.graph.inputs[1].attrs["param"]


def test_broadcast_gradients_have_the_shape_of_the_input():
    graph = graph_of(lambda x, y, z: x * y + z, (4, 1, 3), (2, 1), ())
    backward = vjp(graph, (True, True, True))
    shapes = [backward.graph.outputs[i].shape for i in backward.results]
    assert shapes == [(4, 1, 3), (2, 1), ()]


def test_contributions_add_up():
    graph = graph_of(lambda x: x * x + x, (3,))
    backward = vjp(graph, (True,))
    (gradient,) = interpret(backward.graph, [np.array([1.0, 2, 3]), np.ones(3)])
    np.testing.assert_array_equal(gradient, [3, 5, 7])


def test_inputs_with_the_same_gradient_share_an_output():
    backward = vjp(graph_of(lambda x, y: x + y, (3,), (3,)), (True, True))
    assert backward.results == (0, 0)
    assert backward.graph.outputs[0] is backward.graph.inputs[0]


def test_outputs_without_a_gradient_are_left_out():
    def function(x, y):
        return f.exp(x), f.sin(y), b.reduce(x, "argmax", (0,)), f.sign(x)

    graph = graph_of(function, (3,), (3,))
    assert vjp(graph, (True, True)).grad_outputs == (0, 1)
    only_first = vjp(graph, (True, True), grads=(True, False, False, False))
    assert only_first.grad_outputs == (0,)
    assert only_first.results == (0, None)
    assert only_first.saved == OUTPUT
    assert vjp(graph, (False, True)).grad_outputs == (1,)
    nothing = vjp(graph, (False, False))
    assert nothing.saved == nothing.grad_outputs == nothing.graph.outputs == ()


def test_the_same_output_twice_takes_two_gradients():
    backward = vjp(graph_of(lambda x: (f.exp(x), f.exp(x)), (2,)), (True,))
    assert backward.grad_outputs == (0, 1) and backward.saved == OUTPUT
    (gradient,) = interpret(backward.graph, [np.array([2.0, 3]), np.ones(2), np.full(2, 10.0)])
    np.testing.assert_array_equal(gradient, [22, 33])


def test_an_output_that_is_an_input():
    backward = vjp(graph_of(lambda x: (x, x * x), (2,)), (True,))
    assert backward.saved == inputs(0)
    (gradient,) = interpret(backward.graph, [np.array([2.0, 3]), np.ones(2), np.full(2, 10.0)])
    np.testing.assert_array_equal(gradient, [41, 61])


def softmax(x):
    shifted = f.exp(x - b.reduce(x, "max", (1,), keepdim=True))
    return shifted / b.reduce(shifted, "sum", (1,), keepdim=True)


def softmax_rule(inputs, outputs, grads):
    (y,), (g,) = outputs, grads
    return [(g - b.reduce(g * y, "sum", (1,), keepdim=True)) * y]


def test_an_override_replaces_the_derivation_and_agrees_with_it():
    graph = graph_of(softmax, (2, 3))
    derived, own = vjp(graph, (True,)), vjp(graph, (True,), override=softmax_rule)
    assert own.saved == OUTPUT
    x, g = np.random.default_rng(0).normal(size=(2, 2, 3))
    (y,) = interpret(graph, [x])
    assert derived.saved == inputs(0)
    np.testing.assert_allclose(
        interpret(own.graph, [y, g])[0], interpret(derived.graph, [x, g])[0], rtol=1e-12, atol=1e-14
    )


def test_the_gradient_of_an_override_is_fitted_to_its_input():
    graph = graph_of(lambda x, y: x + y, (2, 3), (3,), dtype=float32)
    backward = vjp(graph, (True, True), override=lambda xs, ys, gs: [b.cast(gs[0], float64), gs[0]])
    assert [(node.shape, node.dtype) for node in backward.graph.outputs] == [((2, 3), float32), ((3,), float32)]


def test_second_and_third_derivatives():
    x, graph = np.array([0.3, -1.2]), graph_of(lambda x: f.sin(x), (2,))
    values, expected = [x], [np.cos(x), -np.sin(x), -np.cos(x)]
    for derivative in expected:
        backward = vjp(graph, tuple(node is graph.inputs[0] for node in graph.inputs))
        values = [values[s.number] for s in backward.saved] + [np.ones(2)]
        graph = backward.graph
        np.testing.assert_allclose(interpret(graph, values)[backward.results[0]], derivative)


def test_a_long_chain_does_not_recurse():
    graph = Graph()
    x = graph.input((2,), float32)
    value = x
    for _ in range(5_000):
        value = f.sin(value)
    graph.outputs = (value,)
    assert vjp(graph, (True,)).results == (0,)


def test_the_gradient_of_a_holomorphic_function_is_conjugated():
    graph = Graph()
    x = graph.input((2,), complex64)
    graph.outputs = (x * x,)
    backward = vjp(graph, (True,))
    z, grad = np.array([1 + 2j, 3 - 1j]), np.array([1 + 0j, 2j])
    (found,) = interpret(backward.graph, [z, grad])
    np.testing.assert_allclose(found, grad * np.conj(2 * z))


def test_the_gradient_of_a_real_value_is_real():
    graph = Graph()
    x, y = graph.input((2,), float32), graph.input((2,), complex64)
    graph.outputs = (x * y,)
    backward = vjp(graph, (True, True))
    a, z, grad = np.array([2.0, -1.0]), np.array([1 + 2j, 3 - 1j]), np.array([1 + 1j, 2j])
    values = {"input": [a, z]}
    given = [values[s.kind][s.number] for s in backward.saved] + [grad]
    found = interpret(backward.graph, given)
    np.testing.assert_allclose(found[backward.results[0]], (grad * np.conj(z)).real)
    np.testing.assert_allclose(found[backward.results[1]], grad * a)


def test_pairs_of_real_values_are_their_own_gradient():
    graph = Graph()
    x = graph.input((3,), complex64)
    graph.outputs = (b.as_real(x), b.part(x, 1))
    backward = vjp(graph, (True,))
    pairs, part = np.arange(6.0).reshape(3, 2), np.array([1.0, 2.0, 3.0])
    (found,) = interpret(backward.graph, [pairs, part])
    np.testing.assert_allclose(found, pairs[:, 0] + 1j * (pairs[:, 1] + part))

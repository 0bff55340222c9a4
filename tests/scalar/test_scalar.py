"""Scalar: recording, backward, the graph as text; and a long chain without recursion."""

import math
import sys

import numpy
import pytest

from tensorsmith import scalar
from tensorsmith.scalar import Scalar


def test_backward_through_a_shared_value():
    x, y = Scalar(2.0), Scalar(3.0)
    product = x * y
    (product * product + scalar.sin(x)).backward()
    assert x.grad == pytest.approx(2 * 6 * 3 + math.cos(2.0))
    assert y.grad == pytest.approx(2 * 6 * 2)


def test_gradients_accumulate_over_calls_and_take_a_seed():
    x = Scalar(2.0)
    (x * x).backward()
    (x * x).backward(0.5)
    assert x.grad == 4.0 + 2.0


def test_one_hundred_thousand_operations_backward_and_die_without_recursion():
    x = Scalar(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1e-5 * x
    assert sys.getrecursionlimit() < 100_000
    y.backward()
    assert x.grad == pytest.approx(2.0)
    del y  # frees the chain


def test_second_derivative_by_create_graph():
    x = Scalar(0.7)
    scalar.tanh(x * x).backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.backward()
    expr = scalar.lift(lambda v: scalar.tanh(v * v))
    assert float(first) == pytest.approx(scalar.evaluate(scalar.derivative(expr, 0), [0.7]))
    twice = scalar.derivative(scalar.derivative(expr, 0), 0)
    assert x.grad == pytest.approx(scalar.evaluate(twice, [0.7]))


def test_comparisons_are_bools_and_equality_keeps_the_hash():
    x = Scalar(2.0)
    assert (x > 1) is True and (x == 2.0) is True and (x != 2.0) is False and (1 > x) is False
    assert len({x, x, Scalar(2.0)}) == 2
    assert scalar.where(x > 1, x, 0.0).value == 2.0


def test_what_needs_no_gradient_records_nothing():
    x = Scalar(2.0, requires_grad=False)
    assert (x * 3).history is None
    assert scalar.floor(Scalar(2.5)).history is None
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        (x * 3).backward()
    assert (Scalar(2.0).detach() * 3).is_leaf


def test_operators_and_their_reflections():
    x = Scalar(7.0)
    for ours, expected in [
        (x + 1, 8.0),
        (1 + x, 8.0),
        (x - 1, 6.0),
        (1 - x, -6.0),
        (x * 2, 14.0),
        (2 * x, 14.0),
        (x / 2, 3.5),
        (14 / x, 2.0),
        (x // 2, 3.0),
        (15 // x, 2.0),
        (x % 4, 3.0),
        (-1 % x, 6.0),
        (x**2, 49.0),
        (2**x, 128.0),
        (-x, -7.0),
        (+x, 7.0),
        (abs(-x), 7.0),
        (divmod(x, 4)[1], 3.0),
    ]:
        assert isinstance(ours, Scalar) and ours.value == expected
    assert float(x) == 7.0 and int(x) == 7 and round(Scalar(2.5)).value == 2.0


def test_foreign_numbers_and_foreign_objects():
    x = Scalar(2.0)
    for two in (numpy.float64(2.0), numpy.float32(2.0), numpy.int64(2)):
        for product in (two * x, x * two):
            assert isinstance(product, Scalar) and product.value == 4.0
    with pytest.raises(TypeError):
        x + "1"
    with pytest.raises(TypeError):
        x + None
    with pytest.raises(TypeError, match="cannot mix"):
        x + scalar.variable(0)
    with pytest.raises(TypeError, match="exp: expected a number, got str"):
        scalar.exp("1")


def test_the_graph_is_readable():
    x = Scalar(2.0, name="x")
    y = x * x + 3.0
    y.backward()
    assert y.graph().splitlines() == [
        "x = 2.0    # grad = 4.0",
        "v0 = mul(x, x)    # 4.0",
        "v1 = add(v0, 3.0)    # 7.0",
    ]
    assert y.history.fn is scalar.Fn.ADD and y.history.inputs[1] == 3.0
    dot = y.to_dot()
    assert dot.startswith("digraph") and dot.count('"x" -> "v0";') == 2 and '"v0" -> "v1";' in dot
    assert repr(y) == "Scalar(7.0, made by add)" and repr(Scalar(1.0, requires_grad=False)).endswith("=False)")


def test_gradients_of_a_function():
    assert scalar.gradients(lambda x, y: x * y + y, [2.0, 3.0]) == [3.0, 3.0]
    assert scalar.gradients(lambda x: 1.0, [2.0]) == [0.0]

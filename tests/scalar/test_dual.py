"""Dual numbers against whole-expression derivatives, nested duals, and perturbation confusion."""

import math

import pytest

from tensorsmith import scalar
from tensorsmith.scalar import Dual, derivative, evaluate, forward_derivative, lift

FUNCTIONS = [
    lambda x: scalar.exp(x) * scalar.sin(x),
    lambda x: scalar.softplus(x) / (1 + x * x),
    lambda x: scalar.gelu(x) + scalar.erf(x),
    lambda x: scalar.where(x > 0.5, scalar.log(abs(x)), x**3),
    lambda x: scalar.maximum(x, 0.2) * scalar.minimum(x, 0.4),
    lambda x: scalar.atan2(x, 2.0) + scalar.hypot(x, 1.0),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("point", [0.3, -0.8, 1.9])
def test_dual_equals_the_derived_expression(function, point):
    expr = lift(function)
    once, twice = derivative(expr, 0), derivative(derivative(expr, 0), 0)
    result = function(Dual(point, 1.0))
    assert result.value == pytest.approx(evaluate(expr, [point]), rel=1e-13)
    assert result.tangent == pytest.approx(evaluate(once, [point]), rel=1e-12)
    nested = function(Dual(Dual(point, 1.0), Dual(1.0, 0.0)))
    assert nested.tangent.tangent == pytest.approx(evaluate(twice, [point]), rel=1e-11, abs=1e-12)
    assert forward_derivative(forward_derivative(function))(point) == pytest.approx(
        evaluate(twice, [point]), rel=1e-11, abs=1e-12
    )


def test_an_inner_derivative_is_not_confused_with_the_outer():
    # d/dx [ x * d/dy (x + y) ] = d/dx x = 1; confusing the two perturbations gives 2.
    inner = lambda x: x * forward_derivative(lambda y: x + y)(3.0)
    assert forward_derivative(inner)(5.0) == 1.0


def test_derivative_by_the_second_argument():
    assert forward_derivative(lambda x, y: x * y * y, wrt=1)(2.0, 3.0) == 12.0
    assert forward_derivative(lambda x: 4.0)(2.0) == 0.0


def test_the_side_not_taken_leaks_nothing():
    assert scalar.where(False, scalar.sqrt(Dual(0.0, 1.0)), Dual(2.0, 3.0)).tangent == 3.0


def test_comparisons_and_float():
    assert (Dual(2.0, 1.0) > 1) is True
    assert bool(Dual(0.0, 1.0)) is False
    with pytest.raises(TypeError, match="lose its tangent"):
        math.exp(Dual(1.0, 1.0))


def test_an_expression_evaluates_on_duals_scalars_and_expressions():
    expr = lift(lambda x, y: x * scalar.exp(y))
    assert evaluate(expr, [Dual(2.0, 1.0), 0.0]).tangent == 1.0
    assert evaluate(expr, [scalar.Scalar(2.0), 0.0]).value == 2.0
    assert evaluate(expr, [scalar.variable(0), scalar.variable(1)]) is expr

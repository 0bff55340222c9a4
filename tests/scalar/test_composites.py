"""Composites against PyTorch: values, first derivatives at corners too, second derivatives, stability."""

import math

import pytest
import torch
import torch.nn.functional as F

from tensorsmith import scalar
from tensorsmith.scalar import derivative, evaluate, lift

from .against_torch import NAN, same

ROWS = {
    "square": (scalar.square, torch.square),
    "clamp": (lambda x: scalar.clamp(x, -1.0, 2.5), lambda x: torch.clamp(x, -1.0, 2.5)),
    "clamp min": (lambda x: scalar.clamp(x, min=-1.0), lambda x: torch.clamp(x, min=-1.0)),
    "clamp max": (lambda x: scalar.clamp(x, max=2.5), lambda x: torch.clamp(x, max=2.5)),
    "clamp crossed": (lambda x: scalar.clamp(x, 2.0, 1.0), lambda x: torch.clamp(x, 2.0, 1.0)),
    "hardtanh": (scalar.hardtanh, F.hardtanh),
    "relu6": (scalar.relu6, F.relu6),
    "hardsigmoid": (scalar.hardsigmoid, F.hardsigmoid),
    "hardswish": (scalar.hardswish, F.hardswish),
    "leaky_relu": (scalar.leaky_relu, F.leaky_relu),
    "threshold": (lambda x: scalar.threshold(x, 0.5, 7.0), lambda x: F.threshold(x, 0.5, 7.0)),
    "elu": (scalar.elu, F.elu),
    "elu 2": (lambda x: scalar.elu(x, 2.0), lambda x: F.elu(x, 2.0)),
    "celu": (lambda x: scalar.celu(x, 2.0), lambda x: F.celu(x, 2.0)),
    "selu": (scalar.selu, F.selu),
    "silu": (scalar.silu, F.silu),
    "gelu": (scalar.gelu, F.gelu),
    "gelu tanh": (lambda x: scalar.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "mish": (scalar.mish, lambda x: x * torch.tanh(F.softplus(x, threshold=700.0))),
    "softsign": (scalar.softsign, F.softsign),
    "logsigmoid": (scalar.logsigmoid, F.logsigmoid),
    "tanhshrink": (scalar.tanhshrink, F.tanhshrink),
    "hardshrink": (scalar.hardshrink, F.hardshrink),
    "softshrink": (scalar.softshrink, F.softshrink),
    "logsumexp": (
        lambda x: scalar.logsumexp(x, -x, 0.5 * x),
        lambda x: torch.logsumexp(torch.stack([x, -x, 0.5 * x]), 0),
    ),
}
POINTS = [0.0, -0.5, 0.5, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 6.0, 0.3, -0.7, 1.7, -4.2, 20.0, -20.0, 1e4, -1e4]
# At these points PyTorch's kernel is not the derivative of its forward formula from either side.
OTHER_CONVENTION = {("hardswish", -3.0), ("hardswish", 3.0)}


@pytest.mark.parametrize("name", ROWS)
def test_value_first_and_second_derivative(name):
    ours, theirs = ROWS[name]
    expr = lift(ours, arity=1)
    once = derivative(expr, 0)
    twice = derivative(once, 0)
    for point in POINTS:
        x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        value = theirs(x)
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        assert same(float(ours(point)), value.item(), 1e-12), point
        assert same(float(evaluate(expr, [point])), value.item(), 1e-12), point
        if (name, point) not in OTHER_CONVENTION:
            # PyTorch's hardsigmoid multiplies its gradient by 1/6 rounded to float32.
            tolerance = 1e-8 if name == "hardsigmoid" else 1e-12
            assert same(float(evaluate(once, [point])), first.item(), tolerance), point
            leaf = scalar.Scalar(point)
            ours(leaf).backward()
            assert same(leaf.grad, first.item(), tolerance), point
        if name == "hardsigmoid":  # PyTorch has no second derivative of it; it is zero away from the corners
            assert evaluate(twice, [point]) == 0.0
        elif first.requires_grad and point in (0.3, -0.7, 1.7, -4.2, 20.0, -20.0, 1e4, -1e4):
            (second,) = torch.autograd.grad(first, x, allow_unused=True)
            assert same(float(evaluate(twice, [point])), 0.0 if second is None else (second + 0.0).item(), 1e-11), point


@pytest.mark.parametrize("name", ["clamp", "hardtanh", "elu", "leaky_relu", "silu", "gelu", "softsign", "logsumexp"])
def test_nan_propagates(name):
    assert math.isnan(ROWS[name][0](NAN))


def test_clamp_passes_the_gradient_at_its_bounds():
    for bound in (-1.0, 2.5):
        x = scalar.Scalar(bound)
        scalar.clamp(x, -1.0, 2.5).backward()
        assert x.grad == 1.0


def test_clamp_needs_a_bound():
    with pytest.raises(ValueError, match="at least one of min and max"):
        scalar.clamp(1.0)


def test_two_and_three_inputs():
    def check(ours, theirs, *points):
        for point in points:
            columns = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in point]
            value = theirs(*columns)
            expected = torch.autograd.grad(value, columns)
            assert same(float(ours(*point)), value.item(), 1e-13), point
            for index, gradient in enumerate(scalar.gradients(ours, point)):
                assert same(gradient, expected[index].item(), 1e-13), (point, index)

    check(scalar.xlogy, torch.xlogy, (2.0, 3.0), (0.5, 0.25))
    check(scalar.lerp, torch.lerp, (2.0, 3.0, 0.3), (1.0, -4.0, 2.0))
    assert scalar.xlogy(0.0, 0.0) == 0.0 and math.isnan(scalar.xlogy(0.0, NAN))
    assert same(scalar.logit(0.25), torch.logit(torch.tensor(0.25, dtype=torch.float64)).item(), 1e-15)


def test_gelu_names_an_unknown_approximation():
    with pytest.raises(ValueError, match="'none' or 'tanh', got 'fast'"):
        scalar.gelu(1.0, "fast")

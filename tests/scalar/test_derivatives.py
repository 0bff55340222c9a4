"""Every derivative of the table against PyTorch's autograd, first and second, numeric and as an expression."""

import itertools
import math

import pytest
import torch

from tensorsmith.scalar import expression, functions
from tensorsmith.scalar.fn import Fn, Typing
from tensorsmith.scalar.scalar import Scalar
from tensorsmith.scalar.table import TABLE

from .against_torch import EDGES, GENERIC, INF, NAN, assert_all_same, same, torch_function

NOT_DIFFERENTIABLE_IN_TORCH = {Fn.FLOOR_DIVIDE, Fn.NEXTAFTER}
DIFFERENTIABLE = [
    row
    for row in TABLE.values()
    if row.typing in (Typing.SAME, Typing.FLOAT) and row.fn not in NOT_DIFFERENTIABLE_IN_TORCH
]
# (function, input): points at which PyTorch's own formula is worse than the limit, or differs by design.
ONLY_FINITE = {
    Fn.HYPOT,  # inf / inf
    Fn.LOGADDEXP,  # inf - inf is masked differently
    Fn.COPYSIGN,  # PyTorch divides the result by the input: inf / inf
    Fn.ATAN2,
    Fn.SOFTPLUS,
    Fn.SIGN,
}
FIRST_TOLERANCE = {Fn.DIGAMMA: 1e-8, Fn.LGAMMA: 1e-10, Fn.ERFINV: 1e-9}  # PyTorch's trigamma has an error of 1e-9


def torch_gradients(fn, points, order=1):
    """d fn / d input i for every input; order 2: also every second derivative, as [i][j]."""
    columns = [torch.tensor(c, dtype=torch.float64, requires_grad=True) for c in zip(*points, strict=True)]
    out = torch_function(fn)(*columns)
    first = torch.autograd.grad(out.sum(), columns, create_graph=order == 2, allow_unused=True)
    if order == 1:
        return first
    second = []
    for gradient in first:
        if gradient is None or not gradient.requires_grad:
            second.append([None] * len(columns))
        else:
            second.append(torch.autograd.grad(gradient.sum(), columns, retain_graph=True, allow_unused=True))
    return second


def points_for(fn, grid):
    points = list(itertools.product(grid, repeat=TABLE[fn].arity))
    if fn in ONLY_FINITE:
        points = [point for point in points if all(map(math.isfinite, point))]
    return points


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_first_derivative(row):
    points = points_for(row.fn, EDGES + GENERIC)
    theirs = torch_gradients(row.fn, points)
    ours = [row.products(point, row.value(*point), [1.0] * row.arity) for point in points]
    for position in range(row.arity):
        column = [0.0 if partials[position] is None else partials[position] for partials in ours]
        expected = theirs[position]
        if expected is None:
            expected = torch.zeros(len(points))
        assert_all_same(row.fn, points, column, expected, FIRST_TOLERANCE.get(row.fn, 1e-12))


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_derivative_is_the_products_with_ones(row):
    for point in points_for(row.fn, [0.0, -1.5, 0.3, 2.0]):
        out = row.value(*point)
        partials = row.derivative(*point, out)
        products = row.products(point, out, [1.0] * row.arity)
        assert len(partials) == row.arity
        for partial, product in zip(partials, products, strict=True):
            assert (partial is None) == (product is None)
            assert partial is None or same(float(partial), float(product), 0.0)


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_expression_derivative_equals_the_rule(row):
    inputs = [expression.variable(index) for index in range(row.arity)]
    whole = functions.apply(row.fn, *inputs)
    for index in range(row.arity):
        derived = expression.derivative(whole, index)
        for point in points_for(row.fn, EDGES):
            rule = row.products(point, row.value(*point), [1.0] * row.arity)[index]
            assert same(float(expression.evaluate(derived, point)), 0.0 if rule is None else float(rule), 1e-15), point


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_second_derivative(row):
    grid = [0.3, -0.3, 0.7, -0.7, 1.7, -1.7, 3.6, -2.4]
    points = list(itertools.product(grid, repeat=row.arity))
    theirs = torch_gradients(row.fn, points, order=2)
    inputs = [expression.variable(index) for index in range(row.arity)]
    whole = functions.apply(row.fn, *inputs)
    for i, j in itertools.product(range(row.arity), repeat=2):
        twice = expression.derivative(expression.derivative(whole, i), j)
        ours = [float(expression.evaluate(twice, point)) for point in points]
        expected = torch.zeros(len(points), dtype=torch.float64)
        if theirs[i][j] is not None:
            expected = expected + theirs[i][j]
        if row.fn is Fn.ACOSH:  # outside the domain PyTorch's value is NaN, its gradient not always
            expected = torch.where(torch.tensor([abs(p[0]) < 1 for p in points]), NAN, expected)
        assert_all_same(row.fn, points, ours, expected, 1e-5 if row.fn is Fn.DIGAMMA else 1e-9)


def test_third_derivative_of_lgamma_is_the_derivative_of_trigamma():
    x = expression.variable(0)
    thrice = functions.lgamma(x)
    for _ in range(3):
        thrice = expression.derivative(thrice, 0)
    for point in (0.3, 1.7, 5.2, -0.6):
        expected = torch.special.polygamma(2, torch.tensor(point, dtype=torch.float64)).item()
        assert same(expression.evaluate(thrice, [point]), expected, 1e-6)


def partials(fn, *point):
    return TABLE[fn].products(point, TABLE[fn].value(*point), [1.0] * len(point))


def test_stated_limits_at_corners():
    assert partials(Fn.RELU, 0.0) == (0.0,)
    assert partials(Fn.ABS, 0.0) == (0.0,)
    assert partials(Fn.MAXIMUM, 2.0, 2.0) == (0.5, 0.5)
    assert partials(Fn.MINIMUM, 2.0, 2.0) == (0.5, 0.5)
    assert partials(Fn.POW, 0.0, 0.0) == (0.0, 0.0)
    assert partials(Fn.POW, 0.0, 2.0) == (0.0, 0.0)
    assert partials(Fn.POW, 0.0, 1.0) == (1.0, 0.0)
    assert partials(Fn.POW, -2.0, 3.0)[0] == 12.0
    assert math.isnan(partials(Fn.POW, -2.0, 3.0)[1])


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_mask_blocks_even_nan_and_inf(bad):
    assert TABLE[Fn.RELU].products([-1.0], 0.0, [bad]) == (0.0,)
    assert TABLE[Fn.WHERE].products([True, 1.0, 2.0], 1.0, [None, 3.0, bad]) == (None, 3.0, 0.0)
    assert TABLE[Fn.MAXIMUM].products([1.0, 2.0], 2.0, [bad, 3.0]) == (0.0, 3.0)


def test_second_derivatives_of_pow_at_its_edges():
    x = expression.variable(0)
    for exponent, expected in ((2, 2.0), (2.0, 2.0), (1, 0.0), (0, 0.0), (3, 0.0)):
        twice = expression.derivative(expression.derivative(x**exponent, 0), 0)
        assert expression.evaluate(twice, [0.0]) == expected, exponent


def test_reverse_through_the_table_leaks_no_nan_from_the_side_not_taken():
    # The derivative rules themselves, differentiated backwards (as for double backward), not forwards.
    for exponent in (0.0, 1.0, 2.0):
        x = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
        (theirs,) = torch.autograd.grad(x**exponent, x, create_graph=True)
        ours = Scalar(0.0)
        (ours**exponent).backward(create_graph=True)
        first = ours.grad
        assert float(first) == theirs.item()
        ours.grad = None
        if first.requires_grad:
            first.backward()
            assert not math.isnan(ours.grad)


@pytest.mark.parametrize("fn", [Fn.SIGMOID, Fn.SOFTPLUS, Fn.TANH, Fn.ERF, Fn.LOGADDEXP, Fn.RELU], ids=lambda f: f.value)
def test_stable_over_ten_thousand(fn):
    for x in (-1e4, -745.2, -100.0, 100.0, 709.9, 1e4):
        point = (x,) if TABLE[fn].arity == 1 else (x, -x)
        assert math.isfinite(TABLE[fn].value(*point))
        assert all(math.isfinite(partial) for partial in partials(fn, *point))

"""The Python value of every row against PyTorch's float64, int64 and bool."""

import itertools
import math

import pytest
import torch

from tensorsmith.scalar.fn import Fn, Typing
from tensorsmith.scalar.table import TABLE

from .against_torch import GRID, INTEGERS, assert_all_same, same, torch_function

FLOAT_ROWS = [row for row in TABLE.values() if row.typing is not Typing.INTEGER and row.fn is not Fn.WHERE]
LOOSER = {Fn.LGAMMA: 1e-11, Fn.DIGAMMA: 1e-11, Fn.ERFINV: 1e-12}


def test_every_function_has_a_row():
    assert set(TABLE) == set(Fn)
    for fn, row in TABLE.items():
        assert row.fn is fn and row.name == fn.value and row.source and row.ulp >= 0


@pytest.mark.parametrize("row", FLOAT_ROWS, ids=lambda row: row.name)
def test_float_values(row):
    points = list(itertools.product(GRID, repeat=row.arity))
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True)]
    theirs = torch_function(row.fn)(*columns)
    ours = [row.value(*point) for point in points]
    assert all(type(value) is (bool if row.typing is Typing.BOOL else float) for value in ours)
    assert_all_same(row.fn, points, ours, theirs, LOOSER.get(row.fn, 4e-15))


SIGNED_ZEROS = [Fn.FLOOR, Fn.CEIL, Fn.TRUNC, Fn.ROUND, Fn.SQRT, Fn.NEG, Fn.SIN, Fn.TANH, Fn.MUL, Fn.DIV, Fn.RECIPROCAL]


@pytest.mark.parametrize("fn", SIGNED_ZEROS, ids=lambda fn: fn.value)
def test_signs_of_zeros(fn):
    grid = [0.0, -0.0, 0.5, -0.5, 0.3, -0.3, math.inf, -math.inf]
    for point in itertools.product(grid, repeat=TABLE[fn].arity):
        theirs = torch_function(fn)(*(torch.tensor(x, dtype=torch.float64) for x in point)).item()
        ours = TABLE[fn].value(*point)
        assert math.isnan(ours) or math.copysign(1.0, ours) == math.copysign(1.0, theirs), point


DIVIDING = (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD)


@pytest.mark.parametrize(
    "row",
    [row for row in TABLE.values() if row.typing in (Typing.SAME, Typing.INTEGER, Typing.BOOL)],
    ids=lambda row: row.name,
)
def test_integer_values(row):
    points = list(itertools.product(INTEGERS, repeat=row.arity))
    if row.fn in DIVIDING:  # PyTorch divides -2**63 by -1 in ways that depend on the vector width
        points = [(x, y) for x, y in points if y != 0 and (x, y) != (-(1 << 63), -1)]
    if row.fn in (Fn.LEFT_SHIFT, Fn.RIGHT_SHIFT):
        points = [(x, y) for x, y in points if y >= 0]
    columns = [torch.tensor(column) for column in zip(*points, strict=True)]
    theirs = torch_function(row.fn)(*columns).tolist()
    ours = [row.value(*point) for point in points]
    wrong = [(p, a, b) for p, a, b in zip(points, ours, theirs, strict=True) if a != b or type(a) is not type(b)]
    assert not wrong, wrong[:8]


@pytest.mark.parametrize("fn", DIVIDING, ids=lambda fn: fn.value)
def test_integer_division_by_zero_is_an_error_as_in_torch(fn):
    with pytest.raises(ZeroDivisionError, match="integer division by zero"):
        TABLE[fn].value(3, 0)


BOOL_FUNCTIONS = [Fn.ADD, Fn.MUL, Fn.MINIMUM, Fn.MAXIMUM, Fn.BITWISE_AND, Fn.BITWISE_OR, Fn.BITWISE_XOR, Fn.EQ, Fn.LT]


@pytest.mark.parametrize("fn", [*BOOL_FUNCTIONS, Fn.BITWISE_NOT, Fn.LOGICAL_XOR], ids=lambda fn: fn.value)
def test_bool_values(fn):
    for point in itertools.product([False, True], repeat=TABLE[fn].arity):
        theirs = torch_function(fn)(*(torch.tensor(x) for x in point)).item()
        assert TABLE[fn].value(*point) is theirs, point


def test_where_promotes_its_sides():
    assert TABLE[Fn.WHERE].value(True, 1, 2.5) == 1.0
    assert type(TABLE[Fn.WHERE].value(True, 1, 2.5)) is float
    assert TABLE[Fn.WHERE].value(False, 1, 2) == 2
    assert TABLE[Fn.WHERE].value(True, True, False) is True


def test_whole_functions_of_integers_are_floats():
    for row in TABLE.values():
        if row.typing is Typing.FLOAT:
            assert type(row.value(*[1] * row.arity)) is float, row.name


def test_the_comparison_itself_tells_values_apart():
    assert same(math.nan, math.nan, 0.0) and not same(math.nan, 1.0, 1.0) and not same(1.0, 1.1, 1e-3)

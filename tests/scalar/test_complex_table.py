"""Functions of complex numbers in real parts: accuracy in norm over all ranges, PyTorch's values at special points."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tensorsmith.scalar.complex_parts import DOUBLE
from tensorsmith.scalar.complex_table import COMPLEX
from tensorsmith.scalar.fn import Fn

ORACLE = {  # NumPy's complex128 is good to an ULP or two of each part
    Fn.EXP: np.exp, Fn.LOG: np.log, Fn.SQRT: np.sqrt, Fn.SIN: np.sin, Fn.COS: np.cos, Fn.TAN: np.tan, Fn.SINH: np.sinh,
    Fn.COSH: np.cosh, Fn.TANH: np.tanh, Fn.ASIN: np.arcsin, Fn.ACOS: np.arccos, Fn.ATAN: np.arctan, Fn.ASINH: np.arcsinh,
    Fn.ACOSH: np.arccosh, Fn.ATANH: np.arctanh, Fn.RECIPROCAL: lambda z: 1 / z, Fn.RSQRT: lambda z: 1 / np.sqrt(z),
    Fn.LOG2: lambda z: np.log(z) / math.log(2), Fn.LOG10: lambda z: np.log(z) / math.log(10), Fn.EXPM1: np.expm1,
}  # fmt: skip
ULP = 2.0**-52

size = st.one_of(
    st.floats(1e-300, 1e300), st.floats(0, 4), st.floats(0, 1e-6).map(lambda d: 1 + d), st.sampled_from([0.0, 1.0, 2.0])
)
part = st.tuples(size, st.booleans()).map(lambda p: -p[0] if p[1] else p[0])
number = st.builds(complex, part, part)


def value(fn, *operands):
    result = COMPLEX[fn](DOUBLE, *((z.real, z.imag) for z in operands))
    return complex(*result) if isinstance(result, tuple) else result


def assert_near(found, expected, ulps, point):
    """Within so many units in the last place of the magnitude; denormals within two of the smallest numbers."""
    if not np.isfinite(expected):
        return
    error = abs(complex(found) - complex(expected)) if np.isfinite(found) else math.inf
    assert error <= ulps * ULP * abs(complex(expected)) * (1 + 1e-9) + 1e-323, (point, found, expected)


@pytest.mark.parametrize("fn", ORACLE, ids=lambda fn: fn.value)
@settings(max_examples=150, deadline=None)
@given(z=number)
def test_accuracy(fn, z):
    with np.errstate(all="ignore"):
        expected = complex(ORACLE[fn](np.complex128(z)))
    if max(abs(expected.real), abs(expected.imag)) < 1.7e308:
        assert_near(value(fn, z), expected, 6, z)


@settings(max_examples=200, deadline=None)
@given(x=st.floats(0.5, 2), y=part)
def test_log1p_is_the_logarithm_of_what_lies_one_above(x, y):
    assert_near(value(Fn.LOG1P, complex(x - 1, y)), complex(np.log(complex(x, y))), 6, (x, y))


@settings(max_examples=100, deadline=None)
@given(z=st.builds(complex, st.floats(-1e-5, 1e-5), st.floats(-1e-5, 1e-5)))
def test_expm1_and_log1p_undo_each_other_near_zero(z):
    assert_near(value(Fn.LOG1P, value(Fn.EXPM1, z)), z, 8, z)


@settings(max_examples=200, deadline=None)
@given(a=number, b=number)
def test_quotients_times_the_divisor(a, b):
    if b == 0:
        return
    quotient = value(Fn.DIV, a, b)
    with np.errstate(all="ignore"):
        expected = complex(np.complex128(a) / np.complex128(b))
    if np.isfinite(expected) and 1e-290 < abs(b) < 1e290 and 1e-290 < abs(expected) < 1e290:
        assert_near(quotient, expected, 8, (a, b))


@pytest.mark.parametrize("a, b, expected", [
    (1e308 + 1e308j, 1e308 + 1e308j, 1), (1e308 + 0j, 2e307 + 2e307j, 2.5 - 2.5j), (1e-320 + 1e-320j, 1e-320 + 0j, 1 + 1j),
    (4e-324 + 0j, 0 + 4e-324j, -1j), (1 + 0j, 1e308 + 1e308j, 5e-309 - 5e-309j),
])  # fmt: skip
def test_quotients_at_the_ends_of_the_range(a, b, expected):
    assert_near(value(Fn.DIV, a, b), expected, 2, (a, b))


def test_magnitudes_at_the_ends_of_the_range():
    assert value(Fn.ABS, 3e307 + 4e307j) == pytest.approx(5e307, rel=1e-15)
    assert value(Fn.ABS, 3e-310 + 4e-310j) == pytest.approx(5e-310, rel=1e-12)
    assert value(Fn.LOG, 1.5e308 + 1.5e308j).real == pytest.approx(math.log(1.5e308) + 0.5 * math.log(2), rel=1e-15)
    assert value(Fn.LOG, 5e-324 + 5e-324j).real == pytest.approx(math.log(5e-324) + 0.5 * math.log(2), rel=1e-15)
    assert value(Fn.SQRT, 1.7e308 + 1.7e308j).real == pytest.approx(math.sqrt(1.7e308) * 1.0986841134678098, rel=1e-14)
    assert value(Fn.EXP, 710 + 1.5j).real == pytest.approx(math.exp(700) * (math.exp(10) * math.cos(1.5)), rel=1e-12)


VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e30, math.inf, -math.inf, math.nan]
POINTS = [complex(a, b) for a, b in itertools.product(VALUES, repeat=2)]
SPECIAL = [fn for fn in (*ORACLE, Fn.LOG1P, Fn.EXP2) if fn is not Fn.EXPM1]


def same_part(a, b):
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if a == 0 and b == 0:
        return math.copysign(1, a) == math.copysign(1, b)
    return a == b or abs(a - b) <= 1e-12 * max(abs(a), abs(b))


@pytest.mark.parametrize("fn", SPECIAL, ids=lambda fn: fn.value)
def test_special_values(fn):
    """Infinities, NaN and signs of zero, on both sides of every branch cut.

    EXPM1 is left out: at infinity PyTorch has inf * nan where exp(z) - 1 has a value. Its acos is pi / 2 - asin, without
    the signs of zero of C99, so there NumPy says what is right.
    """
    if fn is Fn.ACOS:
        with np.errstate(all="ignore"):
            theirs = np.arccos(np.array(POINTS)).tolist()
    else:
        theirs = getattr(torch, fn.value)(torch.tensor(POINTS, dtype=torch.complex128)).tolist()
    for z, expected in zip(POINTS, theirs):
        found = value(fn, z)
        if math.isnan(expected.real) and math.isnan(expected.imag) and fn in (Fn.LOG1P, Fn.LOG2, Fn.LOG10):
            continue  # where C99's logarithm has an infinite part
        assert same_part(found.real, expected.real) and same_part(found.imag, expected.imag), (z, found, expected)


@pytest.mark.parametrize("fn, function", [(Fn.MUL, torch.mul), (Fn.DIV, torch.div)], ids=["mul", "div"])
def test_special_values_of_two(fn, function):
    points = list(itertools.product([z for z in POINTS if abs(z) != 1e30], repeat=2))
    a, b = (torch.tensor(column, dtype=torch.complex128) for column in zip(*points))
    for (x, y), expected in zip(points, function(a, b).tolist()):
        found = value(fn, x, y)
        if x != x or y != y or not (np.isfinite(x) and np.isfinite(y)):
            if not (same_part(found.real, expected.real) and same_part(found.imag, expected.imag)):
                # PyTorch's vector code differs from its scalar code.
                one = function(*(torch.tensor([z], dtype=torch.complex128) for z in (x, y))).tolist()[0]
                assert same_part(found.real, one.real) and same_part(found.imag, one.imag), (x, y, found, expected, one)
        else:
            assert same_part(found.real, expected.real) and same_part(found.imag, expected.imag), (x, y, found, expected)


@settings(max_examples=200, deadline=None)
@given(a=st.builds(complex, st.floats(-4, 4), st.floats(-4, 4)), b=st.builds(complex, st.floats(-4, 4), st.floats(-4, 4)))
def test_powers(a, b):
    if abs(a) > 1e-3:
        assert_near(value(Fn.POW, a, b), a**b, 60, (a, b))


def test_arcs_beside_the_branch_points():
    assert_near(value(Fn.ACOS, 1 + 5e-324j), complex(math.sqrt(5e-324), -math.sqrt(5e-324)), 4, "1 + 5e-324j")
    assert_near(value(Fn.ATANH, 1 + 5e-324j).real, complex(np.arctanh(np.complex128(1 + 5e-324j))).real, 4, "1 + 5e-324j")


def test_powers_of_zero():
    assert value(Fn.POW, 0j, 0j) == 1 and value(Fn.POW, 0j, 2 + 1j) == 0 and value(Fn.POW, 5 + 1j, 0j) == 1


def test_sigmoid_does_not_overflow():
    assert value(Fn.SIGMOID, -1000 + 1j) == 0 and value(Fn.SIGMOID, 1000 + 1j) == 1
    z = 0.3 - 0.7j
    assert value(Fn.SIGMOID, z) == pytest.approx(1 / (1 + np.exp(-z)), rel=1e-15)


def test_comparisons_and_predicates():
    assert value(Fn.EQ, 1 + 2j, 1 + 2j) and not value(Fn.EQ, 1 + 2j, 1 + 3j) and value(Fn.NE, 1 + 2j, 0 + 2j)
    assert value(Fn.ISNAN, complex(0, math.nan)) and value(Fn.ISINF, complex(-math.inf, 0))
    assert not value(Fn.ISFINITE, complex(0, math.inf)) and value(Fn.ISFINITE, 1 + 1j)

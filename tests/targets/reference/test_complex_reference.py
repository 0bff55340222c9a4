"""Complex functions of the reference and of Python numbers: values, branch cuts, infinities, NaN and signed zeros."""

import cmath
import math

import numpy as np
import pytest
import torch

from tensorsmith.core.dtypes import complex128
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph
from tensorsmith.scalar import functions as f
from tensorsmith.scalar.complex_values import COMPLEX_VALUES
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.reference import interpret

INF, NAN = math.inf, math.nan
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, INF, -INF, NAN, 1e-300, 1e300, -1e160]
SPECIAL = np.array([complex(a, b) for a in PARTS for b in PARTS])
UNARY = [
    Fn.ABS, Fn.ANGLE, Fn.SGN, Fn.CONJ, Fn.EXP, Fn.EXP2, Fn.EXPM1, Fn.LOG, Fn.LOG1P, Fn.LOG2, Fn.LOG10, Fn.SQRT, Fn.RSQRT,
    Fn.RECIPROCAL, Fn.SIN, Fn.COS, Fn.TAN, Fn.ASIN, Fn.ACOS, Fn.ATAN, Fn.SINH, Fn.COSH, Fn.TANH, Fn.ASINH, Fn.ACOSH, Fn.ATANH,
    Fn.SIGMOID, Fn.NEG, Fn.ISNAN, Fn.ISINF, Fn.ISFINITE, Fn.LOGICAL_NOT,
]  # fmt: skip


def reference(fn, *arrays):
    graph = Graph()
    graph.outputs = (build.map_(fn, *[graph.input(x.shape, complex128) for x in arrays]),)
    return interpret(graph, arrays)[0]


def same_part(x, y, size):
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    if math.isinf(x) or math.isinf(y):
        return x == y
    return abs(x - y) <= 1e-12 * size and (x != 0 or y != 0 or math.copysign(1, x) == math.copysign(1, y))


def same(a, b):
    """Equal parts: NaN to NaN, infinities and zeros with their sign, others to 1e-12 of the number's size."""
    a, b = complex(a), complex(b)
    size = abs(b) if cmath.isfinite(b) else 1.0
    return same_part(a.real, b.real, size) and same_part(a.imag, b.imag, size)


def differences(points, ours, expected):
    return {complex(p): (complex(a), complex(b)) for p, a, b in zip(points, ours, expected) if not same(a, b)}


# Where PyTorch is not C99, or inexact: log1p of zeros and infinities, acos on the upper side of its cut, a sigmoid that is
# NaN where exp overflows, a negative zero.
def _torch_differs(fn, z):
    if fn is Fn.LOG1P:
        return not cmath.isfinite(z) or z == 0
    if fn is Fn.ACOS:
        return abs(z.real) <= 1 and 0 <= z.imag <= 1e-300
    if fn is Fn.NEG:
        return z.imag == 0 or z.real == 0
    return fn is Fn.SIGMOID and z.real < 0


@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: fn.value)
def test_special_values_are_those_of_pytorch(fn):
    theirs = getattr(torch, fn.value)(torch.from_numpy(SPECIAL)).resolve_conj().numpy()
    found = differences(SPECIAL, reference(fn, SPECIAL), theirs)
    assert {z: v for z, v in found.items() if not _torch_differs(fn, z)} == {}


# C99 leaves the sign of an infinity or a zero open here, and NumPy and Python choose differently.
def _open_sign(fn, z):
    return fn in {
        Fn.SIN, Fn.SINH, Fn.TAN, Fn.TANH, Fn.ASIN, Fn.ACOS, Fn.ATAN, Fn.ATANH, Fn.ACOSH, Fn.RECIPROCAL, Fn.SIGMOID
    } and (not cmath.isfinite(z) or z == 0)  # fmt: skip


@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: fn.value)
def test_special_values_of_python_numbers(fn):
    ours = [COMPLEX_VALUES[fn](complex(z)) for z in SPECIAL]
    for z, (a, b) in differences(SPECIAL, ours, reference(fn, SPECIAL)).items():
        if fn is Fn.ACOSH and z.real == 0 and math.isnan(z.imag):  # C99 gives the imaginary part, Python does not
            continue
        assert _open_sign(fn, z), (z, a, b)
        for x, y in ((a.real, b.real), (a.imag, b.imag)):
            assert abs(x) == abs(y) or (x != x and y != y), (z, a, b)


def points(count=400, low=-3, high=3):
    random = np.random.default_rng(5)
    size = 10.0 ** random.uniform(low, high, count)
    return size * np.exp(1j * random.uniform(-np.pi, np.pi, count))


@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: fn.value)
def test_values(fn):
    z = points(low=-8, high=2)
    theirs = getattr(torch, fn.value)(torch.from_numpy(z)).resolve_conj().numpy()
    np.testing.assert_allclose(reference(fn, z), theirs, rtol=1e-13)
    np.testing.assert_allclose([COMPLEX_VALUES[fn](complex(x)) for x in z], theirs, rtol=1e-13)


@pytest.mark.parametrize("fn", [Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.POW, Fn.LOGADDEXP, Fn.EQ, Fn.NE], ids=lambda fn: fn.value)
def test_values_of_two_arguments(fn):
    x, y = points(), np.roll(points(), 7)
    if fn in (Fn.POW, Fn.LOGADDEXP):
        x, y = points(low=-1, high=1), np.roll(points(low=-1, high=1), 7)
    y[::5] = x[::5]
    theirs = getattr(torch, fn.value)(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(reference(fn, x, y), theirs, rtol=1e-12)
    np.testing.assert_allclose([COMPLEX_VALUES[fn](complex(a), complex(b)) for a, b in zip(x, y)], theirs, rtol=1e-12)


CUTS = {  # a point on the cut and the sides its imaginary or real part tells apart
    Fn.LOG: -2.0, Fn.SQRT: -2.0, Fn.LOG1P: -3.0, Fn.LOG2: -2.0, Fn.LOG10: -2.0, Fn.ASIN: 2.0, Fn.ACOS: -2.0, Fn.ACOSH: 0.5,
    Fn.ATANH: 2.0, Fn.RSQRT: -2.0,
}  # fmt: skip


@pytest.mark.parametrize("fn", CUTS, ids=lambda fn: fn.value)
def test_a_branch_cut_has_two_sides(fn):
    above, below = reference(fn, np.array([complex(CUTS[fn], 0.0), complex(CUTS[fn], -0.0)]))
    assert above == pytest.approx(below.conjugate()) and abs(above - below) > 0.5
    nearby = reference(fn, np.array([complex(CUTS[fn], 1e-12), complex(CUTS[fn], -1e-12)]))
    np.testing.assert_allclose([above, below], nearby, rtol=1e-9)


def test_a_power_of_zero():
    x = np.array([0j, 0j, 0j, 1j, 2 + 0j])
    y = np.array([0j, 2 + 0j, 1 + 1j, 0j, 0.5 + 0j])
    np.testing.assert_allclose(reference(Fn.POW, x, y), [1, 0, 0, 1, math.sqrt(2)])  # PyTorch has NaN for 0j ** 0j
    assert [COMPLEX_VALUES[Fn.POW](a, b) for a, b in ((0j, 0j), (0j, 2), (1j, 0))] == [1, 0, 1]


def test_python_numbers_go_through_the_same_functions():
    assert f.mul(2j, 3) == 6j and f.abs(3 + 4j) == 5.0 and f.conj_physical(1 + 2j) == 1 - 2j
    assert f.sqrt(-4 + 0j) == 2j and f.exp(1j * math.pi) == pytest.approx(-1)
    assert f.add(np.complex64(1 + 1j), 1) == 2 + 1j
    with pytest.raises(TypeError, match="floor: not defined for complex numbers"):
        f.floor(1j)

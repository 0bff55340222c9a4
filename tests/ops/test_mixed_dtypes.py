"""Operators composed of several functions, over operands of unlike dtypes: promoted before anything is computed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from both_libraries import agree, normal, refuse

import tensorsmith as ts

torch = pytest.importorskip("torch")

LEFT, RIGHT = np.array([7.0, 1.0, 3.0, 2.0]), np.array([3.0, 2.0, 1.0, 5.0])
DTYPES = ("float64", "float32", "float16", "int64", "int32", "uint8", "int8")


@pytest.mark.parametrize("name", ["logaddexp2", "xlogy", "ldexp", "heaviside", "fmax", "fmin"])
def test_dtypes_mix(name: str) -> None:
    for a, b in itertools.product(DTYPES, repeat=2):
        if name == "heaviside" and a != b:
            continue  # PyTorch refuses two dtypes there
        if name == "logaddexp2" and "float" not in a + b:
            continue  # ... and integers alone here
        gradient = name not in ("heaviside",)
        agree(lambda L, x, y: getattr(L, name)(x, y), LEFT.astype(a), RIGHT.astype(b), gradient=gradient)


@pytest.mark.parametrize("number", [2, -1, 2.5, 1 / 3])
def test_a_number_takes_part_in_the_dtype_of_the_tensor(number: float) -> None:
    for dtype in DTYPES:
        agree(lambda L, x: L.xlogy(x, abs(number)), LEFT.astype(dtype))
        agree(lambda L, x: L.ldexp(x, L.tensor(number)), LEFT.astype(dtype), gradient=False)


def test_bool_is_not_subtracted() -> None:
    for other in (2, 2.5, True):
        refuse(lambda L: L.ones(3).gt(0) - other, "Subtraction")
    refuse(lambda L: 1 - L.ones(3).gt(0), "Subtraction")
    refuse(lambda L: L.ones(3) - L.ones(3).gt(0), "Subtraction")
    refuse(lambda L: L.ones(3).gt(0) - L.ones(3).gt(0), "logical_xor")
    refuse(lambda L: L.ones(3).sub_(L.ones(3).gt(0)), "Subtraction")


def test_index_add_scales_in_the_dtype_of_the_tensor() -> None:
    index = np.array([0, 0])
    for dtype in ("bool", "uint8", "int64", "float32"):
        agree(
            lambda L, x, i: x.index_add(0, i, x[:2], alpha=2),
            (np.arange(12).reshape(3, 4) % 3).astype(dtype), index, gradient=False,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_gradient_of_sinc_near_zero(dtype: str) -> None:
    """Against its series in float64: (cos a - sin a / a) / x cancels there, and 0 / 0 must not appear."""
    points = np.concatenate([[0.0, -0.0, 1e-40, 1e-30, -1e-20, 1e-8, 1e-5, 1e-3, 0.02, 0.15, 0.16], normal(50)])
    x = ts.from_numpy(points).to(getattr(ts, dtype)).requires_grad_()
    (found,) = ts.autograd.grad(ts.sinc(x).sum(), x)
    wanted = []
    for value in x.detach().to(ts.float64).tolist():
        a = math.pi * value
        if abs(a) < 1:  # sum over k of (-1)^k 2k a^(2k - 1) / (2k + 1)!
            slope = sum((-1) ** k * 2 * k * a ** (2 * k - 1) / math.factorial(2 * k + 1) for k in range(1, 14))
        else:
            slope = math.cos(a) / a - math.sin(a) / a**2
        wanted.append(math.pi * slope)
    tolerance = 1e-13 if dtype == "float64" else 3e-6
    np.testing.assert_allclose(found.to(ts.float64).numpy(), wanted, rtol=tolerance, atol=tolerance * 1e-2 + 1e-44)


def test_the_gradient_of_the_gradient_of_sinc() -> None:
    x = ts.from_numpy(np.array([0.0, 1e-3, 0.1, 0.159, 0.16, 0.7, -2.3])).requires_grad_()
    assert ts.autograd.gradgradcheck(ts.sinc, (x,), atol=1e-4)

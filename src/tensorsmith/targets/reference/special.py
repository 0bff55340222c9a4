"""Special functions that no kernel renders, on float64 arrays: `ROUTINES[name](arrays, attrs) -> array`.

Bessel functions of the second kind and those of order 0 and 1, K0 and K1, and the Airy function are Cephes'
approximations (`cephes.py`). Errors measured against 60 digits: below 1e-15 of the larger of 1 and
the value, away from the zeros of the oscillating ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorsmith.scalar import bessel_series
from tensorsmith.targets.reference import cephes
from tensorsmith.targets.reference.incomplete_gamma import lower_gamma, upper_gamma
from tensorsmith.targets.reference.orthogonal_polynomials import POLYNOMIALS

Arrays = Sequence[np.ndarray]
Attrs = Mapping[str, Any]
Function = Callable[[np.ndarray], np.ndarray]

_TWO_OVER_PI = 2 / math.pi


def _polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """The value at x, highest power first."""
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _chebyshev(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """The series at x, highest term first and the constant counted half (Clenshaw)."""
    now, before, last = np.full_like(x, coefficients[0]), np.zeros_like(x), np.zeros_like(x)
    for c in coefficients[1:]:
        now, before, last = x * now - before + c, now, before
    return 0.5 * (now - last)


# --- Bessel functions -------------------------------------------------------------------------------------------------


def _far(x: np.ndarray, name: str, phase: float, shifted: bool) -> np.ndarray:
    """J (or Y, a quarter period further) beyond 5: amplitude and phase as rational functions of 25 / x**2."""
    table = vars(cephes)
    z = 25.0 / (x * x)
    p = _polynomial(z, table[f"{name}_PP"]) / _polynomial(z, table[f"{name}_PQ"])
    q = _polynomial(z, table[f"{name}_QP"]) / _polynomial(z, table[f"{name}_QQ"]) * 5.0 / x
    sine, cosine = np.sin(x - phase), np.cos(x - phase)
    wave = p * sine + q * cosine if shifted else p * cosine - q * sine
    return np.where(np.isinf(x), 0.0, wave * math.sqrt(_TWO_OVER_PI) / np.sqrt(x))


def _near_j0(x: np.ndarray) -> np.ndarray:
    z = x * x
    ratio = _polynomial(z, cephes.J0_RP) / _polynomial(z, cephes.J0_RQ)
    near = (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * ratio
    return np.where(x < 1e-5, 1.0 - z / 4, near)


def _near_j1(x: np.ndarray) -> np.ndarray:
    z = x * x
    ratio = _polynomial(z, cephes.J1_RP) / _polynomial(z, cephes.J1_RQ)
    return ratio * x * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)


def bessel_j0(x: np.ndarray) -> np.ndarray:
    """J0."""
    x = np.abs(x)
    return np.where(x <= 5, _near_j0(np.minimum(x, 5)), _far(np.maximum(x, 5), "J0", math.pi / 4, False))


def bessel_j1(x: np.ndarray) -> np.ndarray:
    """J1, which is odd."""
    size = np.abs(x)
    value = np.where(size <= 5, _near_j1(np.minimum(size, 5)), _far(np.maximum(size, 5), "J1", 0.75 * math.pi, False))
    return np.where(x < 0, -value, value)


def bessel_y0(x: np.ndarray) -> np.ndarray:
    """Y0: -inf at 0, NaN below."""
    low = np.clip(x, 0, 5)
    z = low * low
    near = _polynomial(z, cephes.Y0_YP) / _polynomial(z, cephes.Y0_YQ) + _TWO_OVER_PI * np.log(low) * _near_j0(low)
    value = np.where(x <= 5, near, _far(np.maximum(x, 5), "J0", math.pi / 4, True))
    return np.where(x == 0, -np.inf, np.where(x >= 0, value, np.nan))


def bessel_y1(x: np.ndarray) -> np.ndarray:
    """Y1: -inf at 0, NaN below."""
    low = np.clip(x, 0, 5)
    z = low * low
    near = low * (_polynomial(z, cephes.Y1_YP) / _polynomial(z, cephes.Y1_YQ))
    near = near + _TWO_OVER_PI * (_near_j1(low) * np.log(low) - 1.0 / low)
    value = np.where(x <= 5, near, _far(np.maximum(x, 5), "J1", 0.75 * math.pi, True))
    return np.where(x == 0, -np.inf, np.where(x >= 0, value, np.nan))


def modified_bessel_i0(x: np.ndarray) -> np.ndarray:
    """I0."""
    x = np.abs(x)
    scaled = np.where(
        x <= 8, _chebyshev(np.minimum(x, 8) / 2 - 2, bessel_series.I0_SMALL),
        _chebyshev(32 / np.maximum(x, 8) - 2, bessel_series.I0_LARGE) / np.sqrt(x),
    )  # fmt: skip
    return np.where(np.isinf(x), np.inf, np.exp(x) * scaled)


def modified_bessel_i1(x: np.ndarray) -> np.ndarray:
    """I1, which is odd."""
    size = np.abs(x)
    scaled = np.where(
        size <= 8, _chebyshev(np.minimum(size, 8) / 2 - 2, bessel_series.I1_SMALL) * size,
        _chebyshev(32 / np.maximum(size, 8) - 2, bessel_series.I1_LARGE) / np.sqrt(size),
    )  # fmt: skip
    return np.copysign(np.where(np.isinf(size), np.inf, np.exp(size) * scaled), x)


def scaled_modified_bessel_k0(x: np.ndarray) -> np.ndarray:
    """exp(x) K0(x): inf at 0, NaN below."""
    low, high = np.clip(x, 0, 2), np.maximum(x, 2)
    near = _chebyshev(low * low - 2, cephes.K0_SMALL) - np.log(0.5 * low) * modified_bessel_i0(low)
    far = _chebyshev(8 / high - 2, cephes.K0_LARGE) / np.sqrt(high)
    return np.where(x == 0, np.inf, np.where(x < 0, np.nan, np.where(x <= 2, near * np.exp(low), far)))


def scaled_modified_bessel_k1(x: np.ndarray) -> np.ndarray:
    """exp(x) K1(x): inf at 0, NaN below."""
    low, high = np.clip(x, 0, 2), np.maximum(x, 2)
    near = np.log(0.5 * low) * modified_bessel_i1(low) + _chebyshev(low * low - 2, cephes.K1_SMALL) / low
    far = _chebyshev(8 / high - 2, cephes.K1_LARGE) / np.sqrt(high)
    return np.where(x == 0, np.inf, np.where(x < 0, np.nan, np.where(x <= 2, near * np.exp(low), far)))


def spherical_bessel_j0(x: np.ndarray) -> np.ndarray:
    """sin(x) / x, 1 at 0 and 0 at infinity."""
    near = np.abs(x) < 1e-8
    return np.where(np.isinf(x), 0.0, np.where(near, 1.0, np.sin(x) / np.where(near, 1.0, x)))


def airy_ai(x: np.ndarray) -> np.ndarray:
    """Ai: oscillating below -2.09, its Maclaurin series up to 2.09 (and its tail in between), decaying beyond."""
    size = np.maximum(np.abs(x), 2.09)
    root = np.sqrt(size)
    zeta = 2.0 * size * root / 3.0
    amplitude = 1 / math.sqrt(math.pi) / np.sqrt(root)
    z = 1.0 / zeta
    decaying = amplitude * _polynomial(z, cephes.AIRY_AN) / _polynomial(z, cephes.AIRY_AD) / (2.0 * np.exp(zeta))
    square = z * z
    f = 1.0 + square * _polynomial(square, cephes.AIRY_AFN) / _polynomial(square, cephes.AIRY_AFD)
    g = z * _polynomial(square, cephes.AIRY_AGN) / _polynomial(square, cephes.AIRY_AGD)
    angle = zeta + math.pi / 4
    oscillating = amplitude * (np.sin(angle) * f - np.cos(angle) * g)
    value = np.where(x >= 2.09, decaying, np.where(x < -2.09, oscillating, _airy_series(np.clip(x, -2.09, 2.09))))
    return np.where(np.isinf(x), np.nan, value)


def _airy_series(x: np.ndarray) -> np.ndarray:
    cube, f, g, m, n, k = x * x * x, np.ones_like(x), x.copy(), np.ones_like(x), x.copy(), 1.0
    for _ in range(20):  # |x| <= 2.09: the terms fall below the last bit after 14
        m = m * cube / ((k + 1) * (k + 2))
        n = n * cube / ((k + 2) * (k + 3))
        f, g, k = f + m, g + n, k + 3
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g


# --- of two arguments -------------------------------------------------------------------------------------------------

_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138,
    -236364091 / 2730,
)  # fmt: skip


def zeta(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Hurwitz' sum of (q + k)**-x over k >= 0: terms up to q + k > 9, at least ten, then Euler and Maclaurin."""
    x, q = np.broadcast_arrays(x, q)
    whole = q == np.floor(q)
    bad = (x < 1) | ((q <= 0) & ~whole & (x != np.floor(x))) | np.isnan(x) | np.isnan(q)
    infinite = ((x == 1) | ((q <= 0) & whole)) & ~(x < 1)
    normal = ~(bad | infinite)
    s, a = np.where(normal, x, 2.0), np.where(normal, q, 1.0)
    total = np.power(a, -s)
    b = total
    ends = np.maximum(9, np.floor(9 - a) + 1)
    for k in range(1, int(ends.max(initial=9)) + 1):
        going = k <= ends
        term = np.power(np.where(going, a + k, 1.0), -s)
        total, b = np.where(going, total + term, total), np.where(going, term, b)
    w = a + ends
    total = total + b * w / (s - 1) - 0.5 * b
    factor, power = s, b / w
    for j, bernoulli in enumerate(_BERNOULLI, start=1):
        total = total + factor * power * (bernoulli / math.factorial(2 * j))
        factor = factor * (s + 2 * j - 1) * (s + 2 * j)
        power = power / (w * w)
    total = np.where(np.isinf(s), np.where(a > 1, 0.0, np.where(a == 1, 1.0, np.inf)), total)
    return np.where(infinite, np.inf, np.where(bad, np.nan, total))


def no_derivative(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """The derivative that is not known: an error when, and only when, a backward pass asks for it."""
    raise NotImplementedError(f"the derivative for '{attrs['what']}' is not implemented.")


_OF_ONE: dict[str, Function] = {
    "airy_ai": airy_ai, "bessel_j0": bessel_j0, "bessel_j1": bessel_j1, "bessel_y0": bessel_y0, "bessel_y1": bessel_y1,
    "spherical_bessel_j0": spherical_bessel_j0,
    "modified_bessel_i0": modified_bessel_i0, "modified_bessel_i1": modified_bessel_i1,
    "modified_bessel_k0": lambda x: scaled_modified_bessel_k0(x) * np.exp(-x),
    "modified_bessel_k1": lambda x: scaled_modified_bessel_k1(x) * np.exp(-x),
    "scaled_modified_bessel_k0": scaled_modified_bessel_k0, "scaled_modified_bessel_k1": scaled_modified_bessel_k1,
}  # fmt: skip
_OF_TWO: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "zeta": zeta, "igamma": lower_gamma, "igammac": upper_gamma,
}  # fmt: skip


def _of_one(function: Function) -> Callable[[Arrays, Attrs], np.ndarray]:
    return lambda arrays, attrs: function(arrays[0])


def _of_two(function: Callable[..., np.ndarray]) -> Callable[[Arrays, Attrs], np.ndarray]:
    return lambda arrays, attrs: function(arrays[0], arrays[1])


ROUTINES: dict[str, Callable[[Arrays, Attrs], np.ndarray]] = {
    **{name: _of_one(function) for name, function in _OF_ONE.items()},
    **{name: _of_two(function) for name, function in _OF_TWO.items()},
    **POLYNOMIALS,
    "no_derivative": no_derivative,
}

"""Orthogonal polynomials of integer degree on float64 arrays, by their recurrences in the degree.

Inside (-1, 1) Chebyshev polynomials of higher degree are taken from their trigonometric form, whose error does not grow.
A negative degree gives 0, and so does one that is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray]
Attrs = Mapping[str, Any]
Step = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # of k, x, p[k-1], p[k]: p[k+1]


def _degrees(n: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(n), np.trunc(np.clip(np.nan_to_num(n), -1.0, 2.0**31)), -1.0).astype(np.int64)


def _recurrence(x: np.ndarray, n: np.ndarray, first: np.ndarray, step: Step) -> np.ndarray:
    """p[n](x) from p[0] = 1, p[1] = first: all elements walk until each has its degree, or no longer changes."""
    before, now = np.ones_like(x), first
    result = np.where(n < 0, 0.0, np.where(n == 0, 1.0, now))
    for k in range(1, int(n.max(initial=0))):
        before, now = now, step(k, x, before, now)
        result = np.where(n == k + 1, now, result)
        if np.isnan(now).all():
            return np.where(n > k, np.nan, result)
    return result


def _chebyshev(kind: str, shifted: bool) -> Callable[[Arrays, Attrs], np.ndarray]:
    firsts = {"t": (1.0, 0.0), "u": (2.0, 0.0), "v": (2.0, -1.0), "w": (2.0, 1.0)}
    slope, constant = firsts[kind]

    def inside(x: np.ndarray, n: np.ndarray) -> np.ndarray:
        angle = np.arccos(x)
        if kind == "t":
            return np.cos(n * angle)
        if kind == "u":
            return np.sin((n + 1) * angle) / np.sin(angle)
        if kind == "v":
            return np.cos((n + 0.5) * angle) / np.cos(angle / 2)
        return np.sin((n + 0.5) * angle) / np.sin(angle / 2)

    def at_ends(x: np.ndarray, n: np.ndarray) -> np.ndarray:
        sign = np.where((x > 0) | (n % 2 == 0), 1.0, -1.0)
        if kind == "t":
            return sign
        if kind == "u":
            return sign * (n + 1)
        grows = x < 0 if kind == "v" else x > 0
        return sign * np.where(grows, 2 * n + 1, 1)

    def polynomial(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        given, degree = np.broadcast_arrays(*arrays)
        x, n = (2 * given - 1 if shifted else given), _degrees(degree)
        within = (np.abs(x) < 1) & (n > 6)
        walked = np.where(within | (np.abs(x) == 1), 0, n)
        value = _recurrence(x, walked, slope * x + constant, lambda k, x, before, now: 2 * x * now - before)
        value = np.where(within, inside(np.where(within, x, 0.5), n), value)
        return np.where(n < 0, 0.0, np.where(np.abs(x) == 1, at_ends(x, n), value))

    return polynomial


def _hermite(physical: bool) -> Callable[[Arrays, Attrs], np.ndarray]:
    def polynomial(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        x, degree = np.broadcast_arrays(*arrays)
        n = _degrees(degree)
        limit = 128 if attrs["dtype"].itemsize == 4 else 512  # beyond it most values overflow: NaN, as in PyTorch
        scale = 2.0 if physical else 1.0
        step = lambda k, x, before, now: scale * (x * now - k * before)
        value = _recurrence(x, np.where(n > limit, 0, n), scale * x, step)
        return np.where(n > limit, np.nan, value)

    return polynomial


def _laguerre(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, degree = np.broadcast_arrays(*arrays)
    n = _degrees(degree)
    step = lambda k, x, before, now: ((2 * k + 1 - x) * now - k * before) / (k + 1)
    return np.where(n < 0, 0.0, np.where(x == 0, 1.0, _recurrence(x, n, 1 - x, step)))


def _legendre(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, degree = np.broadcast_arrays(*arrays)
    n = _degrees(degree)
    step = lambda k, x, before, now: ((2 * k + 1) * x * now - k * before) / (k + 1)
    value = _recurrence(x, np.where(np.abs(x) == 1, 0, n), x * 1.0, step)
    ends = np.where((x > 0) | (n % 2 == 0), 1.0, -1.0)
    return np.where(n < 0, 0.0, np.where(np.abs(x) == 1, ends, value))


POLYNOMIALS: dict[str, Callable[[Arrays, Attrs], np.ndarray]] = {
    **{f"chebyshev_polynomial_{kind}": _chebyshev(kind, False) for kind in "tuvw"},
    **{f"shifted_chebyshev_polynomial_{kind}": _chebyshev(kind, True) for kind in "tuvw"},
    "hermite_polynomial_h": _hermite(True),
    "hermite_polynomial_he": _hermite(False),
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}

"""The regularised incomplete gamma functions on float64 arrays.

P(a, x) = 1/gamma(a) * integral of t**(a-1) exp(-t) from 0 to x, and Q = 1 - P. Whichever of the two is smaller is computed: by
P's power series for x < a, by Q's continued fraction (Lentz) for x >= a, and where a is large and x near it, by integrating
the density between x and where it vanishes (Gauss-Legendre). x**a exp(-x) / gamma(a) is taken as Stirling's series times
exp(-a (m - log(1 + m))), m = (x - a) / a, so that large a does not cancel. Error below 1e-13 of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_lgamma = np.frompyfunc(math.lgamma, 1, 1)
_gamma = np.frompyfunc(math.gamma, 1, 1)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_LARGE = 100.0
_EPS = 1.2e-16


def _stirling(a: np.ndarray) -> np.ndarray:
    """gamma(a) sqrt(a / 2 pi) (e / a)**a for a >= 10."""
    z = 1.0 / (a * a)
    return np.exp((1 / 12 - z * (1 / 360 - z * (1 / 1260 - z * (1 / 1680 - z * (1 / 1188 - z * 691 / 360360))))) / a)


def _excess(m: np.ndarray) -> np.ndarray:
    """m - log(1 + m), to the last digits near 0 too: with r = m / (2 + m), m r - 2 (r**3/3 + r**5/5 + ...)."""
    near = np.abs(m) < 0.3
    small = np.where(near, m, 0.0)
    r = small / (2 + small)
    square = r * r
    series = np.zeros_like(m)
    for k in range(25, 1, -2):
        series = square * (1 / k + series)
    return np.where(near, small * r - 2 * r * series, m - np.log1p(np.maximum(m, -1 + 1e-16)))


def _density(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x**a exp(-x) / gamma(a)."""
    small = np.minimum(a, 10.0)
    direct = np.power(x, small) * np.exp(-x) / np.asarray(_gamma(small), np.float64)
    logs = np.exp(small * np.log(x) - x - np.asarray(_lgamma(small), np.float64))
    large = np.maximum(a, 10.0)
    m = (x - large) / large
    scaled = np.sqrt(large / (2 * math.pi)) * np.exp(-large * _excess(m)) / _stirling(large)
    safe = (x > 1e-30) & (x < 500) & (a > 1e-300)
    return np.where(a >= 10, scaled, np.where(safe, direct, logs))


def _series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """P(a, x) by its power series."""
    total, term, n = np.ones_like(a), np.ones_like(a), a.copy()
    for _ in range(5000):
        n = n + 1
        term = term * (x / n)
        total = total + term
        if not (term > _EPS * total).any():
            break
    return total * _density(a, x) / a


def _fraction(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q(a, x) by its continued fraction."""
    tiny = 1e-300
    b = x + 1 - a
    c, d = np.full_like(a, 1 / tiny), 1 / np.where(b == 0, tiny, b)
    h = d
    for k in range(1, 5000):
        factor = -k * (k - a)
        b = b + 2
        d = factor * d + b
        d = 1 / np.where(np.abs(d) < tiny, tiny, d)
        c = b + factor / c
        c = np.where(np.abs(c) < tiny, tiny, c)
        change = d * c
        h = h * change
        if not (np.abs(change - 1) > _EPS * 2).any():
            break
    return h * _density(a, x)


def _small_upper(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q(a, x) for x <= 1.1 as the difference that P's series leaves when its first term is taken out (DLMF 8.7.3)."""
    factor, total = np.ones_like(a), np.zeros_like(a)
    for n in range(1, 60):
        factor = factor * (-x / n)
        total = total + factor / (a + n)
    first = -np.expm1(a * np.log(x) - np.asarray(_lgamma(1 + a), np.float64))
    return first - np.exp(a * np.log(x) - np.asarray(_lgamma(a), np.float64)) * total


def _tail(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The smaller side by integration for large a: Q where x > a - 1, else P."""
    top = a - 1
    width = np.sqrt(top)
    far = np.where(x > top, np.maximum(top + 11.5 * width, x + 8 * width), np.minimum(top - 8.5 * width, x - 6 * width))
    far = np.maximum(far, 0.0)
    half = (far - x) / 2
    t = (x + half)[..., None] + half[..., None] * _NODES
    m = (t - top[..., None]) / top[..., None]
    inside = np.exp(-top[..., None] * _excess(m)) @ _WEIGHTS
    return np.abs(half) * inside / (math.sqrt(2 * math.pi) * width * _stirling(top))


def _both(a: np.ndarray, x: np.ndarray, upper: bool) -> np.ndarray:
    a, x = (np.ascontiguousarray(part) for part in np.broadcast_arrays(a, x))
    result = np.full(a.shape, np.nan)
    edge = (a >= 0) & (x >= 0)
    zero_a, zero_x = edge & (a == 0) & (x > 0), edge & (x == 0) & (a > 0)
    result[zero_a | (edge & np.isinf(x) & ~np.isinf(a))] = 0.0 if upper else 1.0
    result[zero_x | (edge & np.isinf(a) & ~np.isinf(x))] = 1.0 if upper else 0.0
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    near = inside & (a >= _LARGE) & (np.abs(x - a) < 20 * np.sqrt(a))
    inside &= ~near
    small = inside & (x <= 1.1) & (x >= a * 0.9) & upper
    inside &= ~small
    beyond = (x >= a) & (x > 1.1)
    regions: list[tuple[np.ndarray, Callable[..., np.ndarray], np.ndarray]] = [  # where, how, and whether that gives Q
        (near, _tail, x > a - 1),
        (small, _small_upper, np.array(True)),
        (inside & beyond, _fraction, np.array(True)),
        (inside & ~beyond, _series, np.array(False)),
    ]
    for where, function, gives_upper in regions:
        if where.any():
            value = function(a[where], x[where])
            chosen = np.broadcast_to(gives_upper, a.shape)[where] == upper
            result[where] = np.where(chosen, value, 1 - value)
    return result


def lower_gamma(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """P(a, x): NaN for a negative argument and at (0, 0)."""
    return _both(a, x, False)


def upper_gamma(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q(a, x) = 1 - P(a, x)."""
    return _both(a, x, True)

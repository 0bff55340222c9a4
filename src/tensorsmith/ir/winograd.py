"""Winograd's F(m x m, 3 x 3): which points it has, and the matrices of its three transforms.

    y = A' [(G w G') * (B' d B)] A        d: m + 2 rows and columns of x, y: m of results, * element by element

The matrices follow from m + 1 points, at which the polynomials of input and kernel are multiplied, and infinity. F(2, 3)
has the points 0, 1, -1. F(4, 3) has 0, 3/4, -3/4, 3/2, -3/2: of the pairs whose squares float32 holds exactly, those with the
smallest errors (half of those with 1 and 2). Points come in pairs +-p, so that every transform has an even and an odd half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.polynomial import polyfromroots


@dataclass(frozen=True)
class Form:
    """F(m x m, 3 x 3) for m = outputs; pairs: one number p of each pair of points +-p."""

    outputs: int
    pairs: tuple[float, ...]

    @property
    def side(self) -> int:
        """Rows and columns of x that a tile of results needs."""
        return self.outputs + 2

    @property
    def products(self) -> int:
        """Products of a tile."""
        return self.side**2

    @property
    def points(self) -> list[float]:
        """0, p, -p, ...; infinity is not listed."""
        return [0.0, *(sign * p for p in self.pairs for sign in (1.0, -1.0))]

    def kernel_matrix(self) -> np.ndarray:
        """G (m + 2, 3): values of the kernel's polynomial at the points."""
        rows = [[p**k / np.prod([p - q for q in self.points if q != p]) for k in range(3)] for p in self.points]
        return np.array([*rows, [0.0, 0.0, 1.0]])

    def input_matrix(self) -> np.ndarray:
        """B' (m + 2, m + 2): coefficients of the products of (t - q) over all other points, and over all points."""
        rows = [polyfromroots([q for q in self.points if q != p]) for p in self.points] + [polyfromroots(self.points)]
        return np.array([np.pad(row, (0, self.side - len(row))) for row in rows])

    def output_matrix(self) -> np.ndarray:
        """A' (m, m + 2): powers of the points."""
        return np.array([[*(p**i for p in self.points), float(i == self.outputs - 1)] for i in range(self.outputs)])


FORMS = {2: Form(2, (1.0,)), 4: Form(4, (0.75, 1.5))}

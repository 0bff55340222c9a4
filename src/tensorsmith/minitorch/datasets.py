"""Six labelled sets of points in the unit square, on which the course's programs train."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Graph:
    """N points X with labels y, each 0 or 1."""

    N: int
    X: list[tuple[float, float]]
    y: list[int]


def make_pts(N: int) -> list[tuple[float, float]]:
    """N points of the unit square, from `random`."""
    return [(random.random(), random.random()) for _ in range(N)]


def _labelled(N: int, inside: Callable[[float, float], bool]) -> Graph:
    points = make_pts(N)
    return Graph(N, points, [int(inside(x_1, x_2)) for x_1, x_2 in points])


def simple(N: int) -> Graph:
    """1 left of x_1 = 0.5"""
    return _labelled(N, lambda x_1, x_2: x_1 < 0.5)


def diag(N: int) -> Graph:
    """1 below the line x_1 + x_2 = 0.5"""
    return _labelled(N, lambda x_1, x_2: x_1 + x_2 < 0.5)


def split(N: int) -> Graph:
    """1 in two stripes, x_1 < 0.2 and x_1 > 0.8"""
    return _labelled(N, lambda x_1, x_2: x_1 < 0.2 or x_1 > 0.8)


def xor(N: int) -> Graph:
    """1 in the upper left and lower right quarter"""
    return _labelled(N, lambda x_1, x_2: (x_1 < 0.5 < x_2) or (x_2 < 0.5 < x_1))


def circle(N: int) -> Graph:
    """1 outside a circle about the middle, of squared radius 0.1"""
    return _labelled(N, lambda x_1, x_2: (x_1 - 0.5) ** 2 + (x_2 - 0.5) ** 2 > 0.1)


def spiral(N: int) -> Graph:
    """Two arms, t (cos t, sin t) / 20 about the middle for 0 and the mirrored arm for 1; no randomness"""
    half = N // 2
    arm, mirrored = [], []
    for i in range(5, 5 + half):
        t = 10.0 * i / half
        x, y = t * math.cos(t) / 20.0, t * math.sin(t) / 20.0
        arm.append((x + 0.5, y + 0.5))
        mirrored.append((y + 0.5, 0.5 - x))  # the arm at -t is (-x, y), its coordinates exchanged
    return Graph(N, arm + mirrored, [0] * half + [1] * half)


datasets: dict[str, Callable[[int], Graph]] = {
    "Simple": simple,
    "Diag": diag,
    "Split": split,
    "Xor": xor,
    "Circle": circle,
    "Spiral": spiral,
}

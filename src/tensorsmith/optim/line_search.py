"""A step length along a direction that satisfies the strong Wolfe conditions.

Source: Nocedal and Wright, Numerical Optimization, algorithms 3.5 and 3.6, with the bounds and safeguards of PyTorch's
LBFGS, so that both take the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Point:
    """A step length with the loss, gradient and slope found there."""

    step: float
    loss: float
    gradient: Any
    slope: float


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """The minimum of the cubic through two points with their slopes, kept within bounds (default: between them)."""
    lowest, highest = bounds if bounds is not None else (min(a.step, b.step), max(a.step, b.step))
    middle = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
    square = middle * middle - a.slope * b.slope
    if not square >= 0:
        return (lowest + highest) / 2
    root = math.sqrt(square)
    first, second = (a, b) if a.step <= b.step else (b, a)
    width = second.step - first.step
    step = second.step - width * ((second.slope + root - middle) / (second.slope - first.slope + 2 * root))
    return min(max(step, lowest), highest)


def strong_wolfe(
    evaluate: Callable[[float], Point], start: Point, step: float, length: float, most: int,
    c1: float = 1e-4, c2: float = 0.9, tolerance: float = 1e-9,
) -> tuple[Point, int]:  # fmt: skip
    """The accepted point and the number of evaluations.

    evaluate: step length -> Point; start: where step is 0; length: largest element of the direction
    most: bound of the evaluations after the first one
    """
    point = evaluate(step)
    tries = 0

    def too_high(new: Point) -> bool:
        return new.loss > start.loss + c1 * new.step * start.slope

    before, bracket = start, []
    while tries < most:
        if too_high(point) or (tries > 1 and point.loss >= before.loss):
            bracket = [before, point]
            break
        if abs(point.slope) <= -c2 * start.slope:
            return point, tries + 1
        if point.slope >= 0:
            bracket = [before, point]
            break
        bounds = point.step + 0.01 * (point.step - before.step), point.step * 10
        before, point = point, evaluate(cubic_minimum(before, point, bounds))
        tries += 1
    if not bracket:
        bracket = [start, point]
    low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
    stuck = False
    while tries < most:
        steps = bracket[0].step, bracket[1].step
        if abs(steps[1] - steps[0]) * length < tolerance:
            break
        step = cubic_minimum(bracket[0], bracket[1])
        margin = 0.1 * (max(steps) - min(steps))
        if min(max(steps) - step, step - min(steps)) < margin:  # close to an end: the second time, move away from it
            if stuck or step >= max(steps) or step <= min(steps):
                nearer = abs(step - max(steps)) < abs(step - min(steps))
                step = max(steps) - margin if nearer else min(steps) + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        point = evaluate(step)
        tries += 1
        if too_high(point) or point.loss >= bracket[low].loss:
            bracket[high] = point
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        done = abs(point.slope) <= -c2 * start.slope
        if not done and point.slope * (bracket[high].step - bracket[low].step) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = point
        if done:
            break
    return bracket[low], tries + 1

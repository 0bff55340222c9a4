"""What the tests of this folder share: PyTorch's function for a row of the table, and grids of points."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tensorsmith.scalar.fn import Fn

INF, NAN = math.inf, math.nan

EDGES = [0.0, -0.0, INF, -INF, NAN, 1e4, -1e4, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 2.0, -2.0]
GENERIC = [0.3, -0.3, 0.7, -0.7, 1.7, -1.7, 4.6, -4.6, 20.3, -20.3, 1e-5, -1e-5, 0.999]
GRID = EDGES + GENERIC
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 7, -7, 63, 64, -64, 1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63)]


def torch_function(fn: Fn) -> Callable[..., Any]:
    """PyTorch's function for a row."""
    if fn is Fn.SOFTPLUS:
        # PyTorch returns x above a threshold; move it to where that is exact in float64.
        return lambda x: torch.nn.functional.softplus(x, threshold=700.0)
    for module in (torch, torch.nn.functional, torch.special):
        function = getattr(module, fn.value, None)
        if function is not None:
            return function
    raise AssertionError(f"PyTorch has no {fn.value}")


def same(ours: float, theirs: float, tolerance: float) -> bool:
    """Equal, both NaN, or within a relative tolerance (absolute below 1)."""
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    if ours == theirs:
        return True
    return abs(ours - theirs) <= tolerance * max(1.0, abs(theirs))


def assert_all_same(fn: Fn, points: list[tuple[Any, ...]], ours: list[Any], theirs: Any, tolerance: float) -> None:
    """Fails with the points at which ours and theirs differ."""
    wrong = [
        (point, a, b)
        for point, a, b in zip(points, ours, (theirs + 0).tolist(), strict=True)
        if not same(float(a), float(b), tolerance)
    ]
    assert not wrong, f"{fn.value} differs from PyTorch at (point, ours, theirs): {wrong[:8]}"

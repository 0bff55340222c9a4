"""Arrays whose axes lie in any order in memory, and their strides in elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def laid_out(array: np.ndarray, order: Sequence[int] | None = None) -> np.ndarray:
    """A copy whose axes lie in memory as `order` says, the slowest first."""
    order = list(order or range(array.ndim))
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)

"""The NumPy routines behind LIBRARY nodes: `ROUTINES[name](arrays, attrs) -> array`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Routine = Callable[[Sequence[np.ndarray], Mapping[str, Any]], np.ndarray]


def argsort(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """int64 positions that sort along `axis`, `descending` or not; stable both ways; NaN counts as largest."""
    (x,), axis = arrays, attrs["axis"]
    if not attrs.get("descending", False):
        return np.argsort(x, axis=axis, kind="stable").astype(np.int64)
    # Sorting the reversed array and reversing the answer keeps equal elements in their order.
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis).astype(np.int64)


ROUTINES: dict[str, Routine] = {"argsort": argsort}

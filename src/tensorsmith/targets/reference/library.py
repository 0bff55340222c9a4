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


def searchsorted(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """int64 places of values in the sorted last axis of a sequence, before equal elements or (`right`) after; NaN is last."""
    sequence, values = arrays
    side = "right" if attrs["right"] else "left"
    if sequence.ndim == 1:
        return np.searchsorted(sequence, values, side).astype(np.int64)
    rows, wanted = sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1])
    found = [np.searchsorted(row, each, side) for row, each in zip(rows, wanted)]
    return np.asarray(found, np.int64).reshape(values.shape)


ROUTINES: dict[str, Routine] = {"argsort": argsort, "searchsorted": searchsorted}

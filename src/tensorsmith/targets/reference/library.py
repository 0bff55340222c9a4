"""The NumPy routines behind LIBRARY nodes: `ROUTINES[name](arrays, attrs) -> array`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tensorsmith.ir.winograd import FORMS
from tensorsmith.targets.reference import alignments, decompositions, special
from tensorsmith.targets.reference.ordering import argsort

# Routines that take arrays of any dtype as they are, half precision included.
EXACT = frozenset({"argsort"})

Routine = Callable[[Sequence[np.ndarray], Mapping[str, Any]], np.ndarray]


def searchsorted(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """int64 places of values in the sorted last axis of a sequence, before equal elements or (`right`) after; NaN is last."""
    sequence, values = arrays
    side: Literal["left", "right"] = "right" if attrs["right"] else "left"
    if sequence.ndim == 1:
        return np.searchsorted(sequence, values, side).astype(np.int64)
    rows, wanted = sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1])
    found = [np.searchsorted(row, each, side) for row, each in zip(rows, wanted)]
    return np.asarray(found, np.int64).reshape(values.shape)


_MEETING: dict[str, tuple[np.ufunc, float]] = {
    "prod": (np.multiply, 1), "amax": (np.maximum, -np.inf), "amin": (np.minimum, np.inf),
}  # fmt: skip


def scatter_reduce(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """The base with values reduced (prod, amax, amin) at positions along `axis`, with or without what stood there."""
    base, index, source = arrays
    axis = attrs["axis"]
    ufunc, neutral = _MEETING[attrs["reduce"]]
    outside = (index < 0) | (index >= base.shape[axis])
    if outside.any():
        raise IndexError(
            f"scatter_reduce: index {int(index[outside].flat[0])} is out of bounds for dimension {axis} with size "
            f"{base.shape[axis]}"
        )
    where: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    where[axis] = index
    result = base.copy()
    if not attrs["include_self"]:
        if np.isinf(neutral) and base.dtype.kind != "f":
            limits = np.iinfo(base.dtype) if base.dtype.kind in "iu" else None
            neutral = (limits.min if neutral < 0 else limits.max) if limits else neutral > 0
        result[tuple(where)] = neutral
    ufunc.at(result, tuple(where), source)
    return result


def winograd_weight(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """G w G' of every kernel of w (O, C, 3, 3): (points, O, C)."""
    matrix = FORMS[attrs["outputs"]].kernel_matrix()
    return np.einsum("ai,ocij,bj->aboc", matrix, arrays[0], matrix).reshape(attrs["shape"])


def cond(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """One result of the graph that is chosen."""
    from tensorsmith.targets.reference.interpret import interpret

    predicate, *operands = arrays
    return interpret(attrs["then" if predicate.reshape(()) else "other"], operands)[attrs["output"]]


def while_loop(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """One of the carried values when the condition is false."""
    from tensorsmith.targets.reference.interpret import interpret

    carried, captured = list(arrays[: attrs["carried"]]), arrays[attrs["carried"] :]
    while interpret(attrs["condition"], [*carried, *captured])[0].reshape(()):
        carried = interpret(attrs["body"], [*carried, *captured])
    return carried[attrs["output"]]


def while_loop_gradient(arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> np.ndarray:
    """The gradient of what was carried first, or of what was captured."""
    from tensorsmith.targets.reference.interpret import interpret

    rounds, captured = [list(arrays[: attrs["carried"]])], arrays[attrs["carried"] : -1]
    while interpret(attrs["condition"], [*rounds[-1], *captured])[0].reshape(()):
        rounds.append(interpret(attrs["body"], [*rounds[-1], *captured]))
    count = len(attrs["pull"].inputs) - len(arrays) + 1  # of gradients that go back from round to round
    found = [np.zeros(node.shape, node.dtype.numpy) for node in attrs["pull"].outputs]
    found[attrs["of"]] = arrays[-1]
    for before in reversed(rounds[:-1]):
        pulled = interpret(attrs["pull"], [*before, *captured, *found[:count]])
        found = [*pulled[:count], *(total + more for total, more in zip(found[count:], pulled[count:]))]
    return found[attrs["output"]]


ROUTINES: dict[str, Routine] = {
    "cond": cond,
    "while_loop": while_loop,
    "while_loop_gradient": while_loop_gradient,
    "argsort": argsort,
    "scatter_reduce": scatter_reduce,
    "searchsorted": searchsorted,
    "conv_weight": lambda arrays, attrs: arrays[0],  # a copy
    "packed_right": lambda arrays, attrs: arrays[0],  # in another order in memory
    "winograd_weight": winograd_weight,
    **alignments.ROUTINES,
    **decompositions.ROUTINES,
    **special.ROUTINES,
}

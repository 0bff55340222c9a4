"""What may stand between the brackets of `x[...]`, as steps of basic indexing and picks of advanced indexing."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import bool_, int64, uint8
from tensorsmith.core.layout import layout_of
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import array_of, copy_array, from_numpy, tensor
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, make_view

# --- basic indexing ---------------------------------------------------------------------------------------------------
# A step is (INT, position), (SLICE, start, length, step) or (NEW,): what happens to the next axis, or a new one.

INT, SLICE, NEW = 0, 1, 2
Step = tuple[int, ...]


def _basic(x: Node, steps: tuple[Step, ...]) -> Node:
    shape: list[int] = []
    axis = 0
    for step in steps:
        if step[0] == NEW:
            shape.append(1)
            continue
        if step[0] == INT:
            x = build.slice_(x, axis, step[1], 1)
        else:
            x = build.slice_(x, axis, *step[1:])
            shape.append(step[2])
        axis += 1
    return build.reshape(x, (*shape, *x.shape[axis:]))


def _basic_place(x: Strided, steps: tuple[Step, ...]) -> Strided:
    shape: list[int] = []
    strides: list[int] = []
    offset, axis = x.offset, 0
    for step in steps:
        if step[0] == NEW:
            shape.append(1)
            strides.append(x.shape[axis] * x.strides[axis] if axis < len(x.shape) else 1)
            continue
        offset += step[1] * x.strides[axis]
        if step[0] == SLICE:
            shape.append(step[2])
            strides.append(x.strides[axis] * step[3])
        axis += 1
    return Strided((*shape, *x.shape[axis:]), (*strides, *x.strides[axis:]), offset)


class _BasicIndexing(Operator):
    """Several steps in one node, which is called after the last, as the last of PyTorch's nodes is."""

    def recorded_name(self, attrs: dict[str, Any]) -> str:
        return {INT: "SelectBackward0", SLICE: "SliceBackward0", NEW: "UnsqueezeBackward0"}[attrs["steps"][-1][0]]


basic_operator = _BasicIndexing("getitem", _basic, geometry=_basic_place, node_name="Slice")


def basic_view(x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    """The view that the steps select."""
    if not x.layout.tracked and modes.tracer is None:  # not kept in FAST: positions vary from call to call
        place = _basic_place(Strided(x.layout.shape, x.layout.strides), steps)
        return make_view(x, layout_of(x.layout.dtype, place.shape, place.strides, device=x.layout.device), place.offset)
    return basic_operator(x, steps=steps)


def _position(index: int, extent: int, axis: int) -> int:
    if not -extent <= index < extent:
        raise IndexError(f"index {index} is out of bounds for dimension {axis} with size {extent}")
    return index + extent if index < 0 else index


def _slice_step(index: slice, extent: int) -> Step:
    start, stop, step = (None if v is None else python_operator.index(v) for v in (index.start, index.stop, index.step))
    if step is not None and step <= 0:
        raise ValueError("step must be greater than zero")
    start, stop, step = slice(start, stop, step).indices(extent)
    return SLICE, start, max(-(-(stop - start) // step), 0), step


# --- what stands between the brackets ---------------------------------------------------------------------------------


def _as_index(value: Any) -> Any:
    """An int, bool, slice, None, Ellipsis, or a tensor of positions or truth."""
    if value is None or value is Ellipsis or isinstance(value, bool | int | slice):
        return value
    if isinstance(value, Tensor):
        if value.dtype.kind in "iu" and not value.ndim and value.dtype is not uint8 and modes.tracer is None:
            return int(array_of(value))
        if value.dtype.kind not in "iub":
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray):
        found = from_numpy(np.ascontiguousarray(value))
        return _as_index(found)
    if isinstance(value, list | tuple | range):
        found = tensor(value)
        return _as_index(found if found.layout.numel else found.to(int64))
    try:
        return python_operator.index(value)
    except TypeError:
        raise (TypeError if isinstance(value, str) else IndexError)(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got "
            f"{type(value).__name__})"
        ) from None


def _axes_used(value: Any) -> int:
    if value is None or value is Ellipsis or isinstance(value, bool):
        return 0
    if isinstance(value, Tensor) and value.dtype in (bool_, uint8):
        return value.ndim
    return 1


def _items(index: Any, ndim: int) -> list[Any]:
    """The index as a list of one item an axis (or None, or bool), its Ellipsis filled with slices."""
    if isinstance(index, list) and any(v is None or v is Ellipsis or isinstance(v, slice | Tensor) for v in index):
        index = tuple(index)
    items = [_as_index(v) for v in index] if isinstance(index, tuple) else [_as_index(index)]
    used = sum(_axes_used(v) for v in items)
    if used > ndim:
        raise IndexError(f"too many indices for tensor of dimension {ndim}")
    places = [i for i, v in enumerate(items) if v is Ellipsis]
    if len(places) > 1:  # PyTorch skips as many axes again, which only leads anywhere where nothing follows
        if used < ndim and any(v is not Ellipsis for v in items[places[1] :]):
            raise IndexError("an index can only have a single ellipsis ('...') where others follow")
        items = [v for i, v in enumerate(items) if i not in places[1:]]
    if places:
        items[places[0] : places[0] + 1] = [slice(None)] * (ndim - used)
    return items


def resolve(x: Tensor, index: Any) -> tuple[tuple[Step, ...], list[Tensor | None]]:
    """The basic steps, and for every axis of what they leave the tensor that picks from it (or None)."""
    items = _items(index, x.ndim)
    shape = x.layout.shape
    steps: list[Step] = []
    picks: list[Tensor | None] = []
    axis = 0
    for item in items:
        if item is None:
            steps.append((NEW,))
            picks.append(None)
        elif isinstance(item, bool):
            steps.append((NEW,))
            picks.append(tensor([0] if item else [], dtype=int64))
        elif isinstance(item, int):
            steps.append((INT, _position(item, shape[axis], axis)))
            axis += 1
        elif isinstance(item, slice):
            steps.append(_slice_step(item, shape[axis]))
            picks.append(None)
            axis += 1
        else:
            count = _axes_used(item)
            steps += [(SLICE, 0, shape[axis + i], 1) for i in range(count)]
            if item.dtype in (bool_, uint8):
                if not count:
                    steps.append((NEW,))
                picks += _positions_of(item, shape, axis)
            else:
                picks.append(item)
            axis += count
    return tuple(steps), picks


def _positions_of(mask: Tensor, shape: tuple[int, ...], axis: int) -> list[Tensor]:
    """Where a mask holds, one tensor of positions an axis."""
    for i, (n, m) in enumerate(zip(mask.layout.shape, shape[axis:])):
        if n != m:
            raise IndexError(
                f"The shape of the mask {list(mask.layout.shape)} at index {i} does not match the shape of the indexed tensor "
                f"{list(shape)} at index {axis + i}"
            )
    if not mask.ndim:
        return [tensor([0] if host(mask, "indexing with a mask") else [], dtype=int64)]
    return [copy_array(p.astype(np.int64)) for p in np.nonzero(host(mask, "indexing with a mask"))]


def from_host(x: Tensor, what: str, function: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """What NumPy computes from the values of a tensor, which carries no gradient; under vmap, for every example."""
    if x.layout.level is not None:
        return x.layout.level.from_host(x, what, function)
    return copy_array(function(host(x, what)), device=x.layout.device)


def host(x: Tensor, what: str) -> np.ndarray:
    """The values of a tensor, for an operator whose result's size depends on them."""
    if modes.tracer is not None:
        modes.tracer.refuse(x, what)
    return array_of(x)

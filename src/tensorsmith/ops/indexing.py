"""`x[...]` and `x[...] = v`: what may stand between the brackets, and in which order it acts.

Ints, slices, None and Ellipsis make views (*basic* indexing). Tensors, lists, arrays and bools then pick elements of what
the basic part left (*advanced* indexing): masks become the positions where they hold, positions of several axes become
one position along the joined axes, and the result is one TAKE. Picked axes stand where the first picked axis stood if
they are neighbours, else in front.

The family, and what is in which file:

    indexing       `x[...]`, `x[...] = v`, index_put: the parts of one index put together
    index_steps    what one index means: its parts sorted into steps of basic indexing and picks of advanced indexing
    gathering      one axis, positions given: gather, scatter, scatter_add, index_select, index_add, index_copy, index_fill
    scattering     the same where several values meet at one place and are reduced: scatter_reduce, index_reduce
    taking         the flattened tensor, or a mask: take, put, take_along_dim, masked_scatter
    masked_indexing  index and index_put under a mask
    positions      where elements are, for the others to pick: nonzero, argwhere, masked_select, searchsorted, bincount, ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import bool_, int64, type_name
from tensorsmith.core.layout import layout_of
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import FAST, NUMBERS, call, remember
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.creation import array_of
from tensorsmith.ops.device_copies import to_device
from tensorsmith.ops.index_steps import SLICE, Step, basic_operator, basic_view, resolve
from tensorsmith.ops.inplace import copy_, copy_operation, number_for
from tensorsmith.ops.pointwise import as_operand
from tensorsmith.ops.registry import inplace_method, method, need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor, unrecorded_origin

# --- advanced indexing ------------------------------------------------------------------------------------------------


def wrapped(index: Node, extent: int) -> Node:
    """int64 positions with negative ones counted from the end."""
    index = build.cast(index, int64)
    return build.where(index < 0, index + extent, index)


def _joined(x: Node, indices: Sequence[Node], axes: tuple[int, ...]) -> tuple[Node, Node, int, tuple[int, ...], list[int]]:
    """x with the picked axes as one, positions along it, that axis, the shape of the positions, and the order of axes."""
    shape = broadcast_shapes(*(i.shape for i in indices))
    first = axes[0]
    order = list(range(x.ndim))
    if axes != tuple(range(first, first + len(axes))):
        order = [*axes, *(i for i in order if i not in axes)]
        x, first = build.permute(x, order), 0
    extents = x.shape[first : first + len(axes)]
    if len(axes) == 1:
        linear = wrapped(indices[0], extents[0])
    else:
        linear = build.full(x.graph, (), 0, int64)
        inside: Node | None = None
        for index, extent in zip(indices, extents):
            position = wrapped(index, extent)
            fits = (position >= 0) & (position < extent)
            inside = fits if inside is None else inside & fits
            linear = linear * extent + position
        assert inside is not None
        linear = build.where(inside, linear, -1)  # an axis out of range must not become a position in range
    flat = build.reshape(build.broadcast_to(linear, shape), (math.prod(shape),))
    merged = build.reshape(x, (*x.shape[:first], math.prod(extents), *x.shape[first + len(axes) :]))
    return merged, flat, first, shape, order


def _index(x: Node, *indices: Node, axes: tuple[int, ...]) -> Node:
    merged, flat, first, shape, _ = _joined(x, indices, axes)
    taken = x.graph.add(Primitive.TAKE, (merged, flat), axis=first)
    return build.reshape(taken, (*merged.shape[:first], *shape, *merged.shape[first + 1 :]))


def _index_put(x: Node, values: Any, *indices: Node, axes: tuple[int, ...], accumulate: bool) -> Node:
    merged, flat, first, shape, order = _joined(x, indices, axes)
    values = build.cast(values, x.dtype)
    wanted = (*merged.shape[:first], *shape, *merged.shape[first + 1 :])
    source = build.reshape(build.broadcast_to(values, wanted), (*merged.shape[:first], flat.numel, *merged.shape[first + 1 :]))
    put = x.graph.add(Primitive.PUT, (merged, flat, source), axis=first, reduce="add" if accumulate else "set")
    back = build.reshape(put, [x.shape[i] for i in order])
    return build.permute(back, [order.index(i) for i in range(x.ndim)])


index_operator = Operator("index", _index)
index_put_operator = Operator("index_put", _index_put)
index_put_operation = InplaceOperation(index_put_operator)


def _checked_picks(x: Tensor, picks: Sequence[Tensor | None]) -> tuple[tuple[int, ...], list[Tensor]]:
    axes = tuple(i for i, p in enumerate(picks) if p is not None)
    indices = [p for p in picks if p is not None]
    if x.layout.device is not CPU:  # positions may be on the host
        indices = [to_device(p, x.layout.device) if p.layout.device is CPU else p for p in indices]
    try:
        broadcast_shapes(*(p.layout.shape for p in indices))
    except RuntimeError:
        shapes = ", ".join(str(list(p.layout.shape)) for p in indices)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    return axes, indices


def out_of_range(name: str, x: Tensor, axes: Sequence[int], indices: Sequence[Tensor], negative: bool = True) -> IndexError:
    """The error that names the first position outside its axis."""
    for axis, index in zip(axes, indices):
        extent = x.layout.shape[axis] if x.ndim else 1
        values = array_of(index)
        outside = values[(values < (-extent if negative else 0)) | (values >= extent)]
        if outside.size:
            return IndexError(
                f"{name}: index {int(outside.reshape(-1)[0])} is out of bounds for dimension {axis} with size {extent}"
            )
    return IndexError(f"{name}: index out of range")


def pick(x: Tensor, picks: Sequence[Tensor | None]) -> Tensor:
    """The elements that tensors of positions pick; `picks[i]` belongs to axis i."""
    axes, indices = _checked_picks(x, picks)
    try:
        return call(index_operator, (x, *indices), {"axes": axes})
    except IndexError:
        raise out_of_range("index", x, axes, indices) from None


def put(x: Tensor, picks: Sequence[Tensor | None], values: Any, accumulate: bool) -> Tensor:
    """Write (or add) values in place at positions; on an error nothing is written."""
    axes, indices = _checked_picks(x, picks)
    _check_values(x, axes, indices, values)
    try:
        return index_put_operation(x, values, *indices, axes=axes, accumulate=accumulate)
    except IndexError:
        raise out_of_range("index_put_", x, axes, indices) from None


def _check_values(x: Tensor, axes: tuple[int, ...], indices: Sequence[Tensor], values: Any) -> None:
    if not isinstance(values, Tensor):
        return
    shape = broadcast_shapes(*(i.layout.shape for i in indices))
    rest = [n for i, n in enumerate(x.layout.shape) if i not in axes]
    first = axes[0] if axes == tuple(range(axes[0], axes[0] + len(axes))) else 0
    wanted = (*rest[:first], *shape, *rest[first:])
    try:
        fits = broadcast_shapes(values.layout.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.layout.shape)} cannot be broadcast to indexing result of "
            f"shape {list(wanted)}"
        )


# --- the brackets -----------------------------------------------------------------------------------------------------

_FIRST = "x[int]"  # raw keys of the commonest calls


def _first_entry(layout: Any) -> Any:
    """x[i] for any i on untracked tensors of one layout."""
    extent, stride = layout.shape[0], layout.strides[0] * layout.dtype.itemsize
    row = layout_of(layout.dtype, layout.shape[1:], layout.strides[1:], device=layout.device)
    new = Tensor.__new__

    def select(x: Tensor, index: int) -> Tensor:
        if not -extent <= index < extent:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {extent}")
        found = new(Tensor)
        found.layout = row
        storage = found.storage = x.storage
        found.ptr = x.ptr + (index + extent if index < 0 else index) * stride
        found.node = None
        found.output_number = 0
        base = x.base
        if base is None:
            found.base = x
            x.viewed = True
            found.origin = None if modes.grad else unrecorded_origin()
        else:
            found.base = base
            found.origin = x.origin if modes.grad else unrecorded_origin()
        found.stamp = storage.version
        found.state = None
        return found

    return select


@method("__getitem__")
def getitem(self: Tensor, index: Any) -> Tensor:
    """`x[index]`: a view for ints, slices, None and Ellipsis; a copy where tensors, lists or masks pick elements."""
    kind = index.__class__
    if kind is int:
        entry = FAST.get((_FIRST, self.layout))
        if entry is not None:
            return entry(self, index)
        entry = FAST.get((_FIRST, self.layout, index))
        if entry is not None:
            return entry(self)
    elif kind is Tensor:
        entry = FAST.get((index_operator, self.layout, index.layout, _AXIS_0))
        if entry is not None and index.layout.shape:
            try:
                return entry(self, index)
            except IndexError:
                raise out_of_range("index", self, (0,), (index,)) from None
    raw = _raw_key(self.layout, index, kind)
    if raw is not None:
        entry = FAST.get(raw)
        if entry is not None:
            return entry(self)
    steps, picks = resolve(self, index)
    if all(p is None for p in picks):
        return _view(self, steps, index, raw)
    return pick(self if _changes_nothing(self, steps) else basic_view(self, steps), picks)


def _view(x: Tensor, steps: tuple[Step, ...], index: Any, raw: tuple | None) -> Tensor:
    """The view of a basic index, whose entry is kept under the index as given."""
    global _kept
    if modes.tracer is None and index.__class__ is int and not x.layout.tracked:
        remember((_FIRST, x.layout), _first_entry(x.layout))
    elif raw is not None and _kept < MOST_KEPT and modes.tracer is None:
        found = basic_operator(x, steps=steps)
        entry = FAST.get((basic_operator, x.layout, ("steps", steps)))
        if entry is not None:
            _kept += 1
            remember(raw, entry)
        return found
    return basic_view(x, steps)


MOST_KEPT = 4096  # positions vary from call to call: beyond this many, indices are resolved anew each time
_kept = 0
_PLAIN = frozenset({int, type(None)})


def _raw_key(layout: Any, index: Any, kind: type) -> tuple | None:
    """A key for ints, slices of ints, None and Ellipsis; None where something else is among them (True is not 1)."""
    if kind is slice:
        start, stop, step = index.start, index.stop, index.step
        if start.__class__ in _PLAIN and stop.__class__ in _PLAIN and step.__class__ in _PLAIN:
            return _FIRST, layout, start, stop, step
        return None
    if kind is int or index is None or index is Ellipsis:
        return _FIRST, layout, index
    if kind is not tuple:
        return None
    parts: list[Any] = [_FIRST, layout, len(index)]
    for item in index:
        part = item.__class__
        if part is slice:
            start, stop, step = item.start, item.stop, item.step
            if start.__class__ not in _PLAIN or stop.__class__ not in _PLAIN or step.__class__ not in _PLAIN:
                return None
            parts.append((start, stop, step))
        elif part in _PLAIN or item is Ellipsis:
            parts.append(item)
        else:
            return None
    parts.append(_FIRST)
    return tuple(parts)


_AXIS_0 = ("axes", (0,))


def _changes_nothing(x: Tensor, steps: tuple[Step, ...]) -> bool:
    shape = x.layout.shape
    return len(steps) <= len(shape) and all(
        s[0] == SLICE and s[1] == 0 and s[3] == 1 and s[2] == n for s, n in zip(steps, shape)
    )


@method("__setitem__")
def setitem(self: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`: writes a number, or a tensor that broadcasts, in place. An error leaves the tensor unchanged."""
    operand = as_operand(value)
    if operand is None:
        raise TypeError(
            f"can't assign a {type(value).__name__} to a {type_name(self.dtype)} tensor; make it one with ts.tensor(...)"
        )
    if isinstance(index, Tensor) and index.dtype is bool_ and _is_single(operand) and _mask_fits(index, self):
        from tensorsmith.ops.selecting import masked_fill_

        masked_fill_(self, _leading(index, self.ndim), operand if not isinstance(operand, Tensor) else operand.reshape(()))
        return
    if _raw_key(self.layout, index, index.__class__) is not None:  # basic: the view, and a write over it
        _write(getitem(self, index), operand)
        return
    steps, picks = resolve(self, index)
    part = self if _changes_nothing(self, steps) and index is Ellipsis else basic_view(self, steps)
    if any(p is not None for p in picks):
        if isinstance(operand, Tensor) and operand.dtype is not self.dtype:
            operand = operand.to(self.dtype)
        put(part, picks, operand, False)
    else:
        _write(part, operand)


def _write(part: Tensor, operand: Any) -> None:
    if isinstance(operand, Tensor):
        copy_(part, _without_leading_ones(operand, part.ndim))
    else:
        operand = number_for("index_put_", operand, part.dtype)
        copy_operation(part, operand)


def _is_single(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.layout.numel == 1 and not value.ndim


def _mask_fits(mask: Tensor, x: Tensor) -> bool:
    return mask.ndim > 0 and mask.layout.shape == x.layout.shape[: mask.ndim]


def _leading(mask: Tensor, ndim: int) -> Tensor:
    """A mask over the first axes, to broadcast over the others."""
    if mask.ndim == ndim:
        return mask
    return mask.reshape((*mask.layout.shape, *(1,) * (ndim - mask.ndim)))


def _without_leading_ones(value: Tensor, ndim: int) -> Tensor:
    shape = value.layout.shape
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return value if shape == value.layout.shape else value.reshape(shape)


# --- index_put --------------------------------------------------------------------------------------------------------


def _given_picks(name: str, x: Tensor, indices: Any) -> tuple[Tensor, list[Tensor | None]]:
    if len(indices) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim} (got {len(indices)})")
    steps, picks = resolve(x, tuple(slice(None) if i is None else need_tensor(name, i, "indices") for i in indices))
    part = x if _changes_nothing(x, steps) else basic_view(x, steps)
    return part, picks


def _values(name: str, x: Tensor, values: Any) -> Any:
    if values.__class__ in NUMBERS:
        return values
    if need_tensor(name, values, "values", 3).dtype is not x.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {type_name(x.dtype)} for the destination and "
            f"{type_name(values.dtype)} for the source."
        )
    return values


def index_put_(self: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """Write values in place at the positions of `indices` (one tensor an axis), or add them with `accumulate`."""
    need_tensor("index_put_", values, "values", 2)
    part, picks = _given_picks("index_put_", self, indices)
    if any(p is not None for p in picks):
        put(part, picks, _values("index_put_", self, values), accumulate)
    return self


@public("indexing", name="index_put")
def index_put(input: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:  # noqa: A002
    """A copy with values written at the positions of `indices`, or added with `accumulate`."""
    need_tensor("index_put", values, "values", 2)
    if modes.autocast is not None:
        input, values = modes.autocast.operands("index_put", input, values)
    part, picks = _given_picks("index_put", need_tensor("index_put", input), indices)
    axes, found = _checked_picks(part, picks)
    _check_values(part, axes, found, values)
    try:
        return index_put_operator(part, _values("index_put", input, values), *found, axes=axes, accumulate=bool(accumulate))
    except IndexError:
        raise out_of_range("index_put", part, axes, found) from None


inplace_method("index_put", index_put_)

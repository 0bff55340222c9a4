"""Joining tensors, and repeating one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import promote_operands, promote_types
from tensorsmith.core.memory_format import format_of_all
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.creation import copy_array
from tensorsmith.ops.device_copies import need_one_device
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.padding import pad
from tensorsmith.ops.raw_keys import as_int, as_ints
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.views import reshape, to_2d, to_3d
from tensorsmith.tensor.tensor import Tensor

# --- joining ----------------------------------------------------------------------------------------------------------


def _cat(*operands: Node, axis: int) -> Node:
    return build.concat(operands, axis)


def _stack(*operands: Node, axis: int) -> Node:
    return build.concat([build.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in operands], axis)


cat_operator = Operator("cat", _cat, keeps_format=format_of_all)
stack_operator = Operator("stack", _stack, fresh=True)


def _known(operator: Operator, tensors: Any, dim: Any) -> Any:
    """The entry of a call seen before, with an axis counted from 0."""
    try:
        return FAST.get((operator, *[x.layout for x in tensors], ("axis", dim))) if dim.__class__ is int else None
    except (AttributeError, TypeError):
        return None


def _tensors(name: str, tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, list | tuple):
        raise TypeError(
            f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not {type(tensors).__name__}"
        )
    return [need_tensor(name, x, "tensors") for x in tensors]


def _some_tensors(name: str, tensors: Any) -> list[Tensor]:
    if not (found := _tensors(name, tensors)):
        raise RuntimeError(f"{name} expects a non-empty TensorList")
    return found


@public("joining", method=False, aliases=("concat", "concatenate"), out=True)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an existing axis, promoted to one dtype. Empty vectors are left out."""
    entry = _known(cat_operator, tensors, dim)
    if entry is not None:
        return entry(*tensors)
    every = _tensors("cat", tensors)
    if not every:
        raise ValueError("cat(): expected a non-empty list of Tensors")
    for i, x in enumerate(every):
        if not x.ndim:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    parts = [x for x in every if x.layout.shape != (0,)]
    if not parts:
        parts = every[:1]
    first = parts[0].layout.shape
    axis = normalise_axis(as_int("cat", dim, "dim"), len(first))
    for i, x in enumerate(parts):
        shape = x.layout.shape
        if len(shape) != len(first):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)}")
        for a, (n, m) in enumerate(zip(shape, first)):
            if a != axis and n != m:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {axis}. Expected size {m} but got size {n} for tensor "
                    f"number {i} in the list."
                )
    dtype = every[0].dtype
    for x in every[1:]:
        dtype = promote_types(dtype, x.dtype)
    if len(parts) == 1:
        only = parts[0]
        return only.to(dtype) if only.dtype is not dtype else only.clone()
    if any(x.dtype is not dtype for x in every) and all(x.dtype is not dtype for x in parts):
        parts[0] = parts[0].to(dtype)
    return call(cat_operator, parts, {"axis": axis})


@public("joining", method=False, out=True)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of equal shape joined along a new axis."""
    entry = _known(stack_operator, tensors, dim)
    if entry is not None:
        return entry(*tensors)
    parts = _tensors("stack", tensors)
    if not parts:
        raise RuntimeError("stack expects a non-empty TensorList")
    axis = normalise_axis(as_int("stack", dim, "dim"), parts[0].ndim + 1)
    for i, x in enumerate(parts):
        if x.layout.shape != parts[0].layout.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(parts[0].layout.shape)} at entry 0 and "
                f"{list(x.layout.shape)} at entry {i}"
            )
    return call(stack_operator, parts, {"axis": axis})


@public("joining", method=False, kind="composite", out=True)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second axis (the first for vectors)."""
    parts = [x if x.ndim else reshape(x, (1,)) for x in _some_tensors("hstack", tensors)]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


@public("joining", method=False, aliases=("row_stack",), kind="composite", out=True)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the first axis; vectors become rows."""
    return cat([to_2d(x) for x in _some_tensors("vstack", tensors)], 0)


@public("joining", method=False, kind="composite", out=True)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third axis."""
    return cat([to_3d(x) for x in _some_tensors("dstack", tensors)], 2)


@public("joining", method=False, kind="composite", out=True)
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second axis; vectors become columns."""
    parts = _some_tensors("column_stack", tensors)
    return cat([reshape(x, (x.layout.numel, 1)) if x.ndim <= 1 else x for x in parts], 1)


@public("joining", method=False, kind="composite")
def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of a matrix of zeros."""
    parts = [to_2d(need_tensor("block_diag", x, "tensors")) for x in tensors]
    for i, x in enumerate(parts):
        if x.ndim != 2:
            raise RuntimeError(
                f"block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {x.ndim} dimensions"
            )
    zero_dim = [x.dtype for x in tensors if not x.ndim]  # they take part as in arithmetic
    dtype = promote_operands([x.dtype for x in tensors if x.ndim], zero_dim) if tensors else None
    parts = [x.to(dtype) for x in parts]
    width = sum(x.layout.shape[1] for x in parts)
    rows, before = [], 0
    for x in parts:
        after = width - before - x.layout.shape[1]
        rows.append(pad(x, (before, after)))
        before += x.layout.shape[1]
    return cat(rows, 0) if rows else copy_array(_empty_matrix())


def _empty_matrix() -> Any:
    import numpy as np

    return np.empty((1, 0), np.float32)


# --- repeating --------------------------------------------------------------------------------------------------------


def _repeat(x: Node, counts: tuple[int, ...]) -> Node:
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    spread = build.reshape(x, [n for m in shape for n in (1, m)])
    spread = build.broadcast_to(spread, [n for c, m in zip(counts, shape) for n in (c, m)])
    return build.reshape(spread, [c * m for c, m in zip(counts, shape)])


repeat_operator = Operator("repeat", _repeat, fresh=True)


def repeat(self: Tensor, *repeats: Any) -> Tensor:
    """The tensor written several times along every axis (new axes in front)."""
    counts = as_ints("repeat", repeats[0] if len(repeats) == 1 else repeats, "repeats")
    if len(counts) < self.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: got "
            f"{len(counts)} for {self.ndim}"
        )
    if any(c < 0 for c in counts):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(counts)}: {list(counts)}")
    return repeat_operator(self, counts=counts)


Tensor.repeat = repeat  # type: ignore[method-assign]


@public("joining")
def tile(input: Tensor, *dims: Any) -> Tensor:  # noqa: A002
    """As `repeat`, with missing counts taken as 1."""
    counts = as_ints("tile", dims[0] if len(dims) == 1 else dims, "dims")
    return repeat(input, (1,) * (need_tensor("tile", input).ndim - len(counts)) + counts)


def _repeat_interleave(x: Node, count: int, axis: int) -> Node:
    spread = build.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    spread = build.broadcast_to(spread, (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return build.reshape(spread, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


repeat_interleave_operator = Operator("repeat_interleave", _repeat_interleave, fresh=True)


@public("joining")
def repeat_interleave(
    input: Tensor,
    repeats: Any = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,  # noqa: A002
) -> Tensor:
    """Every element repeated in place, `repeats` times or as often as a tensor of counts says; flattened without `dim`.

    `repeat_interleave(counts)` gives each position as often as its count.
    """
    need_tensor("repeat_interleave", input)
    if repeats is None:
        return copy_array(_counted(input), device=input.layout.device)
    if dim is None:
        input, dim = reshape(input, (-1,) if input.layout.numel else (0,)), 0  # noqa: A001
    axis = normalise_axis(dim, input.ndim)
    if isinstance(repeats, Tensor):
        if repeats.ndim > 1:
            raise RuntimeError("repeats must be 0-dim or 1-dim tensor")
        if repeats.dtype.kind not in "i" or repeats.dtype.itemsize < 4:
            raise RuntimeError("repeats has to be Long or Int tensor")
        need_one_device("repeat_interleave", input, repeats)
        if repeats.layout.numel == 1:
            repeats = int(host(repeats, "repeat_interleave").reshape(()))
        else:
            if repeats.layout.numel != input.layout.shape[axis]:
                raise RuntimeError(
                    "repeats must have the same size as input along dim, but got repeats.size(0) = "
                    f"{repeats.layout.numel} and input.size({axis}) = {input.layout.shape[axis]}"
                )
            return input.index_select(axis, copy_array(_counted(repeats), device=input.layout.device))
    count = as_int("repeat_interleave", repeats, "repeats")
    if count < 0:
        raise RuntimeError("repeats can not be negative")
    return repeat_interleave_operator(input, count=count, axis=axis)


def _counted(counts: Tensor) -> Any:
    import numpy as np

    values = host(counts, "repeat_interleave")
    if values.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if (values < 0).any():
        raise RuntimeError("repeats can not be negative")
    return np.repeat(np.arange(len(values), dtype=np.int64), values)

"""Where elements are: nonzero and its kin, positions of triangles, sorted places. Sizes depend on values, so NumPy runs
them on the host; what is differentiable then gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType, bool_, int32, int64, promote_operands, type_name
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.creation import copy_array
from tensorsmith.ops.device_copies import beside_input, need_one_device
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.indexing import pick
from tensorsmith.ops.raw_keys import as_bool
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.placement import place_of
from tensorsmith.tensor.tensor import Tensor


@public("indexing", kind="library", differentiable=False, out=True)
@beside_input
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:  # noqa: A002
    """Positions of the elements that are not zero: one row a position, or with `as_tuple` one tensor an axis."""
    values = host(need_tensor("nonzero", input), "nonzero")
    if as_bool("nonzero", as_tuple, "as_tuple"):
        found = np.nonzero(values if values.ndim else values.reshape(1))
        return tuple(copy_array(p.astype(np.int64)) for p in found)
    if not values.ndim:
        return copy_array(np.empty((int(bool(values)), 0), np.int64))
    return copy_array(np.argwhere(values).astype(np.int64))


@public("indexing", kind="library", differentiable=False)
def argwhere(input: Tensor) -> Tensor:  # noqa: A002
    """Positions of the elements that are not zero, one row a position."""
    return nonzero(input)


@public("indexing", kind="composite", out=True)
def masked_select(input: Tensor, mask: Tensor) -> Tensor:  # noqa: A002
    """The elements where the mask holds, in one axis; input and mask broadcast."""
    from tensorsmith.ops.views import broadcast_tensors

    need_tensor("masked_select", input)
    if need_tensor("masked_select", mask, "mask", 2).dtype is not bool_:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype.name}")
    need_one_device("masked_select", input, mask)
    x, where = broadcast_tensors(input, mask)
    if not x.ndim:
        x, where = x.reshape((1,)), where.reshape((1,))
    places = np.nonzero(host(where, "masked_select"))
    return pick(x, [copy_array(p.astype(np.int64)) for p in places])


@public("indexing", kind="library", differentiable=False)
@beside_input
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:  # noqa: A002
    """How often each non-negative int occurs, or the sum of its weights."""
    x = need_tensor("bincount", input)
    if x.dtype.kind not in "iu":
        raise NotImplementedError(f"\"bincount_cpu\" not implemented for '{type_name(x.dtype)}'")
    if x.ndim != 1 or x.dtype.kind not in "iu" or (x.layout.numel and int(host(x, "bincount").min()) < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.layout.shape != x.layout.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    counts = np.bincount(host(x, "bincount"), None if weights is None else host(weights, "bincount"), minlength)
    if weights is None:
        return copy_array(counts.astype(np.int64))
    return copy_array(counts.astype(np.float32 if weights.dtype.name == "float32" else np.float64))


def _triangle(name: str, lower: bool) -> None:
    def function(
        row: int, col: int, offset: int = 0, *, dtype: DType | None = None, device: Any = None, layout: Any = None
    ) -> Tensor:
        place = place_of(device)
        dtype = dtype or int64
        if row < 0 or col < 0:
            raise RuntimeError(f"{'row' if row < 0 else 'col'} must be non-negative, got {min(row, col)}")
        if dtype not in (int32, int64):
            raise NotImplementedError(f"\"{name}\" not implemented for '{type_name(dtype)}'; dtype is int32 or int64")
        found = np.tril_indices(row, offset, col) if lower else np.triu_indices(row, offset, col)
        return copy_array(np.stack(found).astype(np.int64), dtype, place)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Rows and columns of the {'lower' if lower else 'upper'} triangle of a (row, col) matrix, as (2, n)."
    )
    public("indexing", method=False, kind="library", differentiable=False)(function)


_triangle("tril_indices", True)
_triangle("triu_indices", False)

# --- places in sorted sequences ---------------------------------------------------------------------------------------


def _common(sequence: Node | Tensor, values: Node | Tensor) -> DType:
    """The dtype in which values are compared with elements."""
    lower = [] if values.ndim else [values.dtype]
    return promote_operands([sequence.dtype] if lower else [sequence.dtype, values.dtype], lower)


def _searchsorted(sequence: Node, values: Node, right: bool) -> Node:
    dtype = _common(sequence, values)
    sequence, values = build.cast(sequence, dtype), build.cast(values, dtype)
    return sequence.graph.add(
        Primitive.LIBRARY, (sequence, values), name="searchsorted", right=right, shape=values.shape, dtype=int64
    )


searchsorted_operator = Operator("searchsorted", _searchsorted)


def _search(name: str, sequence: Tensor, values: Any, right: bool, out_int32: bool) -> Tensor:
    right = as_bool(name, right, "right")
    if sequence.dtype is bool_ and (isinstance(values, bool) or getattr(values, "dtype", None) is bool_):
        raise NotImplementedError(f"\"{name}_out_cpu\" not implemented for 'Bool'")
    number = not isinstance(values, Tensor)
    if number:
        from tensorsmith.ops.creation import tensor

        like = sequence.dtype.kind in "iuf" and not isinstance(values, float)
        values = tensor(values, dtype=sequence.dtype if like else None, device=sequence.device)
    if not sequence.ndim:
        raise RuntimeError(f"{name}(): boundaries tensor should have positive dimension, but got 0 dimension")
    if not values.ndim and sequence.ndim != 1:
        raise RuntimeError(
            f"{name}(): input value can be a scalar only when boundaries tensor dimension is 1, but we got boundaries tensor "
            f"dim({sequence.ndim})"
        )
    _common(sequence, values)  # refuses what has no common type
    if sequence.ndim != 1 and sequence.layout.shape[:-1] != values.layout.shape[:-1]:
        raise RuntimeError(
            f"{name}(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input "
            f"value tensor must match, but we got boundaries tensor {list(sequence.layout.shape)} and input value tensor "
            f"{list(values.layout.shape)}"
        )
    found = call(searchsorted_operator, (sequence, values), {"right": right})
    return found.to(int32) if out_int32 else found


@public("indexing", method=False, differentiable=False, out=True)
def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,  # noqa: A002
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where values would be put into a sorted last axis to keep it sorted: before equal elements, or after with `right`."""
    need_tensor("searchsorted", sorted_sequence, "sorted_sequence")
    if side is not None and side not in ("left", "right"):
        raise RuntimeError(f"searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    return _search("searchsorted", sorted_sequence, input, right or side == "right", out_int32)


@public("indexing", method=False, differentiable=False, out=True)
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:  # noqa: A002
    """Which interval between sorted boundaries each value falls into."""
    if need_tensor("bucketize", boundaries, "boundaries", 2).ndim != 1:
        raise RuntimeError(f"bucketize(): boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return _search("bucketize", boundaries, input, right, out_int32)


@public("indexing", kind="library", differentiable=False)
@beside_input
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:  # noqa: A002
    """The first `size` positions of elements that are not zero, filled up with `fill_value`."""
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, but got {size}")
    found = np.argwhere(host(need_tensor("nonzero_static", input), "nonzero_static"))[:size].astype(np.int64)
    rows = np.full((size, input.ndim), fill_value, np.int64)
    rows[: len(found)] = found
    return copy_array(rows)

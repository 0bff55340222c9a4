"""Order along an axis: sort, topk, kthvalue, median, unique. Positions come from one kernel of ranks; values are gathered
at them, which is also how gradients flow. NaN counts as the largest value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType, bfloat16, iinfo, int64, of_python_scalar, promote_operands, type_name
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import zeros
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import refuse_complex
from tensorsmith.ops.creation import array_of, copy_array
from tensorsmith.ops.device_copies import beside_input
from tensorsmith.ops.extremes import shared
from tensorsmith.ops.index_steps import from_host, host
from tensorsmith.ops.raw_keys import as_bool, as_int
from tensorsmith.ops.reduction_steps import ValuesIndices, at_index
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


def order(x: Node, axis: int, descending: bool) -> Node:
    """Positions that sort along an axis."""
    return ranks(x, axis, descending, 0, x.shape[axis])


def ranks(x: Node, axis: int, descending: bool, start: int, length: int) -> Node:
    """Positions of the elements of ranks start to start + length along an axis."""
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    return x.graph.add(
        Primitive.LIBRARY, (x,), name="argsort", axis=axis, descending=descending, start=start, length=length, shape=shape,
        dtype=int64,
    )  # fmt: skip


def _picked(x: Node, axis: int, descending: bool, start: int, length: int) -> tuple[Node, Node]:
    """Values and positions of ranks start to start + length."""
    rows = x if x.ndim else build.reshape(x, (1,))
    index = ranks(rows, axis, descending, start, length)
    values = x.graph.add(Primitive.GATHER, (rows, index), axis=axis)
    if not x.ndim:
        return build.reshape(values, ()), build.reshape(index, ())
    return values, index


def _sort(x: Node, axis: int, descending: bool) -> tuple[Node, Node]:
    return _picked(x, axis, descending, 0, x.shape[axis] if x.ndim else 1)


def _pull(inputs: list[Node], outputs: list[Node], grads: list[Node], **attrs: Any) -> list[Node]:
    """The gradient of picked values goes to where they were."""
    from tensorsmith.ir.gradients import scatter, zeros

    x, index, grad, axis = inputs[0], outputs[1], grads[0], attrs["axis"]
    if not x.ndim:
        return [grad]
    return [scatter(zeros(grad, x.shape), index, grad, axis, "add")]


def _topk(x: Node, k: int, axis: int, largest: bool) -> tuple[Node, Node]:
    return _picked(x, axis, largest, 0, k) if x.ndim else _picked(x, axis, largest, 0, 1)


def _kth(x: Node, k: int, axis: int, keepdim: bool) -> tuple[Node, Node]:
    values, index = _picked(x, axis, False, k - 1, 1)
    return _dropped(values, x, axis, keepdim), _dropped(index, x, axis, keepdim)


def _dropped(x: Node, like: Node, axis: int, keepdim: bool) -> Node:
    if keepdim or not like.ndim:
        return x
    return build.reshape(x, x.shape[:axis] + x.shape[axis + 1 :])


def _median(x: Node, axis: int, keepdim: bool, skip_nan: bool) -> tuple[Node, Node]:
    """The lower median. A NaN in a row is its median, or is left out."""
    rows = x if x.ndim else build.reshape(x, (1,))
    extent = rows.shape[axis]
    if x.dtype.kind != "f":
        index = ranks(rows, axis, False, (extent - 1) // 2, 1)
    else:
        nan = build.cast(build.map_(Fn.ISNAN, rows), int64)
        count = build.reduce(nan, "sum", (axis,), keepdim=True)
        if skip_nan:
            present = extent - count
            rank = build.where(present <= 0, 0, build.map_(Fn.FLOOR_DIVIDE, present - 1, 2))
            index = x.graph.add(Primitive.GATHER, (order(rows, axis, False), rank), axis=axis)
        else:
            first_nan = build.reduce(nan, "argmax", (axis,), keepdim=True)
            index = build.where(count > 0, first_nan, ranks(rows, axis, False, (extent - 1) // 2, 1))
    values = x.graph.add(Primitive.GATHER, (rows, index), axis=axis)
    if not x.ndim:
        return build.reshape(values, ()), build.reshape(index, ())
    return _dropped(values, x, axis, keepdim), _dropped(index, x, axis, keepdim)


def _median_whole(x: Node, skip_nan: bool) -> Node:
    if not x.numel:
        return build.full(x.graph, (), _median_of_nothing(x.dtype), x.dtype)
    return _median(build.reshape(x, (x.numel,)), 0, False, skip_nan)[0]


def _median_of_nothing(dtype: DType) -> bool | int | float:
    """NaN, and in integers what a processor makes of NaN: the lowest of 32 or 64 bits, 0 of narrower ones, true."""
    if dtype.kind == "f":
        return math.nan
    return iinfo(dtype).min if dtype.itemsize >= 4 else dtype.kind == "b"


def _median_whole_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], skip_nan: bool) -> list[Node]:
    """Shared among the equals, as the extremes' is."""
    x = inputs[0]
    return [shared(x, outputs[0], grads[0], tuple(range(x.ndim))) if x.numel else zeros(grads[0], x.shape)]


def _one_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], **attrs: Any) -> list[Node]:
    return [at_index(inputs[0], outputs[1], grads[0], attrs["axis"])]


sort_operator = Operator("sort", _sort, vjp=_pull)
argsort_operator = Operator("argsort", lambda x, axis, descending: _sort(x, axis, descending)[1])
topk_operator = Operator("topk", _topk, vjp=_pull)
kthvalue_operator = Operator("kthvalue", _kth, vjp=_one_vjp)
median_operator = Operator("median", _median, vjp=_one_vjp)
median_whole_operator = Operator("median_whole", _median_whole, vjp=_median_whole_vjp, node_name="Median")


@public("sorting", out=True)
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:  # noqa: A002
    """Sorted along an axis, and where the values were. Equal elements keep their order."""
    axis = normalise_axis(as_int("sort", dim, "dim"), need_tensor("sort", input).ndim)
    return ValuesIndices(*sort_operator(input, axis=axis, descending=bool(descending)))


@public("sorting", differentiable=False)
def argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:  # noqa: A002
    """Positions that sort along an axis."""
    axis = normalise_axis(as_int("argsort", dim, "dim"), need_tensor("argsort", input).ndim)
    return argsort_operator(input, axis=axis, descending=bool(descending))


@public("sorting", out=True)
def msort(input: Tensor) -> Tensor:  # noqa: A002
    """Sorted along the first axis."""
    return sort(input, 0).values


@public("sorting", out=True)
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:  # noqa: A002
    """The k largest (or smallest) elements along an axis, in order, and where they were."""
    axis = normalise_axis(as_int("topk", dim, "dim"), need_tensor("topk", input).ndim)
    if input.dtype.kind == "b":
        raise RuntimeError("topk does not support Bool dtypes on CPU")
    count = as_int("topk", k, "k")
    if not 0 <= count <= (input.layout.shape[axis] if input.ndim else 1):
        raise RuntimeError("selected index k out of range")
    return ValuesIndices(*topk_operator(input, k=count, axis=axis, largest=bool(largest)))


@public("sorting", out=True)
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:  # noqa: A002
    """The k-th smallest element along an axis (k counts from 1), and where it was."""
    axis = normalise_axis(as_int("kthvalue", dim, "dim"), need_tensor("kthvalue", input).ndim)
    extent = input.layout.shape[axis] if input.ndim else 1
    if extent == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {axis} to have non-zero size.")
    if not 1 <= as_int("kthvalue", k, "k") <= extent:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}")
    return ValuesIndices(*kthvalue_operator(input, k=int(k), axis=axis, keepdim=as_bool("kthvalue", keepdim)))


def _medians(name: str, skip_nan: bool, what: str) -> None:
    def function(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:  # noqa: A002
        need_tensor(name, input)
        if dim is None:
            return median_whole_operator(input, skip_nan=skip_nan)
        axis = normalise_axis(as_int(name, dim, "dim"), input.ndim)
        if input.ndim and input.layout.shape[axis] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {axis} to have non-zero size.")
        return ValuesIndices(*median_operator(input, axis=axis, keepdim=as_bool(name, keepdim), skip_nan=skip_nan))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    public("sorting")(function)


_medians("median", False, "The lower median of all, or along an axis with its place; NaN where there is one.")
_medians("nanmedian", True, "The lower median of the values that are not NaN, of all or along an axis with its place.")


@public("sorting", kind="library", out=True)
@beside_input
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesIndices:  # noqa: A002
    """The commonest value along an axis (the smallest of equally common ones), and where it stands last."""
    axis = normalise_axis(as_int("mode", dim, "dim"), need_tensor("mode", input).ndim)
    refuse_complex("mode", input)
    if not input.ndim:
        return ValuesIndices(input.clone(), copy_array(np.zeros((), np.int64)))
    if input.layout.shape[axis] == 0:
        raise IndexError(f"mode(): Expected reduction dim {axis} to have non-zero size.")

    def place(row: np.ndarray) -> int:
        distinct, counts = np.unique(row, return_counts=True)
        commonest = distinct[np.argmax(counts)]
        return int(np.flatnonzero((row == commonest) | ((row != row) & (commonest != commonest)))[-1])

    def places(values: np.ndarray) -> np.ndarray:
        rows = np.moveaxis(_sortable(values), axis, -1)
        found = np.array([place(row) for row in rows.reshape(-1, rows.shape[-1])] if rows.size else [], np.int64)
        return np.expand_dims(found.reshape(rows.shape[:-1]), axis)

    index = from_host(input, "mode", places)
    picked = input.gather(axis, index)
    return ValuesIndices(*(x if keepdim else x.squeeze(axis) for x in (picked, index)))


# --- distinct values --------------------------------------------------------------------------------------------------


def _sortable(values: np.ndarray) -> np.ndarray:
    """Values that NumPy sorts with NaN last, which it does not do for bfloat16."""
    return values.astype(np.float32) if values.dtype == bfloat16.numpy else values


@public("sorting", kind="library", differentiable=False)
@beside_input
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,  # noqa: A002
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Distinct elements (or slices of an axis) in order; also where each element went, and how often each occurs."""
    refuse_complex("unique", need_tensor("unique", input))
    values = host(input, "unique")
    if dim is None:
        return _unique_elements(values, bool(return_inverse), bool(return_counts))
    parts: Any = np.unique(  # type: ignore[call-overload]
        _sortable(values), return_inverse=bool(return_inverse), return_counts=bool(return_counts),
        axis=normalise_axis(dim, input.ndim), equal_nan=False,
    )  # fmt: skip
    found, *rest = parts if isinstance(parts, tuple) else (parts,)
    results = [copy_array(np.ascontiguousarray(found.astype(values.dtype, copy=False)))]
    results += [copy_array(part.reshape(-1).astype(np.int64)) for part in rest]  # inverse, counts
    return results[0] if len(results) == 1 else tuple(results)


def _unique_elements(values: np.ndarray, return_inverse: bool, return_counts: bool) -> Any:
    """Distinct elements of the whole: runs of equal ones after a sort, whose positions only the inverse needs."""
    flat = np.ascontiguousarray(values.reshape(-1))
    if not return_inverse and values.dtype.itemsize >= 4:
        ordered = np.sort(flat)
    else:
        found, places = sort(copy_array(flat))
        ordered = array_of(found)
    starts = np.flatnonzero(_run_starts(_sortable(ordered)))
    counts = np.diff(starts, append=len(ordered))
    results = [copy_array(ordered[starts])]
    if return_inverse:
        inverse = np.empty(len(ordered), np.int64)
        inverse[array_of(places)] = np.repeat(np.arange(len(starts)), counts)
        results.append(copy_array(inverse.reshape(values.shape)))
    if return_counts:
        results.append(copy_array(counts.astype(np.int64)))
    return results[0] if len(results) == 1 else tuple(results)


def _run_starts(values: np.ndarray) -> np.ndarray:
    """Whether an element, or a row, differs from the one before; no NaN equals another."""
    new = np.ones(len(values), bool)
    if values.ndim > 1:
        new[1:] = (values[1:] != values[:-1]).any(1)
    else:
        np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


@public("sorting", kind="library", differentiable=False)
@beside_input
def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,  # noqa: A002
) -> Any:
    """The elements (or slices of an axis) without immediate repetitions."""
    refuse_complex("unique_consecutive", need_tensor("unique_consecutive", input))
    values = host(input, "unique_consecutive")
    axis = None if dim is None else normalise_axis(dim, input.ndim)
    if axis is None:
        flat = values.reshape(-1)
        new, extent = _run_starts(_sortable(flat)), flat.size
        starts = np.flatnonzero(new)
        picked = flat[starts]
    else:
        extent = values.shape[axis]
        rows = np.moveaxis(values, axis, 0).reshape(extent, values.size // max(extent, 1))
        new = _run_starts(rows)
        starts = np.flatnonzero(new)
        picked = np.take(values, starts, axis)
    results = [copy_array(np.ascontiguousarray(picked))]
    if return_inverse:
        numbers = np.cumsum(new, dtype=np.int64) - 1
        results.append(copy_array(numbers.reshape(values.shape if axis is None else (extent,))))
    if return_counts:
        results.append(copy_array(np.diff(starts, append=extent).astype(np.int64, copy=False)))
    return results[0] if len(results) == 1 else tuple(results)


@public("sorting", method=False, kind="library", differentiable=False, out=True)
@beside_input
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element occurs among the test elements; not for bool, whose values are two."""
    dtypes: tuple[list[DType], list[DType], list[DType]] = ([], [], [])  # with dimensions, zero-dim, numbers
    for x in (elements, test_elements):
        dtype, group = (x.dtype, 0 if x.ndim else 1) if isinstance(x, Tensor) else (of_python_scalar(x), 2)
        if dtype.kind in "bc":
            raise RuntimeError(f"Unsupported input type encountered for isin(): {type_name(dtype)}")
        dtypes[group].append(dtype)
    promote_operands(*dtypes)  # refuses what has no common type
    b = host(test_elements, "isin") if isinstance(test_elements, Tensor) else np.asarray(test_elements)

    def among(values: np.ndarray) -> np.ndarray:
        return np.isin(_sortable(values), _sortable(b), assume_unique=assume_unique, invert=invert)

    return from_host(elements, "isin", among) if isinstance(elements, Tensor) else copy_array(among(np.asarray(elements)))

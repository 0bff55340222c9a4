"""segment_reduce: runs of an axis reduced to one value each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import scatter
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.library_gradients import products_of_the_others
from tensorsmith.ops.creation import copy_array
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

_IDENTITY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_SCATTERED = {"prod": "prod", "max": "amax", "min": "amin"}


def _spread(x: Node, places: Node, axis: int) -> Node:
    """One segment number an element of x: the numbers are the same along the axes after `axis`."""
    return build.broadcast_to(build.reshape(places, (*places.shape, *[1] * (x.ndim - axis - 1))), x.shape)


def _start(x: Node, axis: int, count: int, value: float) -> Node:
    """One value a segment, and a last one for elements that are in none."""
    return build.full(x.graph, (*x.shape[:axis], count + 1, *x.shape[axis + 1 :]), value, x.dtype)


def _sizes(x: Node, positions: Node, axis: int, count: int) -> Node:
    ones = build.full(x.graph, x.shape, 1, x.dtype)
    return scatter(_start(x, axis, count, 0), positions, ones, axis, "add")


def _reduced(x: Node, places: Node, axis: int, reduce: str, count: int, initial: float | None) -> Node:
    given, x = x, build.wide(x)
    positions = _spread(x, places, axis)
    start = _start(x, axis, count, _IDENTITY[reduce] if initial is None else initial)
    if reduce in ("sum", "mean"):
        found = scatter(start, positions, x, axis, "add")
    else:
        found = x.graph.add(
            Primitive.LIBRARY, (start, positions, x), name="scatter_reduce", axis=axis, reduce=_SCATTERED[reduce],
            include_self=True, shape=start.shape, dtype=x.dtype,
        )  # fmt: skip
    if reduce == "mean":  # an empty segment: 0 / 0, or the initial value where there is one
        size = _sizes(x, positions, axis, count)
        found = found / (size if initial is None else build.where(build.map_(Fn.EQ, size, 0), 1, size))
    return build.cast(build.slice_(found, axis, 0, count), given.dtype)


def _reduced_vjp(
    inputs: list[Node], outputs: list[Node], grads: list[Node], axis: int, reduce: str, count: int, initial: float | None
) -> list[Node | None]:
    x, grad, out = build.wide(inputs[0]), build.wide(grads[0]), build.wide(outputs[0])
    positions = _spread(x, inputs[1], axis)

    def padded(value: Node) -> Node:
        """With a place for the elements that are in no segment."""
        high = [1 if i == axis else 0 for i in range(value.ndim)]
        return build.pad(value, [0] * value.ndim, high)

    def gathered(value: Node) -> Node:
        return value.graph.add(Primitive.GATHER, (value, positions), axis=axis)

    grad = padded(grad)
    if reduce == "sum":
        found = gathered(grad)
    elif reduce == "mean":
        size = _sizes(x, positions, axis, count)
        found = gathered(grad / build.where(build.map_(Fn.EQ, size, 0), 1, size))
    elif reduce == "prod":
        start = _start(x, axis, count, 1.0 if initial is None else initial)
        found = gathered(grad) * products_of_the_others(start, positions, x, axis)[1]
    else:  # shared among the equals; the initial value is none of them
        hit = build.map_(Fn.LOGICAL_OR, build.map_(Fn.EQ, x, gathered(padded(out))), build.map_(Fn.ISNAN, x))
        hits = build.cast(hit, x.dtype)
        number = scatter(_start(x, axis, count, 0), positions, hits, axis, "add")
        found = hits * gathered(grad / build.where(build.map_(Fn.EQ, number, 0), 1, number))
    return [build.cast(found, inputs[0].dtype), None]


segment_reduce_operator = Operator("segment_reduce", _reduced, _reduced_vjp)


def _places(x: Tensor, axis: int, lengths: Tensor | None, offsets: Tensor | None, unsafe: bool) -> tuple[Tensor, int]:
    """The number of the segment that each position of the axis is in, and how many segments there are."""
    given = lengths if lengths is not None else offsets
    if given is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    what = "lengths" if lengths is not None else "offsets"
    if need_tensor("segment_reduce", given, what).dtype.kind not in "iu":
        raise NotImplementedError(f'"_segment_reduce_{what}_cpu_kernel1" not implemented for \'{type_name(given.dtype)}\'')
    if axis != given.ndim - 1:
        raise RuntimeError(f"segment_reduce(): Expected axis to be the last dimension of {what} but got {axis}.")
    if given.layout.shape[:-1] != x.layout.shape[:axis]:
        raise RuntimeError(
            f"segment_reduce(): Expected {what} to have the shape of data before axis {axis}, {list(x.layout.shape[:axis])}, "
            f"got {list(given.layout.shape)}"
        )
    values, extent = host(given, "segment_reduce").astype(np.int64), x.layout.shape[axis]
    if lengths is not None:
        if not unsafe and (values < 0).any():
            raise RuntimeError("lengths contains negative value!")
        if not unsafe and (values.sum(-1) != extent).any():
            raise RuntimeError(
                "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."
            )
        first = np.zeros((*values.shape[:-1], 1), np.int64)
        values = np.concatenate([first, np.cumsum(values, -1)], -1)
    count = values.shape[-1] - 1
    if count < 0:
        raise RuntimeError("segment_reduce(): offsets must hold at least one position")
    rows = values.reshape(-1, count + 1)
    place = np.stack([np.searchsorted(row, np.arange(extent), "right") - 1 for row in rows]) if len(rows) else rows[:, :0]
    place = np.where(place < 0, count, place)  # before the first segment or behind the last: in none
    places = np.ascontiguousarray(place.reshape(*values.shape[:-1], extent))
    return copy_array(places, device=x.layout.device), count


@public("reductions", method=False, kind="library", out=True, aliases=("_segment_reduce",))
def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Runs of `axis`, given by their lengths or by where they start and end, reduced to one value each.

    reduce:  "sum", "mean", "max", "min" or "prod"; `initial` takes part first, and is the value of an empty run
    lengths: integers whose last axis is `axis` of the data; they sum to its extent unless `unsafe`
    offsets: the running sums of lengths, from 0, instead
    Gradients of extremes are shared among equals. Raises RuntimeError for lengths that do not fit, NotImplementedError for
    integer data.

    >>> ts.segment_reduce(ts.tensor([1.0, 2, 3]), "sum", lengths=ts.tensor([1, 2]))
    tensor([1., 5.])
    """
    need_tensor("segment_reduce", data, "data")
    if reduce not in _IDENTITY:
        raise RuntimeError(f"reduce argument must be either sum, mean, max, min or prod, got {reduce}")
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    position = normalise_axis(axis, data.ndim)
    places, count = _places(data, position, lengths, offsets, unsafe)
    if data.dtype.kind != "f":
        raise NotImplementedError(f'"_segment_reduce_cpu" not implemented for \'{type_name(data.dtype)}\'')
    attrs: dict[str, Any] = {"axis": position, "reduce": reduce, "count": count, "initial": initial}
    return call(segment_reduce_operator, (data, places), attrs)



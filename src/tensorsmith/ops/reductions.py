"""Reductions over axes: sums, products, means, counts, truth and logsumexp.

Integers and bool add up in int64; float16 and bfloat16 are reduced in float32 and rounded once. NaN is passed on. A `dim` is
an axis, several axes, or None for all; reduced axes are dropped unless `keepdim`."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.core.dtypes import DType, bool_, compute_dtype, int64, uint8
from tensorsmith.eager.dispatch import FAST
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.raw_keys import as_bool, as_int, exact, find, run
from tensorsmith.ops.reduction_steps import (
    Axes,
    Dim,
    as_floating,
    count_of,
    floating_only,
    kept,
    normalised,
    one_axis,
    result_shape,
    row_sum,
    shaped,
)
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

# --- sums and products ------------------------------------------------------------------------------------------------


def _accumulating(x: Node, kind: str, axes: Axes, dtype: DType | None) -> tuple[Node, DType]:
    result = dtype or (int64 if x.dtype.kind in "biu" else x.dtype)
    x = build.cast(x, compute_dtype(result))
    return build.reduce(x, kind, axes, keepdim=True) if axes else x, result


def _sum(x: Node, axes: Axes, keepdim: bool, dtype: DType | None) -> Node:
    total, result = _accumulating(x, "sum", axes, dtype)
    return build.cast(build.reshape(total, result_shape(x.shape, axes, keepdim)), result)


def _prod(x: Node, axes: Axes, keepdim: bool, dtype: DType | None) -> Node:
    total, result = _accumulating(x, "prod", axes, dtype)
    return build.cast(build.reshape(total, result_shape(x.shape, axes, keepdim)), result)


def _mean(x: Node, axes: Axes, keepdim: bool, dtype: DType | None) -> Node:
    total, result = _accumulating(x, "sum", axes, dtype)
    mean = total / float(count_of(x.shape, axes))
    return build.cast(build.reshape(mean, result_shape(x.shape, axes, keepdim)), result)


def _nansum(x: Node, axes: Axes, keepdim: bool, dtype: DType | None) -> Node:
    return _sum(_without_nan(x), axes, keepdim, dtype)


def _without_nan(x: Node) -> Node:
    return build.where(build.map_(Fn.ISNAN, x), 0, x) if x.dtype.kind == "f" else x


def _nanmean(x: Node, axes: Axes, keepdim: bool, dtype: DType | None) -> Node:
    result = dtype or x.dtype
    work = build.cast(x, compute_dtype(result))
    present = build.cast(build.map_(Fn.LOGICAL_NOT, build.map_(Fn.ISNAN, work)), work.dtype)
    mean = build.reduce(_without_nan(work), "sum", axes, keepdim) / build.reduce(present, "sum", axes, keepdim)
    return build.cast(mean, result)


def _count_nonzero(x: Node, axes: Axes) -> Node:
    return build.reduce(build.cast(build.map_(Fn.NE, x, 0), int64), "sum", axes)


sum_operator = Operator("sum", _sum)
prod_operator = Operator("prod", _prod)
mean_operator = Operator("mean", _mean)
nansum_operator = Operator("nansum", _nansum)
nanmean_operator = Operator("nanmean", _nanmean)
count_nonzero_operator = Operator("count_nonzero", _count_nonzero)


@public("reductions", out=True)
def sum_(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Sum over axes. Integers and bool add up in int64; `dtype` converts first. The sum of nothing is 0."""
    try:
        entry = FAST.get((sum_operator, input.layout, dim, keepdim, dtype))
    except (AttributeError, TypeError):
        need_tensor("sum", input)
        entry = None
    if entry is not None and (dim.__class__ is int or exact(dim)) and keepdim.__class__ is bool:
        return entry(input)
    attrs = {"axes": normalised(input, dim), "keepdim": as_bool("sum", keepdim), "dtype": dtype}
    return run(sum_operator, input, (dim, keepdim, dtype), attrs)


@public("reductions", out=True)
def mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Arithmetic mean over axes, of floating-point values only; NaN over nothing."""
    try:
        entry = FAST.get((mean_operator, input.layout, dim, keepdim, dtype))
    except (AttributeError, TypeError):
        need_tensor("mean", input)
        entry = None
    if entry is not None and (dim.__class__ is int or exact(dim)) and keepdim.__class__ is bool:
        return entry(input)
    floating_only("mean", input, dtype)
    attrs = {"axes": normalised(input, dim), "keepdim": as_bool("mean", keepdim), "dtype": dtype}
    return run(mean_operator, input, (dim, keepdim, dtype), attrs)


@public("reductions", out=True)
def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Product of all elements or over one axis. The product of nothing is 1; gradients are right through zeros."""
    entry = find((prod_operator, need_tensor("prod", input).layout, dim, keepdim, dtype))
    if entry is not None and exact(dim) and keepdim.__class__ is bool:
        return entry(input)
    axes = normalised(input, None if dim is None else as_int("prod", dim, "dim"))
    return run(prod_operator, input, (dim, keepdim, dtype), {"axes": axes, "keepdim": as_bool("prod", keepdim), "dtype": dtype})


@public("reductions", out=True)
def nansum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Sum over axes with NaN counted as 0."""
    if dtype is not None and need_tensor("nansum", input).dtype.kind == "f":
        refuse("nansum_cpu", dtype, "c")
    attrs = {"axes": normalised(need_tensor("nansum", input), dim), "keepdim": as_bool("nansum", keepdim), "dtype": dtype}
    return nansum_operator(input, **attrs)


@public("reductions", out=True)
def nanmean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Mean over axes of the values that are not NaN."""
    floating_only("nanmean", need_tensor("nanmean", input), None)
    floating_only("nanmean", input, dtype)
    if dtype is not None:
        refuse("nansum_cpu", dtype, "c")
    return nanmean_operator(input, axes=normalised(input, dim), keepdim=as_bool("nanmean", keepdim), dtype=dtype)


@public("reductions", differentiable=False)
def count_nonzero(input: Tensor, dim: Dim = None) -> Tensor:  # noqa: A002
    """How many elements are not zero, as int64."""
    return count_nonzero_operator(need_tensor("count_nonzero", input), axes=normalised(input, dim))


# --- truth ------------------------------------------------------------------------------------------------------------


def _truth(kind: str) -> Any:
    def graph(x: Node, axes: Axes, keepdim: bool) -> Node:
        result = uint8 if x.dtype is uint8 else bool_
        true = build.cast(x, bool_) if x.dtype is bool_ else build.map_(Fn.NE, x, 0)
        if count_of(x.shape, axes) == 0:
            return build.full(x.graph, result_shape(x.shape, axes, keepdim), kind == "min", result)
        found = build.reduce(true, kind, axes, keepdim=True) if axes else true
        return build.cast(build.reshape(found, result_shape(x.shape, axes, keepdim)), result)

    return graph


all_operator = Operator("all", _truth("min"))
any_operator = Operator("any", _truth("max"))


@public("reductions", differentiable=False, out=True)
def all_(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:  # noqa: A002
    """Whether every element is non-zero; true over nothing."""
    entry = find((all_operator, need_tensor("all", input).layout, dim, keepdim))
    if entry is not None and exact(dim) and keepdim.__class__ is bool:
        return entry(input)
    attrs = {"axes": normalised(input, dim), "keepdim": as_bool("all", keepdim)}
    return run(all_operator, input, (dim, keepdim), attrs)


@public("reductions", differentiable=False, out=True)
def any_(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:  # noqa: A002
    """Whether some element is non-zero; false over nothing."""
    entry = find((any_operator, need_tensor("any", input).layout, dim, keepdim))
    if entry is not None and exact(dim) and keepdim.__class__ is bool:
        return entry(input)
    attrs = {"axes": normalised(input, dim), "keepdim": as_bool("any", keepdim)}
    return run(any_operator, input, (dim, keepdim), attrs)


# --- logsumexp ----------------------------------------------------------------------------------------------------


def _logsumexp(x: Node, axes: Axes, keepdim: bool) -> Node:
    if count_of(x.shape, axes) == 0:
        return build.full(x.graph, result_shape(x.shape, axes, keepdim), -math.inf, x.dtype)
    work, axis = one_axis(build.wide(x), axes)
    top = build.reduce(build.part(work, 0) if work.dtype.is_complex else work, "max", (axis,), keepdim=True)
    # An infinite maximum is not subtracted: inf - inf would be NaN where inf or -inf is meant.
    shift = build.where(build.map_(Fn.EQ, build.map_(Fn.ABS, top), math.inf), 0, top)
    total = row_sum(build.map_(Fn.EXP, work - shift), axis)
    return shaped(build.map_(Fn.LOG, total) + shift, x, axes, keepdim)


def _logsumexp_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, keepdim: bool) -> list[Node]:
    x = inputs[0]
    if x.dtype.is_half:  # computed again: exp(x - out) would be wrong by the factor exp(rounding of out), which may be 2
        top = build.reduce(x, "max", axes, keepdim=True)
        shifted = build.wide(x) - build.where(build.map_(Fn.EQ, build.map_(Fn.ABS, top), math.inf), 0, top)
        power = build.map_(Fn.EXP, shifted)
        total = build.reduce(power, "sum", axes, keepdim=True)
        share = power / build.where(build.map_(Fn.EQ, total, 0), 1, total)
        return [build.cast(build.wide(kept(grads[0], x.shape, axes)) * share, x.dtype)]
    out = kept(outputs[0], x.shape, axes)
    out = build.where(build.map_(Fn.EQ, out, -math.inf), 0, out)
    return [kept(grads[0], x.shape, axes) * build.conj(build.map_(Fn.EXP, x - out))]


logsumexp_operator = Operator("logsumexp", _logsumexp, vjp=_logsumexp_vjp)


@public("reductions", out=True)
def logsumexp(input: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:  # noqa: A002
    """log(sum(exp(x))) over axes, without overflow. Integers are computed in the default dtype."""
    x = as_floating(need_tensor("logsumexp", input))
    return logsumexp_operator(x, axes=normalised(x, dim), keepdim=as_bool("logsumexp", keepdim))

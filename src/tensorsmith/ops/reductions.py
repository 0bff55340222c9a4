"""Reductions: sums, products, extremes, moments, norms and truth over axes.

Integers and bool add up in int64; float16 and bfloat16 are reduced in float32 and rounded once. NaN is passed on. A `dim` is
an axis, several axes, or None for all; reduced axes are dropped unless `keepdim`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorsmith.core.dtypes import DType, bool_, compute_dtype, int64, uint8
from tensorsmith.core.shapes import normalise_axes, normalise_axis
from tensorsmith.eager.dispatch import FAST
from tensorsmith.eager.inplace import type_name
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import scatter, zeros
from tensorsmith.ir.graph import Node
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.shortcut import as_int, as_ints, find, run
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

Dim = int | Sequence[int] | None
Axes = tuple[int, ...]


class ValuesIndices(NamedTuple):
    """A reduction to values that also says where they were."""

    values: Tensor
    indices: Tensor


class MinMax(NamedTuple):
    """Both extremes."""

    min: Tensor
    max: Tensor


# --- what the graphs below share --------------------------------------------------------------------------------------


def result_shape(shape: tuple[int, ...], axes: Axes, keepdim: bool) -> tuple[int, ...]:
    """The shape after reducing `axes`."""
    if keepdim:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def kept(x: Node, shape: tuple[int, ...], axes: Axes) -> Node:
    """A result without its reduced axes, given them back with extent 1."""
    return build.reshape(x, result_shape(shape, axes, True))


def one_axis(x: Node, axes: Axes) -> tuple[Node, int]:
    """The values with all reduced axes merged into one, and which one that is: the form of a row kernel."""
    if not axes:
        return build.reshape(x, (*x.shape, 1)), x.ndim
    first, last = axes[0], axes[-1]
    if axes != tuple(range(first, last + 1)):
        x = build.permute(x, [*(i for i in range(x.ndim) if i not in axes), *axes])
        first, last = x.ndim - len(axes), x.ndim - 1
    extent = math.prod(x.shape[first : last + 1])
    return build.reshape(x, (*x.shape[:first], extent, *x.shape[last + 1 :])), first


def _row_sum(x: Node, axis: int) -> Node:
    return build.reduce(x, "sum", (axis,), keepdim=True)


def _count(shape: tuple[int, ...], axes: Axes) -> int:
    return math.prod(shape[i] for i in axes)


def normalised(x: Tensor, dim: Dim) -> Axes:
    """Distinct axes counted from 0."""
    if dim is None or (dim.__class__ is tuple and not dim):
        return tuple(range(x.ndim))
    return normalise_axes(as_ints("reduction", dim, "dim"), x.ndim)


def _floating(name: str, x: Tensor, dtype: DType | None) -> None:
    got = dtype or x.dtype
    if got.kind not in "fc":
        what = "input dtype must be" if dtype is None else "optional dtype must be"
        raise RuntimeError(
            f"{name}(): {'could not infer output dtype. ' if dtype is None else ''}{what.capitalize()} either a floating point "
            f"or complex dtype. Got: {type_name(got)}"
        )


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
    mean = total / float(_count(x.shape, axes))
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
    if entry is not None:
        return entry(input)
    attrs = {"axes": normalised(input, dim), "keepdim": bool(keepdim), "dtype": dtype}
    return run(sum_operator, input, (dim, keepdim, dtype), attrs)


@public("reductions", out=True)
def mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Arithmetic mean over axes, of floating-point values only; NaN over nothing."""
    try:
        entry = FAST.get((mean_operator, input.layout, dim, keepdim, dtype))
    except (AttributeError, TypeError):
        need_tensor("mean", input)
        entry = None
    if entry is not None:
        return entry(input)
    _floating("mean", input, dtype)
    attrs = {"axes": normalised(input, dim), "keepdim": bool(keepdim), "dtype": dtype}
    return run(mean_operator, input, (dim, keepdim, dtype), attrs)


@public("reductions", out=True)
def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Product of all elements or over one axis. The product of nothing is 1; gradients are right through zeros."""
    entry = find((prod_operator, need_tensor("prod", input).layout, dim, keepdim, dtype))
    if entry is not None:
        return entry(input)
    axes = normalised(input, None if dim is None else as_int("prod", dim, "dim"))
    return run(prod_operator, input, (dim, keepdim, dtype), {"axes": axes, "keepdim": bool(keepdim), "dtype": dtype})


@public("reductions", out=True)
def nansum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Sum over axes with NaN counted as 0."""
    attrs = {"axes": normalised(need_tensor("nansum", input), dim), "keepdim": bool(keepdim), "dtype": dtype}
    return nansum_operator(input, **attrs)


@public("reductions", out=True)
def nanmean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:  # noqa: A002
    """Mean over axes of the values that are not NaN."""
    _floating("nanmean", need_tensor("nanmean", input), dtype)
    return nanmean_operator(input, axes=normalised(input, dim), keepdim=bool(keepdim), dtype=dtype)


@public("reductions", differentiable=False)
def count_nonzero(input: Tensor, dim: Dim = None) -> Tensor:  # noqa: A002
    """How many elements are not zero, as int64."""
    return count_nonzero_operator(need_tensor("count_nonzero", input), axes=normalised(input, dim))


# --- truth ------------------------------------------------------------------------------------------------------------


def _truth(kind: str) -> Any:
    def graph(x: Node, axes: Axes, keepdim: bool) -> Node:
        result = uint8 if x.dtype is uint8 else bool_
        true = build.cast(x, bool_) if x.dtype is bool_ else build.map_(Fn.NE, x, 0)
        if _count(x.shape, axes) == 0:
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
    if entry is not None:
        return entry(input)
    attrs = {"axes": normalised(input, dim), "keepdim": bool(keepdim)}
    return run(all_operator, input, (dim, keepdim), attrs)


@public("reductions", differentiable=False, out=True)
def any_(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:  # noqa: A002
    """Whether some element is non-zero; false over nothing."""
    entry = find((any_operator, need_tensor("any", input).layout, dim, keepdim))
    if entry is not None:
        return entry(input)
    attrs = {"axes": normalised(input, dim), "keepdim": bool(keepdim)}
    return run(any_operator, input, (dim, keepdim), attrs)


# --- extremes ---------------------------------------------------------------------------------------------------------


def _extreme(kind: str) -> Any:
    def graph(x: Node, axes: Axes, keepdim: bool) -> Node:
        return build.reduce(x, kind, axes, keepdim) if axes else x

    return graph


def shared(x: Node, output: Node, grad: Node, axes: Axes) -> Node:
    """The gradient of an extreme, in equal parts to all elements that attain it."""
    top, share = kept(output, x.shape, axes), kept(grad, x.shape, axes)
    both_nan = build.map_(Fn.LOGICAL_AND, build.map_(Fn.ISNAN, x), build.map_(Fn.ISNAN, top))
    chosen = build.map_(Fn.LOGICAL_OR, build.map_(Fn.EQ, x, top), both_nan)
    count = build.reduce(build.cast(chosen, grad.dtype), "sum", axes, keepdim=True)
    return build.where(chosen, share / count, 0)


def _extreme_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], axes: Axes, keepdim: bool) -> list[Node]:
    return [shared(inputs[0], outputs[0], grads[0], axes) if axes else grads[0]]


def _both_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], axes: Axes, keepdim: bool) -> list[Node]:
    if not axes:
        return [grads[0] + grads[1]]
    return [shared(inputs[0], outputs[0], grads[0], axes) + shared(inputs[0], outputs[1], grads[1], axes)]


def _at(kind: str) -> Any:
    """The extreme along one axis and where it is (the first of equals; NaN before everything)."""

    def graph(x: Node, axis: int, keepdim: bool) -> tuple[Node, Node]:
        shape, rows = x.shape, x if x.ndim else build.reshape(x, (1,))
        result = result_shape(shape, (axis,), keepdim) if shape else ()
        value = build.reduce(rows, kind, (axis,), keepdim=True)
        index = build.reduce(rows, "arg" + kind, (axis,), keepdim=True)
        return build.reshape(value, result), build.reshape(index, result)

    return graph


def at_index(x: Node, index: Node, grad: Node, axis: int) -> Node:
    """Zeros like x with the gradient at one index along an axis."""
    if not x.ndim:
        return grad
    spread = zeros(grad, x.shape)
    return scatter(spread, kept(index, x.shape, (axis,)), kept(grad, x.shape, (axis,)), axis, "add")


def _at_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node], axis: int, keepdim: bool) -> list[Node]:
    return [at_index(inputs[0], outputs[1], grads[0], axis)]


def _arg(kind: str) -> Any:
    def graph(x: Node, axis: int | None, keepdim: bool) -> Node:
        shape = x.shape
        if axis is None or not shape:
            index = build.reduce(build.reshape(x, (x.numel,)), kind, (0,))
            return build.reshape(index, (1,) * len(shape) if keepdim else ())
        return build.reduce(x, kind, (axis,), keepdim)

    return graph


amax_operator = Operator("amax", _extreme("max"), vjp=_extreme_vjp)
amin_operator = Operator("amin", _extreme("min"), vjp=_extreme_vjp)
max_whole_operator = Operator("max_whole", _extreme("max"), vjp=_extreme_vjp, node_name="Max")
min_whole_operator = Operator("min_whole", _extreme("min"), vjp=_extreme_vjp, node_name="Min")
max_at_operator = Operator("max_at", _at("max"), vjp=_at_vjp, node_name="Max")
min_at_operator = Operator("min_at", _at("min"), vjp=_at_vjp, node_name="Min")
argmax_operator = Operator("argmax", _arg("argmax"))
argmin_operator = Operator("argmin", _arg("argmin"))
aminmax_operator = Operator(
    "aminmax", lambda x, axes, keepdim: (_extreme("min")(x, axes, keepdim), _extreme("max")(x, axes, keepdim)),
    vjp=_both_vjp,
)  # fmt: skip


def _need_elements(name: str, x: Tensor, axes: Axes, whole: bool) -> None:
    """Refuse an extreme of nothing, with PyTorch's classes of error."""
    if x.layout.numel or 0 not in [x.layout.shape[a] for a in axes]:
        return
    if whole:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
            "'dim' argument."
        )
    axis = next(a for a in axes if x.layout.shape[a] == 0)
    raise IndexError(f"{name}(): Expected reduction dim {axis} to have non-zero size.")


def _am(name: str, operator: Operator) -> Any:
    def function(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:  # noqa: A002
        entry = find((operator, need_tensor(name, input).layout, dim, keepdim))
        if entry is not None:
            return entry(input)
        axes = normalised(input, dim)
        _need_elements(name, input, axes, dim is None or dim == ())
        return run(operator, input, (dim, keepdim), {"axes": axes, "keepdim": bool(keepdim)})

    function.__name__ = function.__qualname__ = name
    which = "Largest" if name == "amax" else "Smallest"
    function.__doc__ = f"{which} element over axes (all by default). The gradient is shared equally among ties."
    return public("reductions", out=True)(function)


amax, amin = _am("amax", amax_operator), _am("amin", amin_operator)


def _whole_or_axis(name: str, whole: Operator, along: Operator, pairwise: Fn) -> Any:
    def function(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None) -> Any:  # noqa: A002
        entry = find((along, need_tensor(name, input).layout, dim, keepdim))
        if entry is not None and out is None and other is None:
            found = entry(input)
            return found if dim is None else ValuesIndices(*found)
        if other is not None or isinstance(dim, Tensor):
            from tensorsmith.ops.pointwise import OPERATORS
            from tensorsmith.ops.registry import write_out

            result = OPERATORS[pairwise](input, other if other is not None else dim)
            return result if out is None else write_out(name, result, out)
        if dim is None:
            _need_elements(name, input, tuple(range(input.ndim)), True)
            result = run(whole, input, (), {"axes": tuple(range(input.ndim)), "keepdim": False})
            if out is None:
                entry = find((whole, input.layout))
                if entry is not None:
                    from tensorsmith.eager.dispatch import remember

                    remember((along, input.layout, None, False), entry)
                return result
        else:
            axis = normalise_axis(as_int(name, dim, "dim"), input.ndim)
            _need_elements(name, input, (axis,) if input.ndim else (), False)
            result = ValuesIndices(*run(along, input, (dim, keepdim), {"axis": axis, "keepdim": bool(keepdim)}))
        if out is not None:
            from tensorsmith.ops.registry import write_out

            write_out(name, tuple(result) if isinstance(result, tuple) else result, out)
            return ValuesIndices(*out) if isinstance(out, tuple | list) else out
        return result

    function.__name__ = function.__qualname__ = name
    which = "Largest" if name == "max" else "Smallest"
    function.__doc__ = (
        f"{which} element of all; or along `dim`, as (values, indices); or elementwise with another tensor.\n\n"
        "The gradient of the whole is shared among ties, that along an axis goes to the index returned."
    )
    return public("reductions")(function)


max_ = _whole_or_axis("max", max_whole_operator, max_at_operator, Fn.MAXIMUM)
min_ = _whole_or_axis("min", min_whole_operator, min_at_operator, Fn.MINIMUM)


def _argument(name: str, operator: Operator) -> Any:
    def function(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:  # noqa: A002
        entry = find((operator, need_tensor(name, input).layout, dim, keepdim))
        if entry is not None:
            return entry(input)
        axis = None if dim is None else normalise_axis(as_int(name, dim, "dim"), input.ndim)
        if input.dtype is bool_:
            raise RuntimeError(f"{name}(): does not support bool input")
        if dim is None:
            if not input.layout.numel:
                raise IndexError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
        elif input.ndim:
            _need_elements(name, input, (axis,) if axis is not None else (), False)
        return run(operator, input, (dim, keepdim), {"axis": axis, "keepdim": bool(keepdim)})

    function.__name__ = function.__qualname__ = name
    which = "largest" if name == "argmax" else "smallest"
    function.__doc__ = f"Index of the {which} element (the first of equals), along an axis or of the flattened tensor."
    return public("reductions", differentiable=False)(function)


argmax, argmin = _argument("argmax", argmax_operator), _argument("argmin", argmin_operator)


@public("reductions")
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:  # noqa: A002
    """Smallest and largest element of all, or along an axis."""
    axes = normalised(need_tensor("aminmax", input), dim)
    _need_elements("aminmax", input, axes, dim is None)
    return MinMax(*aminmax_operator(input, axes=axes, keepdim=bool(keepdim)))


# --- moments ----------------------------------------------------------------------------------------------------------


def _moments(x: Node, axes: Axes, correction: float) -> tuple[Node, Node]:
    """Variance and mean with reduced axes kept, in the compute dtype: the mean first, then the squares around it."""
    work, axis = one_axis(build.cast(x, compute_dtype(x.dtype)), axes)
    count = work.shape[axis]
    average = _row_sum(work, axis) / float(count)
    around = work - average
    variance = _row_sum(around * around, axis) / float(max(count - correction, 0))
    return kept(variance, x.shape, axes), kept(average, x.shape, axes)


def _shaped(x: Node, like: Node, axes: Axes, keepdim: bool) -> Node:
    return build.cast(build.reshape(x, result_shape(like.shape, axes, keepdim)), like.dtype)


def _var(x: Node, axes: Axes, correction: float, keepdim: bool) -> Node:
    return _shaped(_moments(x, axes, correction)[0], x, axes, keepdim)


def _std(x: Node, axes: Axes, correction: float, keepdim: bool) -> Node:
    return _shaped(build.map_(Fn.SQRT, _moments(x, axes, correction)[0]), x, axes, keepdim)


def _var_mean(x: Node, axes: Axes, correction: float, keepdim: bool) -> tuple[Node, Node]:
    variance, average = _moments(x, axes, correction)
    return _shaped(variance, x, axes, keepdim), _shaped(average, x, axes, keepdim)


def _std_mean(x: Node, axes: Axes, correction: float, keepdim: bool) -> tuple[Node, Node]:
    variance, average = _moments(x, axes, correction)
    return _shaped(build.map_(Fn.SQRT, variance), x, axes, keepdim), _shaped(average, x, axes, keepdim)


def _var_gradient(x: Node, grad: Node, axes: Axes, correction: float) -> Node:
    """2 g (x - mean) / (n - correction)."""
    count = _count(x.shape, axes)
    average = build.reduce(x, "sum", axes, keepdim=True) / float(count)
    below = count - correction
    if below <= 0 and len(axes) == x.ndim:
        return kept(grad, x.shape, axes) * build.where(build.map_(Fn.EQ, x, average), math.nan, build.full(x.graph, x.shape, math.inf, x.dtype))
    return kept(grad, x.shape, axes) * (2.0 / below if below else math.inf) * (x - average)


def _std_gradient(x: Node, output: Node, grad: Node, axes: Axes, correction: float) -> Node:
    flat = build.map_(Fn.EQ, output, 0)
    through = build.where(flat, 0, grad / build.where(flat, 1, output * 2.0))
    return _var_gradient(x, through, axes, correction)


def _var_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, correction: float, keepdim: bool) -> list[Node]:
    return [_var_gradient(inputs[0], grads[0], axes, correction)]


def _std_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, correction: float, keepdim: bool) -> list[Node]:
    return [_std_gradient(inputs[0], outputs[0], grads[0], axes, correction)]


def _mean_part(x: Node, grad: Node, axes: Axes) -> Node:
    return build.broadcast_to(kept(grad, x.shape, axes) / float(_count(x.shape, axes)), x.shape)


def _var_mean_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, correction: float, keepdim: bool) -> list[Node]:
    x = inputs[0]
    return [_var_gradient(x, grads[0], axes, correction) + _mean_part(x, grads[1], axes)]


def _std_mean_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, correction: float, keepdim: bool) -> list[Node]:
    x = inputs[0]
    return [_std_gradient(x, outputs[0], grads[0], axes, correction) + _mean_part(x, grads[1], axes)]


_MOMENTS = {
    "var": Operator("var", _var, vjp=_var_vjp),
    "std": Operator("std", _std, vjp=_std_vjp),
    "var_mean": Operator("var_mean", _var_mean, vjp=_var_mean_vjp),
    "std_mean": Operator("std_mean", _std_mean, vjp=_std_mean_vjp),
}


def _moment(name: str, operator: Operator) -> Any:
    def function(
        input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,  # noqa: A002
        correction: float | None = None,
    ) -> Any:  # fmt: skip
        raw = (dim if dim.__class__ is not bool else ("unbiased", dim), unbiased, keepdim, correction)
        entry = find((operator, need_tensor(name, input).layout, *raw))
        if entry is not None:
            return entry(input)
        if input.dtype.kind not in "fc":
            raise RuntimeError("std and var only support floating point and complex dtypes")
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None:
            if correction is not None:
                raise TypeError(f"{name}(): give either unbiased or correction, not both")
            correction = 1 if unbiased else 0
        amount = float(1 if correction is None else correction)
        attrs = {"axes": normalised(input, dim), "correction": amount, "keepdim": bool(keepdim)}
        return run(operator, input, raw, attrs)

    function.__name__ = function.__qualname__ = name
    what = "Standard deviation" if name.startswith("std") else "Variance"
    function.__doc__ = (
        f"{what}{' and mean' if name.endswith('mean') else ''} over axes: squares around the mean over n - correction "
        "(1 by default)."
    )
    return public("reductions", out=not name.endswith("mean"), method=not name.endswith("mean"))(function)


var, std = _moment("var", _MOMENTS["var"]), _moment("std", _MOMENTS["std"])
var_mean, std_mean = _moment("var_mean", _MOMENTS["var_mean"]), _moment("std_mean", _MOMENTS["std_mean"])


# --- logsumexp and norms ----------------------------------------------------------------------------------------------


def _logsumexp(x: Node, axes: Axes, keepdim: bool) -> Node:
    if _count(x.shape, axes) == 0:
        return build.full(x.graph, result_shape(x.shape, axes, keepdim), -math.inf, x.dtype)
    work, axis = one_axis(build.cast(x, compute_dtype(x.dtype)), axes)
    top = build.reduce(work, "max", (axis,), keepdim=True)
    # An infinite maximum is not subtracted: inf - inf would be NaN where inf or -inf is meant.
    shift = build.where(build.map_(Fn.EQ, build.map_(Fn.ABS, top), math.inf), 0, top)
    total = _row_sum(build.map_(Fn.EXP, work - shift), axis)
    return _shaped(build.map_(Fn.LOG, total) + shift, x, axes, keepdim)


def _logsumexp_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, keepdim: bool) -> list[Node]:
    x = inputs[0]
    out = kept(outputs[0], x.shape, axes)
    out = build.where(build.map_(Fn.EQ, out, -math.inf), 0, out)
    return [kept(grads[0], x.shape, axes) * build.map_(Fn.EXP, x - out)]


logsumexp_operator = Operator("logsumexp", _logsumexp, vjp=_logsumexp_vjp)


@public("reductions", out=True)
def logsumexp(input: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:  # noqa: A002
    """log(sum(exp(x))) over axes, without overflow. Integers are computed in the default dtype."""
    x = as_floating(need_tensor("logsumexp", input))
    return logsumexp_operator(x, axes=normalised(x, dim), keepdim=bool(keepdim))


def as_floating(x: Tensor) -> Tensor:
    """The tensor itself, or an integer or bool tensor in the default dtype."""
    from tensorsmith.core.dtypes import get_default_dtype

    return x if x.dtype.kind in "fc" else x.to(get_default_dtype())  # type: ignore[attr-defined]


def _norm(x: Node, axes: Axes, keepdim: bool, order: float) -> Node:
    work, axis = one_axis(build.cast(x, compute_dtype(x.dtype)), axes)
    size = build.map_(Fn.ABS, work)
    if order == math.inf or order == -math.inf:
        found = build.reduce(size, "max" if order > 0 else "min", (axis,), keepdim=True)
    elif order == 0:
        found = _row_sum(build.cast(build.map_(Fn.NE, work, 0), work.dtype), axis)
    elif order == 1:
        found = _row_sum(size, axis)
    elif order == 2:
        found = build.map_(Fn.SQRT, _row_sum(work * work, axis))
    else:
        found = build.map_(Fn.POW, _row_sum(build.map_(Fn.POW, size, order), axis), 1.0 / order)
    return _shaped(found, x, axes, keepdim)


def _norm_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, keepdim: bool, order: float) -> list[Node]:
    x = inputs[0]
    norm, grad = kept(outputs[0], x.shape, axes), kept(grads[0], x.shape, axes)
    if order == 0:
        return [zeros(grad, x.shape)]
    if order == 1:
        return [build.map_(Fn.SIGN, x) * grad]
    zero = build.map_(Fn.EQ, norm, 0)
    safe = build.where(zero, 1, norm)
    if order == 2:
        return [x * build.where(zero, 0, grad / safe)]
    size = build.map_(Fn.ABS, x)
    if math.isinf(order):
        chosen = build.map_(Fn.EQ, size, norm)
        count = build.reduce(build.cast(chosen, x.dtype), "sum", axes, keepdim=True)
        return [build.where(chosen, build.map_(Fn.SIGN, x) * (grad / count), 0)]
    nothing = build.map_(Fn.EQ, x, 0)
    safe_size = build.where(nothing, 1, size)
    slope = build.where(nothing, 0, build.map_(Fn.SIGN, x) * build.map_(Fn.POW, safe_size, order - 1))
    return [slope * build.where(zero, 0, grad * build.map_(Fn.POW, safe, 1 - order))]


norm_operator = Operator("vector_norm", _norm, vjp=_norm_vjp, node_name="LinalgVectorNorm")


def vector_norm_of(x: Tensor, order: float, dim: Dim, keepdim: bool, dtype: DType | None) -> Tensor:
    """(sum |x|^order)^(1/order) over axes; its limits for 0 and +-inf."""
    if x.dtype.kind not in "fc":
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {type_name(x.dtype)}"
        )
    if dtype is not None and dtype is not x.dtype:
        x = x.to(dtype)  # type: ignore[attr-defined]
    axes = normalised(x, dim)
    if _count(x.layout.shape, axes) == 0 and (order < 0 or order == math.inf):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {order} norm on an empty tensor because the operation does not have an "
            "identity"
        )
    return norm_operator(x, axes=axes, keepdim=bool(keepdim), order=float(order))


@public("reductions", out=True)
def norm(
    input: Tensor, p: Any = "fro", dim: Dim = None, keepdim: bool = False, dtype: DType | None = None  # noqa: A002
) -> Tensor:
    """The p-norm over axes: `p` a number, inf or -inf; "fro" is 2."""
    need_tensor("norm", input)
    if p == "nuc":
        raise NotImplementedError("norm: the nuclear norm needs a singular value decomposition, which is not implemented")
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm(): p must be a number, 'fro' or 'nuc', got {p!r}")
    return vector_norm_of(input, 2.0 if p in ("fro", None) else float(p), dim, keepdim, dtype)


# Methods skip the wrapper that serves `out=`: eager speed is decided by such calls.
Tensor.sum = sum_.__wrapped__  # type: ignore[assignment, attr-defined, method-assign]
Tensor.mean = mean.__wrapped__  # type: ignore[assignment, attr-defined, method-assign]
for _name, _operator in {"all": all_, "any": any_, "prod": prod, "amax": amax, "amin": amin}.items():
    setattr(Tensor, _name, getattr(_operator, "__wrapped__", _operator))

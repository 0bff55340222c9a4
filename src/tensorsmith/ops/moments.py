"""Moments and norms over axes: variance, standard deviation, vector norms."""

from __future__ import annotations

import math
from typing import Any

from tensorsmith.core.dtypes import DType, compute_dtype, promote_types, real_dtype, type_name
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import zeros
from tensorsmith.ir.graph import Node
from tensorsmith.ops.raw_keys import as_bool, exact, find, run
from tensorsmith.ops.reduction_steps import (
    Axes,
    Dim,
    count_of,
    kept,
    normalised,
    one_axis,
    row_sum,
    shaped,
    squared_size,
)
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.ops.singular_values import nuclear_norm_of
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor

# --- moments ----------------------------------------------------------------------------------------------------------


def _moments(x: Node, axes: Axes, correction: float) -> tuple[Node, Node]:
    """Variance and mean with reduced axes kept, in the compute dtype: the mean first, then the squares around it."""
    work, axis = one_axis(build.wide(x), axes)
    count = work.shape[axis]
    average = row_sum(work, axis) / float(count)
    around = work - average
    variance = row_sum(squared_size(around), axis) / float(max(count - correction, 0))
    return kept(variance, x.shape, axes), kept(average, x.shape, axes)


def _var(x: Node, axes: Axes, correction: float, keepdim: bool) -> Node:
    return shaped(_moments(x, axes, correction)[0], x, axes, keepdim)


def _std(x: Node, axes: Axes, correction: float, keepdim: bool) -> Node:
    return shaped(build.map_(Fn.SQRT, _moments(x, axes, correction)[0]), x, axes, keepdim)


def _var_mean(x: Node, axes: Axes, correction: float, keepdim: bool) -> tuple[Node, Node]:
    variance, average = _moments(x, axes, correction)
    return shaped(variance, x, axes, keepdim), shaped(average, x, axes, keepdim)


def _std_mean(x: Node, axes: Axes, correction: float, keepdim: bool) -> tuple[Node, Node]:
    variance, average = _moments(x, axes, correction)
    return shaped(build.map_(Fn.SQRT, variance), x, axes, keepdim), shaped(average, x, axes, keepdim)


def _var_gradient(x: Node, grad: Node, axes: Axes, correction: float) -> Node:
    """2 g (x - mean) / (n - correction)."""
    count, x, grad = count_of(x.shape, axes), build.wide(x), build.wide(grad)
    average = build.reduce(x, "sum", axes, keepdim=True) / float(count)
    below = count - correction
    if below <= 0 and len(axes) == x.ndim:
        infinite = build.full(x.graph, x.shape, math.inf, x.dtype)
        return kept(grad, x.shape, axes) * build.where(build.map_(Fn.EQ, x, average), math.nan, infinite)
    return kept(grad, x.shape, axes) * (2.0 / below if below else math.inf) * (x - average)


def _std_gradient(x: Node, output: Node, grad: Node, axes: Axes, correction: float) -> Node:
    output, grad = build.wide(output), build.wide(grad)
    flat = build.map_(Fn.EQ, output, 0)
    through = build.where(flat, 0, grad / build.where(flat, 1, output * 2.0))
    return _var_gradient(x, through, axes, correction)


def _var_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, correction: float, keepdim: bool) -> list[Node]:
    return [_var_gradient(inputs[0], grads[0], axes, correction)]


def _std_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, correction: float, keepdim: bool) -> list[Node]:
    return [_std_gradient(inputs[0], outputs[0], grads[0], axes, correction)]


def _mean_part(x: Node, grad: Node, axes: Axes) -> Node:
    return build.broadcast_to(kept(build.wide(grad), x.shape, axes) / float(count_of(x.shape, axes)), x.shape)


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
        if entry is not None and (dim.__class__ is bool or exact(dim)) and keepdim.__class__ is bool:
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
        attrs = {"axes": normalised(input, dim), "correction": amount, "keepdim": as_bool(name, keepdim)}
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


# --- norms ----------------------------------------------------------------------------------------------------


def _norm(x: Node, axes: Axes, keepdim: bool, order: float) -> Node:
    work, axis = one_axis(build.wide(x), axes)
    size = build.map_(Fn.ABS, work)
    if order == math.inf or order == -math.inf:
        found = build.reduce(size, "max" if order > 0 else "min", (axis,), keepdim=True)
    elif order == 0:
        found = row_sum(build.cast(build.map_(Fn.NE, work, 0), real_dtype(work.dtype)), axis)
    elif order == 1:
        found = row_sum(size, axis)
    elif order == 2:
        found = build.map_(Fn.SQRT, row_sum(squared_size(work), axis))
    else:
        found = build.map_(Fn.POW, row_sum(build.map_(Fn.POW, size, order), axis), 1.0 / order)
    return shaped(found, x, axes, keepdim)


def _norm_vjp(inputs: Any, outputs: Any, grads: Any, axes: Axes, keepdim: bool, order: float) -> list[Node]:
    x = inputs[0]
    norm, grad = kept(outputs[0], x.shape, axes), kept(grads[0], x.shape, axes)
    if order == 0:
        return [zeros(grad, x.shape)]
    if order == 1:
        return [build.map_(Fn.SGN, x) * grad]
    zero = build.map_(Fn.EQ, norm, 0)
    safe = build.where(zero, 1, norm)
    if order == 2:
        return [x * build.where(zero, 0, grad / safe)]
    size = build.map_(Fn.ABS, x)
    if math.isinf(order):
        chosen = build.map_(Fn.EQ, size, norm)
        count = build.reduce(build.cast(chosen, compute_dtype(real_dtype(x.dtype))), "sum", axes, keepdim=True)
        return [build.where(chosen, build.map_(Fn.SGN, x) * (build.wide(grad) / count), 0)]
    nothing = build.map_(Fn.EQ, x, 0)
    safe_size = build.where(nothing, 1, size)
    slope = build.where(nothing, 0, build.map_(Fn.SGN, x) * build.map_(Fn.POW, safe_size, order - 1))
    return [slope * build.where(zero, 0, grad * build.map_(Fn.POW, safe, 1 - order))]


norm_operator = Operator("vector_norm", _norm, vjp=_norm_vjp, node_name="LinalgVectorNorm")


def in_dtype(name: str, x: Tensor, dtype: DType | None) -> Tensor:
    """What a norm is taken of, in the dtype asked for; RuntimeError where that is narrower or of another kind."""
    if x.dtype.kind not in "fc":
        raise RuntimeError(f"{name}: Expected a floating point or complex tensor as input. Got {type_name(x.dtype)}")
    if dtype is None or dtype is x.dtype:
        return x
    if dtype.kind not in "fc":
        raise RuntimeError(f"{name}: dtype should be floating point or complex, but got {type_name(dtype)}")
    if dtype.is_complex != x.dtype.is_complex:
        what = "complex" if x.dtype.is_complex else "real"
        raise RuntimeError(f"{name}: dtype should be {what} for {what} inputs, but got {type_name(dtype)}")
    if promote_types(dtype, x.dtype) is not dtype:
        raise RuntimeError(
            f"{name}: the dtype of the input ({type_name(x.dtype)}) should be convertible without narrowing to "
            f"the specified dtype ({type_name(dtype)})"
        )
    return x.to(dtype)  # type: ignore[attr-defined]


def vector_norm_of(x: Tensor, order: float, dim: Dim, keepdim: bool, dtype: DType | None) -> Tensor:
    """(sum |x|^order)^(1/order) over axes; its limits for 0 and +-inf."""
    x = in_dtype("linalg.vector_norm", x, dtype)
    axes = normalised(x, dim)
    if count_of(x.layout.shape, axes) == 0 and (order < 0 or order == math.inf):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {order} norm on an empty tensor because the operation does not have an "
            "identity"
        )
    return norm_operator(x, axes=axes, keepdim=as_bool("vector_norm_of", keepdim), order=float(order))


def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,  # noqa: A002
) -> Tensor:
    """(sum |x|^ord)^(1/ord) over axes; its limits for 0 and +-inf."""
    return vector_norm_of(need_tensor("linalg.vector_norm", x), float(ord), dim, keepdim, dtype)


public("reductions", name="vector_norm", namespace="linalg", method=False, out=True)(_vector_norm)


@public("reductions", out=True)
def norm(
    input: Tensor,
    p: Any = "fro",
    dim: Dim = None,
    keepdim: bool = False,
    dtype: DType | None = None,  # noqa: A002
) -> Tensor:
    """The p-norm over axes: `p` a number, inf or -inf; "fro" is 2, "nuc" the sum of the singular values of two axes."""
    need_tensor("norm", input)
    if p == "nuc":
        return nuclear_norm_of(input if dtype is None else input.to(dtype), dim, bool(keepdim))
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm(): p must be a number, 'fro' or 'nuc', got {p!r}")
    return vector_norm_of(input, 2.0 if p in ("fro", None) else float(p), dim, keepdim, dtype)

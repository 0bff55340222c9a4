"""The largest and the smallest: values, positions, both. NaN is passed on, the first of equals is met."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import bool_, compute_dtype
from tensorsmith.core.shapes import normalise_axis
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.raw_keys import as_bool, as_int, exact, find, run
from tensorsmith.ops.reduction_steps import (
    Axes,
    MinMax,
    ValuesIndices,
    at_index,
    kept,
    normalised,
    result_shape,
)
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


def _extreme(kind: str) -> Any:
    def graph(x: Node, axes: Axes, keepdim: bool) -> Node:
        return build.reduce(x, kind, axes, keepdim) if axes else x

    return graph


def shared(x: Node, output: Node, grad: Node, axes: Axes) -> Node:
    """The gradient of an extreme, in equal parts to all elements that attain it."""
    top, share = kept(output, x.shape, axes), kept(grad, x.shape, axes)
    both_nan = build.map_(Fn.LOGICAL_AND, build.map_(Fn.ISNAN, x), build.map_(Fn.ISNAN, top))
    chosen = build.map_(Fn.LOGICAL_OR, build.map_(Fn.EQ, x, top), both_nan)
    # Counted and divided in float32: a count is inf above 65504 in float16, and stands still at 256 in bfloat16.
    count = build.reduce(build.cast(chosen, compute_dtype(grad.dtype)), "sum", axes, keepdim=True)
    return build.where(chosen, build.wide(share) / count, 0)


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
        if entry is not None and exact(dim) and keepdim.__class__ is bool:
            return entry(input)
        axes = normalised(input, dim)
        _need_elements(name, input, axes, dim is None or dim == ())
        return run(operator, input, (dim, keepdim), {"axes": axes, "keepdim": as_bool(name, keepdim)})

    function.__name__ = function.__qualname__ = name
    which = "Largest" if name == "amax" else "Smallest"
    function.__doc__ = f"{which} element over axes (all by default). The gradient is shared equally among ties."
    return public("reductions", out=True)(function)


amax, amin = _am("amax", amax_operator), _am("amin", amin_operator)


def _whole_or_axis(name: str, whole: Operator, along: Operator, pairwise: Fn) -> Any:
    def function(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None) -> Any:  # noqa: A002
        entry = find((along, need_tensor(name, input).layout, dim, keepdim))
        if entry is not None and out is None and other is None and exact(dim) and keepdim.__class__ is bool:
            found = entry(input)
            return found if dim is None else ValuesIndices(*found)
        if other is not None or isinstance(dim, Tensor):
            from tensorsmith.ops.out import write_out
            from tensorsmith.ops.pointwise import OPERATORS

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
            result = ValuesIndices(*run(along, input, (dim, keepdim), {"axis": axis, "keepdim": as_bool(name, keepdim)}))
        if out is not None:
            from tensorsmith.ops.out import write_out

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
        if entry is not None and exact(dim) and keepdim.__class__ is bool:
            return entry(input)
        axis = None if dim is None else normalise_axis(as_int(name, dim, "dim"), input.ndim)
        if input.dtype is bool_:
            raise RuntimeError(f"{name}(): does not support bool input")
        if dim is None:
            if not input.layout.numel:
                raise IndexError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
        elif input.ndim:
            _need_elements(name, input, (axis,) if axis is not None else (), False)
        return run(operator, input, (dim, keepdim), {"axis": axis, "keepdim": as_bool(name, keepdim)})

    function.__name__ = function.__qualname__ = name
    which = "largest" if name == "argmax" else "smallest"
    function.__doc__ = f"Index of the {which} element (the first of equals), along an axis or of the flattened tensor."
    return public("reductions", differentiable=False, out=True)(function)


argmax, argmin = _argument("argmax", argmax_operator), _argument("argmin", argmin_operator)


@public("reductions", out=True)
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:  # noqa: A002
    """Smallest and largest element of all, or along an axis."""
    axes = normalised(need_tensor("aminmax", input), dim)
    _need_elements("aminmax", input, axes, dim is None)
    return MinMax(*aminmax_operator(input, axes=axes, keepdim=as_bool("aminmax", keepdim)))

"""Views: other shapes and strides over the same memory.

Each operator's graph is made of view primitives, from which gradients and tracing come; its geometry says where the result
lies, so that eager execution makes a tensor and nothing else. Functions that return several views (`split`, `unbind`) are
one operator with several outputs."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.core import views
from tensorsmith.core.views import Strided
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive


def _reshape(x: Node, shape: tuple[int, ...]) -> Node:
    return build.reshape(x, shape)


def _permute(x: Node, axes: tuple[int, ...]) -> Node:
    return build.permute(x, axes)


def _expand(x: Node, shape: tuple[int, ...]) -> Node:
    return build.broadcast_to(x, shape)


def _expand_place(x: Strided, shape: tuple[int, ...]) -> Strided:
    lead = len(shape) - len(x.shape)
    strides = tuple(
        0 if i < lead or (x.shape[i - lead] == 1 and n != 1) else x.strides[i - lead] for i, n in enumerate(shape)
    )
    if lead:  # new leading axes of extent 1 get the stride they would have in memory
        known = list(strides)
        for i in range(lead - 1, -1, -1):
            known[i] = (
                known[i + 1] * shape[i + 1] if shape[i] == 1 and i + 1 < len(shape) else 0 if shape[i] != 1 else 1
            )
        strides = tuple(known)
    return Strided(shape, strides, x.offset)


def _squeeze(x: Node, axes: tuple[int, ...]) -> Node:
    return build.reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def _squeeze_place(x: Strided, axes: tuple[int, ...]) -> Strided:
    keep = [i for i in range(len(x.shape)) if i not in axes]
    return Strided(tuple(x.shape[i] for i in keep), tuple(x.strides[i] for i in keep), x.offset)


def _unsqueeze(x: Node, axis: int) -> Node:
    return build.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def _unsqueeze_place(x: Strided, axis: int) -> Strided:
    stride = x.shape[axis] * x.strides[axis] if axis < len(x.shape) else 1
    return Strided((*x.shape[:axis], 1, *x.shape[axis:]), (*x.strides[:axis], stride, *x.strides[axis:]), x.offset)


def _select(x: Node, axis: int, index: int) -> Node:
    return _squeeze(build.slice_(x, axis, index, 1), (axis,))


def _select_place(x: Strided, axis: int, index: int) -> Strided:
    return _squeeze_place(views.slice_(x, axis, index, 1, 1), (axis,))


def _slice(x: Node, axis: int, start: int, length: int, step: int) -> Node:
    return build.slice_(x, axis, start, length, step)


def _diagonal(x: Node, offset: int, axis1: int, axis2: int) -> Node:
    return x.graph.add(Primitive.DIAGONAL, (x,), offset=offset, axis1=axis1, axis2=axis2)


def _unfold(x: Node, axis: int, size: int, step: int) -> Node:
    if not x.ndim:
        return build.broadcast_to(x, (size,))
    return x.graph.add(Primitive.UNFOLD, (x,), axis=axis, size=size, step=step)


def _parts(x: Node, axis: int, sizes: tuple[int, ...]) -> list[Node]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [build.slice_(x, axis, start, size) for start, size in zip(starts, sizes)]


def _parts_place(x: Strided, axis: int, sizes: tuple[int, ...]) -> list[Strided]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [views.slice_(x, axis, start, size, 1) for start, size in zip(starts, sizes)]


def _parts_gradient(
    inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node], axis: int, sizes: tuple[int, ...] = ()
) -> list[Node]:
    """The gradients side by side: written once, where the derived rule adds as many whole ones as there are parts."""
    x = inputs[0]
    if not x.shape[axis]:
        return [build.full(x.graph, x.shape, 0, x.dtype)]
    lengths = sizes or (1,) * len(grads)
    parts = [build.reshape(g, (*x.shape[:axis], n, *x.shape[axis + 1 :])) for g, n in zip(grads, lengths)]
    return [build.concat(parts, axis)]


def _rows(x: Node, axis: int) -> list[Node]:
    return [_select(x, axis, i) for i in range(x.shape[axis])]


def _rows_place(x: Strided, axis: int) -> list[Strided]:
    return [_select_place(x, axis, i) for i in range(x.shape[axis])]


view_operator = Operator("view", _reshape, geometry=views.reshape)  # type: ignore[arg-type]
reshape_operator = Operator("reshape", _reshape, geometry=views.reshape, node_name="View")  # type: ignore[arg-type]
permute_operator = Operator("permute", _permute, geometry=views.permute)
transpose_operator = Operator("transpose", _permute, geometry=views.permute)
t_operator = Operator("t", _permute, geometry=views.permute)
expand_operator = Operator("expand", _expand, geometry=_expand_place)
squeeze_operator = Operator("squeeze", _squeeze, geometry=_squeeze_place)
unsqueeze_operator = Operator("unsqueeze", _unsqueeze, geometry=_unsqueeze_place)
select_operator = Operator("select", _select, geometry=_select_place)
slice_operator = Operator("slice", _slice, geometry=views.slice_)
diagonal_operator = Operator("diagonal", _diagonal, geometry=views.diagonal)
unfold_operator = Operator("unfold", _unfold, geometry=views.unfold)
split_operator = Operator("split", _parts, _parts_gradient, geometry=_parts_place, derived_tangent=True)
split_sizes_operator = Operator(
    "split_with_sizes", _parts, _parts_gradient, geometry=_parts_place, derived_tangent=True
)
unbind_operator = Operator("unbind", _rows, _parts_gradient, geometry=_rows_place, derived_tangent=True)
# The same where there is one part: an operator of one result gives it, not a tuple.
split_whole_operator = Operator("split_whole", _slice, geometry=views.slice_, node_name="Split")
unbind_only_operator = Operator("unbind_only", _select, geometry=_select_place, node_name="Unbind")

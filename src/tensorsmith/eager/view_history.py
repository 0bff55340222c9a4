"""History through views: what a write through a view means for the base, and for every other view of it.

After a write through a view the base gets a `CopySlices` node: the gradient inside the view goes through the write, outside it
goes on unchanged. Views derive their node anew from the base when they are next asked. One data structure serves here and in
`compile/`, where writes become values: the view's geometry (shape, strides, offset in elements) relative to its base.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.autograd.node import (
    Node,
    gradient_edge,
    set_rebase_rule,
    set_view_node_rule,
)
from tensorsmith.core import views
from tensorsmith.core.dtypes import DType, int64
from tensorsmith.core.layout import Layout
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.gradients import strided_positions
from tensorsmith.ir.graph import Node as Value, Primitive
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _rebase_view(target: Tensor, node: Node, number: int) -> None:
    """Make `node` the history of the base of a view that was just written."""
    base = target.base
    assert base is not None
    edge = gradient_edge(base)
    base.node = CopySlices(edge, node, number, base.layout, geometry_of(target), target.layout.dtype)
    base.output_number = 0
    base.layout = base.layout.with_tracking(True)
    target.layout = target.layout.with_tracking(True)
    target.node = None
    target.stamp = -1


def geometry_of(view: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and offset (elements) of a view relative to its base."""
    assert view.base is not None
    offset = (view.ptr - view.base.ptr) // view.layout.dtype.itemsize
    return view.layout.shape, view.layout.strides, offset


def view_value(
    base: Value, shape: tuple, strides: tuple, offset: int, base_strides: tuple, dtype: DType | None = None
) -> Value:
    """The elements of a view, from the value of its base; `dtype` where the view shows the memory under another one."""
    if dtype is not None and dtype is not base.dtype:
        if base.dtype.is_complex:
            base_strides = views.as_real(Strided(base.shape, base_strides)).strides
            return view_value(build.as_real(base), shape, strides, offset, base_strides)
        seen = views.as_real(Strided(shape, strides, offset))
        return build.as_complex(view_value(base, *seen, base_strides))
    flat = build.permute(base, _memory_order(base, base_strides))
    if covers_once(Strided(base.shape, base_strides)):
        return flat.graph.add(Primitive.AS_STRIDED, (flat,), shape=shape, strides=strides, offset=offset)
    places = _places_between_gaps(base, shape, strides, offset, base_strides)
    linear = build.reshape(flat, (flat.numel,))
    return build.reshape(flat.graph.add(Primitive.TAKE, (linear, places), axis=0), shape)


def _memory_order(base: Value, base_strides: tuple[int, ...]) -> list[int]:
    """The axes of the base in the order of memory, in which it is contiguous as a value."""
    order = sorted(range(base.ndim), key=lambda i: (-base_strides[i], i) if base.shape[i] != 1 else (0, i))
    reach = 0  # the last element within the axes looked at so far, from the innermost out
    for axis in reversed(order):
        if base.shape[axis] > 1:
            if base_strides[axis] <= reach:
                raise NotImplementedError(
                    f"a view of a tensor whose elements share memory (shape {base.shape}, strides {base_strides}), in a "
                    "gradient or in a compiled function"
                )
            reach += (base.shape[axis] - 1) * base_strides[axis]
    return order


def _places_between_gaps(base: Value, shape: tuple, strides: tuple, offset: int, base_strides: tuple) -> Value:
    """Where the elements of a view are among those of a base with gaps in memory, counted in the order of memory.

    A position in memory is taken apart into the coordinates of the base, the largest stride first.
    """
    graph = base.graph
    here = np.indices(shape, sparse=True)
    known = sum((i * s for i, s in zip(here, strides)), np.full((1,) * len(shape), offset))
    rest, total = strided_positions(graph, shape, strides, offset), build.full(graph, (math.prod(shape),), 0, int64)
    for axis in _memory_order(base, base_strides):
        extent, stride = base.shape[axis], base_strides[axis]
        if extent > 1:
            if not (known // stride < extent).all():
                break
            known = known % stride
            coordinate = build.map_(Fn.FLOOR_DIVIDE, rest, stride)
            rest, total = rest - coordinate * stride, total * extent + coordinate
    else:
        if not known.any():
            return total
    raise NotImplementedError(
        f"a view with elements in the gaps of its base (shape {base.shape}, strides {base_strides}), in a gradient or in a "
        "compiled function"
    )


def written_value(
    base: Value, value: Value, shape: tuple, strides: tuple, offset: int, base_strides: tuple, dtype: DType | None = None
) -> Value:
    """The base with the elements of a view replaced."""
    if dtype is not None and dtype is not base.dtype:
        if base.dtype.is_complex:
            base_strides = views.as_real(Strided(base.shape, base_strides)).strides
            return build.as_complex(written_value(build.as_real(base), value, shape, strides, offset, base_strides))
        seen = views.as_real(Strided(shape, strides, offset))
        return written_value(base, build.as_real(value), *seen, base_strides)
    order = _memory_order(base, base_strides)
    flat = build.permute(base, order)
    if covers_once(Strided(base.shape, base_strides)):
        places = strided_positions(base.graph, shape, strides, offset)
    else:
        places = _places_between_gaps(base, shape, strides, offset, base_strides)
    operands = (build.reshape(flat, (flat.numel,)), places, build.reshape(value, (value.numel,)))
    written = base.graph.add(Primitive.PUT, operands, axis=0, reduce="set")
    return build.permute(build.reshape(written, flat.shape), [order.index(i) for i in range(base.ndim)])


def _view_place(
    base: Strided, shape: tuple, strides: tuple, offset: int, base_strides: tuple, dtype: DType | None = None
) -> Strided | None:
    """Where the view lies in its base's memory; None for a value that is laid out otherwise (a gradient of the base)."""
    if dtype is not None or base.strides != base_strides:
        return None
    return Strided(shape, strides, base.offset + offset)


view_of_base = Operator("view_of_base", view_value, node_name="AsStrided", geometry=_view_place)
write_view = Operator("write_view", written_value, node_name="CopySlices")


class CopySlices(Node):
    """A write through a view: the gradient inside the view goes through the write, outside it goes on unchanged."""

    __slots__ = ("write", "number", "layout", "geometry", "dtype")

    def __init__(
        self, base_edge: tuple[Node, int] | None, write: Node, number: int, layout: Layout, geometry: tuple, dtype: DType
    ) -> None:
        super().__init__((base_edge, *write.edges[1:]))
        self.write = write
        self.number = number
        self.layout = layout
        self.geometry = geometry
        self.dtype = dtype if dtype is not layout.dtype else None

    def name(self) -> str:
        return "CopySlices"

    @property
    def saved(self) -> Any:
        """What the write saved; None once that is freed."""
        return getattr(self.write, "saved", ())

    def release(self) -> None:
        self.write.release()

    def apply(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        grad = grads[0]
        if grad is None:
            return [None] * len(self.edges)
        shape, strides, offset = self.geometry
        keywords = dict(shape=shape, strides=strides, offset=offset, base_strides=self.layout.strides, dtype=self.dtype)
        inner = view_of_base(grad, **keywords)
        through: list[Tensor | None] = [None] * self.write.output_count
        through[self.number] = inner
        first, *rest = self.write.apply(through)
        if self.edges[0] is None:
            return [None, *rest]
        outside = write_view(grad, first if first is not None else _zeros(inner), **keywords)
        return [outside, *rest]


copy_of = Operator("copy_of", lambda x: x.graph.add(Primitive.CAST, (x,), dtype=x.dtype), pointwise=True)
_zeros_like = Operator("zeros_of", lambda x: build.full(x.graph, x.shape, 0, x.dtype))


def _zeros(tensor: Tensor) -> Tensor:
    return _zeros_like(tensor)


class _Severed(Node):
    """The node of a view whose base was detached and then written."""

    def name(self) -> str:
        return view_of_base.node_name

    def apply(self, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
        return (None,)


def _derive(view: Tensor) -> None:
    """Set `view.node` to the view as taken from its base now."""
    base = view.base
    assert base is not None
    view.stamp = view.storage.version
    if not base.layout.tracked:  # the base has been detached since: what is left is a history that leads nowhere
        view.node, view.output_number = _Severed((None,)), 0
        return
    shape, strides, offset = geometry_of(view)
    with_grad = modes.grad
    modes.grad = True
    try:
        fresh = view_of_base(base, shape=shape, strides=strides, offset=offset, base_strides=base.layout.strides,
                             dtype=view.layout.dtype if view.layout.dtype is not base.layout.dtype else None)  # fmt: skip
    finally:
        modes.grad = with_grad
    view.node = fresh.node
    view.output_number = fresh.output_number
    view.layout = view.layout.with_tracking(True)


set_view_node_rule(_derive)
set_rebase_rule(_rebase_view)

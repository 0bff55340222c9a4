"""Views as copies, and copies with one view written over: `select_scatter` and its kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import int64
from tensorsmith.core.shapes import broadcast_shapes, normalise_axis
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops import splitting, transposing, views
from tensorsmith.ops.conversion import contiguous_operator
from tensorsmith.ops.registry import method, need_tensor, public
from tensorsmith.ops.view_operators import slice_operator
from tensorsmith.tensor.tensor import Tensor


def _copied(name: str, view: Callable[..., Any]) -> None:
    def function(input: Tensor, *args: Any, **keywords: Any) -> Any:  # noqa: A002
        found = view(need_tensor(name, input), *args, **keywords)
        if isinstance(found, tuple):
            return tuple([contiguous_operator(x) for x in found])
        return contiguous_operator(found)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name.removesuffix('_copy')}`, in new memory."
    public("views", kind="composite", method=name in ("narrow_copy",), out=True)(function)


def _slice(x: Tensor, dim: int, start: int | None, end: int | None, step: int) -> Tensor:
    axis = normalise_axis(dim, x.ndim)
    first, last, step = slice(start, end, step).indices(x.layout.shape[axis])
    length = max(-(-(last - first) // step), 0)
    return slice_operator(x, axis=axis, start=first, length=length, step=step)


_VIEWS: dict[str, Callable[..., Any]] = {
    "expand_copy": views.expand, "diagonal_copy": splitting.diagonal, "as_strided_copy": views.as_strided,
    "narrow_copy": splitting.narrow, "view_copy": views.view, "permute_copy": transposing.permute,
    "split_with_sizes_copy": splitting.split_with_sizes, "unbind_copy": splitting.unbind, "unfold_copy": splitting.unfold,
    "squeeze_copy": views.squeeze, "unsqueeze_copy": views.unsqueeze, "transpose_copy": transposing.transpose,
    "t_copy": transposing.t, "select_copy": splitting.select, "alias_copy": lambda x: x,
    "slice_copy": lambda x, dim=0, start=None, end=None, step=1: _slice(x, dim, start, end, step),
}  # fmt: skip
for _name, _view in _VIEWS.items():
    _copied(_name, _view)


def _separate(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for part in parts:
        part.base = None
    return parts


@public("views", kind="view")
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """`chunk`, whose results autograd takes for separate tensors: for callers that write to one side only."""
    return _separate(splitting.chunk(input, chunks, dim))


@public("views", kind="view")
def unsafe_split(input: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """`split`, whose results autograd takes for separate tensors: for callers that write to one side only."""
    return _separate(splitting.split_any(input, split_size_or_sections, dim))


def _written(name: str, view: Callable[..., Tensor], what: str) -> None:
    def function(input: Tensor, src: Tensor, *args: Any, **keywords: Any) -> Tensor:  # noqa: A002
        result = need_tensor(name, input).clone()
        part = view(result, *args, **keywords)
        if part.layout.shape != need_tensor(name, src, "src", 2).layout.shape:
            raise RuntimeError(
                f"{name}: expected src to have a size equal to the slice of self. src size = {list(src.layout.shape)}, slice "
                f"size = {list(part.layout.shape)}"
            )
        part.copy_(src)
        return result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"A copy with {what} written over by src."
    public("views", kind="composite", out=name == "slice_scatter")(function)


_written("select_scatter", splitting.select, "one position of an axis")
_written("diagonal_scatter", splitting.diagonal, "a diagonal")
_written("as_strided_scatter", views.as_strided, "the elements of given strides")
_written(
    "slice_scatter",
    lambda x, dim=0, start=None, end=None, step=1: _slice(x, dim, start, end, step),
    "a slice of an axis",
)


def _sum_to_size(x: Node, shape: tuple[int, ...]) -> Node:
    if x.shape == shape and shape:
        return x
    return build.sum_to(build.cast(x, int64) if x.dtype.kind in "biu" else x, shape)


sum_to_size_operator = Operator("sum_to_size", _sum_to_size)


def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """Summed over the axes along which `size` was broadcast: the inverse of expand."""
    shape = views.sizes_of("sum_to_size", size)
    if broadcast_shapes(shape, self.layout.shape) != self.layout.shape:
        raise RuntimeError(f"size {{{list(shape)}}} is not expandable to size {{{list(self.layout.shape)}}}.")
    return sum_to_size_operator(self, shape=shape)


method()(sum_to_size)


@public("views", kind="composite")
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:  # noqa: A002
    """Every combination of r elements of a vector, one a row."""
    import itertools

    import numpy as np

    from tensorsmith.ops.creation import copy_array

    if need_tensor("combinations", input).ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.layout.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(input.layout.numel), r)), np.int64).reshape(-1, r)
    if r == 0:
        return input.new_empty((0,))
    return input[copy_array(rows)]

"""Views of parts: narrow, select, split and their kin, diagonals and windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.shapes import normalise_axis
from tensorsmith.ops.raw_keys import as_int, as_ints, exact, find, run
from tensorsmith.ops.registry import method, need_tensor, public
from tensorsmith.ops.view_operators import (
    diagonal_operator,
    select_operator,
    slice_operator,
    split_operator,
    split_sizes_operator,
    split_whole_operator,
    unbind_only_operator,
    unbind_operator,
    unfold_operator,
)
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Origin, Tensor


def _need_axis(name: str, x: Tensor) -> None:
    if not x.ndim:
        raise RuntimeError(f"{name}() cannot be applied to a 0-dim tensor.")


@public("views", kind="view")
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:  # noqa: A002
    """`length` positions of one axis from `start` (negative counts from the end)."""
    _need_axis("narrow", need_tensor("narrow", input))
    axis = normalise_axis(dim, input.ndim)
    extent = input.layout.shape[axis]
    if isinstance(start, Tensor) and (start.ndim or start.dtype.kind not in "iu"):
        raise RuntimeError("start must be an 0-dim integral Tensor.")
    first, count = as_int("narrow", start, "start"), as_int("narrow", length, "length")
    if count < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if not -extent <= first <= extent:
        raise IndexError(f"start out of range (expected to be in range of [{-extent}, {extent}], but got {first})")
    if first < 0:
        first += extent
    if first + count > extent:
        raise RuntimeError(f"start ({first}) + length ({count}) exceeds dimension size ({extent}).")
    return slice_operator(input, axis=axis, start=first, length=count, step=1)


@public("views", kind="view")
def select(input: Tensor, dim: int, index: Any) -> Tensor:  # noqa: A002
    """One position of an axis, which is dropped."""
    if not need_tensor("select", input).ndim:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    axis = normalise_axis(dim, input.ndim)
    extent, position = input.layout.shape[axis], as_int("select", index, "index")
    if not -extent <= position < extent:
        raise IndexError(
            f"select(): index {position} out of range for tensor of size {list(input.layout.shape)} at dimension {axis}"
        )
    return select_operator(input, axis=axis, index=position % extent)


@public("views", kind="view")
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """Every position of an axis, as a tuple."""
    if not need_tensor("unbind", input).ndim:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    axis = normalise_axis(dim, input.ndim)
    if input.layout.shape[axis] == 0:
        return ()
    if input.layout.shape[axis] == 1:
        return _only(unbind_only_operator(input, axis=axis, index=0))
    return unbind_operator(input, axis=axis)


@method("__iter__")
def iterate(self: Tensor) -> Any:
    """Over the first axis."""
    if not self.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return iter(unbind(self, 0))


@public("views", kind="view")
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """At most `chunks` parts of equal size along an axis (the last may be smaller)."""
    entry = find((split_operator, need_tensor("chunk", input).layout, "chunk", chunks, dim))
    if entry is not None and chunks.__class__ is int and dim.__class__ is int:
        return entry(input)
    if not input.ndim:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    chunks = as_int("chunk", chunks, "chunks")
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    axis = normalise_axis(dim, input.ndim)
    extent = input.layout.shape[axis]
    size = -(-extent // chunks)
    if size == 0:
        return split_sizes_operator(input, axis=axis, sizes=(0,) * chunks) if chunks > 1 else _split(input, (0,), axis, ())
    return _split(input, equal_parts(extent, size), axis, ("chunk", chunks, dim))


def equal_parts(extent: int, size: int) -> tuple[int, ...]:
    """The sizes of parts of an extent: `size` each, the last the rest."""
    count = max(-(-extent // size), 1)
    return tuple(min(size, extent - i * size) for i in range(count))


def _only(part: Tensor) -> tuple[Tensor, ...]:
    """The only one of several parts: autograd treats it as it would several."""
    if modes.grad:
        part.origin = Origin.MULTIPLE
    return (part,)


def _split(x: Tensor, sizes: tuple[int, ...], axis: int, raw: tuple[Any, ...]) -> tuple[Tensor, ...]:
    if len(sizes) == 1:
        return _only(split_whole_operator(x, axis=axis, start=0, length=sizes[0], step=1))
    return run(split_operator, x, raw, {"axis": axis, "sizes": sizes})


def split_any(input: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """Parts of a given size along an axis, or of the sizes given in a list, which must add up to the extent."""
    entry = find((split_operator, need_tensor("split", input).layout, "split", split_size_or_sections, dim))
    if entry is not None and exact(split_size_or_sections) and dim.__class__ is int:
        return entry(input)
    if not input.ndim:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    axis = normalise_axis(dim, input.ndim)
    extent = input.layout.shape[axis]
    if isinstance(split_size_or_sections, list | tuple):
        sizes = as_ints("split_with_sizes", split_size_or_sections, "split_sizes")
        if any(n < 0 for n in sizes):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes={list(sizes)}"
            )
        if sum(sizes) != extent:
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {extent} (input tensor's size at dimension {axis}), "
                f"but got split_sizes={list(sizes)}"
            )
        if len(sizes) == 1:
            return _split(input, sizes, axis, ())
        return split_sizes_operator(input, axis=axis, sizes=sizes) if sizes else ()
    size = as_int("split", split_size_or_sections, "split_size")
    if size < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={size}")
    if size == 0:
        if extent:
            raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {extent}")
        return _split(input, (0,), axis, ("split", 0, dim))
    return _split(input, equal_parts(extent, size), axis, ("split", split_size_or_sections, dim))


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of a given size along an axis (the last may be smaller), or of the sizes given in a list."""
    return split_any(tensor, split_size_or_sections, dim)


def _split_method(self: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of a given size along an axis (the last may be smaller), or of the sizes given in a list."""
    return split_any(self, split_size, dim)


public("views", name="split", kind="view", method=False)(split)
Tensor.split = _split_method  # type: ignore[method-assign]


@public("views", kind="view")
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """Parts of given sizes along an axis."""
    return split_any(input, tuple(split_sizes), dim)


@public("views", kind="view")
def tensor_split(
    input: Tensor,
    indices_or_sections: Any = None,
    dim: int = 0,
    *,
    indices: Any = None,
    sections: int | None = None,  # noqa: A002
) -> tuple[Tensor, ...]:
    """`n` parts of nearly equal size along an axis, or the parts between given positions."""
    if not need_tensor("tensor_split", input).ndim:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    axis = normalise_axis(dim, input.ndim)
    extent = input.layout.shape[axis]
    where = next((v for v in (indices_or_sections, indices, sections) if v is not None), None)
    if isinstance(where, Tensor):
        if where.layout.dtype.name != "int64" or where.ndim > 1:
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to be a zero-dim or one-dim int64 tensor, but got "
                f"{where.ndim} dims of {where.layout.dtype.name}"
            )
        where = where.tolist()
    if isinstance(where, list | tuple):
        bounds = [*as_ints("tensor_split", where, "indices"), extent]
        return tuple(_bounded(input, axis, a, b) for a, b in zip([0, *bounds[:-1]], bounds))
    count = as_int("tensor_split", where, "sections")
    if count <= 0:
        raise RuntimeError(f"number of sections must be larger than 0, got {count}")
    small, larger = divmod(extent, count)
    starts = [i * small + min(i, larger) for i in range(count + 1)]
    return tuple(_bounded(input, axis, a, b) for a, b in zip(starts, starts[1:]))


def _bounded(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    first, last, _ = slice(start, end).indices(x.layout.shape[axis])
    return slice_operator(x, axis=axis, start=first, length=max(last - first, 0), step=1)


def _split_along(name: str, least: int, axis_of: Callable[[int], int]) -> Any:
    def function(input: Tensor, *args: Any, indices: Any = None, sections: Any = None) -> tuple[Tensor, ...]:  # noqa: A002
        if need_tensor(name, input).ndim < least:
            raise RuntimeError(
                f"{name} requires a tensor with at least {least} dimension{'s' if least > 1 else ''}, but got a tensor "
                f"with {input.ndim} dimensions!"
            )
        where = args[0] if len(args) == 1 else args if args else indices if indices is not None else sections
        axis = axis_of(input.ndim)
        if isinstance(where, int) and (where < 1 or input.layout.shape[axis] % where):
            raise RuntimeError(
                f"{name} attempted to split along dimension {axis}, but the size of the dimension "
                f"{input.layout.shape[axis]} is not divisible by the split_size {where}!"
            )
        return tensor_split(input, where, axis)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Parts along the " + {"hsplit": "second", "vsplit": "first", "dsplit": "third"}[name] + " axis."
    return public("views", kind="view")(function)


hsplit = _split_along("hsplit", 1, lambda ndim: 0 if ndim == 1 else 1)
vsplit = _split_along("vsplit", 2, lambda ndim: 0)
dsplit = _split_along("dsplit", 3, lambda ndim: 2)


@public("views", kind="view")
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:  # noqa: A002
    """The diagonal of two axes as a new last axis."""
    ndim = need_tensor("diagonal", input).ndim
    a, b = normalise_axis(dim1, ndim), normalise_axis(dim2, ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return diagonal_operator(input, offset=as_int("diagonal", offset, "offset"), axis1=a, axis2=b)


@method()
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` every `step` positions of one axis, as a new last axis."""
    axis = normalise_axis(dimension, self.ndim)
    extent = self.layout.shape[axis] if self.ndim else 1
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    if size > extent:
        raise RuntimeError(f"maximum size for tensor at dimension {axis} is {extent} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    return unfold_operator(self, axis=axis, size=size, step=step)

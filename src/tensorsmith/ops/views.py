"""Views by shape: view, reshape, squeeze, expand, as_strided. They share memory with the tensor they are taken from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core import views
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import layout_of
from tensorsmith.core.shapes import broadcast_shapes, infer_size, normalise_axis
from tensorsmith.core.views import Strided
from tensorsmith.eager.dispatch import FAST
from tensorsmith.ops.raw_keys import as_int, as_ints, exact, find, run
from tensorsmith.ops.registry import method, need_tensor, public
from tensorsmith.ops.view_operators import (
    expand_operator,
    reshape_operator,
    squeeze_operator,
    unsqueeze_operator,
    view_operator,
)
from tensorsmith.tensor.tensor import Tensor, make_tensor, make_view

# --- shapes -----------------------------------------------------------------------------------------------------------


def sizes_of(name: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape from `f(2, 3)` or `f((2, 3))`."""
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    return tuple([as_int(name, n, "size") for n in shape])


@method()
def view(self: Tensor, *shape: Any, dtype: DType | None = None) -> Tensor:
    """The same memory under another shape (one extent may be -1), or `view(dtype)`: as another dtype.

    Raises RuntimeError where strides cannot express the shape (use `reshape`, which copies then).
    """
    try:
        entry = FAST.get((view_operator, self.layout, shape))
    except TypeError:
        entry = None
    if entry is not None:
        for n in shape:
            if n.__class__ is not int and not exact(n):
                break
        else:
            return entry(self)
    wanted = dtype if dtype is not None else shape[0] if len(shape) == 1 else None
    if isinstance(wanted, DType):
        return _as_dtype(self, wanted)
    if not shape:
        raise TypeError("view() received an invalid combination of arguments - got (), expected a size or a dtype")
    sizes = infer_size(sizes_of("view", shape), self.layout.numel)
    if views.reshape(Strided(self.layout.shape, self.layout.strides), sizes) is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return run(view_operator, self, (shape,), {"shape": sizes})


def _as_dtype(x: Tensor, dtype: DType) -> Tensor:
    """The bytes of a tensor as another dtype; the last axis shrinks or grows with the itemsize."""
    layout = x.layout
    old, new = layout.dtype.itemsize, dtype.itemsize
    shape, strides = layout.shape, layout.strides
    if old != new:
        if not shape:
            raise RuntimeError(
                f"self.dim() cannot be 0 to view {layout.dtype.name} as {dtype.name} (different element sizes)"
            )
        if strides[-1] != 1:  # of one element too, as PyTorch
            raise RuntimeError(
                f"self.stride(-1) must be 1 to view {layout.dtype.name} as {dtype.name} (different element sizes), but got "
                f"{strides[-1]}"
            )
        if old > new:
            ratio = old // new
            shape, strides = (*shape[:-1], shape[-1] * ratio), (*(s * ratio for s in strides[:-1]), 1)
        else:
            ratio = new // old
            fits = shape[-1] % ratio == 0 and all(s % ratio == 0 for s in strides[:-1])
            if not fits or (x.ptr - x.storage.ptr) % new:
                raise RuntimeError(
                    f"self.size(-1), self.storage_offset() and self.stride() must be divisible by {ratio} to view "
                    f"{layout.dtype.name} as {dtype.name} (different element sizes), but got shape {list(shape)}, strides "
                    f"{list(strides)}"
                )
            shape, strides = (*shape[:-1], shape[-1] // ratio), (*(s // ratio for s in strides[:-1]), 1)
    seen = layout_of(dtype, shape, strides, device=layout.device)
    if layout.level is not None:
        found = layout.level.view(x, seen, 0)
        found.base = None
        return found
    return make_tensor(seen, x.storage, x.ptr)  # as PyTorch: no view to autograd


@method()
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """Under the shape of another tensor, without a copy."""
    return view(self, other.layout.shape)


@public("views", kind="view")
def reshape(input: Tensor, *shape: Any) -> Tensor:  # noqa: A002
    """The elements in row-major order under another shape (one extent may be -1): a view where possible, else a copy."""
    try:
        entry = find((reshape_operator, input.layout, shape))
    except AttributeError:
        need_tensor("reshape", input)
        raise
    if entry is not None:
        for n in shape:
            if n.__class__ is not int and not exact(n):
                break
        else:
            return entry(input)
    sizes = infer_size(sizes_of("reshape", shape), input.layout.numel)
    return run(reshape_operator, input, (shape,), {"shape": sizes})


@method()
def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """Under the shape of another tensor."""
    return reshape(self, other.layout.shape)


@public("views", kind="view")
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:  # noqa: A002
    """Axes start_dim to end_dim joined to one; a zero-dim tensor becomes one axis. The tensor itself where nothing changes."""
    entry = find((reshape_operator, need_tensor("flatten", input).layout, "flatten", start_dim, end_dim))
    if entry is not None and start_dim.__class__ is int and end_dim.__class__ is int:
        return entry(input)
    shape = input.layout.shape
    first = normalise_axis(as_int("flatten", start_dim, "start_dim"), len(shape))
    last = normalise_axis(as_int("flatten", end_dim, "end_dim"), len(shape))
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if not shape:
        return reshape(input, (1,))
    if first == last:
        return input
    joined = 1
    for n in shape[first : last + 1]:
        joined *= n
    flat = (*shape[:first], joined, *shape[last + 1 :])
    return run(reshape_operator, input, ("flatten", start_dim, end_dim), {"shape": flat})


@public("views", kind="view")
def ravel(input: Tensor) -> Tensor:  # noqa: A002
    """All axes joined to one."""
    return view(need_tensor("ravel", input).contiguous(), (-1,) if input.layout.numel else (0,))


@public("views", kind="view")
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:  # noqa: A002
    """One axis divided into several (one extent may be -1)."""
    shape = need_tensor("unflatten", input).layout.shape
    if not shape:
        raise RuntimeError("unflatten: dimension specified as 0 but tensor has no dimensions")
    axis = normalise_axis(as_int("unflatten", dim, "dim"), len(shape))
    wanted = as_ints("unflatten", sizes, "sizes")
    if not wanted:
        raise RuntimeError("unflatten: sizes must be non-empty")
    extent = shape[axis]
    try:
        inner = infer_size(wanted, extent)
    except RuntimeError:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(wanted)} don't multiply up to the size of dim {axis} ({extent}) in the input "
            "tensor"
        ) from None
    return reshape(input, (*shape[:axis], *inner, *shape[axis + 1 :]))


@public("views", kind="view")
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:  # noqa: A002
    """Without the axes of extent 1, or without those of `dim` that have extent 1."""
    entry = find((squeeze_operator, need_tensor("squeeze", input).layout, dim))
    if entry is not None and (dim.__class__ is int or exact(dim)):
        return entry(input)
    shape = input.layout.shape
    chosen = (
        range(len(shape)) if dim is None else [normalise_axis(a, len(shape)) for a in as_ints("squeeze", dim, "dim")]
    )
    axes = tuple(a for a in sorted(set(chosen)) if a < len(shape) and shape[a] == 1)
    return run(squeeze_operator, input, (dim,), {"axes": axes})


@public("views", kind="view")
def unsqueeze(input: Tensor, dim: int) -> Tensor:  # noqa: A002
    """With a new axis of extent 1 at `dim`."""
    entry = find((unsqueeze_operator, need_tensor("unsqueeze", input).layout, dim))
    if entry is not None and (dim.__class__ is int or exact(dim)):
        return entry(input)
    axis = normalise_axis(as_int("unsqueeze", dim, "dim"), input.ndim + 1)
    return run(unsqueeze_operator, input, (dim,), {"axis": axis})


# --- repetition -------------------------------------------------------------------------------------------------------


@method()
def expand(self: Tensor, *sizes: Any, implicit: bool = False) -> Tensor:
    """Axes of extent 1 repeated without a copy, new axes in front; -1 keeps an extent."""
    try:
        entry = FAST.get((expand_operator, self.layout, sizes))
    except TypeError:
        entry = None
    if entry is not None:
        for n in sizes:
            if n.__class__ is not int and not exact(n):
                break
        else:
            return entry(self)
    wanted = sizes_of("expand", sizes)
    old = self.layout.shape
    lead = len(wanted) - len(old)
    if lead < 0:
        raise RuntimeError(
            f"expand({self.dtype.name} tensor of size {list(old)}, size={list(wanted)}): the number of sizes provided "
            f"({len(wanted)}) must be greater or equal to the number of dimensions in the tensor ({len(old)})"
        )
    shape = []
    for i, n in enumerate(wanted):
        if n == -1:
            if i < lead:
                raise RuntimeError(
                    f"The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {i}"
                )
            n = old[i - lead]
        elif n < 0:
            raise RuntimeError(f"expand: size must not be negative, got {n} at dimension {i}")
        if i >= lead and old[i - lead] not in (1, n):
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size ({old[i - lead]}) at non-singleton "
                f"dimension {i}.  Target sizes: {list(wanted)}.  Tensor sizes: {list(old)}"
            )
        shape.append(n)
    return run(expand_operator, self, (sizes,), {"shape": tuple(shape)})


@method()
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Expanded to the shape of another tensor."""
    return expand(self, other.layout.shape)


@public("views", kind="view")
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:  # noqa: A002
    """Expanded to a shape."""
    return expand(need_tensor("broadcast_to", input), tuple(size))


@public("views", method=False, kind="view")
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Every tensor expanded to the common shape."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    shape = broadcast_shapes(*(need_tensor("broadcast_tensors", x).layout.shape for x in tensors))
    return tuple([expand(x, shape) for x in tensors])


def _broadcast_shapes(*shapes: Any) -> Any:
    """The common shape of several shapes (ints count as vectors)."""
    from tensorsmith.tensor.tensor import Size

    try:
        return Size(broadcast_shapes(*((s,) if isinstance(s, int) else tuple(s) for s in shapes)))
    except RuntimeError as error:
        raise RuntimeError(f"Shape mismatch: objects cannot be broadcast to a single shape: {error}") from None


public("views", name="broadcast_shapes", method=False, kind="view", differentiable=False)(_broadcast_shapes)


# --- anything over the storage ----------------------------------------------------------------------------------------


@public("views", kind="view")
def as_strided(
    input: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,  # noqa: A002
) -> Tensor:
    """Any shape, strides and offset over the storage of a tensor.

    Raises RuntimeError where that would leave the storage. Gradients flow where the tensor covers its memory without gaps.
    """
    from tensorsmith.eager.view_history import view_of_base

    shape, strides = as_ints("as_strided", size, "size"), as_ints("as_strided", stride, "stride")
    if len(shape) != len(strides):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(strides)} and {list(shape)}")
    if any(s < 0 for s in strides) or any(n < 0 for n in shape):
        raise RuntimeError(
            f"as_strided: negative sizes and strides are not supported, got {list(shape)}, {list(strides)}"
        )
    itemsize = need_tensor("as_strided", input).itemsize
    current = input.storage_offset()
    offset = current if storage_offset is None else as_int("as_strided", storage_offset, "storage_offset")
    layout = layout_of(input.dtype, shape, strides, device=input.device)
    if offset < 0 or (layout.numel and (offset + layout.extent) * itemsize > input.storage.nbytes):
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset}, and itemsize {itemsize} "
            f"requiring a storage size of {(offset + layout.extent) * itemsize} are out of bounds for storage of size "
            f"{input.storage.nbytes}"
        )
    if not input.layout.tracked:
        return make_view(input, layout, offset - current)
    if offset < current or offset - current + layout.extent > input.layout.extent:
        raise NotImplementedError("as_strided: gradients of a view that leaves the tensor's own elements")
    return view_of_base(input, shape=shape, strides=strides, offset=offset - current, base_strides=input.layout.strides)


# --- least ranks ------------------------------------------------------------------------------------------------------


def _at_least(name: str, widen: Callable[[Tensor], Tensor]) -> None:
    def function(*tensors: Any) -> Any:
        if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
            return tuple([widen(need_tensor(name, x)) for x in tensors[0]])
        found = tuple([widen(need_tensor(name, x)) for x in tensors])
        return found[0] if len(found) == 1 else found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Every tensor with at least {name[8]} axes; tensors that have them are returned as they are."
    public("views", kind="view", method=False)(function)


def to_2d(x: Tensor) -> Tensor:
    """At least two axes, new ones in front."""
    return reshape(x, (1, 1)) if not x.ndim else unsqueeze(x, 0) if x.ndim == 1 else x


def to_3d(x: Tensor) -> Tensor:
    """At least three axes: a vector becomes (1, n, 1), a matrix (m, n, 1)."""
    if x.ndim == 1:
        return unsqueeze(unsqueeze(x, 0), 2)
    return reshape(x, (1, 1, 1)) if not x.ndim else unsqueeze(x, 2) if x.ndim == 2 else x


_at_least("atleast_1d", lambda x: x if x.ndim else reshape(x, (1,)))
_at_least("atleast_2d", to_2d)
_at_least("atleast_3d", to_3d)

"""Views: other shapes and strides over the same memory.

Each operator's graph is made of view primitives, from which gradients and tracing come; its geometry says where the result
lies, so that eager execution makes a tensor and nothing else. Functions that return several views (`split`, `unbind`) are
one operator with several outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core import views
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import layout_of
from tensorsmith.core.shapes import broadcast_shapes, infer_size, normalise_axis
from tensorsmith.core.views import Strided
from tensorsmith.eager.dispatch import FAST, remember
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.registry import method, need_tensor, public
from tensorsmith.ops.shortcut import as_int, as_ints, find, run
from tensorsmith.tensor.tensor import Tensor, make_view

# --- operators --------------------------------------------------------------------------------------------------------


def _reshape(x: Node, shape: tuple[int, ...]) -> Node:
    return build.reshape(x, shape)


def _permute(x: Node, axes: tuple[int, ...]) -> Node:
    return build.permute(x, axes)


def _expand(x: Node, shape: tuple[int, ...]) -> Node:
    return build.broadcast_to(x, shape)


def _expand_place(x: Strided, shape: tuple[int, ...]) -> Strided:
    lead = len(shape) - len(x.shape)
    strides = tuple(0 if i < lead or (x.shape[i - lead] == 1 and n != 1) else x.strides[i - lead] for i, n in enumerate(shape))
    if lead:  # new leading axes of extent 1 get the stride they would have in memory
        known = list(strides)
        for i in range(lead - 1, -1, -1):
            known[i] = known[i + 1] * shape[i + 1] if shape[i] == 1 and i + 1 < len(shape) else 0 if shape[i] != 1 else 1
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
split_operator = Operator("split", _parts, geometry=_parts_place)
unbind_operator = Operator("unbind", _rows, geometry=_rows_place)


# --- shapes -----------------------------------------------------------------------------------------------------------


def _shape(name: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    return tuple([as_int(name, n, "size") for n in shape])


@method()
def view(self: Tensor, *shape: Any, dtype: DType | None = None) -> Tensor:
    """The same memory under another shape (one extent may be -1), or `view(dtype)`: as another dtype.

    Raises RuntimeError where strides cannot express the shape (use `reshape`, which copies then).
    """
    entry = find((view_operator, self.layout, shape))
    if entry is not None:
        return entry(self)
    wanted = dtype if dtype is not None else shape[0] if len(shape) == 1 else None
    if isinstance(wanted, DType):
        return _as_dtype(self, wanted)
    if not shape:
        raise TypeError("view() received an invalid combination of arguments - got (), expected a size or a dtype")
    sizes = infer_size(_shape("view", shape), self.layout.numel)
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
            raise RuntimeError(f"self.dim() cannot be 0 to view {layout.dtype.name} as {dtype.name} (different element sizes)")
        if strides[-1] != 1 and shape[-1] > 1:
            raise RuntimeError(
                f"self.stride(-1) must be 1 to view {layout.dtype.name} as {dtype.name} (different element sizes), but got "
                f"{strides[-1]}"
            )
        if old > new:
            ratio = old // new
            shape, strides = (*shape[:-1], shape[-1] * ratio), (*(s * ratio for s in strides[:-1]), 1)
        else:
            ratio = new // old
            fits = shape[-1] % ratio == 0 and all(s % ratio == 0 for n, s in zip(shape[:-1], strides) if n != 1)
            if not fits or (x.ptr - x.storage.ptr) % new:
                raise RuntimeError(
                    f"self.size(-1), self.storage_offset() and self.stride() must be divisible by {ratio} to view "
                    f"{layout.dtype.name} as {dtype.name} (different element sizes), but got shape {list(shape)}, strides "
                    f"{list(strides)}"
                )
            shape, strides = (*shape[:-1], shape[-1] // ratio), (*(s // ratio for s in strides[:-1]), 1)
    return make_view(x, layout_of(dtype, shape, strides), 0)


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
        return entry(input)
    sizes = infer_size(_shape("reshape", shape), input.layout.numel)
    return run(reshape_operator, input, (shape,), {"shape": sizes})


@method()
def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """Under the shape of another tensor."""
    return reshape(self, other.layout.shape)


@public("views", kind="view")
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:  # noqa: A002
    """Axes start_dim to end_dim joined to one; a zero-dim tensor becomes one axis. The tensor itself where nothing changes."""
    shape = need_tensor("flatten", input).layout.shape
    first, last = normalise_axis(start_dim, len(shape)), normalise_axis(end_dim, len(shape))
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if not shape:
        return reshape(input, (1,))
    if first == last:
        return input
    joined = 1
    for n in shape[first : last + 1]:
        joined *= n
    return reshape(input, (*shape[:first], joined, *shape[last + 1 :]))


@public("views", kind="view")
def ravel(input: Tensor) -> Tensor:  # noqa: A002
    """All axes joined to one."""
    return reshape(need_tensor("ravel", input), (-1,) if input.layout.numel else (0,))


@public("views", kind="view")
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:  # noqa: A002
    """One axis divided into several (one extent may be -1)."""
    shape = need_tensor("unflatten", input).layout.shape
    axis = normalise_axis(dim, len(shape))
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
    if entry is not None:
        return entry(input)
    shape = input.layout.shape
    chosen = range(len(shape)) if dim is None else [normalise_axis(a, len(shape)) for a in as_ints("squeeze", dim, "dim")]
    axes = tuple(a for a in sorted(set(chosen)) if a < len(shape) and shape[a] == 1)
    return run(squeeze_operator, input, (dim,), {"axes": axes})


@public("views", kind="view")
def unsqueeze(input: Tensor, dim: int) -> Tensor:  # noqa: A002
    """With a new axis of extent 1 at `dim`."""
    entry = find((unsqueeze_operator, need_tensor("unsqueeze", input).layout, dim))
    if entry is not None:
        return entry(input)
    axis = normalise_axis(as_int("unsqueeze", dim, "dim"), input.ndim + 1)
    return run(unsqueeze_operator, input, (dim,), {"axis": axis})


# --- order of axes ----------------------------------------------------------------------------------------------------


def _exchange(operator: Operator, x: Tensor, a: int, b: int, raw: tuple) -> Tensor:
    axes = list(range(x.ndim))
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return run(operator, x, raw, {"axes": tuple(axes)})


@public("views", kind="view", aliases=("swapaxes", "swapdims"))
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:  # noqa: A002
    """Axes dim0 and dim1 exchanged."""
    entry = find((transpose_operator, need_tensor("transpose", input).layout, dim0, dim1))
    if entry is not None:
        return entry(input)
    a, b = (normalise_axis(as_int("transpose", d, "dim"), input.ndim) for d in (dim0, dim1))
    return _exchange(transpose_operator, input, a, b, (dim0, dim1))


@public("views", kind="view")
def t(input: Tensor) -> Tensor:  # noqa: A002
    """The transpose of a matrix; vectors and zero-dim tensors as they are."""
    entry = find((t_operator, need_tensor("t", input).layout))
    if entry is not None:
        return entry(input)
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return run(t_operator, input, (), {"axes": tuple(reversed(range(input.ndim)))})


_REVERSED = "T"  # raw key of the property


def _all_reversed(self: Tensor) -> Tensor:
    """The axes in reverse order."""
    entry = FAST.get((_REVERSED, self.layout))
    if entry is not None:
        return entry(self)
    entry = FAST.get((permute_operator, self.layout, ("axes", tuple(reversed(range(self.ndim))))))
    if entry is not None:
        remember((_REVERSED, self.layout), entry)
        return entry(self)
    return permute(self, tuple(reversed(range(self.ndim))))


def _matrix_transpose(self: Tensor) -> Tensor:
    """The last two axes exchanged."""
    if self.ndim < 2:
        raise RuntimeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor.")
    return transpose(self, -2, -1)


def _conjugate_transpose(self: Tensor) -> Tensor:
    """The transpose of a matrix (conjugated where it is complex)."""
    if self.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor.")
    if self.is_complex():
        raise NotImplementedError("complex numbers are not implemented: tensor.H of a complex tensor")
    return t(self)


Tensor.T = property(_all_reversed)  # type: ignore[assignment, method-assign]
Tensor.mT = property(_matrix_transpose)  # type: ignore[assignment, method-assign]
Tensor.H = property(_conjugate_transpose)  # type: ignore[assignment, method-assign]
Tensor.mH = property(_matrix_transpose)  # type: ignore[assignment, method-assign]


@public("views", kind="view")
def adjoint(input: Tensor) -> Tensor:  # noqa: A002
    """The last two axes exchanged."""
    return _matrix_transpose(need_tensor("adjoint", input))


@public("views", kind="view")
def permute(input: Tensor, *dims: Any) -> Tensor:  # noqa: A002
    """Axis i of the result is axis dims[i]."""
    entry = find((permute_operator, need_tensor("permute", input).layout, dims))
    if entry is not None:
        return entry(input)
    wanted = _shape("permute", dims)
    if len(wanted) != input.ndim:
        raise RuntimeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering "
            f"of dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(wanted)}".replace("(sparse_coo)", "")
        )
    axes = tuple(normalise_axis(d, input.ndim) for d in wanted)
    if len(set(axes)) != len(axes):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return run(permute_operator, input, (dims,), {"axes": axes})


@public("views", kind="view", aliases=("moveaxis",))
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:  # noqa: A002
    """Axes `source` at positions `destination`, the others in their order."""
    ndim = need_tensor("movedim", input).ndim
    old = [normalise_axis(a, ndim) for a in as_ints("movedim", source, "source")]
    new = [normalise_axis(a, ndim) for a in as_ints("movedim", destination, "destination")]
    if len(old) != len(new):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({source} dims) should contain the same number of dims as "
            f"destination ({destination} dims)"
        )
    if len(set(old)) != len(old):
        raise RuntimeError(f"movedim: repeated dim in `source` ({source})")
    if len(set(new)) != len(new):
        raise RuntimeError(f"movedim: repeated dim in `destination` ({destination})")
    if not ndim:
        return input
    axes: list[int] = [-1] * ndim
    for a, b in zip(old, new):
        axes[b] = a
    rest = iter([a for a in range(ndim) if a not in old])
    return permute(input, tuple(next(rest) if a < 0 else a for a in axes))


# --- repetition -------------------------------------------------------------------------------------------------------


@method()
def expand(self: Tensor, *sizes: Any, implicit: bool = False) -> Tensor:
    """Axes of extent 1 repeated without a copy, new axes in front; -1 keeps an extent."""
    entry = find((expand_operator, self.layout, sizes))
    if entry is not None:
        return entry(self)
    wanted = _shape("expand", sizes)
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


# --- parts ------------------------------------------------------------------------------------------------------------


def _need_axis(name: str, x: Tensor) -> None:
    if not x.ndim:
        raise RuntimeError(f"{name}() cannot be applied to a 0-dim tensor.")


@public("views", kind="view")
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:  # noqa: A002
    """`length` positions of one axis from `start` (negative counts from the end)."""
    _need_axis("narrow", need_tensor("narrow", input))
    axis = normalise_axis(dim, input.ndim)
    extent = input.layout.shape[axis]
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
        return (select_operator(input, axis=axis, index=0),)
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
    if not need_tensor("chunk", input).ndim:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    axis = normalise_axis(dim, input.ndim)
    extent = input.layout.shape[axis]
    size = -(-extent // chunks)
    if size == 0:
        return _split(input, (0,) * chunks, axis)
    return split(input, size, axis)


def _split(x: Tensor, sizes: tuple[int, ...], axis: int) -> tuple[Tensor, ...]:
    if len(sizes) == 1:
        return (slice_operator(x, axis=axis, start=0, length=sizes[0], step=1),)
    return split_operator(x, axis=axis, sizes=sizes) if sizes else ()


def _split_any(input: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """Parts of a given size along an axis, or of the sizes given in a list, which must add up to the extent."""
    if not need_tensor("split", input).ndim:
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
        return _split(input, sizes, axis)
    size = as_int("split", split_size_or_sections, "split_size")
    if size < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={size}")
    if size == 0:
        if extent:
            raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {extent}")
        return _split(input, (0,), axis)
    count = max(-(-extent // size), 1)
    return _split(input, tuple(min(size, extent - i * size) for i in range(count)), axis)


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of a given size along an axis (the last may be smaller), or of the sizes given in a list."""
    return _split_any(tensor, split_size_or_sections, dim)


def _split_method(self: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of a given size along an axis (the last may be smaller), or of the sizes given in a list."""
    return _split_any(self, split_size, dim)


public("views", name="split", kind="view", method=False)(split)
Tensor.split = _split_method  # type: ignore[assignment, method-assign]


@public("views", kind="view")
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:  # noqa: A002
    """Parts of given sizes along an axis."""
    return _split_any(input, tuple(split_sizes), dim)


@public("views", kind="view")
def tensor_split(
    input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: int | None = None  # noqa: A002
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
        where = where.tolist()  # type: ignore[attr-defined]
    if isinstance(where, list | tuple):
        bounds = [*as_ints("tensor_split", where, "indices"), extent]
        return tuple(_bounded(input, axis, a, b) for a, b in zip([0, *bounds[:-1]], bounds))
    count = as_int("tensor_split", where, "sections")
    if count <= 0:
        raise RuntimeError(f"number of sections must be larger than 0, got {count}")
    small, larger = divmod(extent, count)
    return _split(input, tuple(small + 1 if i < larger else small for i in range(count)), axis)


def _bounded(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    first, last, _ = slice(start, end).indices(x.layout.shape[axis])
    return slice_operator(x, axis=axis, start=first, length=max(last - first, 0), step=1)


def _split_along(name: str, least: int, axis_of: Callable[[int], int]) -> Any:
    def function(input: Tensor, *args: Any, indices: Any = None, sections: Any = None) -> tuple[Tensor, ...]:  # noqa: A002
        if need_tensor(name, input).ndim < least:
            raise RuntimeError(
                f"torch.{name} requires a tensor with at least {least} dimension{'s' if least > 1 else ''}, but got a tensor "
                f"with {input.ndim} dimensions!".removeprefix("torch.")
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


# --- anything over the storage ----------------------------------------------------------------------------------------


@public("views", kind="view")
def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None  # noqa: A002
) -> Tensor:
    """Any shape, strides and offset over the storage of a tensor.

    Raises RuntimeError where that would leave the storage. Gradients flow where the tensor covers its memory without gaps.
    """
    from tensorsmith.eager.inplace import view_of_base

    shape, strides = as_ints("as_strided", size, "size"), as_ints("as_strided", stride, "stride")
    if len(shape) != len(strides):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(strides)} and {list(shape)}")
    if any(s < 0 for s in strides) or any(n < 0 for n in shape):
        raise RuntimeError(f"as_strided: negative sizes and strides are not supported, got {list(shape)}, {list(strides)}")
    itemsize = need_tensor("as_strided", input).itemsize
    current = input.storage_offset()
    offset = current if storage_offset is None else as_int("as_strided", storage_offset, "storage_offset")
    layout = layout_of(input.dtype, shape, strides)
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
    return view_of_base(
        input, shape=shape, strides=strides, offset=offset - current, base_strides=input.layout.strides
    )


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


def _to_2d(x: Tensor) -> Tensor:
    return reshape(x, (1, 1)) if not x.ndim else unsqueeze(x, 0) if x.ndim == 1 else x


def _to_3d(x: Tensor) -> Tensor:
    if x.ndim == 1:
        return unsqueeze(unsqueeze(x, 0), 2)
    return reshape(x, (1, 1, 1)) if not x.ndim else unsqueeze(x, 2) if x.ndim == 2 else x


_at_least("atleast_1d", lambda x: x if x.ndim else reshape(x, (1,)))
_at_least("atleast_2d", _to_2d)
_at_least("atleast_3d", _to_3d)

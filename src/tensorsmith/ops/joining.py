"""Joining, repeating, turning and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import promote_types
from tensorsmith.core.shapes import normalise_axes, normalise_axis
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ops.creation import array_of, copy_array
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.ops.shortcut import as_int, as_ints
from tensorsmith.ops.views import reshape
from tensorsmith.tensor.tensor import Tensor

# --- joining ----------------------------------------------------------------------------------------------------------


def _cat(*operands: Node, axis: int) -> Node:
    return build.concat(operands, axis)


def _stack(*operands: Node, axis: int) -> Node:
    return build.concat([build.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in operands], axis)


cat_operator = Operator("cat", _cat, fresh=True)
stack_operator = Operator("stack", _stack, fresh=True)


def _tensors(name: str, tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, list | tuple):
        raise TypeError(f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not {type(tensors).__name__}")
    return [need_tensor(name, x, "tensors") for x in tensors]


@public("joining", method=False, aliases=("concat", "concatenate"), out=True)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an existing axis, promoted to one dtype. Empty vectors are left out."""
    every = _tensors("cat", tensors)
    if not every:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors".removeprefix("torch."))
    for i, x in enumerate(every):
        if not x.ndim:
            raise RuntimeError(f"zero-dimensional tensor (at position {i}) cannot be concatenated")
    parts = [x for x in every if x.layout.shape != (0,)]
    if not parts:
        parts = every[:1]
    first = parts[0].layout.shape
    axis = normalise_axis(as_int("cat", dim, "dim"), len(first))
    for i, x in enumerate(parts):
        shape = x.layout.shape
        if len(shape) != len(first):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)}")
        for a, (n, m) in enumerate(zip(shape, first)):
            if a != axis and n != m:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {axis}. Expected size {m} but got size {n} for tensor "
                    f"number {i} in the list."
                )
    dtype = every[0].dtype
    for x in every[1:]:
        dtype = promote_types(dtype, x.dtype)
    if len(parts) == 1:
        only = parts[0]
        return only.to(dtype) if only.dtype is not dtype else only.clone()  # type: ignore[attr-defined]
    if any(x.dtype is not dtype for x in every) and all(x.dtype is not dtype for x in parts):
        parts[0] = parts[0].to(dtype)  # type: ignore[attr-defined]
    return call(cat_operator, parts, {"axis": axis})


@public("joining", method=False, out=True)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of equal shape joined along a new axis."""
    parts = _tensors("stack", tensors)
    if not parts:
        raise RuntimeError("stack expects a non-empty TensorList")
    axis = normalise_axis(as_int("stack", dim, "dim"), parts[0].ndim + 1)
    for i, x in enumerate(parts):
        if x.layout.shape != parts[0].layout.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(parts[0].layout.shape)} at entry 0 and "
                f"{list(x.layout.shape)} at entry {i}"
            )
    return call(stack_operator, parts, {"axis": axis})


@public("joining", method=False, kind="composite", out=True)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second axis (the first for vectors)."""
    parts = [x if x.ndim else reshape(x, (1,)) for x in _tensors("hstack", tensors)]
    if not parts:
        raise RuntimeError("hstack expects a non-empty TensorList")
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


@public("joining", method=False, aliases=("row_stack",), kind="composite", out=True)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the first axis; vectors become rows."""
    from tensorsmith.ops.views import _to_2d

    parts = _tensors("vstack", tensors)
    if not parts:
        raise RuntimeError("vstack expects a non-empty TensorList")
    return cat([_to_2d(x) for x in parts], 0)


@public("joining", method=False, kind="composite", out=True)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third axis."""
    from tensorsmith.ops.views import _to_3d

    parts = _tensors("dstack", tensors)
    if not parts:
        raise RuntimeError("dstack expects a non-empty TensorList")
    return cat([_to_3d(x) for x in parts], 2)


@public("joining", method=False, kind="composite", out=True)
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second axis; vectors become columns."""
    parts = _tensors("column_stack", tensors)
    if not parts:
        raise RuntimeError("column_stack expects a non-empty TensorList")
    return cat([reshape(x, (x.layout.numel, 1)) if x.ndim <= 1 else x for x in parts], 1)


@public("joining", method=False, kind="composite")
def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of a matrix of zeros."""
    from tensorsmith.ops.views import _to_2d

    parts = [_to_2d(need_tensor("block_diag", x, "tensors")) for x in tensors]
    for i, x in enumerate(parts):
        if x.ndim != 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {x.ndim} dimensions".removeprefix(
                    "torch."
                )
            )
    width = sum(x.layout.shape[1] for x in parts)
    rows, before = [], 0
    for x in parts:
        after = width - before - x.layout.shape[1]
        rows.append(pad(x, (before, after)))
        before += x.layout.shape[1]
    return cat(rows, 0) if rows else copy_array(_empty_matrix())


def _empty_matrix() -> Any:
    import numpy as np

    return np.empty((1, 0), np.float32)


# --- repeating --------------------------------------------------------------------------------------------------------


def _repeat(x: Node, counts: tuple[int, ...]) -> Node:
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    spread = build.reshape(x, [n for m in shape for n in (1, m)])
    spread = build.broadcast_to(spread, [n for c, m in zip(counts, shape) for n in (c, m)])
    return build.reshape(spread, [c * m for c, m in zip(counts, shape)])


repeat_operator = Operator("repeat", _repeat, fresh=True)


def repeat(self: Tensor, *repeats: Any) -> Tensor:
    """The tensor written several times along every axis (new axes in front)."""
    counts = as_ints("repeat", repeats[0] if len(repeats) == 1 else repeats, "repeats")
    if len(counts) < self.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: got "
            f"{len(counts)} for {self.ndim}"
        )
    if any(c < 0 for c in counts):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(counts)}: {list(counts)}")
    return repeat_operator(self, counts=counts)


Tensor.repeat = repeat  # type: ignore[assignment, method-assign]


@public("joining")
def tile(input: Tensor, *dims: Any) -> Tensor:  # noqa: A002
    """As `repeat`, with missing counts taken as 1."""
    counts = as_ints("tile", dims[0] if len(dims) == 1 else dims, "dims")
    return repeat(input, (1,) * (need_tensor("tile", input).ndim - len(counts)) + counts)


def _repeat_interleave(x: Node, count: int, axis: int) -> Node:
    spread = build.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    spread = build.broadcast_to(spread, (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return build.reshape(spread, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :]))


repeat_interleave_operator = Operator("repeat_interleave", _repeat_interleave, fresh=True)


@public("joining")
def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None  # noqa: A002
) -> Tensor:
    """Every element repeated in place, `repeats` times or as often as a tensor of counts says; flattened without `dim`.

    `repeat_interleave(counts)` gives each position as often as its count.
    """
    need_tensor("repeat_interleave", input)
    if repeats is None:
        return copy_array(_counted(input))
    if dim is None:
        input, dim = reshape(input, (-1,) if input.layout.numel else (0,)), 0  # noqa: A001
    axis = normalise_axis(dim, input.ndim)
    if isinstance(repeats, Tensor):
        if repeats.ndim > 1:
            raise RuntimeError("repeats must be 0-dim or 1-dim tensor")
        if repeats.dtype.kind not in "i" or repeats.dtype.itemsize < 4:
            raise RuntimeError("repeats has to be Long or Int tensor")
        if repeats.layout.numel == 1:
            repeats = int(array_of(repeats).reshape(()))
        else:
            if repeats.layout.numel != input.layout.shape[axis]:
                raise RuntimeError(
                    "repeats must have the same size as input along dim, but got repeats.size(0) = "
                    f"{repeats.layout.numel} and input.size({axis}) = {input.layout.shape[axis]}"
                )
            return input.index_select(axis, copy_array(_counted(repeats)))  # type: ignore[attr-defined]
    count = as_int("repeat_interleave", repeats, "repeats")
    if count < 0:
        raise RuntimeError("repeats can not be negative")
    return repeat_interleave_operator(input, count=count, axis=axis)


def _counted(counts: Tensor) -> Any:
    import numpy as np

    from tensorsmith.ops.indexing import host

    values = host(counts, "repeat_interleave")
    if values.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if (values < 0).any():
        raise RuntimeError("repeats can not be negative")
    return np.repeat(np.arange(len(values), dtype=np.int64), values)


# --- turning ----------------------------------------------------------------------------------------------------------

flip_operator = Operator("flip", lambda x, axes: build.flip(x, axes), pointwise=True)


@public("joining")
def flip(input: Tensor, *args: Any, dims: Any = None) -> Tensor:  # noqa: A002
    """Axes reversed, in new memory: `flip(0, 1)` or `flip((0, 1))`."""
    axes = as_ints("flip", dims if dims is not None else args[0] if len(args) == 1 else args, "dims")
    return flip_operator(input, axes=normalise_axes(axes, need_tensor("flip", input).ndim) if axes else ())


@public("joining")
def fliplr(input: Tensor) -> Tensor:  # noqa: A002
    """The second axis reversed."""
    if need_tensor("fliplr", input).ndim < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flip(input, (1,))


@public("joining")
def flipud(input: Tensor) -> Tensor:  # noqa: A002
    """The first axis reversed."""
    if need_tensor("flipud", input).ndim < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flip(input, (0,))


def _roll(x: Node, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Node:
    for shift, axis in zip(shifts, axes):
        extent = x.shape[axis]
        by = shift % extent if extent else 0
        if by:
            x = build.concat([build.slice_(x, axis, extent - by, by), build.slice_(x, axis, 0, extent - by)], axis)
    return x


roll_operator = Operator("roll", _roll, fresh=True)


@public("joining")
def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:  # noqa: A002
    """Elements shifted along axes; what leaves at the end comes back at the start. Flattened meanwhile without `dims`."""
    by = as_ints("roll", shifts, "shifts")
    if dims is None or dims == ():
        if len(by) != 1:
            raise RuntimeError(f"shifts and dimensions must align. shifts: {len(by)}, dims:0")
        flat = roll(reshape(need_tensor("roll", input), (input.layout.numel,)), by, 0)
        return reshape(flat, input.layout.shape)
    axes = tuple(normalise_axis(a, need_tensor("roll", input).ndim) for a in as_ints("roll", dims, "dims"))
    if len(by) != len(axes):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(by)}, dims:{len(axes)}")
    if not input.ndim:
        return input.clone()  # type: ignore[attr-defined]
    return roll_operator(input, shifts=by, axes=axes)


@public("joining")
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:  # noqa: A002
    """Turned by k quarters from the first towards the second of two axes."""
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if need_tensor("rot90", input).ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {input.ndim}")
    a, b = (normalise_axis(d, input.ndim) for d in dims)
    if a == b:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    if k % 4 == 0:
        return input.clone()  # type: ignore[attr-defined]
    if k % 4 == 2:
        return flip(input, (a, b))
    return flip(input, (b if k % 4 == 1 else a,)).transpose(a, b)  # type: ignore[attr-defined]


# --- grids and triangles ----------------------------------------------------------------------------------------------


@public("joining", method=False, kind="view")
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Coordinates of a grid: each vector expanded over the product of all; indexing "ij" or "xy"."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    vectors = [reshape(need_tensor("meshgrid", x), (x.layout.numel,)) for x in tensors]
    for x in tensors:
        if x.ndim > 1:
            raise RuntimeError(
                f"torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {x.ndim}D".removeprefix("torch.")
            )
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(
            f"torch.meshgrid: indexing must be one of \"xy\" or \"ij\", but received: {indexing}".removeprefix("torch.")
        )
    swapped = indexing == "xy" and len(vectors) >= 2
    if swapped:
        vectors[0], vectors[1] = vectors[1], vectors[0]
    count = len(vectors)
    shape = tuple(v.layout.numel for v in vectors)
    grids = [
        reshape(v, tuple(n if i == j else 1 for j in range(count))).expand(shape)  # type: ignore[attr-defined]
        for i, (v, n) in enumerate(zip(vectors, shape))
    ]
    if swapped:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@public("joining", method=False, kind="composite")
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Every combination of the elements of several vectors, one a row."""
    if len(tensors) == 1:
        return tensors[0]
    grids = meshgrid(*tensors, indexing="ij")
    return stack([reshape(g, (-1,) if g.layout.numel else (0,)) for g in grids], 1)


def triangle_mask(graph: Graph, rows: int, columns: int, diagonal: int, lower: bool) -> Node:
    """Which elements of a matrix belong to a triangle."""
    i, j = build.reshape(graph.iota(rows), (rows, 1)), build.reshape(graph.iota(columns), (1, columns))
    return (j - i) <= diagonal if lower else (j - i) >= diagonal


def _triangle(lower: bool) -> Any:
    def graph(x: Node, diagonal: int) -> Node:
        return build.where(triangle_mask(x.graph, x.shape[-2], x.shape[-1], diagonal, lower), x, 0)

    return graph


tril_operator = Operator("tril", _triangle(True), fresh=True)
triu_operator = Operator("triu", _triangle(False), fresh=True)


def _triangular(name: str, operator: Operator, which: str) -> Any:
    inplace = InplaceOperation(operator)

    def check(x: Any) -> Tensor:
        if need_tensor(name, x).ndim < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        return x

    def function(input: Tensor, diagonal: int = 0) -> Tensor:  # noqa: A002
        return operator(check(input), diagonal=as_int(name, diagonal, "diagonal"))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {which} triangle of matrices, zeros elsewhere; `diagonal` moves the edge upwards."
    found = public("joining", out=True)(function)
    inplace_method(name, lambda self, diagonal=0: inplace(check(self), diagonal=as_int(name, diagonal, "diagonal")))
    return found


tril, triu = _triangular("tril", tril_operator, "lower"), _triangular("triu", triu_operator, "upper")


def _diag_embed(x: Node, offset: int, a: int, b: int) -> Node:
    length, size = x.shape[-1], x.shape[-1] + abs(offset)
    i = build.reshape(x.graph.iota(size), (size, 1))
    j = build.reshape(x.graph.iota(size), (1, size))
    low = max(-offset, 0)
    padded = build.pad(x, [0] * (x.ndim - 1) + [low], [0] * (x.ndim - 1) + [size - length - low])
    along_rows = build.reshape(padded, (*padded.shape, 1))
    matrix = build.where((j - i) == offset, along_rows, 0)
    order = list(range(x.ndim - 1))
    rank = x.ndim + 1
    axes: list[int] = [-1] * rank
    axes[a], axes[b] = rank - 2, rank - 1
    rest = iter(order)
    return build.permute(matrix, [next(rest) if v < 0 else v for v in axes])


diag_embed_operator = Operator("diag_embed", _diag_embed, fresh=True)


@public("joining")
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:  # noqa: A002
    """Matrices with the last axis on a diagonal, zeros elsewhere."""
    rank = need_tensor("diag_embed", input).ndim + 1
    a, b = normalise_axis(dim1, rank), normalise_axis(dim2, rank)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return diag_embed_operator(input, offset=as_int("diag_embed", offset, "offset"), a=a, b=b)


@public("joining", out=True)
def diag(input: Tensor, diagonal: int = 0) -> Tensor:  # noqa: A002
    """A vector as the diagonal of a matrix, or the diagonal of a matrix as a vector."""
    if need_tensor("diag", input).ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return input.diagonal(diagonal).clone()  # type: ignore[attr-defined]


@public("joining", kind="composite")
def diagflat(input: Tensor, offset: int = 0) -> Tensor:  # noqa: A002
    """All elements as the diagonal of a matrix."""
    return diag_embed(reshape(need_tensor("diagflat", input), (input.layout.numel,)), offset)


# --- padding ----------------------------------------------------------------------------------------------------------


def _pad_constant(x: Node, value: Any, widths: tuple[tuple[int, int], ...]) -> Node:
    for axis, (low, high) in enumerate(widths):  # negative widths cut
        start, end = max(-low, 0), max(-high, 0)
        x = build.slice_(x, axis, start, x.shape[axis] - start - end)
    low, high = [max(w[0], 0) for w in widths], [max(w[1], 0) for w in widths]
    padded = build.pad(x, low, high)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0 and math.copysign(1, value) > 0:
        return padded
    inside: Node | None = None
    for axis, (before, extent) in enumerate(zip(low, x.shape)):
        if not low[axis] and not high[axis]:
            continue
        place = build.reshape(x.graph.iota(padded.shape[axis]), [n if i == axis else 1 for i, n in enumerate(padded.shape)])
        here = (place >= before) & (place < before + extent)
        inside = here if inside is None else inside & here
    return padded if inside is None else build.where(inside, padded, build.cast(value, x.dtype, x.graph))


def _pad_taking(x: Node, widths: tuple[tuple[int, int], ...], mode: str) -> Node:
    for axis, (low, high) in enumerate(widths):
        if not low and not high:
            continue
        extent = x.shape[axis]
        place = x.graph.iota(extent + low + high) - low
        if mode == "replicate":
            index = build.where(place < 0, 0, build.where(place >= extent, extent - 1, place))
        elif mode == "circular":
            index = build.where(place < 0, place + extent, build.where(place >= extent, place - extent, place))
        else:
            index = build.where(place < 0, -place, build.where(place >= extent, 2 * (extent - 1) - place, place))
        x = x.graph.add(Primitive.TAKE, (x, index), axis=axis)
    return x


pad_operator = Operator("constant_pad_nd", _pad_constant, fresh=True)
pad_taking_operator = Operator("pad_taking", _pad_taking, fresh=True, node_name="Pad")


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:  # noqa: A002
    """Padded at both ends of the last axes: (last low, last high, next-to-last low, ...); negative widths cut.

    mode: "constant" (with `value`, 0 by default), "reflect", "replicate" or "circular".
    """
    need_tensor("pad", input)
    flat = as_ints("pad", pad, "pad")
    if len(flat) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(flat) // 2 > input.ndim:
        raise RuntimeError(
            f"Padding length should be less than or equal to two times the input dimension but got padding length {len(flat)} "
            f"and input of dimension {input.ndim}"
        )
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    widths = tuple([(0, 0)] * (input.ndim - len(pairs)) + pairs[::-1])
    for axis, (low, high) in enumerate(widths):
        if input.layout.shape[axis] + low + high < 0 or min(low, 0) + min(high, 0) + input.layout.shape[axis] < 0:
            raise RuntimeError(
                f"The input size {input.layout.shape[axis]}, plus negative padding {low} and {high}, resulted in a negative "
                f"output size, which is invalid. Check dimension {axis} of your input."
            )
    if mode == "constant":
        return call(pad_operator, (input,), {"value": 0.0 if value is None else value, "widths": widths})
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise ValueError(f"Padding mode \"{mode}\" doesn't take in value argument")
    for axis, (low, high) in enumerate(widths):
        extent = input.layout.shape[axis]
        most = extent - 1 if mode == "reflect" else extent if mode == "circular" else max(low, high)
        if max(low, high) > most:
            raise RuntimeError(
                f"Padding size should be less than {'the corresponding input dimension' if mode == 'reflect' else 'or equal to'}"
                f" , but got: padding ({low}, {high}) at dimension {axis} of input {list(input.layout.shape)}"
            )
        if mode == "replicate" and not extent and (low or high):
            raise RuntimeError(f"replicate padding of dimension {axis} with size 0: there is nothing to repeat")
    cuts = tuple((min(low, 0), min(high, 0)) for low, high in widths)
    if any(cut != (0, 0) for cut in cuts):
        input = call(pad_operator, (input,), {"value": 0.0, "widths": cuts})  # noqa: A001
    grown = tuple((max(low, 0), max(high, 0)) for low, high in widths)
    return call(pad_taking_operator, (input,), {"widths": grown, "mode": mode})


public("joining", namespace="nn.functional", method=False)(pad)


@public("joining", method=False)
def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:  # noqa: A002
    """Padded with a constant; widths as for `pad`."""
    return _constant(input, pad, value)


def _constant(x: Tensor, widths: Sequence[int], value: float) -> Tensor:
    return pad(x, widths, "constant", value)


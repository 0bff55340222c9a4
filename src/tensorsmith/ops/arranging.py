"""Elements in other places: reversed, rolled, turned; grids, triangles and diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.shapes import normalise_axes, normalise_axis
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.ops.joining import cat, stack
from tensorsmith.ops.raw_keys import as_int, as_ints, exact, find, run
from tensorsmith.ops.registry import inplace_method, method, need_tensor, public
from tensorsmith.ops.views import reshape
from tensorsmith.tensor.tensor import Tensor

# --- turning ----------------------------------------------------------------------------------------------------------

flip_operator = Operator("flip", lambda x, axes: build.flip(x, axes), pointwise=True)


@public("joining")
def flip(input: Tensor, *args: Any, dims: Any = None) -> Tensor:  # noqa: A002
    """Axes reversed, in new memory: `flip(0, 1)` or `flip((0, 1))`."""
    if dims is None and isinstance(input, Tensor) and len(args) == 1 and exact(args[0]):
        entry = find((flip_operator, input.layout, args[0]))
        if entry is not None:
            return entry(input)
    axes = as_ints("flip", dims if dims is not None else args[0] if len(args) == 1 else args, "dims")
    attrs = {"axes": normalise_axes(axes, need_tensor("flip", input).ndim) if axes else ()}
    return run(flip_operator, input, args, attrs) if dims is None and len(args) == 1 else call(flip_operator, (input,), attrs)


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
    if not need_tensor("roll", input).ndim:
        raise IndexError(f"Dimension specified as {dims} but tensor has no dimensions")
    axes = tuple(normalise_axis(a, input.ndim) for a in as_ints("roll", dims, "dims"))
    if len(by) != len(axes):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(by)}, dims:{len(axes)}")
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
        return input.clone()
    if k % 4 == 2:
        return flip(input, (a, b))
    return flip(input, (b if k % 4 == 1 else a,)).transpose(a, b)


# --- grids and triangles ----------------------------------------------------------------------------------------------


@public("joining", method=False, kind="view")
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Coordinates of a grid: each vector expanded over the product of all; indexing "ij" or "xy"."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    vectors = [reshape(need_tensor("meshgrid", x), (x.layout.numel,)) for x in tensors]
    for x in tensors:
        if x.ndim > 1:
            raise RuntimeError(f"meshgrid: Expected 0D or 1D tensor in the tensor list but got: {x.ndim}D")
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    swapped = indexing == "xy" and len(vectors) >= 2
    if swapped:
        vectors[0], vectors[1] = vectors[1], vectors[0]
    count = len(vectors)
    shape = tuple(v.layout.numel for v in vectors)
    grids = [
        reshape(v, tuple(n if i == j else 1 for j in range(count))).expand(shape)
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
        inside = triangle_mask(x.graph, x.shape[-2], x.shape[-1], diagonal, lower)
        return build.where(inside, x, build.cast(0, x.dtype, x.graph))

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
    matrix = build.where((j - i) == offset, along_rows, build.cast(0, x.dtype, x.graph))
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
    return input.diagonal(diagonal).clone()


@public("joining", kind="composite")
def diagflat(input: Tensor, offset: int = 0) -> Tensor:  # noqa: A002
    """All elements as the diagonal of a matrix."""
    return diag_embed(reshape(need_tensor("diagflat", input), (input.layout.numel,)), offset)


@method()
def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Write a number over the elements whose indices are all equal; with `wrap` the diagonal of a tall matrix starts again.

    Raises RuntimeError for fewer than two axes, and for more than two of different extents.
    """
    shape, strides = self.layout.shape, self.layout.strides
    if len(shape) < 2:
        raise RuntimeError("fill_diagonal_: dimensions must larger than 1")
    if len(shape) > 2 and len(set(shape)) > 1:
        raise RuntimeError("fill_diagonal_: all dimensions of input must be of equal length")
    if not self.layout.numel:
        return self
    size, step, offset = min(shape), sum(strides), self.storage_offset()
    self.as_strided((size,), (step,), offset).fill_(fill_value)
    if wrap and len(shape) == 2 and shape[0] > shape[1] + 1:
        width = shape[1] + 1
        rest = -(-self.layout.numel // width) - size
        self.as_strided((rest,), (step,), offset + strides[0] * width).fill_(fill_value)
    return self


@public("joining", name="_chunk_cat", method=False, kind="composite", out=True)
def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Tensors cut into `num_chunks` chunks along dim, zeros behind the last; the k-th chunks of all in row k.

    Axes before `dim` are common and stay; what follows is one axis of the result. RuntimeError where dtypes or the common
    axes differ, for an empty tensor, and for num_chunks below 1.

    >>> ts._chunk_cat([ts.tensor([1, 2, 3]), ts.tensor([4])], 0, 2)
    tensor([[1, 2, 4],
            [3, 0, 0]])
    """
    if not tensors:
        raise RuntimeError("_chunk_cat expects a non-empty input tensor list")
    if num_chunks < 1:
        raise RuntimeError("_chunk_cat expects positive num_chunks")
    first = need_tensor("_chunk_cat", tensors[0], "tensors")
    axis = normalise_axis(dim, first.ndim)
    lead = first.layout.shape[:axis]
    rows = []
    for x in tensors:
        if not need_tensor("_chunk_cat", x, "tensors").layout.numel:
            raise RuntimeError("_chunk_cat expects non-empty tensor")
        if x.dtype is not first.dtype:
            raise RuntimeError("_chunk_cat expects all input tensors with the same dtype")
        if x.ndim <= axis or x.layout.shape[:axis] != lead:
            raise RuntimeError("_chunk_cat expects same sizes of 0,...,dim-1 dimensions for all tensors")
        extent = x.layout.shape[axis]
        missing = -(-extent // num_chunks) * num_chunks - extent
        if missing:
            x = cat([x, x.new_zeros((*lead, missing, *x.layout.shape[axis + 1 :]))], axis)
        rows.append(x.reshape((*lead, num_chunks, -1)))
    return cat(rows, axis + 1)

"""Elements by position in the flattened tensor or along an axis, and where a mask holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.shapes import broadcast_shapes, normalise_axis
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.creation import array_of, copy_array
from tensorsmith.ops.device_copies import need_one_device
from tensorsmith.ops.gathering import gather, index_dtype
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.indexing import out_of_range, put as put_at, wrapped
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _take(x: Node, index: Node) -> Node:
    flat = build.reshape(wrapped(index, x.numel), (index.numel,))
    return build.reshape(x.graph.add(Primitive.TAKE, (build.reshape(x, (x.numel,)), flat), axis=0), index.shape)


def _put(x: Node, index: Node, source: Node, reduce: str) -> Node:
    flat = build.reshape(wrapped(index, x.numel), (index.numel,))
    operands = (build.reshape(x, (x.numel,)), flat, build.reshape(source, (index.numel,)))
    return build.reshape(x.graph.add(Primitive.PUT, operands, axis=0, reduce=reduce), x.shape)


take_operator = Operator("take", _take)
put_operator = Operator("put", _put)


@public("indexing", out=True)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:  # noqa: A002
    """`gather` with input and index broadcast against each other outside dim; of the flattened tensor without dim."""
    need_tensor("take_along_dim", input)
    if need_tensor("take_along_dim", indices, "indices", 2).dtype.name != "int64":
        raise RuntimeError(f"take_along_dim(): dtype of indices should be Long but got {type_name(indices.dtype)}")
    if dim is None:
        flat = input.reshape((input.layout.numel,))
        return gather(flat, 0, indices.reshape((indices.layout.numel,)))
    if input.ndim != indices.ndim:
        raise RuntimeError(
            f"take_along_dim(): input and indices should have the same number of dimensions, but got {input.ndim} dimensions "
            f"for input, and {indices.ndim} dimensions for indices"
        )
    axis = normalise_axis(dim, input.ndim)

    def common(x: Tensor) -> tuple[int, ...]:
        rest = [list(t.layout.shape) for t in (input, indices)]
        for shape in rest:
            shape[axis] = 1
        shape = list(broadcast_shapes(*rest))
        shape[axis] = x.layout.shape[axis]
        return tuple(shape)

    extent = input.layout.shape[axis]
    if modes.tracer is not None or (indices.layout.numel and int(array_of(indices).min()) < 0):
        indices = indices.where(indices >= 0, indices + extent)
    return gather(input.expand(common(input)), axis, indices.expand(common(indices)))


# --- positions in the flattened tensor --------------------------------------------------------------------------------


def _out_of_flat(name: str, run: Callable[[], Tensor], x: Tensor, index: Tensor) -> Tensor:
    try:
        return run()
    except IndexError:
        flat = x.reshape((x.layout.numel,))
        raise out_of_range(name, flat, (0,), (index,)) from None


@public("indexing", out=True)
def take(input: Tensor, index: Tensor) -> Tensor:  # noqa: A002
    """Elements of the flattened tensor, in the shape of the index."""
    need_tensor("take", input)
    index_dtype("take", index)
    if not input.layout.numel and index.layout.numel:
        raise IndexError("take(): tried to take from an empty tensor")
    return _out_of_flat("take", lambda: call(take_operator, (input, index), {}), input, index)


_put_ = InplaceOperation(put_operator)


def _put_operands(x: Tensor, index: Tensor, source: Tensor) -> None:
    need_tensor("put", x)
    index_dtype("put", index)
    if need_tensor("put", source, "source", 3).dtype is not x.dtype:
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got {x.dtype.name} and {source.dtype.name}"
        )
    if index.layout.numel != source.layout.numel:
        raise IndexError(
            f"put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.layout.numel}, index.numel() = {index.layout.numel}"
        )


@public("indexing")
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:  # noqa: A002
    """A copy with elements of the flattened tensor written, or added to with `accumulate`."""
    _put_operands(input, index, source)
    attrs = {"reduce": "add" if accumulate else "set"}
    return _out_of_flat("put", lambda: call(put_operator, (input, index, source), attrs), input, index)


def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write elements of the flattened tensor in place, or add to them with `accumulate`."""
    _put_operands(self, index, source)
    kind = "add" if accumulate else "set"
    return _out_of_flat("put_", lambda: _put_(self, index, source, reduce=kind), self, index)


inplace_method("put", put_)


@public("indexing", kind="composite")
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:  # noqa: A002
    """A copy with the elements of source, in order, where the mask holds."""
    return masked_scatter_(need_tensor("masked_scatter", input).expand(
        broadcast_shapes(input.layout.shape, mask.layout.shape)).clone(), mask, source)  # fmt: skip


def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the elements of source, in order, where the mask holds."""
    need_tensor("masked_scatter_", mask, "mask", 1)
    need_tensor("masked_scatter_", source, "source", 2)
    if mask.dtype.kind != "b":
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype.name}")
    if source.dtype is not self.dtype:
        raise RuntimeError(f"masked_scatter: expected self and source to have same dtypes but got {self.dtype.name} and "
                           f"{source.dtype.name}")  # fmt: skip
    need_one_device("masked_scatter_", self, mask, source)
    where = np.broadcast_to(host(mask, "masked_scatter_"), self.layout.shape)
    count = int(where.sum())
    if count > source.layout.numel:
        raise RuntimeError("Number of elements of source < number of ones in mask")
    if count:
        target = self if self.ndim else self.reshape((1,))
        places = [copy_array(p.astype(np.int64)) for p in np.nonzero(where.reshape(target.layout.shape))]
        put_at(target, places, source.reshape((-1,))[:count], False)
    return self


inplace_method("masked_scatter", masked_scatter_)

"""Max unpooling: every value back at the place max pooling took it from, zeros elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorsmith.core.dtypes import int64, type_name
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.checks import need_floating, need_floating_node, need_tensors
from tensorsmith.ops.pooling_windows import numbers
from tensorsmith.ops.registry import public
from tensorsmith.tensor.tensor import Tensor


def _max_unpool(x: Node, places: Node, output: tuple[int, ...]) -> Node:
    need_floating_node(f"max_unpool{len(output)}d", x)
    lead = x.shape[: x.ndim - len(output)]
    rows, taken = math.prod(lead), math.prod(x.shape[x.ndim - len(output) :])
    base = build.full(x.graph, (rows, math.prod(output)), 0, x.dtype)
    index, source = build.reshape(places, (rows, taken)), build.reshape(x, (rows, taken))
    written = x.graph.add(Primitive.SCATTER, (base, index, source), axis=1, reduce="set")
    return build.reshape(written, (*lead, *output))


MAX_UNPOOL = Operator("max_unpool", _max_unpool)


def _output(
    name: str, shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    output_size: Sequence[int] | None,
) -> tuple[int, ...]:  # fmt: skip
    """The sizes of the result: the smallest that pooling turns into these, or others that it does."""
    rank = len(kernel)
    default = [(n - 1) * s + k - 2 * p for n, k, s, p in zip(shape[len(shape) - rank :], kernel, stride, padding)]
    if output_size is None:
        return tuple(default)
    given = list(output_size)
    if len(given) == rank + 2:
        given = given[2:]
    if len(given) != rank:
        raise ValueError(
            f"output_size should be a sequence containing {rank} or {rank + 2} elements, but it has a length of '{len(given)}'"
        )
    for axis, (n, wanted, s) in enumerate(zip(given, default, stride)):
        if not wanted - s < n < wanted + s:
            raise ValueError(f'invalid output_size "{tuple(given)}" (dim {axis} must be between {wanted - s} and {wanted + s})')
    return tuple(given)


def _check(name: str, input: Tensor, indices: Tensor, rank: int) -> None:  # noqa: A002
    need_tensors(name, input=input, indices=indices)
    if indices.dtype is not int64:
        raise RuntimeError(f"{name}: elements in indices should be type int64 but got: {type_name(indices.dtype)}")
    shape = input.layout.shape
    if len(shape) not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Input to max_unpooling{rank}d should be a {rank + 1}d or {rank + 2}d Tensor, but got a tensor with {len(shape)} "
            "dimensions."
        )
    if indices.layout.shape != shape:
        raise RuntimeError(
            f"{name}: Expected shape of indices to be same as that of the input tensor ({list(shape)}) but got indices tensor "
            f"with shape: {list(indices.layout.shape)}"
        )
    for axis in range(len(shape) - rank, len(shape)):
        if not shape[axis]:
            raise RuntimeError(
                f"{name}(): Expected input to have non-zero size for non-batch dimensions, but got {list(shape)} with "
                f"dimension {axis} being empty."
            )
    need_floating(name, input.dtype)


def _enter(rank: int) -> None:
    name = f"max_unpool{rank}d"

    def max_unpool(
        input: Tensor, indices: Tensor, kernel_size: int | Sequence[int],  # noqa: A002
        stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, output_size: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        _check(name, input, indices, rank)
        kernel = numbers(name, "kernel_size", kernel_size, rank)
        strides = kernel if stride is None else numbers(name, "stride", stride, rank)
        paddings = numbers(name, "padding", padding, rank)
        output = _output(name, input.layout.shape, kernel, strides, paddings, output_size)
        if min(output) < 1:
            raise RuntimeError(f"{name}: output size should be greater than zero, but got {list(output)}")
        try:
            return call(MAX_UNPOOL, (input, indices), {"output": output})
        except IndexError as error:
            volume = "x".join(map(str, output))
            raise RuntimeError(f"{name}: Found an invalid max index: {error} (output volumes are of size {volume})") from None

    space = ", ".join("DHW"[3 - rank :]) if rank > 1 else "L"
    max_unpool.__name__ = max_unpool.__qualname__ = name
    max_unpool.__doc__ = f"""The inverse of `max_pool{rank}d`, as far as there is one: values at their places, zeros elsewhere.

    input (N, C, {space}) or (C, {space}), indices of the same shape as `max_pool{rank}d` returned them; every size L becomes
    (L - 1) stride + kernel_size - 2 padding, or what output_size says (less than a stride from it). stride: kernel_size where
    None. dtypes: floating point. Raises RuntimeError for places outside, ValueError for sizes that pooling does not lead from.

    >>> ts.nn.functional.{name}(ts.ones(1, {", ".join(["1"] * rank)}), ts.ones(1, {", ".join(["1"] * rank)}).long(), 2).sum()
    tensor(1.)
    """
    public("pooling", namespace="nn.functional", method=False)(max_unpool)


for _rank in (1, 2, 3):
    _enter(_rank)

"""The bits of numbers: frexp takes a float apart, hash_tensor mixes the bits of many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tensorsmith.core.dtypes import int32
from tensorsmith.core.shapes import normalise_axes
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.creation import copy_array
from tensorsmith.ops.device_copies import beside_input
from tensorsmith.ops.index_steps import host
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.reduction_steps import Dim, result_shape
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.tensor import Tensor


class Frexp(NamedTuple):
    """A float taken apart: mantissa * 2**exponent."""

    mantissa: Tensor
    exponent: Tensor


def _frexp(x: Node) -> tuple[Node, Node]:
    def part(name: str, dtype: object) -> Node:
        return x.graph.add(Primitive.LIBRARY, (x,), name=name, shape=x.shape, dtype=dtype)

    return part("mantissa", x.dtype), part("exponent", int32)


def _frexp_vjp(inputs: list[Node], outputs: list[Node], grads: list[Node]) -> list[Node]:
    scale = build.map_(Fn.EXP2, build.cast(outputs[1], build.wide(grads[0]).dtype))
    return [build.cast(build.wide(grads[0]) / scale, grads[0].dtype)]


frexp_operator = Operator("frexp", _frexp, _frexp_vjp, pointwise=True)


@public("pointwise", kind="library", out=True)
def frexp(input: Tensor) -> Frexp:  # noqa: A002
    """The mantissa in [1/2, 1) and the int32 exponent of every element: x = mantissa * 2**exponent.

    Zero, infinity and NaN are their own mantissa, with exponent 0. Raises RuntimeError for integers.

    >>> ts.frexp(ts.tensor([6.0, -0.25])).exponent
    tensor([ 3, -1], dtype=int32)
    """
    if need_tensor("frexp", input).dtype.kind != "f":
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    return Frexp(*frexp_operator(input))


@public("reductions", kind="library", differentiable=False, out=True)
@beside_input
def hash_tensor(input: Tensor, dim: Dim = (), *, keepdim: bool = False, mode: int = 0) -> Tensor:  # noqa: A002
    """The exclusive or of the elements' bits, over axes (all without `dim`), in uint64.

    Floating-point elements count as float64, integers as 64-bit integers. Raises RuntimeError for another mode than 0.

    >>> ts.hash_tensor(ts.tensor([5, 3])).item()
    6
    """
    values = host(need_tensor("hash_tensor", input), "hash_tensor")
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    if input.is_complex():
        raise NotImplementedError("hash_tensor: complex numbers have no hash")
    axes = tuple(range(input.ndim))
    if dim is not None and dim != () and dim != []:
        axes = normalise_axes(as_ints("hash_tensor", dim, "dim"), input.ndim)
    elif not values.size:
        raise RuntimeError(
            "hash_tensor: Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
            "'dim' argument."
        )
    bits = values.astype(np.float64).view(np.uint64) if input.dtype.kind == "f" else values.astype(np.int64).view(np.uint64)
    for axis in axes:
        bits = np.bitwise_xor.reduce(bits, axis=axis, keepdims=True)
    return copy_array(bits.reshape(result_shape(bits.shape, axes, bool(keepdim))))

"""Affine maps: linear and bilinear.

    linear(x, W, b) = x W^T + b

is one matrix product with the bias added where it is written. Gradients are products of the same operands seen
transposed, so nothing is copied:  dx = g W,  dW = g^T x,  db = sum of the rows of g.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import type_name
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import c_name
from tensorsmith.ops.registry import need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _rows(x: Node) -> Node:
    """`x` as a matrix: all axes but the last are rows."""
    return build.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _linear(x: Node, weight: Node, *rest: Node) -> Node:
    if not x.ndim:
        raise RuntimeError(f"both arguments to linear need to be at least 1D, but they are 0D and {weight.ndim}D")
    if weight.ndim not in (1, 2):
        raise RuntimeError(f"linear(): weight must have 1 or 2 dimensions, got {weight.ndim}")
    if x.dtype is not weight.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {c_name(x.dtype)} != {c_name(weight.dtype)}"
        )
    matrix = weight if weight.ndim == 2 else build.reshape(weight, (1, weight.shape[0]))
    rows = _rows(x)
    if rows.shape[1] != matrix.shape[1]:
        if weight.ndim == 1:
            raise RuntimeError(
                f"size mismatch, got input ({rows.shape[0]}), mat ({rows.shape[0]}x{rows.shape[1]}), vec ({weight.shape[0]})"
            )
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows.shape[0]}x{rows.shape[1]} and "
            f"{matrix.shape[1]}x{matrix.shape[0]})"
        )
    product = build.matmul(rows, build.permute(matrix, (1, 0)))
    if rest:
        (bias,) = rest
        if x.dtype is not bias.dtype:
            raise RuntimeError(
                f"self and mat2 must have the same dtype, but got {type_name(bias.dtype)} and {type_name(x.dtype)}"
            )
        if bias.ndim > 1 or (bias.ndim and bias.shape[0] not in (1, matrix.shape[0])):
            raise RuntimeError(
                f"The expanded size of the tensor ({matrix.shape[0]}) must match the existing size ({bias.shape[-1]}) "
                f"at non-singleton dimension 1.  Target sizes: {list(product.shape)}.  Tensor sizes: {list(bias.shape)}"
            )
        product = product + bias
    return build.reshape(product, x.shape[:-1] + weight.shape[:-1])


def _linear_gradient(inputs: Sequence[Node], outputs: Sequence[Node], grads: Sequence[Node]) -> list[Node | None]:
    x, weight, *rest = inputs
    matrix = weight if weight.ndim == 2 else build.reshape(weight, (1, weight.shape[0]))
    rows = _rows(x)
    grad = build.reshape(grads[0], (rows.shape[0], matrix.shape[0]))
    parts: list[Node | None] = [
        build.reshape(build.matmul(grad, build.conj(matrix)), x.shape),
        build.reshape(build.matmul(build.permute(grad, (1, 0)), build.conj(rows)), weight.shape),
    ]
    return parts + [build.sum_to(grad, bias.shape) for bias in rest]


LINEAR = Operator("linear", _linear, _linear_gradient)


@public("linear", namespace="nn.functional", method=False, out=True)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - PyTorch's name
    """x W^T + b.

    input (..., in), weight (out, in), bias (out): result (..., out). A weight (in,) gives (...).
    Raises RuntimeError where shapes do not contract or dtypes differ.
    """
    try:
        if bias is None:
            entry = FAST.get((LINEAR, input.layout, weight.layout))
            if entry is not None:
                return entry(input, weight)
        else:
            entry = FAST.get((LINEAR, input.layout, weight.layout, bias.layout))
            if entry is not None:
                return entry(input, weight, bias)
    except AttributeError:
        need_tensor("linear", input)
        need_tensor("linear", weight, "weight", 2)
        need_tensor("linear", bias, "bias", 3)
        raise
    return call(LINEAR, (input, weight) if bias is None else (input, weight, bias), {})


def _bilinear(x1: Node, x2: Node, weight: Node, *rest: Node) -> Node:
    if x1.shape[:-1] != x2.shape[:-1]:
        raise RuntimeError(
            f"bilinear(): input batch dimensions do not match: got {list(x1.shape[:-1])} and {list(x2.shape[:-1])}"
        )
    out, n, m = weight.shape
    for x, size, name, axis in ((x1, n, "input1", 1), (x2, m, "input2", 2)):
        if x.shape[-1] != size:
            raise RuntimeError(
                f"bilinear(): {name} size does not match weight size: got {x.shape[-1]} but expected {size} (axis {axis})"
            )
    first, second = _rows(x1), _rows(x2)
    rows = first.shape[0]
    # (rows, n) @ (n, out m) then, a row at a time, (out, m) @ (m, 1)
    flat = build.reshape(build.permute(weight, (1, 0, 2)), (n, out * m))
    middle = build.reshape(build.matmul(first, flat), (rows, out, m))
    product = build.reshape(build.matmul(middle, build.reshape(second, (rows, m, 1))), (rows, out))
    for bias in rest:
        product = product + bias
    return build.reshape(product, (*x1.shape[:-1], out))


_bilinear_operator = Operator("bilinear", _bilinear)


@public("linear", namespace="nn.functional", method=False, kind="composite")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """out[..., k] = sum over i, j of x1[..., i] W[k, i, j] x2[..., j] + b[k].

    input1 (..., n), input2 (..., m), weight (out, n, m), bias (out).
    Raises RuntimeError where shapes do not fit.
    """
    operands: tuple[Any, ...] = (input1, input2, weight) if bias is None else (input1, input2, weight, bias)
    for position, (value, name) in enumerate(zip(operands, ("input1", "input2", "weight", "bias")), 1):
        need_tensor("bilinear", value, name, position)
    return call(_bilinear_operator, operands, {})


public("linear", method=False, kind="composite")(bilinear)

"""Whole numbers: greatest common divisor, least common multiple, and places in an array taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import type_name
from tensorsmith.core.shapes import broadcast_shapes
from tensorsmith.eager.dispatch import call
from tensorsmith.eager.inplace import InplaceOperation
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.raw_keys import as_ints
from tensorsmith.ops.registry import inplace_method, need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _enter(name: str, what: str) -> None:
    def graph(x: Node, y: Node) -> Node:
        dtype = build.promote([x, y])
        shape = broadcast_shapes(x.shape, y.shape)
        operands = [build.broadcast_to(build.cast(each, dtype), shape) for each in (x, y)]
        return x.graph.add(Primitive.LIBRARY, operands, name=name, shape=shape, dtype=dtype)

    operator = Operator(name, graph, pointwise=True)
    operation = InplaceOperation(operator)

    def check(x: Any, y: Any) -> None:
        for each in (need_tensor(name, x), need_tensor(name, y, "other", 2)):
            if each.dtype.kind not in "iub" or (x.dtype.kind == "b" and y.dtype.kind == "b"):
                raise NotImplementedError(f'"{name}_cpu" not implemented for \'{type_name(each.dtype)}\'')

    def function(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
        check(input, other)
        return call(operator, (input, other), {})

    def function_(self: Tensor, other: Tensor) -> Tensor:
        check(self, other)
        return operation(self, other)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    public("pointwise", kind="library", differentiable=False, out=True)(function)
    inplace_method(name, function_)


_enter("gcd", "The greatest common divisor of integers, not negative; gcd(0, 0) is 0.")
_enter("lcm", "The least common multiple of integers, not negative.")


@public("indexing", method=False, kind="composite", differentiable=False)
def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Positions in the flattened array of a shape as one tensor of positions an axis.

    Raises TypeError for indices that are no integers, ValueError for a negative extent.

    >>> ts.unravel_index(ts.tensor([1, 7]), (2, 4))
    (tensor([0, 1]), tensor([1, 3]))
    """
    if need_tensor("unravel_index", indices, "indices").dtype.kind not in "iu":
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    extents = as_ints("unravel_index", shape, "shape")
    if any(n < 0 for n in extents):
        raise ValueError(f"'shape' cannot have negative values, but got {tuple(extents)}")
    places: list[Tensor] = []
    step = 1
    for extent in reversed(extents):
        places.append(indices.div(step, rounding_mode="floor") % extent)
        step *= extent
    return tuple(reversed(places))

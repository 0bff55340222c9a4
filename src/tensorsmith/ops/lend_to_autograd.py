"""What autograd needs of the operators: methods on Tensor, and the little arithmetic of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.autograd.arithmetic import set_arithmetic
from tensorsmith.autograd.tensor_methods import METHODS
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import Layout
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.eager.dispatch import FAST, call
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.conversion import cast_operator, clone_operator, contiguous_operator
from tensorsmith.ops.creation import blank_tensor
from tensorsmith.ops.inplace import copy_operation
from tensorsmith.ops.pointwise import OPERATORS
from tensorsmith.scalar.table import Fn
from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor

for _name, _method in METHODS.items():
    if _name != "detach":  # conversion.detach shares the base's version and refuses nothing
        setattr(Tensor, _name, _method)

_add = OPERATORS[Fn.ADD]
_add_ = Tensor.add_
_sum_to = Operator("sum_to_size", lambda x, shape: build.sum_to(x, shape), shares=True)
_ones = Operator("ones_of", lambda x: build.full(x.graph, x.shape, 1, x.dtype))


def _stacked(*nodes: Node, shape: tuple[int, ...]) -> Node:
    rows = [build.reshape(x, (1, *x.shape)) for x in nodes]
    return build.reshape(build.concat(rows, 0), shape)


_stack_operator = Operator("stack_rows", _stacked, fresh=True)


def _clone(tensor: Tensor, layout: Layout) -> Tensor:
    if tensor.layout.strides == layout.strides and covers_once(Strided(layout.shape, layout.strides)):
        return clone_operator(tensor)
    if layout.contiguous:
        return contiguous_operator(tensor)
    target = blank_tensor(layout.dtype, layout.shape, layout.strides, device=layout.device)
    return copy_operation(target, tensor)


def _zeros(layout: Layout) -> Tensor:
    target = blank_tensor(layout.dtype, layout.shape, layout.strides, device=layout.device)
    return copy_operation(target, 0)


def _fast_add(a: Tensor, b: Tensor) -> Tensor:
    entry = FAST.get((_add, a.layout, b.layout))
    return entry(a, b) if entry is not None else call(_add, (a, b), {})


def _sum_to_size(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return _sum_to(tensor, shape=tuple(shape))


def _cast(tensor: Tensor, dtype: DType) -> Tensor:
    return cast_operator(tensor, dtype=dtype)


def _stack(tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    return _stack_operator(*tensors, shape=tuple(shape))


def _add_unrecorded(a: Tensor, b: Tensor) -> Tensor:
    with no_grad():
        return _add_(a, b)


set_arithmetic(
    add=_fast_add,
    add_=_add_unrecorded,
    copy_=copy_operation,
    clone=_clone,
    ones_like=_ones,
    zeros=_zeros,
    sum_to_size=_sum_to_size,
    cast=_cast,
    stack=_stack,
)

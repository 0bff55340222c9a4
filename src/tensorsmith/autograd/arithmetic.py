"""The little arithmetic that gradients need, lent by the room of operators.

Autograd knows no mathematics: `ops/` calls `set_arithmetic(add=..., ...)` when it is imported. Until then every entry
says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import Layout
from tensorsmith.tensor.tensor import Tensor


def _missing(name: str) -> Callable[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"autograd needs tensor arithmetic ({name}): import the operators")

    missing.__name__ = f"missing_{name}"
    return missing


class Arithmetic:
    """Functions on tensors; all but `add_` and `zeros` are recorded where grad mode is on and an operand is tracked.

    add(a, b):               a + b, same shape and dtype
    add_(a, b):              a += b in place (counts in the version); called where grad mode is off only
    copy_(a, b):             b written over a in place, never recorded
    clone(t, layout):        copy of t with the strides of `layout` (its shape and dtype are t's)
    ones_like(t):            1 everywhere, shape and dtype of t; called where grad mode is off
    zeros(layout):           0 everywhere, with that layout, not tracked
    sum_to_size(t, shape):   sum over the axes along which `shape` was broadcast to t's shape
    cast(t, dtype):          conversion
    stack(tensors, shape):   tensors of one shape in a row along a new first axis, then reshaped to `shape`
    """

    __slots__ = ("add", "add_", "copy_", "clone", "ones_like", "zeros", "sum_to_size", "cast", "stack")

    add: Callable[[Tensor, Tensor], Tensor]
    add_: Callable[[Tensor, Tensor], Any]
    copy_: Callable[[Tensor, Tensor], Any]
    clone: Callable[[Tensor, Layout], Tensor]
    ones_like: Callable[[Tensor], Tensor]
    zeros: Callable[[Layout], Tensor]
    sum_to_size: Callable[[Tensor, Sequence[int]], Tensor]
    cast: Callable[[Tensor, DType], Tensor]
    stack: Callable[[Sequence[Tensor], Sequence[int]], Tensor]

    def __init__(self) -> None:
        for name in Arithmetic.__slots__:
            setattr(self, name, _missing(name))


arithmetic = Arithmetic()


def set_arithmetic(**functions: Callable[..., Any]) -> None:
    """Lend functions: `set_arithmetic(add=..., clone=...)`; an unknown name is an error."""
    for name, function in functions.items():
        if name not in Arithmetic.__slots__:
            raise TypeError(f"set_arithmetic: no function named {name!r}; known: {', '.join(Arithmetic.__slots__)}")
        setattr(arithmetic, name, function)


def fitted(grad: Tensor, layout: Layout) -> Tensor:
    """A gradient in the shape and dtype of the tensor it belongs to: summed over broadcast axes, cast.

    Raises ValueError where the gradient's shape does not broadcast from the tensor's.
    """
    have = grad.layout
    if have.shape != layout.shape:
        if not expandable(layout.shape, have.shape):
            raise ValueError(f"got {list(have.shape)} but expected shape compatible with {list(layout.shape)}")
        grad = arithmetic.sum_to_size(grad, layout.shape)
    if have.dtype is not layout.dtype:
        grad = arithmetic.cast(grad, layout.dtype)
    return grad


def expandable(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether `shape` broadcasts to `to`."""
    lead = len(to) - len(shape)
    return lead >= 0 and all(a == b or a == 1 for a, b in zip(shape, to[lead:]))

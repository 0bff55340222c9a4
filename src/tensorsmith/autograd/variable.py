"""`Variable`: what a tensor with a gradient was called before PyTorch 0.4; programs of that time still say so."""

from __future__ import annotations

import warnings
from typing import Any

from tensorsmith.tensor.modes import no_grad
from tensorsmith.tensor.tensor import Tensor, alias_of


class _Kind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor)


class Variable(metaclass=_Kind):
    """A tensor over the memory of another, as a leaf: `Variable(x, requires_grad=True)`. Every tensor is an instance.

    >>> ts.autograd.Variable(ts.ones(2), requires_grad=True)
    tensor([1., 1.], requires_grad=True)
    """

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool | None = None) -> Any:
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        if volatile is not None:
            text = "volatile was removed and now has no effect. Use `with tensorsmith.no_grad():` instead."
            warnings.warn(text, UserWarning, stacklevel=2)
        with no_grad():
            made = alias_of(data, False)
        return made.requires_grad_(requires_grad)

"""Raw arguments as keys: what makes `x.sum()` and `x.view(2, 2)` one look-up for a call seen before.

A public function first looks for `(operator, x.layout, *arguments as given)`. Where that is unknown it checks and
normalises the arguments, and `run` executes the operator and keeps its entry under the raw key too.

1.0 and True equal 1 in a key, and are refused where 1 is not: what is found is used only if the arguments are `exact`.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tensorsmith.eager.dispatch import FAST, call, remember
from tensorsmith.eager.operator import Operation
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def find(key: tuple) -> Any:
    """The entry kept under a raw key; None where there is none, or where an argument cannot be a key."""
    try:
        return FAST.get(key)
    except TypeError:
        return None


def run(operation: Operation, x: Tensor, raw: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Run an operator of one tensor, and keep its entry under the raw arguments."""
    result = call(operation, (x,), attrs)
    if modes.tracer is None and isinstance(raw, Hashable):
        entry = FAST.get((operation, x.layout, *attrs.items()))
        if entry is not None:
            try:
                remember((operation, x.layout, *raw), entry)
            except TypeError:  # an argument is a list: it is normalised anew each time
                pass
    return result


def exact(value: Any) -> bool:
    """Whether an axis or a shape as given is None or made of ints (of class int: 1.0 and True are not)."""
    if value is None or value.__class__ is int:
        return True
    return isinstance(value, tuple) and all([n.__class__ is int or (n.__class__ is not bool and exact(n)) for n in value])


def as_bool(name: str, value: Any, argument: str = "keepdim") -> bool:
    """A bool, Python's or NumPy's; TypeError for everything else, numbers too."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise TypeError(f"{name}(): argument '{argument}' must be bool, not {type(value).__name__}")


def as_int(name: str, value: Any, argument: str) -> int:
    """An exact int from anything that is one (NumPy's, integer tensors of one element); TypeError for the rest and bool."""
    try:
        if value.__class__ is bool:
            raise TypeError
        return python_operator.index(value)
    except TypeError:
        raise TypeError(f"{name}(): argument '{argument}' must be int, not {type(value).__name__}") from None


def as_ints(name: str, values: Any, argument: str) -> tuple[int, ...]:
    """A tuple of exact ints from an int or a sequence of them."""
    if isinstance(values, list | tuple):
        return tuple([as_int(name, v, argument) for v in values])
    return (as_int(name, values, argument),)

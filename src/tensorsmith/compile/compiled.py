"""`ts.compile(fn)`: trace once per kind of arguments, then run the whole function as one plan.

What a function may do: compute on tensors, write in place, call `backward()`, step an optimiser. Captured tensors
(parameters, buffers, optimiser state) are read from where they are at each run, and written where they are; gradients of
captured leaves are set after each run as the function set them.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tensorsmith.compile.nest import flatten, hashable
from tensorsmith.compile.specialisation import Specialisation
from tensorsmith.core.dtypes import get_default_dtype
from tensorsmith.core.views import Strided, extent
from tensorsmith.passes import winograd
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
MOST_SPECIALISATIONS = 64


class Compiled:
    """A compiled function: specialisations by kind of arguments."""

    def __init__(self, function: Callable, name: str) -> None:
        self.function = function
        self.name = name
        self.specialisations: dict[Any, list[Specialisation]] = {}
        functools.update_wrapper(self, function, updated=())

    def __getattr__(self, name: str) -> Any:
        """Everything else is the function's own: `parameters()`, `eval()`, `state_dict()` of a compiled model."""
        if name == "function":  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.function, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled method."""
        return self if instance is None else types.MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy traces anew: its parameters are other tensors."""
        return Compiled(copy.deepcopy(self.function, memo), self.name)

    def __repr__(self) -> str:
        return f"compile({self.function!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if modes.tracer is not None:
            return self.function(*args, **kwargs)
        tensors, nest = flatten((args, kwargs))
        layouts = tuple(t.layout for t in tensors)
        key = (layouts, _alias_pattern(tensors), hashable(nest), modes.grad, get_default_dtype(), winograd.mode())
        try:
            known = self.specialisations.setdefault(key, [])
        except TypeError:  # an argument whose value cannot be compared: traced at every call
            known = []
        for specialisation in known:
            if specialisation.fits():
                return specialisation.run(tensors)
        specialisation = Specialisation(self.name, self.function, tensors, nest)
        result = specialisation.run(tensors)
        if not specialisation.escaped:
            known.append(specialisation)
            if len(known) > MOST_SPECIALISATIONS:
                known.pop(0)
        return result


def _alias_pattern(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which arguments share memory."""
    first: dict[int, int] = {}
    pattern = tuple(first.setdefault(id(t.storage), i) for i, t in enumerate(tensors))
    if len(set(pattern)) != len(pattern):
        for i, t in enumerate(tensors):
            if pattern[i] != i and extent(Strided(t.layout.shape, t.layout.strides)):
                raise NotImplementedError("compile: arguments that share memory are not implemented")
    return pattern


def compile(  # noqa: A001 - PyTorch's name
    function: F | None = None,
    *,
    fullgraph: bool = True,
    dynamic: bool | None = None,
    mode: str | None = None,
    disable: bool = False,
) -> Any:
    """A function that is traced at its first call with each kind of arguments, and then runs as one program.

    function: a function or a module; without one, a decorator
    disable:  give the function back as it is
    `fullgraph`, `dynamic` and `mode` are PyTorch's hints, and change nothing: the whole function is one program, for the
    shapes it was called with. Python values that the function reads from its surroundings are those of the trace; the
    mode (`train`, `eval`), parameters, buffers and submodules of the modules it calls may change.

    >>> step = ts.compile(lambda x: (x * 2).sum())
    """
    if function is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, mode=mode, disable=disable)
    if disable:
        return function
    if hasattr(function, "forward") and hasattr(function, "parameters"):
        return Compiled(function, type(function).__name__)
    return Compiled(function, getattr(function, "__name__", "function"))

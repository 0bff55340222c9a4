"""What surrounds `ts.compile`, by the names of `torch.compiler`: leaving functions out, asking who traces, forgetting.

>>> import tensorsmith as ts
>>> ts.compiler.is_compiling()
False
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tensorsmith.compile.compiled import COMPILED, compile
from tensorsmith.compile.tracer import tracing
from tensorsmith.tensor.modes import modes

__all__ = ["compile", "disable", "is_compiling", "is_dynamo_compiling", "list_backends", "reset"]

F = TypeVar("F", bound=Callable[..., Any])


def is_compiling() -> bool:
    """Whether a function is traced by `ts.compile` in this thread; what is decided by it holds for the program.

    >>> import tensorsmith as ts
    >>> ts.compile(lambda x: x if ts.compiler.is_compiling() else -x)(ts.ones(1))
    tensor([1.])
    """
    return tracing(modes.tracer) is not None


is_dynamo_compiling = is_compiling


def disable(fn: F | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A function that is never part of a program: a compiled function that calls it raises, or runs eagerly.

    fn:        a function; without one, a decorator
    recursive: accepted as PyTorch's: what the function calls is not part of a program either
    reason:    said in the error
    Raises ValueNeeded where a compiled function calls it that has no allow_breaks.

    >>> import tensorsmith as ts
    >>> @ts.compiler.disable
    ... def largest(x):
    ...     return x.max().item()
    >>> largest(ts.arange(3.0))
    2.0
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)

    @functools.wraps(fn)
    def left_out(*args: Any, **kwargs: Any) -> Any:
        tracer = tracing(modes.tracer)
        if tracer is not None:
            name = getattr(fn, "__qualname__", type(fn).__name__)
            tracer.give_up(f"{name}, which ts.compiler.disable leaves out{f' ({reason})' if reason else ''},")
        return fn(*args, **kwargs)

    return left_out


def reset() -> None:
    """Let go of the plans of all compiled functions; they are traced again when they are called. Kernels are kept.

    >>> import tensorsmith as ts
    >>> double = ts.compile(lambda x: x * 2)
    >>> _ = double(ts.ones(2))
    >>> ts.compiler.reset()
    >>> len(double.plans)
    0
    """
    for each in list(COMPILED):
        each.forget()


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """The names that `ts.compile(backend=...)` knows."""
    return ["tensorsmith"]

"""Where a student's fault lies: the line of a method, and the one function of a history whose backward is wrong."""

from __future__ import annotations

import inspect
from typing import Any

from tensorsmith.minitorch.autodiff import Context, central_difference, topological_sort

TOLERANCE = 1e-2


def agree(got: float | None, expected: float) -> bool:
    """Whether a derivative is the central difference, within 0.01 relative and absolute; None never is."""
    return got is not None and abs(got - expected) <= TOLERANCE + TOLERANCE * abs(expected)


def line_of(function: Any) -> str:
    """` (FILE:LINE)` of a Python function, or nothing for what is none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""


def at_method(cls: type, name: str) -> str:
    """` (FILE:LINE)` of a method of a class, or nothing where it is no Python function."""
    return line_of(getattr(cls, name, cls))


def describe_wrong_step(out: Any) -> str:
    """A sentence about the function in the history of a Scalar whose backward disagrees with its own forward.

    Every function of the history is checked alone: its backward for 1.0 against central differences of its forward.
    Empty where each agrees (the fault is then elsewhere, in `backpropagate` or the function that was checked).
    """
    for variable in topological_sort(out):
        history: Any = variable.history  # type: ignore[attr-defined]
        if history.last_fn is None:
            continue
        cls = history.last_fn
        values = [x.data for x in history.inputs]
        given = cls._backward(history.ctx, 1.0)

        def alone(*xs: float, cls: Any = cls) -> float:
            return cls._forward(Context(True), *xs)  # type: ignore[no-any-return]

        for i, got in enumerate(given):
            expected = central_difference(alone, *values, arg=i)
            if not agree(got, expected):
                return (
                    f"\n{cls.__name__}.backward{at_method(cls, 'backward')}: at {values}, input {i}: "
                    f"it returned {got} for d_output = 1, the central difference of its forward is {expected:f}"
                )
    return ""

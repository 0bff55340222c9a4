"""`grad_check`: the gradient of a function of tensors against the central difference, and which Function is at fault."""

from __future__ import annotations

import random
from typing import Any

from tensorsmith.minitorch.autodiff import Context, topological_sort
from tensorsmith.minitorch.student_line import at_method
from tensorsmith.minitorch.tensor import Tensor
from tensorsmith.minitorch.tensor_data import UserIndex
from tensorsmith.minitorch.tensor_functions import zeros

TOLERANCE = 1e-2


def grad_central_difference(f: Any, *vals: Tensor, arg: int = 0, epsilon: float = 1e-6, ind: UserIndex) -> float:
    """(sum f(.., x + epsilon e, ..) - sum f(.., x - epsilon e, ..)) / (2 epsilon), e the unit of one element `ind`."""
    up = zeros(vals[arg].shape, vals[arg].backend)
    up[ind] = epsilon
    above, below = list(vals), list(vals)
    above[arg] = vals[arg] + up
    below[arg] = vals[arg] - up
    return float((f(*above).sum() - f(*below).sum())[0]) / (2.0 * epsilon)


def grad_check(f: Any, *vals: Tensor) -> None:
    """Compare the gradient of sum(f(*vals)) with central differences, at one random element of each argument.

    Tolerances 0.01 relative and absolute. Raises AssertionError with both numbers; where one Function of the history is
    at fault, the message names the line of its backward.
    """
    for x in vals:
        x.requires_grad_(True)
        x.zero_grad_()
    random.seed(10)
    out = f(*vals).sum()
    out.backward()
    for i, x in enumerate(vals):
        ind = x._tensor.sample()
        expected = grad_central_difference(f, *vals, arg=i, ind=ind)
        got = None if x.grad is None else float(x.grad[ind])
        if not _agree(got, expected):
            raise AssertionError(
                f"grad_check: {getattr(f, '__name__', f)}, argument {i} of shape {x.shape}, element {ind}: backward gave "
                f"{got}, the central difference is {expected:f}{_wrong_function(out)}"
            )


def _agree(got: float | None, expected: float) -> bool:
    return got is not None and abs(got - expected) <= TOLERANCE + TOLERANCE * abs(expected)


def _wrong_function(out: Tensor) -> str:
    """A sentence about the Function of a history whose backward disagrees with its own forward; empty if none does."""
    for variable in topological_sort(out):
        history: Any = variable.history  # type: ignore[attr-defined]
        if history.last_fn is None:
            continue
        cls, inputs = history.last_fn, history.inputs
        ones = zeros(variable.shape, variable.backend) + 1.0  # type: ignore[attr-defined]
        try:
            pairs = list(variable.chain_rule(ones))
        except (RuntimeError, ValueError, TypeError) as error:
            return f"\n{error}"
        for i, x in enumerate(inputs):
            if not isinstance(x, Tensor) or x.history is None:
                continue

            def alone(value: Tensor, i: int = i, cls: Any = cls, inputs: Any = inputs) -> Tensor:
                plain = [v.detach() if isinstance(v, Tensor) else v for v in inputs]
                return cls._forward(Context(True), *plain[:i], value, *plain[i + 1 :])  # type: ignore[no-any-return]

            ind = x._tensor.sample()
            expected = grad_central_difference(alone, x.detach(), ind=ind)
            given: Any = pairs[i][1]
            got = float(given[ind]) if isinstance(given, Tensor) else float(given)
            if not _agree(got, expected):
                return (
                    f"\n{cls.__name__}.backward{at_method(cls, 'backward')}: input {i} of shape {x.shape}, element {ind}: "
                    f"it returned {got:f} for a gradient of ones, the central difference of its forward is {expected:f}"
                )
    return ""

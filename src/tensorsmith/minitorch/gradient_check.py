"""`grad_check`: the gradient of a function of tensors against the central difference, and which Function is at fault."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tensorsmith.minitorch.autodiff import Context, topological_sort
from tensorsmith.minitorch.student_line import agree, at_method
from tensorsmith.minitorch.tensor import Tensor
from tensorsmith.minitorch.tensor_data import UserIndex
from tensorsmith.minitorch.tensor_functions import of_array, rand, zeros


def grad_central_difference(f: Any, *vals: Tensor, arg: int = 0, epsilon: float = 1e-6, ind: UserIndex) -> float:
    """(sum f(.., x + epsilon e, ..) - sum f(.., x - epsilon e, ..)) / (2 epsilon), e the unit of one element `ind`."""
    unit = np.zeros(vals[arg].shape)
    unit[tuple(ind)] = epsilon
    up = of_array(unit, vals[arg].backend)
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
        if not agree(got, expected):
            raise AssertionError(
                f"grad_check: {getattr(f, '__name__', f)}, argument {i} of shape {x.shape}, element {ind}: backward gave "
                f"{got}, the central difference is {expected:f}{_wrong_function(out)}"
            )


def _wrong_function(out: Tensor) -> str:
    """A sentence about the Function of a history whose backward disagrees with its own forward; empty if none does.

    Each is given a gradient of ones, which is easy to follow, then one of numbers that differ: that shows gradients which
    are right but lie at other elements.
    """
    computed: list[Any] = [variable for variable in topological_sort(out) if not variable.is_leaf()]
    for variable in computed:
        ones = zeros(variable.shape, variable.backend) + 1.0
        sentence = _wrong_for(variable, ones, "of ones")
        sentence = sentence or _wrong_for(variable, rand(variable.shape, variable.backend), "of numbers from [0, 1)")
        if sentence:
            return sentence
    return ""


def _wrong_for(variable: Any, arriving: Tensor, kind: str) -> str:
    """The same about the Function that made a variable, for the gradient that arrives there."""
    cls, inputs = variable.history.last_fn, variable.history.inputs
    try:
        given = iter([gradient for _, gradient in variable.chain_rule(arriving)])
    except (RuntimeError, ValueError, TypeError) as error:
        return f"\n{error}"
    for i, x in enumerate(inputs):
        gradient: Any = next(given) if isinstance(x, Tensor) else None
        if gradient is None or x.history is None:
            continue

        def alone(value: Tensor, i: int = i) -> Tensor:
            plain = [v.detach() if isinstance(v, Tensor) else v for v in inputs]
            return cls._forward(Context(True), *plain[:i], value, *plain[i + 1 :]) * arriving  # type: ignore[no-any-return]

        ind = x._tensor.sample()
        expected = grad_central_difference(alone, x.detach(), ind=ind)
        got = float(gradient[ind]) if isinstance(gradient, Tensor) else float(gradient)
        if not agree(got, expected):
            return (
                f"\n{cls.__name__}.backward{at_method(cls, 'backward')}: input {i} of shape {x.shape}, element {ind}: "
                f"it returned {got:f} for a gradient {kind}, the central difference of its forward is {expected:f}"
            )
    return ""

"""Module 1: numerical derivatives, and backpropagation over any graph of variables.

`topological_sort` and `backpropagate` know variables by five methods only (`Variable`), so scalars, tensors and a
student's own class go through the same two functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


def central_difference(f: Any, *vals: Any, arg: int = 0, epsilon: float = 1e-6) -> Any:
    """The derivative of f with respect to one argument, numerically.

    (f(.., x + epsilon, ..) - f(.., x - epsilon, ..)) / (2 epsilon)

    vals: the point, n numbers (or Scalars); arg: which argument moves
    Raises IndexError where `arg` names no argument.
    """
    if not 0 <= arg < len(vals):
        raise IndexError(f"central_difference: arg={arg} names none of the {len(vals)} arguments")
    above, below = list(vals), list(vals)
    above[arg] = vals[arg] + epsilon
    below[arg] = vals[arg] - epsilon
    return (f(*above) - f(*below)) / (2.0 * epsilon)


@runtime_checkable
class Variable(Protocol):
    """What backpropagation asks of a variable."""

    @property
    def unique_id(self) -> int: ...

    @property
    def parents(self) -> Iterable[Variable]: ...

    def accumulate_derivative(self, x: Any) -> None: ...

    def is_leaf(self) -> bool: ...

    def is_constant(self) -> bool: ...

    def chain_rule(self, d_output: Any) -> Iterable[tuple[Variable, Any]]: ...


def topological_sort(variable: Variable) -> list[Variable]:
    """The non-constant variables that `variable` was computed from, itself first, each before its parents.

    Iterative: a history may be deeper than Python's recursion.
    """
    finished: list[Variable] = []
    seen: set[int] = set()
    stack = [(variable, False)]
    while stack:
        current, parents_are_done = stack.pop()
        if parents_are_done:
            finished.append(current)
            continue
        if current.unique_id in seen or current.is_constant():
            continue
        seen.add(current.unique_id)
        stack.append((current, True))
        if not current.is_leaf():
            stack += [(parent, False) for parent in current.parents]
    finished.reverse()
    return finished


def backpropagate(variable: Variable, deriv: Any) -> None:
    """Add `deriv` times the derivative of `variable` to every leaf, through `accumulate_derivative`."""
    derivatives = {variable.unique_id: deriv}
    for current in topological_sort(variable):
        derivative = derivatives.pop(current.unique_id, None)
        if derivative is None:
            continue
        if current.is_leaf():
            current.accumulate_derivative(derivative)
            continue
        for parent, part in current.chain_rule(derivative):
            if parent.is_constant():
                continue
            key = parent.unique_id
            derivatives[key] = derivatives[key] + part if key in derivatives else part


@dataclass(slots=True)
class Context:
    """What a Function keeps from its forward for its backward.

    no_grad: nothing will be differentiated, so nothing is kept
    saved_values: what `save_for_backward` was given
    """

    no_grad: bool = False
    saved_values: tuple[Any, ...] = ()

    def save_for_backward(self, *values: Any) -> None:
        """Keep `values` until the backward (unless nothing will be differentiated)."""
        if not self.no_grad:
            self.saved_values = values

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The same as `saved_values`."""
        return self.saved_values

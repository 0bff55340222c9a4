"""Module 1: `Scalar`, a number that remembers how it was made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from tensorsmith.minitorch.autodiff import Context, Variable, backpropagate, central_difference
from tensorsmith.minitorch.scalar_functions import (
    EQ,
    LT,
    NE,
    Add,
    Exp,
    Inv,
    Log,
    Mul,
    Neg,
    ReLU,
    ScalarFunction,
    Sigmoid,
)
from tensorsmith.minitorch.student_line import agree, at_method, describe_wrong_step

ScalarLike = Union[float, int, "Scalar"]

_numbers = itertools.count(1)


@dataclass(slots=True)
class ScalarHistory:
    """How a Scalar was made: the last function, what it kept, and its inputs. A leaf has no function."""

    last_fn: type[ScalarFunction] | None = None
    ctx: Context | None = None
    inputs: Sequence[Scalar] = ()


class Scalar:
    """A float that records the functions applied to it.

    data: the value; derivative: what `backward` added, None before; history: None makes it a constant
    """

    def __init__(self, v: float, back: ScalarHistory | None = ScalarHistory(), name: str | None = None) -> None:
        self.unique_id = next(_numbers)
        self.data = float(v)
        self.history = back
        self.derivative: float | None = None
        self.name = name if name is not None else str(self.unique_id)

    def __repr__(self) -> str:
        return f"Scalar({self.data:f})"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.data)

    def __add__(self, b: ScalarLike) -> Scalar:
        return Add.apply(self, b)

    def __radd__(self, b: ScalarLike) -> Scalar:
        return Add.apply(b, self)

    def __sub__(self, b: ScalarLike) -> Scalar:
        return Add.apply(self, -b)

    def __rsub__(self, b: ScalarLike) -> Scalar:
        return Add.apply(b, Neg.apply(self))

    def __mul__(self, b: ScalarLike) -> Scalar:
        return Mul.apply(self, b)

    def __rmul__(self, b: ScalarLike) -> Scalar:
        return Mul.apply(b, self)

    def __truediv__(self, b: ScalarLike) -> Scalar:
        return Mul.apply(self, Inv.apply(b))

    def __rtruediv__(self, b: ScalarLike) -> Scalar:
        return Mul.apply(b, Inv.apply(self))

    def __neg__(self) -> Scalar:
        return Neg.apply(self)

    def __lt__(self, b: ScalarLike) -> Scalar:
        return LT.apply(self, b)

    def __gt__(self, b: ScalarLike) -> Scalar:
        return LT.apply(b, self)

    def __eq__(self, b: ScalarLike) -> Scalar:  # type: ignore[override]
        return EQ.apply(self, b)

    def __ne__(self, b: ScalarLike) -> Scalar:  # type: ignore[override]
        return NE.apply(self, b)

    def log(self) -> Scalar:
        """log(x + 1e-6)"""
        return Log.apply(self)

    def exp(self) -> Scalar:
        """e^x"""
        return Exp.apply(self)

    def sigmoid(self) -> Scalar:
        """1 / (1 + exp(-x))"""
        return Sigmoid.apply(self)

    def relu(self) -> Scalar:
        """x if x > 0, else 0"""
        return ReLU.apply(self)

    # What backpropagation asks.

    def requires_grad_(self, x: bool = True) -> None:
        """Make this a leaf that collects its derivative, or (False) a constant."""
        self.history = ScalarHistory() if x else None

    def accumulate_derivative(self, x: Any) -> None:
        """Add x to `derivative` of a leaf."""
        if not self.is_leaf():
            raise ValueError(f"accumulate_derivative: {self!r} is no leaf; only leaves collect derivatives")
        self.derivative = (self.derivative or 0.0) + x

    def is_leaf(self) -> bool:
        """Whether this was given, not computed."""
        return self.history is not None and self.history.last_fn is None

    def is_constant(self) -> bool:
        """Whether nothing is recorded for it."""
        return self.history is None

    @property
    def parents(self) -> Iterable[Variable]:
        """The inputs of the function that made this."""
        if self.history is None:
            raise ValueError(f"parents: {self!r} is a constant and has no history")
        return self.history.inputs

    def chain_rule(self, d_output: Any) -> Iterable[tuple[Variable, Any]]:
        """(input, derivative with respect to it) for every input of the function that made this."""
        h = self.history
        if h is None or h.last_fn is None or h.ctx is None:
            raise ValueError(f"chain_rule: {self!r} was not computed by a function")
        derivatives = h.last_fn._backward(h.ctx, d_output)
        if len(derivatives) != len(h.inputs):
            raise ValueError(
                f"{h.last_fn.__name__}.backward returned {len(derivatives)} derivatives for "
                f"{len(h.inputs)} inputs{at_method(h.last_fn, 'backward')}"
            )
        return list(zip(h.inputs, derivatives))

    def backward(self, d_output: float | None = None) -> None:
        """Add d_output (1.0 if left out) times the derivative to every leaf this was computed from."""
        backpropagate(self, 1.0 if d_output is None else d_output)


def derivative_check(f: Any, *scalars: Scalar) -> None:
    """Compare the derivative that `f(*scalars).backward()` gives with the central difference, for every argument.

    Tolerances 0.01 relative and absolute. Raises AssertionError with both numbers; where one function of the history
    is at fault, the message names the line of its backward.
    """
    out = f(*scalars)
    out.backward()
    for i, x in enumerate(scalars):
        expected = central_difference(f, *scalars, arg=i).data
        got = x.derivative
        if not agree(got, expected):
            point = [s.data for s in scalars]
            raise AssertionError(
                f"derivative_check: at {point}, argument {i}: backward gave {got}, "
                f"the central difference is {expected:f}{describe_wrong_step(out)}"
            )

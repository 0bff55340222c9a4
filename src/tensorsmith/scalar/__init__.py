"""Scalars: the table of scalar functions, and what follows from it for single numbers.

`exp(2.0)` computes, `Scalar` records and differentiates backwards, `Dual` differentiates forwards, `lift` turns a
plain Python function into an expression from which kernels for whole tensors are made. Standard library only.
"""

from tensorsmith.scalar.algebra import Operators, apply
from tensorsmith.scalar.composites import *  # noqa: F403
from tensorsmith.scalar.composites import __all__ as _composites
from tensorsmith.scalar.dual import Dual, forward_derivative
from tensorsmith.scalar.expression import Expr, constant, derivative, evaluate, evaluate_all, variable
from tensorsmith.scalar.functions import *  # noqa: F403
from tensorsmith.scalar.functions import __all__ as _functions
from tensorsmith.scalar.lift import LiftError, lift
from tensorsmith.scalar.scalar import History, Scalar, gradients
from tensorsmith.scalar.table import TABLE, Fn, Row, Typing

__all__ = [
    "TABLE",
    "Dual",
    "Expr",
    "Fn",
    "History",
    "LiftError",
    "Operators",
    "Row",
    "Scalar",
    "Typing",
    "apply",
    "constant",
    "derivative",
    "evaluate",
    "evaluate_all",
    "forward_derivative",
    "gradients",
    "lift",
    "variable",
]
__all__ += _functions + _composites

"""Anomaly mode: the forward line of every node is kept, and a NaN in a gradient is an error that names it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.tensor.modes import modes

if TYPE_CHECKING:
    from tensorsmith.autograd.node import Node

_PACKAGE = str(Path(__file__).parent.parent) + "/"


def user_trace() -> traceback.StackSummary:
    """The lines outside this package that lead here, innermost last."""
    return traceback.StackSummary.from_list(f for f in traceback.extract_stack() if not f.filename.startswith(_PACKAGE))


def check_gradients(node: Node, grads: Sequence[Any]) -> None:
    """Raise RuntimeError where a gradient that a node made holds a NaN."""
    for number, (edge, grad) in enumerate(zip(node.edges, grads)):
        if edge is not None and grad is not None and modes.check_nan and arithmetic.has_nan(grad):
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {number}th output.")


def report_failure(node: Node, error: Exception) -> None:
    """Warn with the forward line of the node whose backward failed."""
    trace = node.trace
    if trace is None:
        warnings.warn(
            f"Error detected in {node.name()}. No forward pass information available. Enable detect anomaly during "
            "forward pass for more information.",
            stacklevel=5,
        )
        return
    lines = "".join(trace.format())
    warnings.warn(
        f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n{lines}", stacklevel=5
    )

"""Anomaly mode: the forward line of every node is kept, and a NaN in a gradient is an error that names it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorsmith.tensor.modes import modes

if TYPE_CHECKING:
    from tensorsmith.autograd.node import Node
from tensorsmith.tensor.tensor import Tensor

PACKAGE = str(Path(__file__).parent.parent) + "/"


def user_trace() -> traceback.StackSummary:
    """The lines outside this package that lead here, innermost last."""
    return traceback.StackSummary.from_list(f for f in traceback.extract_stack() if not f.filename.startswith(PACKAGE))


def has_nan(tensor: Tensor) -> bool:
    """Whether an element is NaN."""
    from tensorsmith.tensor.host_values import values_at

    return tensor.layout.dtype.kind in "fc" and bool(np.isnan(values_at(tensor)).any())


def check_gradients(node: Node, grads: Sequence[Any]) -> None:
    """Raise RuntimeError where a gradient that a node made holds a NaN."""
    for number, (edge, grad) in enumerate(zip(node.edges, grads)):
        if edge is not None and grad is not None and modes.check_nan and has_nan(grad):
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


class set_detect_anomaly:  # noqa: N801 - PyTorch's name
    """Set anomaly mode on or off for this thread, at once, and restore it where used as a context manager."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = modes.anomaly, modes.check_nan
        modes.anomaly, modes.check_nan = bool(mode), check_nan

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        modes.anomaly, modes.check_nan = self._before


class detect_anomaly:  # noqa: N801 - PyTorch's name
    """While active, every node keeps the lines of its forward call, and a NaN in a gradient raises and shows them.

    Slow: for finding errors only.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._before: list[tuple[bool, bool]] = []
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for "
            "debugging.",
            stacklevel=2,
        )

    def __enter__(self) -> None:
        self._before.append((modes.anomaly, modes.check_nan))
        modes.anomaly, modes.check_nan = True, self._check_nan

    def __exit__(self, *exc: object) -> None:
        modes.anomaly, modes.check_nan = self._before.pop()


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on in this thread."""
    return modes.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly mode looks for NaN."""
    return modes.check_nan

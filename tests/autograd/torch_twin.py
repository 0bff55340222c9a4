"""Run one program with tensorsmith and with PyTorch and compare everything it logs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

import tensorsmith as ts


def plain(value: Any) -> Any:
    """Tensors as nested lists, errors as (type, message), names of either library alike."""
    if isinstance(value, ts.Tensor | torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, BaseException):
        return type(value).__name__, plain(str(value))
    if isinstance(value, str):
        return value.replace("tensorsmith", "torch")
    return value


def close(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    return a == b


def outcome(function: Callable[[], Any]) -> Any:
    """What a call returns, or the error it raises."""
    try:
        return function()
    except Exception as error:
        return error


def twin(program: Callable[[Any, Callable[..., None]], Any]) -> list:
    """Run `program(library, log)` with both libraries; what they log must agree. Returns the log."""
    logs = []
    for library in (ts, torch):
        found: list = []

        def log(*values: Any, into: list = found) -> None:
            into.append([plain(v) for v in values])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program(library, log)
        logs.append(found)
    ours, theirs = logs
    assert theirs, "the program logged nothing"
    for a, b in zip(ours, theirs):
        assert close(a, b), f"ours {a}, PyTorch's {b}"
    assert len(ours) == len(theirs)
    return ours

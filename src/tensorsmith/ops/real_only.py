"""Operators that complex numbers have not: what is raised, by operator.

Complex numbers have no order, and many functions no meaning or no agreed branch. What a primitive refuses (`ir/rules.py`) needs
no entry here unless PyTorch raises another class of error. The check is made when a call's graph is built, never again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorsmith.eager.operator import operators
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node

REAL_ONLY: dict[str, type[Exception]] = {
    "amax": NotImplementedError,
    "amin": NotImplementedError,
    "argmax": RuntimeError,
    "argmin": RuntimeError,
    "argsort": RuntimeError,
    "bernoulli": NotImplementedError,
    "cauchy": NotImplementedError,
    "deg2rad": RuntimeError,
    "dropout": NotImplementedError,
    "exponential": NotImplementedError,
    "fmax": RuntimeError,
    "fmin": RuntimeError,
    "geometric": NotImplementedError,
    "heaviside": RuntimeError,
    "i0": NotImplementedError,
    "i0e": NotImplementedError,
    "isneginf": RuntimeError,
    "isposinf": RuntimeError,
    "kthvalue": NotImplementedError,
    "log_normal": NotImplementedError,
    "logaddexp2": NotImplementedError,
    "logit": NotImplementedError,
    "kl_div": RuntimeError,
    "max_whole": NotImplementedError,
    "maximum": RuntimeError,
    "median": NotImplementedError,
    "median_whole": NotImplementedError,
    "min_whole": NotImplementedError,
    "minimum": RuntimeError,
    "nanmean": RuntimeError,
    "nansum": RuntimeError,
    "rad2deg": RuntimeError,
    "searchsorted": NotImplementedError,
    "softmax_backward_data": NotImplementedError,
    "sort": RuntimeError,
    "topk": RuntimeError,
    "xlog1py": NotImplementedError,
    "xlogy": NotImplementedError,
}


def _refusing(name: str, error: type[Exception], graph: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*operands: Any, **attrs: Any) -> Any:
        for operand in operands:
            if isinstance(operand, Node | complex) and build.operand_dtype(operand).is_complex:
                raise error(f"{name} does not support complex numbers; apply it to abs(), real or imag")
        return graph(*operands, **attrs)

    checked.__wrapped__ = graph  # type: ignore[attr-defined]
    return checked


for _name, _error in REAL_ONLY.items():
    _operator = operators()[_name]
    _operator.build = _refusing(_name, _error, _operator.build)

"""The table: what each ATen operator is here, as a function of traced tensors.

Functions take the operator's arguments in ATen's order, with dtypes of ours (`program.py` converts them) and without
`device`, `layout`, `pin_memory` and `memory_format`, which say where and how, never what. Signatures and meaning are those
of PyTorch's `native_functions.yaml` and `torch/_decomp`. An entry raises NotImplementedError for arguments that it does not
take; such a call stays in PyTorch.

The entries are in `tensor_operators.py` and `layer_operators.py`; `operators.py` is the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorsmith.autograd import grad as gradients
from tensorsmith.ops.registry import namespace
from tensorsmith.tensor.modes import enable_grad
from tensorsmith.tensor.tensor import Tensor

aten = torch.ops.aten
prims = torch.ops.prims
OPERATORS: dict[Any, Callable[..., Any]] = {}
ours = namespace("")
functional = namespace("nn.functional")


def entry(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function for some overloads of an operator."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            OPERATORS[target] = function
        return function

    return enter


def same_names(names: str, overloads: str = "default", where: dict[str, Callable[..., Any]] = ours) -> None:
    """Operators that have the same name and arguments here."""
    for name in names.split():
        for overload in overloads.split():
            OPERATORS[getattr(getattr(aten, name), overload)] = where[name]


def pulled(function: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a function of tensors, by the rules of its operators; what only the forward needed is dead code."""
    with enable_grad():
        leaves = [x.detach().requires_grad_() for x in operands]
        return gradients(function(*leaves), leaves, grad)  # type: ignore[return-value] # every operand has one

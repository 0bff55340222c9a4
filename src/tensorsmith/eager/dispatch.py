"""key -> plan -> launch -> record: how one operator call runs.

The key is the operation with the exact kinds of its operands and its attributes; what it finds in `fast.FAST` is the *entry*,
a closure that allocates, launches and wraps. Hot methods look into FAST themselves and fall through to `call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.eager.entries import make_entry
from tensorsmith.eager.fast import FAST, NUMBERS, remember
from tensorsmith.eager.operator import Kind, Operation
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def kind_of(operand: Any) -> Kind:
    """What a key holds of an operand: layout of a tensor, class of a Python number."""
    if isinstance(operand, Tensor):
        return operand.layout
    if operand.__class__ in NUMBERS:
        return operand.__class__
    raise TypeError(f"operands are tensors or Python numbers, got {type(operand).__name__}")


def call(operation: Operation, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Run an operation on tensors and Python numbers."""
    if modes.tracer is not None:
        return modes.tracer.call(operation, operands, attrs)
    kinds = [kind_of(x) for x in operands]
    key = (operation, *kinds, *attrs.items()) if attrs else (operation, *kinds)
    entry = FAST.get(key)
    if entry is None:
        entry = make_entry(operation, kinds, attrs)
        remember(key, entry)
    return entry(*operands)


def _run(self: Operation, *operands: Any, **attrs: Any) -> Any:
    return call(self, operands, attrs)


Operation.__call__ = _run  # type: ignore[method-assign]

__all__ = ["FAST", "NUMBERS", "call", "kind_of", "remember"]

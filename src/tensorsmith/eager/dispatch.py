"""key -> plan -> launch -> record: how one operator call runs.

The key is the operation with the exact kinds of its operands and its attributes; what it finds in `fast.FAST` is the *entry*,
a closure that allocates, launches and wraps. Hot methods look into FAST themselves and fall through to `call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.layout import LevelLayout
from tensorsmith.eager import fast
from tensorsmith.eager.entries import make_entry
from tensorsmith.eager.fast import FAST, NUMBERS, Entry, remember
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
        if modes.autocast is not None and operation in fast.routed:
            operands, attrs = modes.autocast.prepared(operation, operands, attrs)
        return modes.tracer.call(operation, operands, attrs)
    kinds = [kind_of(x) for x in operands]
    key = (operation, *kinds, *attrs.items()) if attrs else (operation, *kinds)
    entry = FAST.get(key)
    if entry is None:
        if operation in fast.routed:
            entry = _routed(key, operation, kinds, attrs)
        else:
            entry = make_entry(operation, kinds, attrs)
            remember(key, entry)
    return entry(*operands)


def _routed(key: tuple, operation: Operation, kinds: Sequence[Kind], attrs: dict[str, Any]) -> Entry:
    """The entry of an operation whose operands a mode casts in some thread, perhaps in this one."""
    mode = modes.autocast
    if mode is None:
        table = FAST if fast.end_routing() else fast.ASIDE
    else:
        table = mode.entries
    entry = table.get(key)
    if entry is None:
        entry = mode.entry(operation, kinds, attrs) if mode is not None else None
        if entry is None:
            entry = make_entry(operation, kinds, attrs)
        if table is FAST:
            remember(key, entry)
            return entry
        if len(table) >= fast.MOST_ENTRIES:
            table.clear()
        if not any([part.__class__ is LevelLayout for part in key]):
            table[key] = entry
    return entry


def _run(self: Operation, *operands: Any, **attrs: Any) -> Any:
    return call(self, operands, attrs)


Operation.__call__ = _run  # type: ignore[method-assign]

__all__ = ["FAST", "NUMBERS", "call", "kind_of", "remember"]

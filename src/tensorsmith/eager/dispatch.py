"""key -> plan -> launch -> record: how one operator call runs.

`FAST` remembers, for an operation and the exact kinds of its operands, the *entry*: a closure that allocates, launches and
wraps. Hot methods look into FAST themselves and fall through to `call`. FAST only saves time: an entry can be made again at
any moment, and nothing in it depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorsmith.core.layout import Layout
from tensorsmith.eager.entries import make_entry
from tensorsmith.eager.operator import Kind, Operation
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor

Entry = Callable[..., Any]

FAST: dict[tuple, Entry] = {}
MOST_ENTRIES = 16384
NUMBERS: frozenset[type] = frozenset({float, int, bool})

tracing = 0  # how many threads trace: FAST stays empty meanwhile, so that every call reaches `call`


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


def remember(key: tuple, entry: Entry) -> None:
    """Keep an entry for the next call; the oldest give way when there are too many."""
    if tracing:
        return
    if len(FAST) >= MOST_ENTRIES:
        for old in list(FAST)[: MOST_ENTRIES // 4]:
            FAST.pop(old, None)
    FAST[key] = entry


def start_tracing() -> None:
    """Forget every entry and keep none until `stop_tracing`."""
    global tracing
    tracing += 1
    FAST.clear()


def stop_tracing() -> None:
    """The end of one `start_tracing`."""
    global tracing
    tracing -= 1


__all__ = ["FAST", "Layout", "call", "kind_of", "remember"]

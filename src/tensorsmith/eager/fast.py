"""FAST: from an operation and the exact kinds of its operands to the entry that executes the call.

Hot methods look into it themselves. It only saves time: an entry can be made again at any moment, and nothing in it depends
on values. While any thread traces it stays empty, so that every call reaches `dispatch.call`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tensorsmith.core import dtypes
from tensorsmith.core.layout import LevelLayout
from tensorsmith.passes import winograd
from tensorsmith.runtime import profiler

Entry = Callable[..., Any]

FAST: dict[tuple, Entry] = {}
MOST_ENTRIES = 4096
NUMBERS: frozenset[type] = frozenset({float, int, bool, complex})  # classes of operands that are run-time scalars

tracing = 0  # how many threads trace
_lock = threading.Lock()  # an entry kept while another thread starts to trace would be executed by it

profiler.when_switched.append(FAST.clear)  # entries that are one launch are made without it while kernels are timed
dtypes.when_default_changes.append(FAST.clear)
winograd.when_mode_changes.append(FAST.clear)


def remember(key: tuple, entry: Entry) -> None:
    """Keep an entry for the next call; the oldest give way when there are too many.

    Nothing is kept for the wrappers of a function transform: their calls are to reach its level.
    """
    if any([part.__class__ is LevelLayout for part in key]):
        return
    with _lock:
        if tracing:
            return
        if len(FAST) >= MOST_ENTRIES:
            for old in list(FAST)[: MOST_ENTRIES // 4]:
                FAST.pop(old, None)
        FAST[key] = entry


def start_tracing() -> None:
    """Forget every entry and keep none until `stop_tracing`."""
    global tracing
    with _lock:
        tracing += 1
        FAST.clear()


def stop_tracing() -> None:
    """The end of one `start_tracing`."""
    global tracing
    with _lock:
        tracing -= 1

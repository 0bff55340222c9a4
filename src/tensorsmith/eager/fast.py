"""FAST: from an operation and the exact kinds of its operands to the entry that executes the call.

Hot methods look into it themselves. It only saves time: an entry can be made again at any moment, and nothing in it depends
on values. While any thread traces it stays empty, so that every call reaches `dispatch.call`. While any thread is in a mode
that casts operands (autocast), it holds nothing of the operations that such a mode is to see, the *routed* ones; other threads
find the entries of those in `ASIDE`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tensorsmith.core import dtypes
from tensorsmith.core.layout import LevelLayout
from tensorsmith.passes import winograd
from tensorsmith.runtime import profiler
from tensorsmith.targets.cuda import precision

Entry = Callable[..., Any]

FAST: dict[tuple, Entry] = {}
MOST_ENTRIES = 4096
NUMBERS: frozenset[type] = frozenset({float, int, bool, complex})  # classes of operands that are run-time scalars

ASIDE: dict[tuple, Entry] = {}  # the entries of routed operations while there are any

tracing = 0  # how many threads trace
routed: frozenset[Any] = frozenset()  # operations whose calls a mode of some thread is to see
_routing = 0  # how many threads are in such a mode
_routable: frozenset[Any] = frozenset()  # what was routed last: of these the keys in FAST are listed
_keys: list[tuple] = []
_lock = threading.Lock()  # an entry kept while another thread starts to trace would be executed by it

when_forgotten: list[Callable[[], object]] = [FAST.clear, ASIDE.clear]  # everything that keeps entries


def forget() -> None:
    """Forget every entry: they would be made otherwise now."""
    for clear in when_forgotten:
        clear()


profiler.when_switched.append(forget)  # entries that are one launch are made without it while kernels are timed
dtypes.when_default_changes.append(forget)
winograd.when_mode_changes.append(forget)
precision.when_changes.append(forget)


def remember(key: tuple, entry: Entry) -> None:
    """Keep an entry for the next call; the oldest give way when there are too many.

    Nothing is kept for the wrappers of a function transform: their calls are to reach its level.
    """
    if any([part.__class__ is LevelLayout for part in key]):
        return
    with _lock:
        if tracing or key[0] in routed:
            return
        if len(FAST) >= MOST_ENTRIES:
            for old in list(FAST)[: MOST_ENTRIES // 4]:
                FAST.pop(old, None)
        FAST[key] = entry
        if key[0] in _routable:
            if len(_keys) >= 2 * MOST_ENTRIES:  # most of them have left FAST
                _keys[:] = [each for each in _keys if each in FAST]
            _keys.append(key)  # after FAST took it: a key with a list in it is refused there, and must not be listed here


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


def start_routing(operations: frozenset[Any]) -> None:
    """Let calls of these operations reach `dispatch.call` until `stop_routing`; it is the same set every time."""
    global routed, _routing, _routable
    with _lock:
        _routing += 1
        if routed:
            return
        if _routable is not operations:
            _routable = operations
            _keys[:] = [key for key in FAST if key[0] in operations]
        routed = operations
        for key in _keys:
            entry = FAST.pop(key, None)
            if entry is not None:
                ASIDE[key] = entry
        _keys.clear()


def stop_routing() -> None:
    """The end of one `start_routing`. FAST gets the entries back when one is asked for: the next region may come first."""
    global _routing
    with _lock:
        _routing -= 1


def end_routing() -> bool:
    """Give FAST back the entries of routed operations, if no thread is in such a mode any more; whether that was so."""
    global routed
    with _lock:
        if _routing:
            return False
        routed = frozenset()
        if not tracing:
            FAST.update(ASIDE)
            _keys.extend(ASIDE)
        ASIDE.clear()
        return True

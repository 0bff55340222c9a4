"""What a compiled function prints or logs: said at every run, as eagerly, although Python runs only while it is traced.

While functions are traced, `print` and `logging` are listened to. In a thread that traces, the text is made at once, from what
is known then, and saying it becomes an event of the program; other threads are not affected. The value of a tensor that the
function computes is not known, and is refused.
"""

from __future__ import annotations

import builtins
import copy
import functools
import logging
import threading
import time
from typing import Any

from tensorsmith.tensor.modes import modes


class _Listening:
    """Counts the traces that run, and stands in for `print` and `logging.Logger.handle` while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def start(self) -> None:
        """A trace begins."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._print, self._handle = builtins.print, logging.Logger.handle
                builtins.print = functools.wraps(self._print)(functools.partial(_print, self._print))  # type: ignore[assignment]
                logging.Logger.handle = _handling(self._handle)  # type: ignore[method-assign]

    def stop(self) -> None:
        """A trace ends."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                builtins.print = self._print
                logging.Logger.handle = self._handle  # type: ignore[method-assign]


listening = _Listening()


def _print(real: Any, *values: Any, **options: Any) -> None:
    later = getattr(modes.tracer, "later", None)
    if later is None:
        real(*values, **options)
        return
    known: list[str] = []
    later(lambda: real(*known, **options), values, "print()")
    known += map(str, values)


def _handling(real: Any) -> Any:
    @functools.wraps(real)
    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        later = getattr(modes.tracer, "later", None)
        if later is None:
            real(self, record)
            return

        def say() -> None:
            again = copy.copy(record)
            again.created = time.time()
            again.msecs = int(again.created % 1 * 1000) + 0.0
            real(self, again)

        arguments = record.args.values() if isinstance(record.args, dict) else record.args or ()
        later(say, [record.msg, *arguments], f"logging to {self.name}")

    return handle

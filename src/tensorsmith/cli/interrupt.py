"""Ctrl-C while files are written and kernels run: remembered, and acted on at the next safe place.

A signal may arrive inside a finaliser or between two writes. So the first one only sets a flag, which `check()` turns
into KeyboardInterrupt where the program says that it can stop; a second one interrupts at once.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """`with Interrupts() as interrupts: ... interrupts.check()`; does nothing outside of the main thread."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)
            self._installed = False
        if self.seen and kind is None:  # it came after the last check
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            signal.signal(signal.SIGINT, self._before)
            raise KeyboardInterrupt
        self.seen = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.seen:
            raise KeyboardInterrupt

"""Error words of kernels: how an error that happened on the device is told by the name of what caused it.

A kernel that meets an error writes a code to its error word and goes on with a defined value. The word is pinned memory of
the host, one *slot* a step that can fail, so nothing is copied and nobody waits: `check` looks at the slots wherever the
host has waited for the device anyhow, and raises for those that were written.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from tensorsmith.targets.cuda import devices, driver

_PAGE_SLOTS = 512  # of 8 bytes
_NOTHING = bytes(8 * _PAGE_SLOTS)


class _Page:
    """Pinned memory of the host for some slots."""

    def __init__(self, index: int) -> None:
        names = driver.bindings()
        devices.use(index)
        flags = names.CU_MEMHOSTALLOC_PORTABLE | names.CU_MEMHOSTALLOC_DEVICEMAP
        self.host = int(driver.call("cuMemHostAlloc", 8 * _PAGE_SLOTS, flags))
        ctypes.memset(self.host, 0, 8 * _PAGE_SLOTS)
        self.device = int(driver.call("cuMemHostGetDevicePointer", self.host, 0))
        self.owners: list[ErrorSlot | None] = [None] * _PAGE_SLOTS
        self.free = list(range(_PAGE_SLOTS - 1, -1, -1))
        self.retired: list[int] = []


class ErrorSlot:
    """An error word and what it means.

    host, device: its address for the host and for kernels
    name:    the step, for the message
    failure: a kernel's code -> the exception
    """

    __slots__ = ("name", "failure", "host", "device", "_page", "_number")

    def __init__(self, index: int, name: str, failure: Callable[[int], Exception] | None = None) -> None:
        self.name = name
        self.failure = failure
        with _lock:
            pages = _pages.setdefault(index, [])
            page = next((page for page in pages if page.free), None)
            if page is None:
                page = _Page(index)
                pages.append(page)
            self._page, self._number = page, page.free.pop()
            page.owners[self._number] = self
        self.host = page.host + 8 * self._number
        self.device = page.device + 8 * self._number

    def exception(self, code: int) -> Exception:
        """What a code means."""
        if self.failure is not None:
            return self.failure(code)
        return RuntimeError(f"the kernel {self.name} reports error {code}")

    def retire(self) -> None:
        """Give the word up: it is used again once the device has been waited for."""
        with _lock:
            self._page.owners[self._number] = None
            self._page.retired.append(self._number)


_pages: dict[int, list[_Page]] = {}
_lock = threading.RLock()


def check(index: int, idle: bool = False) -> None:
    """Raise what kernels reported since the last check; call it when work of the device is done.

    idle: whether all its work is done, so that words that were given up can be used again
    Errors: the exception of the first slot that was written; all are cleared.
    """
    for page in _pages.get(index, ()):
        if (idle and page.retired) or ctypes.string_at(page.host, 8 * _PAGE_SLOTS) != _NOTHING:
            _report(page, idle)


def _report(page: _Page, idle: bool) -> None:
    words = (ctypes.c_int64 * _PAGE_SLOTS).from_address(page.host)
    first: tuple[ErrorSlot, int] | None = None
    with _lock:
        for number, code in enumerate(list(words)):
            owner = page.owners[number]
            if code:
                words[number] = 0
                if first is None and owner is not None:
                    first = owner, code
        if idle:
            page.free += page.retired
            page.retired.clear()
    if first is not None:
        raise first[0].exception(first[1])

"""Pinned memory of the host, which the device reads and writes by itself: cached blocks.

A block that an asynchronous copy reads or writes is reused only when that copy is done: `note_use` says which stream has
it, and what is released meanwhile waits for that stream.
"""

from __future__ import annotations

import bisect
import threading

from tensorsmith.targets.cuda import allocator, devices, driver

_SMALLEST = 4096


class PinnedList(list[int]):
    """The free list of a class of pinned blocks; what streams still use waits outside."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def append(self, address: int, /) -> None:
        with _lock:
            streams = _uses.pop(address, None)
            if streams and not driver.lost_by_fork():
                events = [(allocator.record_event(stream, index), index) for index, stream in sorted(streams)]
                _waiting.append((events, self, address))
                return
        super().append(address)


_lock = threading.RLock()
_lists: dict[int, PinnedList] = {}
_starts: list[int] = []  # of all blocks, ascending
_sizes: dict[int, int] = {}
_uses: dict[int, set[tuple[int, int]]] = {}  # block -> (device, stream) of copies that may not be done
_waiting: list[tuple[list[tuple[int, int]], PinnedList, int]] = []


def free_list(nbytes: int) -> PinnedList:
    """The free list that serves requests of `nbytes`: append an address to release its block.

    Errors: ValueError for a negative number of bytes.
    """
    if nbytes < 0:
        raise ValueError(f"cannot allocate {nbytes} bytes")
    size = max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())
    if size >= 8 << 20:  # powers of two are wasteful for large blocks
        size = (nbytes + (1 << 20) - 1) & -(1 << 20)
    found = _lists.get(size)
    return found if found is not None else _lists.setdefault(size, PinnedList(size))


def allocate(nbytes: int) -> int:
    """The address of a pinned block of at least `nbytes`, which every device can reach.

    Errors: CudaUnavailableError without a device; CudaError where the system has no memory to pin.
    """
    free = free_list(nbytes)
    with _lock:
        if not free:
            _collect()
        try:
            return free.pop()
        except IndexError:
            pass
        # Some context is needed, and any serves all devices; none is made where there is one.
        used, current = devices.used(), devices.current_device()
        devices.use(current if current in used or not used else used[0])
        address = int(driver.call("cuMemHostAlloc", free.size, driver.bindings().CU_MEMHOSTALLOC_PORTABLE))
        bisect.insort(_starts, address)
        _sizes[address] = free.size
        return address


def block_of(address: int, nbytes: int = 1) -> int | None:
    """The block of ours that an address range lies in, by its start."""
    at = bisect.bisect_right(_starts, address) - 1
    if at < 0:
        return None
    start = _starts[at]
    return start if address + nbytes <= start + _sizes[start] else None


def is_pinned(address: int, nbytes: int = 1) -> bool:
    """Whether an address of the host is pinned memory, ours or of another library in this process."""
    if block_of(address, nbytes) is not None:
        return True
    if not driver.initialized() or not devices.used():
        return False
    names = driver.bindings()
    asked = [names.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE]
    status, found = names.cuPointerGetAttributes(1, asked, address)  # ordinary memory is no error here
    return not status and int(found[0]) == int(names.CUmemorytype.CU_MEMORYTYPE_HOST)


def note_use(address: int, index: int, stream: int) -> None:
    """A copy that was just given to a stream reads or writes pinned memory at an address."""
    start = block_of(address)
    if start is not None:
        with _lock:
            _uses.setdefault(start, set()).add((index, stream))


def empty_cache() -> int:
    """Unpin and return what lies idle; the bytes given back."""
    released = 0
    with _lock:
        _collect()
        for free in _lists.values():
            while free:
                devices.use(devices.used()[0])
                address = free.pop()
                driver.call("cuMemFreeHost", address)
                _starts.remove(address)
                released += _sizes.pop(address)
    return released


def _collect() -> None:
    """Let blocks whose copies are done go to their lists."""
    global _waiting
    if allocator.capturing():
        return
    entries, _waiting = _waiting, []
    for events, free, address in entries:
        while events and allocator.event_done(*events[-1]):
            allocator.keep_event(*events.pop())
        if events:
            _waiting.append((events, free, address))
        else:
            list.append(free, address)

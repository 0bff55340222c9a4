"""The caching allocator of CPU memory.

An address goes round between a tensor's storage and a plain Python list, so that the usual allocation is
``free_list(nbytes).pop()`` and the usual release ``free_list(nbytes).append(address)``::

    try:
        address = free.pop()
    except IndexError:              # the list is empty: blocks are made
        address = allocate(nbytes)

Size classes: multiples of 64 bytes up to 1 KB, above that four to each power of two (from 4 KB up multiples of 4 KB).
Blocks up to 256 KB are carved from slabs and kept for ever; each larger block is a mapping of its own (2 MB pages where
the system has them) which goes back to the system when more than the cap lies idle, biggest first.  Every block
starts at a multiple of 64 (of 4096 from 4 KB up) and has at least 64 readable bytes after its end, so that a kernel
may load whole vectors.  Blocks hold whatever the last owner left.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

_PAGE = 4096
_HUGE_PAGE = 2 << 20
_SLAB_LIMIT = 256 << 10  # the largest block that is carved from a slab
_SLAB_BYTES = 4 << 20  # address space mapped at a time for slabs; untouched pages cost nothing
_CARVE_BYTES = 64 << 10  # how much of a slab becomes blocks of one class at a time
_OVER_READ = 64
_COLOURS = 8  # large blocks start at one of so many pages, so that not all begin in the same cache sets

_lock = threading.RLock()
_mappings: dict[int, tuple[Any, int]] = {}  # first address of a large block -> (its mapping, class size)
_slabs: list[Any] = []
_slab_next = 0
_slab_end = 0
_carved_bytes = 0
_mapped_bytes = 0
_mapping_count = 0
_peak_reserved = 0
_idle_bytes = 0  # bytes of large blocks that lie in free lists
_cap: int | None = None


class _LargeList(list[int]):
    """The free list of a class of large blocks: it counts what lies idle and holds the total under the cap."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def pop(self, index: Any = -1, /) -> int:
        global _idle_bytes
        address = super().pop(index)
        _idle_bytes -= self.size
        return address

    def append(self, address: int, /) -> None:
        global _idle_bytes
        super().append(address)
        _idle_bytes += self.size
        if _cap is not None and _idle_bytes > _cap:  # set with the first large block; storages also die at exit
            _release_idle(_cap)


_large: dict[int, _LargeList] = {}


def size_class(nbytes: int) -> int:
    """The usable size of the block that serves a request of ``nbytes`` (at least 64)."""
    if nbytes <= 1024:
        return max(64, (nbytes + 63) & ~63)
    step = 1 << ((nbytes - 1).bit_length() - 3)  # a quarter of the power of two below
    size = (nbytes + step - 1) & -step
    return size if size < _PAGE else (size + _PAGE - 1) & -_PAGE


def _small_table() -> tuple[dict[int, list[int]], list[list[int]]]:
    lists: dict[int, list[int]] = {}
    table = [lists.setdefault(size_class(units * 64), []) for units in range(_SLAB_LIMIT // 64 + 1)]
    return lists, table


_small, _by_units = _small_table()  # class size -> free list; the same lists by request in units of 64 bytes


def free_list(nbytes: int) -> list[int]:
    """The free list that serves requests of ``nbytes``: pop an address to allocate, append it to release.

    Raises:
        ValueError: ``nbytes`` is negative.
    """
    if 0 <= nbytes <= _SLAB_LIMIT:
        return _by_units[(nbytes + 63) >> 6]
    if nbytes < 0:
        raise ValueError(f"cannot allocate {nbytes} bytes")
    size = size_class(nbytes)
    found = _large.get(size)
    return found if found is not None else _large.setdefault(size, _LargeList(size))


def allocate(nbytes: int) -> int:
    """The address of a block of at least ``nbytes``: from the free list, or new.

    Raises:
        MemoryError: the system gives no more memory (idle blocks have been returned to it before).
        ValueError: ``nbytes`` is negative.
    """
    free = free_list(nbytes)
    try:
        return free.pop()
    except IndexError:
        pass
    size = size_class(nbytes)
    with _lock:
        return _carve(size, free) if size <= _SLAB_LIMIT else _map_block(size, nbytes)


def allocate_zeros(nbytes: int) -> int:
    """The address of a block of zeros. Pages that come fresh from the system are zeros, and stay untouched here.

    Raises what `allocate` raises.
    """
    if nbytes > _SLAB_LIMIT and not free_list(nbytes):
        with _lock:
            return _map_block(size_class(nbytes), nbytes)
    import ctypes

    address = allocate(nbytes)
    ctypes.memset(address, 0, nbytes)
    return address


def release(address: int, nbytes: int) -> None:
    """Give back a block that was allocated for ``nbytes``."""
    free_list(nbytes).append(address)


def cached_bytes_cap() -> int:
    """Most bytes of large blocks that may lie idle: ``TENSORSMITH_CACHED_BYTES``, else a quarter of the memory."""
    global _cap
    if _cap is None:
        text = os.environ.get("TENSORSMITH_CACHED_BYTES", "")
        try:
            _cap = int(text) if text else _physical_memory() // 4
        except ValueError:
            raise ValueError(f"TENSORSMITH_CACHED_BYTES={text!r} is not a number of bytes") from None
    return _cap


def set_cached_bytes_cap(nbytes: int) -> None:
    """Change the cap on idle bytes; blocks above it are returned to the system at once."""
    global _cap
    if nbytes < 0:
        raise ValueError(f"the cap on cached bytes must not be negative, got {nbytes}")
    _cap = nbytes
    _release_idle(nbytes)


def empty_cache() -> int:
    """Return every idle large block to the system; the number of bytes given back."""
    return _release_idle(0)


def memory_stats() -> dict[str, int]:
    """Bytes: ``allocated`` (in use, by class size), ``cached`` (idle), ``reserved`` (both), ``peak`` (of reserved)."""
    with _lock:
        cached = sum(size * len(free) for size, free in [*_small.items(), *_large.items()])
        reserved = _carved_bytes + _mapped_bytes
        return {"allocated": reserved - cached, "cached": cached, "reserved": reserved, "peak": _peak_reserved}


def reset_peak_memory_stats() -> None:
    """Let ``peak`` start again from what is reserved now."""
    global _peak_reserved
    with _lock:
        _peak_reserved = _carved_bytes + _mapped_bytes


def _note_peak() -> None:
    global _peak_reserved
    _peak_reserved = max(_peak_reserved, _carved_bytes + _mapped_bytes)


def _carve(size: int, free: list[int]) -> int:
    """Cut some blocks of one class from the slab: the first is the answer, the others go to the free list."""
    global _slab_next, _slab_end, _carved_bytes
    alignment = _PAGE if size >= _PAGE else 64
    count = max(1, _CARVE_BYTES // size)
    start = (_slab_next + alignment - 1) & -alignment
    if start + count * size + _OVER_READ > _slab_end:
        slab, address = _map(_SLAB_BYTES + _PAGE, size)
        _with_huge_pages(slab, len(slab))
        _slabs.append(slab)
        start, _slab_end = address, address + _SLAB_BYTES
    _slab_next = start + count * size
    _carved_bytes += count * size
    _note_peak()
    # Highest addresses first, so that pops walk upwards through memory.
    free.extend(range(start + (count - 1) * size, start, -size))
    return start


def _map_block(size: int, nbytes: int) -> int:
    """A large block with a mapping of its own."""
    global _mapped_bytes, _mapping_count
    cached_bytes_cap()
    huge = size >= _HUGE_PAGE
    slack = (_HUGE_PAGE if huge else 0) + _COLOURS * _PAGE + _PAGE
    try:
        mapping, start = _map(size + slack, nbytes)
    except MemoryError:
        if not _release_idle(0):
            raise
        mapping, start = _map(size + slack, nbytes)
    address = (start + _HUGE_PAGE - 1) & -_HUGE_PAGE if huge else start
    address += _mapping_count % _COLOURS * _PAGE
    if huge:
        _with_huge_pages(mapping, (address + nbytes & -_HUGE_PAGE) - start)
    _mapping_count += 1
    _mappings[address] = (mapping, size)
    _mapped_bytes += size
    _note_peak()
    return address


def _map(length: int, nbytes: int) -> tuple[Any, int]:
    """An anonymous private mapping and its address (page aligned)."""
    import ctypes
    import mmap

    _outlive_the_interpreter()
    try:
        if hasattr(mmap, "MAP_ANONYMOUS"):  # the default on Unix is shared: a fork's child would write to our tensors
            mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            mapping = mmap.mmap(-1, length)
    except (OSError, OverflowError, ValueError) as error:
        stats = memory_stats()
        raise MemoryError(
            f"cannot allocate {nbytes} bytes on the CPU: {stats['allocated']} bytes are in use by tensors, "
            f"{stats['cached']} are cached ({error})"
        ) from None
    # The temporary view must die here: a mapping with a living view cannot be closed.
    return mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _with_huge_pages(mapping: Any, length: int) -> None:
    """Let a mapping have huge pages up to `length`: what was asked for beyond the last whole one takes small pages."""
    import mmap

    if length > 0 and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE, 0, length)
        except OSError:  # a kernel without transparent huge pages
            pass


@functools.cache
def _outlive_the_interpreter() -> None:
    """Keep the mappings when the interpreter clears this module at exit: arrays elsewhere may still be read then."""
    import ctypes

    if hasattr(ctypes, "pythonapi"):
        for registry in (_mappings, _slabs):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(registry))


def _release_idle(target: int) -> int:
    """Unmap idle large blocks, biggest class first, until at most ``target`` bytes lie idle; the bytes given back."""
    global _mapped_bytes
    released = 0
    with _lock:
        for size in sorted(_large, reverse=True):
            free = _large[size]
            while _idle_bytes > target and free:
                try:
                    address = free.pop()
                except IndexError:  # another thread was quicker
                    break
                mapping, _ = _mappings.pop(address)
                mapping.close()
                _mapped_bytes -= size
                released += size
    return released


def _physical_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit where that is lower."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a Unix system
        total = 8 << 30
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(place) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

"""The caching allocator of device memory.

Made like that of the CPU: an address goes round between a storage and a plain Python list::

    current = current_list(nbytes, index)      # once
    free = current.free
    try:
        address = free.pop()
    except IndexError:
        address = allocate(nbytes, index)
    ...
    free.append(address)                       # release, wherever the current stream is by then

The device works later than the host, in the order of a stream: a block that is released may serve new work of the *same*
stream at once. So a free list belongs to a device, a stream and a class of sizes, and which lists are current changes with
the stream: `current_list` is a place whose `free` follows. A block that other streams use too is released through
`record_stream`. Blocks of a `PrivatePool`, whose addresses a captured graph knows, serve nothing outside it.

Size classes: multiples of 512 bytes up to 4 KB, above that four to each power of two, above 1 MB eight. Blocks up to 256 KB
are carved from slabs of 2 MB and kept; larger ones go back to the driver where memory is short, and by `empty_cache`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from tensorsmith.targets.cuda import devices, driver, driver_memory
from tensorsmith.targets.cuda.devices import Cell

GRANULE = 512
SLAB_LIMIT = 256 << 10  # the largest block that is carved from a slab
_SLAB_BYTES = 2 << 20
_CARVE_BYTES = 64 << 10  # how much of a slab becomes blocks of one class at a time
_FINE = 1 << 20  # classes are finer above


class OutOfMemoryError(RuntimeError):
    """A device has no memory for a request, after all idle blocks went back to it.

    Bytes: asked, free (on the device), total, allocated (in use by tensors), cached (idle in free lists), largest (the
    largest idle block).
    """

    def __init__(
        self, index: int, asked: int, free: int, total: int, allocated: int, cached: int, largest: int, cap: int
    ) -> None:
        limit = f" (limited to {readable(cap)} by set_per_process_memory_fraction)" if cap < total else ""
        super().__init__(
            f"CUDA out of memory on cuda:{index}: asked for {readable(asked)}; of {readable(total)}{limit}, "
            f"{readable(free)} are free; tensors of this process have {readable(allocated)}, "
            f"{readable(cached)} are cached idle, the largest idle block has {readable(largest)}"
        )
        self.index, self.asked, self.free, self.total = index, asked, free, total
        self.allocated, self.cached, self.largest = allocated, cached, largest


class State:
    """The books of one device."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.domains: dict[int, Domain] = {}  # by stream handle
        self.pools: list[PrivatePool] = []  # those that are entered, the innermost last
        self.known_pools: weakref.WeakSet[PrivatePool] = weakref.WeakSet()
        self.current: Domain | None = None
        self.places: dict[int, CurrentList] = {}  # by class
        self.blocks: dict[int, tuple[int, Domain]] = {}  # blocks of their own: address -> bytes, whose
        self.deferred: list[tuple[list[int], list[int], int]] = []  # events to wait for, list, address
        self.carved = 0  # bytes of small blocks
        self.own = 0  # bytes of blocks of their own
        self.slabs = 0  # bytes of slabs
        self.in_use = 0  # bytes of counted blocks that are handed out
        self.peak_in_use = 0
        self.peak_small = 0
        self.peak_reserved = 0
        self.retries = 0
        self.failures = 0
        self.allocations = 0
        self.cap: int | None = None


class CountedList(list[int]):
    """The free list of a class of large blocks: it counts what is handed out, for the peak."""

    __slots__ = ("size", "state")

    def __init__(self, size: int, state: State) -> None:
        super().__init__()
        self.size = size
        self.state = state

    def pop(self, index: Any = -1, /) -> int:
        address = super().pop(index)
        count(self.state, self.size)
        return address

    def append(self, address: int, /) -> None:
        super().append(address)
        self.state.in_use -= self.size


class PrivateList(CountedList):
    """The free list of a class in a private pool: once the pool is released, what comes back goes to the driver."""

    __slots__ = ("pool",)

    def __init__(self, size: int, state: State, pool: PrivatePool) -> None:
        super().__init__(size, state)
        self.pool = pool

    def append(self, address: int, /) -> None:
        super().append(address)
        if self.pool.released and not self.state.pools and not driver.lost_by_fork():  # else `release_idle` finds it
            _give_back_private(self.state, [self])


class Domain:
    """The free lists of what may follow each other: the work of one stream, or of one stream in one private pool."""

    __slots__ = ("state", "stream", "lists", "pool", "slab_next", "slab_end")

    def __init__(self, state: State, stream: int, pool: PrivatePool | None = None) -> None:
        self.state = state
        self.stream = stream
        self.pool = pool
        self.lists: dict[int, list[int]] = {}
        self.slab_next = self.slab_end = 0

    def list_of(self, size: int) -> list[int]:
        """The free list of a class."""
        found = self.lists.get(size)
        if found is None:
            made: list[int]
            if self.pool is not None:
                made = PrivateList(size, self.state, self.pool)
            else:
                made = CountedList(size, self.state) if size > SLAB_LIMIT else []
            found = self.lists.setdefault(size, made)
        return found


class CurrentList:
    """Where the free list of a class lies that serves the device's current stream."""

    __slots__ = ("free",)

    def __init__(self, free: list[int]) -> None:
        self.free = free


class PrivatePool:
    """Blocks that serve nothing outside this pool, so that a captured graph may keep their addresses."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.domains: dict[int, Domain] = {}
        self.released = False

    def release(self) -> None:
        """Return the pool's idle blocks to the driver, and the others when their tensors die."""
        self.released = True
        _give_back_private(_state(self.index), self.lists())

    def lists(self) -> list[Any]:
        """All free lists of the pool."""
        return [free for domain in self.domains.values() for free in domain.lists.values()]


_states: dict[int, State] = {}
_entered: list[PrivatePool] = []  # of all devices
_states_lock = threading.RLock()


def size_class(nbytes: int) -> int:
    """The usable size of the block that serves a request of `nbytes` (at least 512)."""
    if nbytes <= 8 * GRANULE:
        return max(GRANULE, (nbytes + GRANULE - 1) & -GRANULE)
    step = 1 << ((nbytes - 1).bit_length() - (3 if nbytes <= _FINE else 4))
    return (nbytes + step - 1) & -step


def free_list(nbytes: int, index: int) -> list[int]:
    """The free list that serves requests of `nbytes` on the current stream of a device.

    Errors: ValueError for a negative number of bytes or no such device.
    """
    return current_list(nbytes, index).free


def current_list(nbytes: int, index: int) -> CurrentList:
    """The place whose `free` is the free list that serves requests of `nbytes` on whatever stream is current."""
    if nbytes < 0:
        raise ValueError(f"cannot allocate {nbytes} bytes")
    state = _states.get(index) or _state(index)
    size = size_class(nbytes)
    place = state.places.get(size)
    if place is None:
        with state.lock:
            place = state.places.setdefault(size, CurrentList(_current(state).list_of(size)))
    return place


def allocate(nbytes: int, index: int) -> int:
    """The address of a block of at least `nbytes` for work on the current stream: from the free list, or new.

    Its contents are whatever the last owner left.
    Errors: OutOfMemoryError, CudaUnavailableError, ValueError.
    """
    free = free_list(nbytes, index)
    try:
        return free.pop()
    except IndexError:
        pass
    state = _state(index)
    size = size_class(nbytes)
    with state.lock:
        if state.deferred and not capturing() and collect_deferred(index):
            try:
                return free.pop()
            except IndexError:
                pass
        domain = _current(state)
        if size > SLAB_LIMIT or domain.pool is not None:
            return _own_block(state, domain, size, nbytes)
        return _carve(state, domain, size, free, nbytes)


def release(address: int, nbytes: int, index: int) -> None:
    """Give back a block that was allocated for `nbytes` on the stream that is current now."""
    free_list(nbytes, index).append(address)


def set_stream(index: int, stream: int) -> None:
    """Make a stream, by its handle, the current one of a device: for launches and for the lists that blocks come from."""
    state = _state(index)
    with state.lock:
        devices.device(index).words[Cell.STREAM] = stream
        _follow(state)


def current_stream(index: int) -> int:
    """The handle of the device's current stream; 0 is the default stream."""
    return devices.device(index).words[Cell.STREAM]


@contextlib.contextmanager
def private_pool(index: int, pool: PrivatePool | None = None) -> Iterator[PrivatePool]:
    """Allocate from a private pool meanwhile, a new one or one that was used before."""
    state = _state(index)
    pool = pool or PrivatePool(index)
    if pool.index != index or pool.released:
        why = "was released" if pool.released else f"is not of cuda:{index}"
        raise ValueError(f"the private pool of cuda:{pool.index} {why}")
    with state.lock:
        state.pools.append(pool)
        _entered.append(pool)
        state.known_pools.add(pool)
        _follow(state)
    try:
        yield pool
    finally:
        with state.lock:
            state.pools.remove(pool)
            _entered.remove(pool)
            _follow(state)


class _Recorded(list[int]):
    """Stands in for a free list where a block is used on other streams too: what is appended waits for their work."""

    __slots__ = ("free", "device_index", "streams")

    def __init__(self, free: list[int], index: int) -> None:
        super().__init__()
        self.free = free
        self.device_index = index
        self.streams: set[int] = set()

    def append(self, address: int, /) -> None:
        if driver.lost_by_fork():  # the parent's block
            return
        events = [record_event(stream, self.device_index) for stream in sorted(self.streams)]
        state = _state(self.device_index)
        with state.lock:
            state.deferred.append((events, self.free, address))


def record_stream(free: list[int], index: int, stream: int) -> list[int]:
    """What stands in for a block's free list from now on, because work of another stream reads or writes the block.

    free: the list the block would go back to; stream: the handle of the other stream
    When the block is released, it is reused only after what that stream has been given until then.
    """
    recorded = free if isinstance(free, _Recorded) else _Recorded(free, index)
    recorded.streams.add(stream)
    return recorded


def collect_deferred(index: int) -> int:
    """Let blocks whose other streams are done go to their free lists; how many did."""
    state = _state(index)
    waiting, collected = [], 0
    with state.lock:
        entries, state.deferred = state.deferred, []
        for events, free, address in entries:
            while events and event_done(events[-1], index):
                keep_event(events.pop(), index)
            if events:
                waiting.append((events, free, address))
            else:
                free.append(address)
                collected += 1
        state.deferred += waiting
    return collected


_events: dict[int, list[int]] = {}  # events without times of each device, to be used again


def record_event(stream: int, index: int) -> int:
    """The handle of an event without times that comes after what a stream of the device has been given so far."""
    devices.use(index)
    try:
        event = _events[index].pop()
    except (KeyError, IndexError):
        event = int(driver.call("cuEventCreate", driver.bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))
    driver.call("cuEventRecord", event, stream)
    return event


def keep_event(event: int, index: int) -> None:
    """Let an event of `record_event` be used again."""
    _events.setdefault(index, []).append(event)


def event_done(event: int, index: int) -> bool:
    """Whether what was recorded in an event of a device is done."""
    devices.use(index)
    code = driver.status("cuEventQuery", event)
    if code not in (0, 600):
        raise driver.CudaError("cuEventQuery", code)
    return code == 0


def capturing() -> bool:
    """Whether a private pool is entered: meanwhile events must not be asked and devices not be waited for."""
    return bool(_entered)


def empty_cache(index: int | None = None) -> int:
    """Return idle large blocks to the driver, of one device or all that are used; the bytes given back."""
    return sum(release_idle(state) for state in list(_states.values()) if index is None or state.index == index)


def set_cap(nbytes: int | None, index: int) -> None:
    """Reserve at most so many bytes on a device; None: as many as there are."""
    _state(index).cap = nbytes


def release_idle(state: State) -> int:
    """Wait for the device and return its idle large blocks; the bytes given back."""
    with state.lock:
        if capturing():
            return 0
        devices.use(state.index)
        driver.call("cuCtxSynchronize")
        collect_deferred(state.index)
        blocks = []
        for domain in state.domains.values():
            for size, free in domain.lists.items():
                while size > SLAB_LIMIT and free:
                    try:
                        blocks.append((free.pop(), size, domain.stream))
                    except IndexError:  # another thread was quicker
                        break
        for pool in state.known_pools:
            if pool.released:
                _give_back_private(state, pool.lists())
        return _return_blocks(state, blocks)


def state_of(index: int) -> State:
    """The books of a device, for reports."""
    return _state(index)


def count(state: State, size: int) -> None:
    """Note that a counted block is handed out."""
    state.in_use += size
    if state.in_use > state.peak_in_use:
        state.peak_in_use = state.in_use


def idle(state: State) -> dict[int, int]:
    """Class size -> how many blocks lie idle, in all domains of a device."""
    found: dict[int, int] = {}
    domains = [*state.domains.values(), *(domain for pool in state.known_pools for domain in pool.domains.values())]
    for domain in domains:
        for size, free in list(domain.lists.items()):
            found[size] = found.get(size, 0) + len(free)
    return found


def small_in_use(state: State) -> int:
    """Bytes of blocks from slabs that are handed out."""
    lists = [item for domain in list(state.domains.values()) for item in list(domain.lists.items())]
    return state.carved - sum(size * len(free) for size, free in lists if size <= SLAB_LIMIT)


def readable(nbytes: int) -> str:
    """Bytes for people: "1.50 GiB"."""
    value = float(nbytes)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{nbytes} bytes" if unit == "bytes" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _state(index: int) -> State:
    found = _states.get(index)
    if found is None:
        devices.device(index)  # refuses what does not exist
        with _states_lock:
            found = _states.setdefault(index, State(index))
    return found


def _current(state: State) -> Domain:
    if state.current is None:
        _follow(state)
    assert state.current is not None
    return state.current


def _follow(state: State) -> None:
    """Let the places lead to the lists of the current stream and pool."""
    stream = current_stream(state.index)
    pool = state.pools[-1] if state.pools else None
    domains = state.domains if pool is None else pool.domains
    domain = domains.get(stream)
    if domain is None:
        domain = domains[stream] = Domain(state, stream, pool)
    if domain is not state.current:
        state.current = domain
        for size, place in state.places.items():
            place.free = domain.list_of(size)


def _carve(state: State, domain: Domain, size: int, free: list[int], nbytes: int) -> int:
    """Cut some blocks of one class from the domain's slab: the first is the answer, the others go to the free list."""
    count_of_blocks = max(1, _CARVE_BYTES // size)
    if domain.slab_next + count_of_blocks * size > domain.slab_end:
        domain.slab_next = _take(state, domain, _SLAB_BYTES, nbytes)
        domain.slab_end = domain.slab_next + _SLAB_BYTES
        state.slabs += _SLAB_BYTES
    start = domain.slab_next
    domain.slab_next = start + count_of_blocks * size
    state.carved += count_of_blocks * size
    free.extend(range(start + (count_of_blocks - 1) * size, start, -size))
    state.peak_small = max(state.peak_small, small_in_use(state))
    _note_peak(state)
    return start


def _own_block(state: State, domain: Domain, size: int, nbytes: int) -> int:
    address = _take(state, domain, size, nbytes)
    state.blocks[address] = (size, domain)
    state.own += size
    count(state, size)
    _note_peak(state)
    return address


def _take(state: State, domain: Domain, size: int, nbytes: int) -> int:
    """Memory from the driver; where it has none, once more after what lies idle went back."""
    state.allocations += 1
    for attempt in range(2):
        if state.cap is None or state.own + state.slabs + size <= state.cap:
            if domain.pool is not None:
                with driver_memory.during_capture():
                    address = driver_memory.take(size, state.index, domain.stream)
            else:
                address = driver_memory.take(size, state.index, domain.stream)
            if address is not None:
                return address
        if not attempt:
            state.retries += 1
            release_idle(state)
    state.failures += 1
    free, total = driver_memory.information(state.index)
    lying = idle(state)
    cached = sum(size * number for size, number in lying.items())
    raise OutOfMemoryError(
        state.index, nbytes, free, total, state.carved + state.own - cached, cached,
        max((size for size, number in lying.items() if number), default=0), total if state.cap is None else state.cap,
    )  # fmt: skip


def _return_blocks(state: State, blocks: list[tuple[int, int, int]]) -> int:
    driver_memory.give_back(blocks, state.index)
    for address, size, _ in blocks:
        del state.blocks[address]
        state.own -= size
        state.in_use -= size  # popping counted it as handed out
    return sum(size for _, size, _ in blocks)


def _give_back_private(state: State, lists: list[Any]) -> None:
    with state.lock:
        blocks = [(free.pop(), free.size, 0) for free in lists for _ in range(len(free))]
        if blocks:
            _return_blocks(state, blocks)


def _note_peak(state: State) -> None:
    state.peak_reserved = max(state.peak_reserved, state.own + state.slabs)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_states_lock.acquire, after_in_parent=_states_lock.release, after_in_child=_states_lock.release)

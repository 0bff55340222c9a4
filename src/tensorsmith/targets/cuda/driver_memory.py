"""Where device memory comes from: the driver's pool of a device, plain allocations where it has none, or a user's functions.

Blocks are given on a stream of their own that is waited for, so that a block may be used on any stream at once. Memory goes
back only when the device is idle: `give_back` waits for it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

from tensorsmith.targets.cuda import devices, driver

OUT_OF_MEMORY = 2

Allocate = Callable[[int, int, int], int]  # (bytes, device, stream) -> address
Free = Callable[[int, int, int, int], None]  # (address, bytes, device, stream)

_user: tuple[Allocate, Free] | None = None
_users: dict[tuple[int, int], Free] = {}  # (device, address) -> what takes a user's block back


def set_allocator(allocate: Allocate | None, free: Free | None) -> None:
    """Take memory from these functions from now on; None for both is the driver again. Blocks that exist go back to where
    they came from."""
    global _user
    if (allocate is None) != (free is None):
        raise TypeError("set_allocator needs both functions, allocate and free, or None for both")
    _user = None if allocate is None or free is None else (allocate, free)


@functools.cache
def _has_pools(index: int) -> bool:
    return bool(devices.attribute(index, "MEMORY_POOLS_SUPPORTED"))


@functools.cache
def _pool(index: int) -> int:
    """The device's pool, told to keep what is given back to it until it is trimmed."""
    names = driver.bindings()
    pool = driver.call("cuDeviceGetDefaultMemPool", devices.use(index).handle)
    threshold = names.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    driver.call("cuMemPoolSetAttribute", pool, threshold, names.cuuint64_t((1 << 64) - 1))
    return int(pool)


@functools.cache
def _stream(index: int) -> int:
    """The stream that blocks are given on."""
    devices.use(index)
    return int(driver.call("cuStreamCreate", driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING))


def take(nbytes: int, index: int, stream: int) -> int | None:
    """A block from the driver, usable on every stream at once; None where memory is exhausted.

    stream: the handle of the stream that will use it, for a user's allocator
    """
    devices.use(index)
    if _user is not None:
        allocate, free = _user
        address = allocate(nbytes, index, stream)
        if not isinstance(address, int) or address < 0:
            raise TypeError(f"the allocator set by set_allocator gave {address!r}; it gives the block's address as an int")
        if not address:
            return None
        _users[index, address] = free
        return address
    try:
        if not _has_pools(index):
            return int(driver.call("cuMemAlloc", nbytes))
        _pool(index)
        address = int(driver.call("cuMemAllocAsync", nbytes, _stream(index)))
        driver.call("cuStreamSynchronize", _stream(index))
        return address
    except driver.CudaError as error:
        if error.code == OUT_OF_MEMORY:
            return None
        raise


def give_back(blocks: list[tuple[int, int, int]], index: int) -> None:
    """Return blocks (address, bytes, stream) once the device has done all work it has been given."""
    devices.use(index)
    driver.call("cuCtxSynchronize")
    for address, nbytes, stream in blocks:
        free = _users.pop((index, address), None)
        if free is not None:
            free(address, nbytes, index, stream)
        elif _has_pools(index):
            driver.call("cuMemFreeAsync", address, _stream(index))
        else:
            driver.call("cuMemFree", address)
    if _has_pools(index):
        driver.call("cuStreamSynchronize", _stream(index))
        driver.call("cuMemPoolTrimTo", _pool(index), 0)


def information(index: int) -> tuple[int, int]:
    """Bytes of the device's memory: free, in total."""
    devices.use(index)
    free, total = driver.call("cuMemGetInfo")
    return int(free), int(total)


@contextlib.contextmanager
def during_capture() -> Iterator[None]:
    """Let this thread take memory while a stream is captured into a graph."""
    relaxed = driver.bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = driver.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        driver.call("cuThreadExchangeStreamCaptureMode", before)

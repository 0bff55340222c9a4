"""CUDA devices: which there are, what they can do, their contexts, the current one.

A device has one context, the primary one that CUDA's runtime, and so PyTorch, uses too. It is retained at the first use of
that very device, never before: work on `cuda:1` makes nothing on `cuda:0`.

What native launches need of a device lies in its *cell*, an array of words at an address that never changes (`Cell`).
"""

from __future__ import annotations

import array
import enum
import threading
from typing import Any

from tensorsmith.targets.cuda import driver
from tensorsmith.targets.cuda.compile import CudaUnavailableError
from tensorsmith.targets.cuda.kernel import DeviceProperties


class Cell(enum.IntEnum):
    """The words of a device's cell."""

    CONTEXT = 0
    STREAM = 1  # the handle of the current stream; 0 is the default stream
    DEBUG = 2  # not 0: wait for every launch and look at its error
    GET_CONTEXT = 3  # from here on addresses of driver functions
    SET_CONTEXT = 4
    LAUNCH = 5
    LAUNCH_EXTENDED = 6
    ENCODE_TENSOR_MAP = 7
    SYNCHRONIZE_STREAM = 8
    COPY_TO_HOST = 9
    COPY_TO_DEVICE = 10


_FUNCTIONS = {
    Cell.GET_CONTEXT: "cuCtxGetCurrent",
    Cell.SET_CONTEXT: "cuCtxSetCurrent",
    Cell.LAUNCH: "cuLaunchKernel",
    Cell.LAUNCH_EXTENDED: "cuLaunchKernelEx",
    Cell.ENCODE_TENSOR_MAP: "cuTensorMapEncodeTiled",
    Cell.SYNCHRONIZE_STREAM: "cuStreamSynchronize",
    Cell.COPY_TO_HOST: "cuMemcpyDtoHAsync_v2",
    Cell.COPY_TO_DEVICE: "cuMemcpyHtoDAsync_v2",
}


class Device:
    """One device: its driver handle, its context once it has one, its cell."""

    __slots__ = ("index", "handle", "context", "words", "cell")

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.context = 0  # the primary context's handle; 0 before the first use
        self.words = array.array("q", [0] * len(Cell))
        self.cell: int = self.words.buffer_info()[0]


_devices: dict[int, Device] = {}
_properties: dict[int, DeviceProperties] = {}
_lock = threading.RLock()
_current = threading.local()
_debug = 0


def is_available() -> bool:
    """Whether there is a CUDA device that can be used. Never raises, makes no context."""
    try:
        return device_count() > 0
    except Exception:  # noqa: BLE001  a broken installation is no reason for an error here
        return False


def device_count() -> int:
    """How many CUDA devices there are; 0 where the driver is missing."""
    try:
        return int(driver.call("cuDeviceGetCount"))
    except CudaUnavailableError:
        return 0


def device(index: int) -> Device:
    """The device of an index, without making a context.

    Errors: ValueError for an index that no device has, CudaUnavailableError where there is none at all.
    """
    found = _devices.get(index)
    if found is not None:
        return found
    count = int(driver.call("cuDeviceGetCount"))
    if not isinstance(index, int) or not 0 <= index < count:
        there = "device 0" if count == 1 else f"devices 0 to {count - 1}"
        raise ValueError(f"there is no CUDA device {index}: this machine has {there}")
    with _lock:
        found = _devices.get(index)
        if found is None:
            found = _devices[index] = Device(index, driver.call("cuDeviceGet", index))
    return found


def attribute(index: int, name: str) -> int:
    """An attribute of a device, by the driver's name without `CU_DEVICE_ATTRIBUTE_`."""
    key = getattr(driver.bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(driver.call("cuDeviceGetAttribute", key, device(index).handle))


def properties(index: int) -> DeviceProperties:
    """What lowering asks of a device; no context is made."""
    found = _properties.get(index)
    if found is None:
        major, minor = attribute(index, "COMPUTE_CAPABILITY_MAJOR"), attribute(index, "COMPUTE_CAPABILITY_MINOR")
        found = _properties[index] = DeviceProperties(
            architecture=f"sm_{major}{minor}{'a' if major >= 9 else ''}",  # with the features of this very card
            multiprocessors=attribute(index, "MULTIPROCESSOR_COUNT"),
            shared_bytes=attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_bytes_a_multiprocessor=attribute(index, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers=attribute(index, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
            threads=attribute(index, "MAX_THREADS_PER_MULTIPROCESSOR"),
            cache_bytes=attribute(index, "L2_CACHE_SIZE"),
        )
    return found


def name(index: int) -> str:
    """The device's name: "NVIDIA H200"."""
    return bytes(driver.call("cuDeviceGetName", 256, device(index).handle)).split(b"\0")[0].decode()


def total_memory(index: int) -> int:
    """Bytes of memory on the device."""
    return int(driver.call("cuDeviceTotalMem", device(index).handle))


def use(index: int) -> Device:
    """The device, with its context current in this thread (made at the first use)."""
    found = _devices.get(index) or device(index)
    if not found.context:
        _retain(found)
    driver.call("cuCtxSetCurrent", found.context)
    return found


def context(index: int) -> int:
    """The handle of the device's primary context."""
    return use(index).context


def used() -> list[int]:
    """The devices that have a context of this process, by their indices."""
    return sorted(index for index, found in _devices.items() if found.context)


def current_device() -> int:
    """The device that is meant where none is named, of this thread; 0 at first."""
    return getattr(_current, "index", 0)


def set_device(index: int) -> None:
    """Mean this device where none is named, in this thread. Makes no context.

    Errors: ValueError for an index that no device has.
    """
    device(index)
    _current.index = index


def set_debug(on: bool) -> None:
    """Wait for every launch and raise what went wrong with it at the call itself."""
    global _debug
    with _lock:
        _debug = int(on)
        for found in _devices.values():
            found.words[Cell.DEBUG] = _debug


def debug() -> bool:
    """Whether every launch is waited for."""
    return bool(_debug)


def _retain(found: Device) -> None:
    with _lock:
        if found.context:
            return
        addresses = {word: driver.address(function) for word, function in _FUNCTIONS.items()}
        context = int(driver.call("cuDevicePrimaryCtxRetain", found.handle))
        for word, value in addresses.items():
            found.words[word] = value
        found.words[Cell.CONTEXT] = context
        found.words[Cell.DEBUG] = _debug
        found.context = context

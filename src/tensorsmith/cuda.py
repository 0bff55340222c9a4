"""CUDA devices, under PyTorch's names: `torch.cuda` with what it means here.

    if ts.cuda.is_available():
        x = ts.randn(1000, 1000, device="cuda")
        ts.cuda.synchronize()

Nothing of CUDA is imported or initialised before a device is asked for. `docs/cuda.md` tells the differences: the current
stream belongs to the process, one random generator serves all devices, and errors of kernels are raised where the host waits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tensorsmith.amp import cuda_names as amp
from tensorsmith.compile.cuda_graphs import (
    CUDAGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from tensorsmith.targets.cuda import (
    allocator,
    copies,
    devices,
    driver,
    driver_memory,
    memory_report,
    pinned,
)
from tensorsmith.targets.cuda.allocator import OutOfMemoryError
from tensorsmith.targets.cuda.compile import CudaCompileError, CudaUnavailableError
from tensorsmith.targets.cuda.devices import current_device, device_count, is_available
from tensorsmith.targets.cuda.driver import CudaError
from tensorsmith.targets.cuda.streams import Event, ExternalStream, Stream as _Stream, StreamContext, set_stream

sys.modules[f"{__name__}.amp"] = amp  # for `from tensorsmith.cuda.amp import ...`


def _index(device: Any) -> int:
    """The number of a device that is given as a number, a name, a device, or None for the current one."""
    if device is None:
        return current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        return current_device() if device == -1 else device
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise ValueError(f"expected a CUDA device (a number, 'cuda' or 'cuda:1'), got {device!r}")
    return int(number) if number else current_device()


def init() -> None:
    """Find NVIDIA's driver now; otherwise the first use of a device does.

    Errors: CudaUnavailableError, which says what is missing.
    """
    driver.bindings()


def is_initialized() -> bool:
    """Whether CUDA has been used in this process."""
    return driver.initialized()


def set_device(device: Any) -> None:
    """Mean this device, in this thread, where "cuda" has no number.

    Errors: ValueError for a device that is not there; CudaUnavailableError.
    """
    index = _index(device)
    devices.set_device(index)


class device:
    """Mean a device by "cuda" in a block of code: `with ts.cuda.device(1): ...`. None or a negative number: no change."""

    def __init__(self, device: Any) -> None:
        negative = isinstance(device, int) and device < 0
        self.idx = -1 if device is None or negative else _index(device)

    def __enter__(self) -> device:
        self.prev_idx = current_device()
        if self.idx >= 0:
            devices.set_device(self.idx)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.idx >= 0:
            devices.set_device(self.prev_idx)


class device_of(device):
    """Mean the device that a tensor lives on; a tensor of the CPU changes nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.is_cuda else None)


def get_device_name(device: Any = None) -> str:
    """The name of a device: "NVIDIA H200"."""
    return devices.name(_index(device))


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Compute capability of a device: (9, 0)."""
    return devices.properties(_index(device)).capability


@dataclass(frozen=True)
class DeviceInformation:
    """What `get_device_properties` tells; sizes in bytes, under PyTorch's names."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    warp_size: int
    L2_cache_size: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int


def get_device_properties(device: Any = None) -> DeviceInformation:
    """What a device is and has. Makes no context."""
    index = _index(device)
    found = devices.properties(index)
    major, minor = found.capability
    return DeviceInformation(
        name=devices.name(index),
        major=major,
        minor=minor,
        total_memory=devices.total_memory(index),
        multi_processor_count=found.multiprocessors,
        max_threads_per_multi_processor=found.threads,
        warp_size=32,
        L2_cache_size=found.cache_bytes,
        regs_per_multiprocessor=found.registers,
        shared_memory_per_block=devices.attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK"),
        shared_memory_per_block_optin=found.shared_bytes,
        shared_memory_per_multiprocessor=found.shared_bytes_a_multiprocessor,
    )


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether a device can read and write the memory of another."""
    first, second = devices.device(_index(device)), devices.device(_index(peer_device))
    return bool(driver.call("cuDeviceCanAccessPeer", first.handle, second.handle))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be used: always, and without emulation from compute capability 8.0 on."""
    return is_available() and (including_emulation or get_device_capability() >= (8, 0))


def synchronize(device: Any = None) -> None:
    """Wait for all work that a device was given.

    Errors: what kernels reported meanwhile (an index out of range, an integer division by zero); CudaError where work failed.
    """
    copies.synchronize(_index(device))


class Stream(_Stream):
    __doc__ = _Stream.__doc__
    __slots__ = ()

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        super().__init__(_index(device), priority)

    @property
    def device(self) -> Any:
        """The stream's device."""
        from tensorsmith.core.device import Device

        return Device("cuda", self.device_index)


def stream(stream: _Stream | None) -> StreamContext:
    """Let a stream, and its device, be current for a block of code: `with ts.cuda.stream(s): ...`."""
    return StreamContext(stream)


def current_stream(device: Any = None) -> Stream:
    """The stream that work for a device goes to."""
    index = _index(device)
    return Stream.of_handle(allocator.current_stream(index), index)


def default_stream(device: Any = None) -> Stream:
    """The stream that is current at first."""
    return Stream.of_handle(0, _index(device))


def set_sync_debug(mode: bool | int) -> None:
    """Wait for every launch, so that a failing kernel raises at the call that launched it (True), or not (False, the default).

    It costs all overlap of host and device: for finding errors.
    """
    devices.set_debug(bool(mode))


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What to do where the host waits for the device without being asked to (`.item()`, `.cpu()`, printing): PyTorch's
    "default" (0), "warn" (1) or "error" (2)."""
    copies.set_wait_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """The number of the mode that `set_sync_debug_mode` set."""
    return copies.wait_mode()


def empty_cache() -> None:
    """Return all large blocks that lie idle to the driver, on every device; waits for the devices."""
    allocator.empty_cache()
    if devices.used():
        pinned.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes on a device: free (for all processes), in total."""
    return driver_memory.information(_index(device))


def memory_allocated(device: Any = None) -> int:
    """Bytes of device memory in use by tensors, by the sizes of their blocks."""
    return memory_report.allocated(_index(device)) if is_initialized() else 0


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use by tensors since the start or `reset_peak_memory_stats`; small blocks are counted roughly."""
    return memory_report.most_allocated(_index(device)) if is_initialized() else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that were taken from the driver: in use or cached."""
    return memory_report.reserved(_index(device)) if is_initialized() else 0


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes taken from the driver since the start or `reset_peak_memory_stats`."""
    return memory_report.most_reserved(_index(device)) if is_initialized() else 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start again from what is used now."""
    memory_report.reset_peaks(_index(device))


def memory_stats(device: Any = None) -> dict[str, int]:
    """What the allocator counts, under PyTorch's names where it counts the same."""
    return memory_report.statistics(_index(device))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of what the allocator has, for people."""
    return memory_report.summary(_index(device))


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Take at most this part of a device's memory; beyond it a request is out of memory.

    Errors: ValueError outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of memory must be in [0, 1], got {fraction}")
    index = _index(device)
    allocator.set_cap(None if fraction == 1 else int(fraction * devices.total_memory(index)), index)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of a device's memory that this process may take."""
    index = _index(device)
    cap = allocator.state_of(index).cap
    return 1.0 if cap is None else cap / devices.total_memory(index)


def set_allocator(
    allocate: Callable[[int, int, int], int] | None, free: Callable[[int, int, int, int], None] | None = None
) -> None:
    """Take device memory from your own functions from now on; None is the driver again.

    allocate(nbytes, device, stream) -> address, 0 for no memory; free(address, nbytes, device, stream)
    Blocks are cached above them, and go back where they came from.
    """
    driver_memory.set_allocator(allocate, free)


def _generator() -> Any:
    from tensorsmith.ops import random

    return random.default_generator


def manual_seed(seed: int) -> None:
    """Start the stream of random numbers of a seed; one generator serves the CPU and all devices."""
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """As `manual_seed`."""
    manual_seed(seed)


def seed() -> None:
    """Start the stream of a seed from the operating system."""
    _generator().seed()


def seed_all() -> None:
    """As `seed`."""
    seed()


def initial_seed() -> int:
    """The seed of the generator."""
    return int(_generator().initial_seed())


def get_rng_state(device: Any = "cuda") -> Any:
    """The generator's state as a tensor of bytes on the CPU."""
    return _generator().get_state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Go on from a state that `get_rng_state` gave."""
    _generator().set_state(new_state)


__all__ = [
    "CUDAGraph", "CudaCompileError", "CudaError", "CudaUnavailableError", "Event", "ExternalStream", "OutOfMemoryError",
    "Stream", "StreamContext", "can_device_access_peer", "current_device", "current_stream", "default_stream", "device",
    "device_count", "device_of", "empty_cache", "get_device_capability", "get_device_name", "get_device_properties",
    "get_per_process_memory_fraction", "get_rng_state", "get_sync_debug_mode", "graph", "graph_pool_handle", "init",
    "initial_seed", "is_available", "is_bf16_supported", "is_current_stream_capturing", "is_initialized",
    "make_graphed_callables", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary", "reset_peak_memory_stats",
    "seed", "seed_all", "set_allocator", "set_device", "set_per_process_memory_fraction", "set_rng_state", "set_stream",
    "set_sync_debug", "set_sync_debug_mode", "stream", "synchronize",
]  # fmt: skip

"""Streams and events: orders of work on a device, and points in them.

Work of one stream runs in order, that of different streams may overlap. Each device has a current stream, at first the
default stream (handle 0, CUDA's legacy stream, as in PyTorch). It is the same for all threads of the process.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from tensorsmith.targets.cuda import allocator, devices, driver, errors
from tensorsmith.targets.cuda.copies import synchronize

_POOL = 32  # streams of one priority and device; further ones share them
_NOT_READY = 600


class Stream:
    """A stream of a device.

    device:   the device's index; None for the current one
    priority: 0, or -1 for work that goes before that of other streams
    Streams are never destroyed: from the 33rd of a priority on they share CUDA's. Errors: ValueError for no such device.
    """

    __slots__ = ("device_index", "priority", "cuda_stream")

    def __init__(self, device: int | None = None, priority: int = 0) -> None:
        index = devices.current_device() if device is None else device
        self.device_index = index
        self.priority = min(0, priority)
        self.cuda_stream: int = _pooled(index, self.priority)

    @classmethod
    def of_handle(cls, handle: int, index: int) -> Self:
        """The stream of a handle of CUDA's."""
        stream = cls.__new__(cls)
        stream.device_index = index
        stream.priority = 0
        stream.cuda_stream = handle
        return stream

    def wait_event(self, event: Event) -> None:
        """Let all work given to this stream from now on come after an event."""
        event._wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Let all work given to this stream from now on come after what another stream has been given so far."""
        event = allocator.record_event(stream.cuda_stream, stream.device_index)
        devices.use(self.device_index)
        driver.call("cuStreamWaitEvent", self.cuda_stream, event, 0)
        allocator.keep_event(event, stream.device_index)

    def record_event(self, event: Event | None = None) -> Event:
        """An event after what this stream has been given so far."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work given to the stream is done."""
        devices.use(self.device_index)
        return _ready("cuStreamQuery", self.cuda_stream)

    def synchronize(self) -> None:
        """Wait for all work given to the stream.

        Errors: what kernels reported; CudaError where work failed.
        """
        devices.use(self.device_index)
        driver.call("cuStreamSynchronize", self.cuda_stream)
        errors.check(self.device_index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device_index, self.cuda_stream) == (other.device_index, other.cuda_stream)

    def __hash__(self) -> int:
        return hash((self.device_index, self.cuda_stream))

    def __cuda_stream__(self) -> tuple[int, int]:
        """CUDA's stream protocol: (version, handle)."""
        return 0, self.cuda_stream

    def __repr__(self) -> str:
        return f"<ts.cuda.Stream device=cuda:{self.device_index} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream that another library made, by its handle; it must live as long as this is used.

    stream_ptr: the handle, or an object with `__cuda_stream__`; device: the device's index, None for the current one
    """

    __slots__ = ()

    def __init__(self, stream_ptr: Any, device: int | None = None) -> None:
        if hasattr(stream_ptr, "__cuda_stream__"):
            stream_ptr = stream_ptr.__cuda_stream__()[1]
        self.device_index = devices.current_device() if device is None else device
        self.priority = 0
        self.cuda_stream = int(stream_ptr)


class Event:
    """A point in a stream.

    enable_timing: whether `elapsed_time` can be asked; blocking: `synchronize` sleeps instead of spinning
    """

    __slots__ = ("enable_timing", "blocking", "device_index", "cuda_event")

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("events that other processes can see are not there yet: Event(interprocess=True)")
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.device_index = -1  # made at the first record, on the device of that stream
        self.cuda_event = 0

    def record(self, stream: Stream | None = None) -> None:
        """Set the point after what a stream (None: the current one) has been given so far."""
        stream = stream or current_stream()
        devices.use(stream.device_index)
        if not self.cuda_event:
            flags = (0 if self.enable_timing else 2) | (1 if self.blocking else 0)
            self.cuda_event = int(driver.call("cuEventCreate", flags))
            self.device_index = stream.device_index
        if stream.device_index != self.device_index:
            raise ValueError(f"the event is of cuda:{self.device_index}, the stream of cuda:{stream.device_index}")
        driver.call("cuEventRecord", self.cuda_event, stream.cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Let all work given to a stream (None: the current one) from now on come after this point."""
        self._wait(stream or current_stream())

    def query(self) -> bool:
        """Whether the work before this point is done; True if it was never recorded."""
        if not self.cuda_event:
            return True
        devices.use(self.device_index)
        return _ready("cuEventQuery", self.cuda_event)

    def synchronize(self) -> None:
        """Wait for the work before this point.

        Errors: what kernels reported; CudaError where work failed.
        """
        if self.cuda_event:
            devices.use(self.device_index)
            driver.call("cuEventSynchronize", self.cuda_event)
            errors.check(self.device_index)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to a later one; both recorded and done.

        Errors: ValueError for events without timing or not recorded; RuntimeError for events that are not done.
        """
        if not self.enable_timing or not end_event.enable_timing:
            raise ValueError("elapsed_time needs two events made with enable_timing=True")
        if not self.cuda_event or not end_event.cuda_event:
            raise ValueError("elapsed_time needs two events that were recorded")
        if not self.query() or not end_event.query():
            raise RuntimeError("elapsed_time needs events that are done: call synchronize() on the later one first")
        return float(driver.call("cuEventElapsedTime", self.cuda_event, end_event.cuda_event))

    def ipc_handle(self) -> bytes:
        """Not there yet."""
        raise NotImplementedError("events that other processes can see are not there yet: Event.ipc_handle()")

    def _wait(self, stream: Stream) -> None:
        if self.cuda_event:  # an event that was never recorded holds nothing up
            devices.use(stream.device_index)
            driver.call("cuStreamWaitEvent", stream.cuda_stream, self.cuda_event, 0)

    def __del__(self) -> None:
        if getattr(self, "cuda_event", 0):
            try:
                driver.status("cuEventDestroy", self.cuda_event)
            except Exception:  # noqa: BLE001  the interpreter or the driver is ending
                pass

    def __repr__(self) -> str:
        return f"<ts.cuda.Event {self.cuda_event:#x}>" if self.cuda_event else "<ts.cuda.Event, not recorded>"


class StreamContext:
    """Makes a stream, and its device, current for a block of code; None changes nothing."""

    __slots__ = ("stream", "_device", "_stream")

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> Stream | None:
        if self.stream is not None:
            self._device = devices.current_device()
            self._stream = allocator.current_stream(self.stream.device_index)
            devices.set_device(self.stream.device_index)
            allocator.set_stream(self.stream.device_index, self.stream.cuda_stream)
        return self.stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.stream is not None:
            allocator.set_stream(self.stream.device_index, self._stream)
            devices.set_device(self._device)


def current_stream(index: int | None = None) -> Stream:
    """The stream that work for a device (None: the current one) goes to."""
    index = devices.current_device() if index is None else index
    return Stream.of_handle(allocator.current_stream(index), index)


def default_stream(index: int | None = None) -> Stream:
    """The stream that is current at first."""
    return Stream.of_handle(0, devices.current_device() if index is None else index)


def set_stream(stream: Stream | None) -> None:
    """Make a stream, and its device, current; None changes nothing."""
    if stream is not None:
        devices.set_device(stream.device_index)
        allocator.set_stream(stream.device_index, stream.cuda_stream)


_pools: dict[tuple[int, int], list[int]] = {}
_turns: dict[tuple[int, int], int] = {}
_lock = threading.Lock()


def _pooled(index: int, priority: int) -> int:
    """The handle of a stream: a new one, or when there are many the next in turn."""
    with _lock:
        devices.use(index)
        _, greatest = driver.call("cuCtxGetStreamPriorityRange")
        priority = max(priority, int(greatest))
        pool = _pools.setdefault((index, priority), [])
        if len(pool) < _POOL:
            flags = driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
            pool.append(int(driver.call("cuStreamCreateWithPriority", flags, priority)))
            return pool[-1]
        turn = _turns[index, priority] = (_turns.get((index, priority), -1) + 1) % _POOL
        return pool[turn]


def _ready(function: str, handle: int) -> bool:
    code = driver.status(function, handle)
    if code not in (0, _NOT_READY):
        raise driver.CudaError(function, code)
    return not code


__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "synchronize",
]

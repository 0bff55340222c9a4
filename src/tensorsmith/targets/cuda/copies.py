"""Copies between host and device, and between devices; filling with zeros.

All are in the order of a stream. Memory of the host that is not pinned goes through pinned staging buffers, a piece at a
time, several processors copying; so its copy is as fast as the link, and when a call returns the host may change what it
gave. What is read back is complete when the call returns, and errors that kernels reported until then are raised.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings

from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.launch import RELEASE_GIL, Recipe
from tensorsmith.targets.cuda import allocator, devices, driver, errors, pinned, small_copies
from tensorsmith.targets.cuda.small_copies import MOST as SMALL

_PIECE = 16 << 20  # bytes of a staging buffer: smaller pieces pay for waking the processors that copy
_BUFFERS = 4
_PARTS = 16  # of a host copy, for so many processors
_SERIAL = 256 << 10  # host copies up to this size are one processor's


_MODES = ("default", "warn", "error")
_wait_mode = 0


def set_wait_mode(mode: int | str) -> None:
    """What to do where the host waits for a device without being asked to: 0 "default" nothing, 1 "warn", 2 "error".

    Errors: ValueError for another mode.
    """
    global _wait_mode
    number = _MODES.index(mode) if mode in _MODES else mode
    if number not in (0, 1, 2):
        raise ValueError(f"the mode is one of {', '.join(_MODES)} or 0, 1, 2, got {mode!r}")
    _wait_mode = int(number)


def wait_mode() -> int:
    """The number of the mode."""
    return _wait_mode


def _note_wait() -> None:
    if _wait_mode == 1:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=4)
    elif _wait_mode:
        raise RuntimeError("called a synchronizing CUDA operation")


def copy_to_device(
    dst: int, host: int, nbytes: int, index: int, stream: int | None = None, blocking: bool = True
) -> None:
    """Copy from memory of the host at address `host` to the device.

    stream:   the handle of the stream; None for the current one
    blocking: False lets the copy from pinned memory run on after the call: the host must not change the memory before the
              stream is there (a block of `pinned` may be released at once). Other memory may be changed after either.
    Errors: CudaError; RuntimeError while a stream is captured into a graph, from memory that is not pinned.
    """
    if not nbytes:
        return
    if nbytes <= SMALL and blocking and stream is None and not allocator.capturing():
        small_copies.send(dst, host, nbytes, index)
        return
    devices.use(index)
    stream = allocator.current_stream(index) if stream is None else stream
    if pinned.is_pinned(host, nbytes):
        if blocking and _wait_mode:
            _note_wait()
        driver.call("cuMemcpyHtoDAsync", dst, host, nbytes, stream)
        if blocking:
            driver.call("cuStreamSynchronize", stream)
        else:
            pinned.note_use(host, index, stream)
        return
    _refuse_capture(index, stream)
    staging = _staging(index)
    with staging.lock:
        for at in range(0, nbytes, _PIECE):
            length = min(_PIECE, nbytes - at)
            buffer = staging.take()
            copy_on_host(buffer.address, host + at, length)
            driver.call("cuMemcpyHtoDAsync", dst + at, buffer.address, length, stream)
            driver.call("cuEventRecord", buffer.event, stream)


def copy_to_host(
    host: int, src: int, nbytes: int, index: int, stream: int | None = None, blocking: bool = True
) -> None:
    """Copy from the device to memory of the host at address `host`.

    blocking: False lets a copy to pinned memory run on after the call; a copy to other memory is always waited for.
    Errors: CudaError; what kernels reported until then, where the copy is waited for.
    """
    if not nbytes:
        return
    if nbytes <= SMALL and blocking and stream is None and not allocator.capturing():
        if _wait_mode:
            _note_wait()
        small_copies.fetch(host, src, nbytes, index)
        errors.check(index)
        return
    devices.use(index)
    stream = allocator.current_stream(index) if stream is None else stream
    is_pinned = pinned.is_pinned(host, nbytes)
    if _wait_mode and (blocking or not is_pinned):
        _note_wait()
    if is_pinned:
        driver.call("cuMemcpyDtoHAsync", host, src, nbytes, stream)
        if not blocking:
            pinned.note_use(host, index, stream)
            return
        driver.call("cuStreamSynchronize", stream)
    else:
        _refuse_capture(index, stream)
        _staged_to_host(host, src, nbytes, index, stream)
    errors.check(index)


def _staged_to_host(host: int, src: int, nbytes: int, index: int, stream: int) -> None:
    staging = _staging(index)
    with staging.lock:
        flying: list[tuple[_Buffer, int, int]] = []
        for at in range(0, nbytes, _PIECE):
            length = min(_PIECE, nbytes - at)
            if len(flying) == _BUFFERS - 1:
                _land(host, *flying.pop(0))
            buffer = staging.take()
            driver.call("cuMemcpyDtoHAsync", buffer.address, src + at, length, stream)
            driver.call("cuEventRecord", buffer.event, stream)
            flying.append((buffer, at, length))
        for piece in flying:
            _land(host, *piece)


def _land(host: int, buffer: _Buffer, at: int, length: int) -> None:
    driver.call("cuEventSynchronize", buffer.event)
    copy_on_host(host + at, buffer.address, length)


def copy_on_device(dst: int, dst_index: int, src: int, src_index: int, nbytes: int) -> None:
    """Copy between two places of one device, or of two, in the order of the current streams of both."""
    if not nbytes:
        return
    source_stream = allocator.current_stream(src_index)
    if dst_index == src_index:
        devices.use(dst_index)
        driver.call("cuMemcpyDtoDAsync", dst, src, nbytes, source_stream)
        return
    target_stream = allocator.current_stream(dst_index)
    target_context = devices.context(dst_index)
    ready = allocator.record_event(target_stream, dst_index)  # what used the target before
    source_context = devices.context(src_index)
    driver.call("cuStreamWaitEvent", source_stream, ready, 0)
    driver.call("cuMemcpyPeerAsync", dst, target_context, src, source_context, nbytes, source_stream)
    done = allocator.record_event(source_stream, src_index)
    devices.use(dst_index)
    driver.call("cuStreamWaitEvent", target_stream, done, 0)
    # A wait refers to what was recorded when it was given, so the events may be recorded anew at once.
    allocator.keep_event(ready, dst_index)
    allocator.keep_event(done, src_index)


def fill_zero(dst: int, nbytes: int, index: int) -> None:
    """Fill bytes of the device with zeros, on the current stream."""
    if nbytes:
        devices.use(index)
        driver.call("cuMemsetD8Async", dst, 0, nbytes, allocator.current_stream(index))


def synchronize(index: int) -> None:
    """Wait for all work that the device has been given.

    Errors: what kernels reported until then; CudaError where work failed.
    """
    devices.use(index)
    driver.call("cuCtxSynchronize")
    errors.check(index, idle=True)


def copy_on_host(dst: int, src: int, nbytes: int) -> None:
    """Copy within memory of the host, by several processors where it is much, letting other Python threads run."""
    if nbytes <= _SERIAL:
        ctypes.memmove(dst, src, nbytes)
        return
    from tensorsmith.targets.cpu.launch import launch

    launch(_parallel_copy().address, dst, src, nbytes)


def _refuse_capture(index: int, stream: int) -> None:
    if allocator.state_of(index).pools:
        status = driver.call("cuStreamIsCapturing", stream)
        if status != driver.bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
            raise RuntimeError(
                "memory of the host that is not pinned cannot be copied while a stream is captured into a graph: "
                "copy it before, or from pin_memory()"
            )


class _Buffer:
    def __init__(self) -> None:
        self.address = pinned.allocate(_PIECE)
        self.event = int(driver.call("cuEventCreate", driver.bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))


class _Staging:
    """The staging buffers of a device, taken in turn."""

    def __init__(self, index: int) -> None:
        self.lock = threading.Lock()
        devices.use(index)
        self.buffers: list[_Buffer] = []  # made when they are needed
        self.next = 0

    def take(self) -> _Buffer:
        """The next buffer, once the copy that used it last is done."""
        if self.next == len(self.buffers):
            self.buffers.append(_Buffer())
        buffer = self.buffers[self.next]
        self.next = (self.next + 1) % _BUFFERS
        driver.call("cuEventSynchronize", buffer.event)
        return buffer


@functools.cache
def _staging(index: int) -> _Staging:
    return _Staging(index)


# Words: dst, src, bytes, the error word. Each part is a multiple of a cache line.
_COPY_TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
define void @copy_parts(ptr %arguments, i32 %chunk, i32 %chunks, i32 %worker) {
  %dst = load ptr, ptr %arguments
  %src_at = getelementptr i64, ptr %arguments, i64 1
  %src = load ptr, ptr %src_at
  %bytes_at = getelementptr i64, ptr %arguments, i64 2
  %bytes = load i64, ptr %bytes_at
  %n = zext i32 %chunks to i64
  %i = zext i32 %chunk to i64
  %share = udiv i64 %bytes, %n
  %more = add i64 %share, 64
  %part = and i64 %more, -64
  %low0 = mul i64 %i, %part
  %high0 = add i64 %low0, %part
  %low = call i64 @llvm.umin.i64(i64 %low0, i64 %bytes)
  %high = call i64 @llvm.umin.i64(i64 %high0, i64 %bytes)
  %length = sub i64 %high, %low
  %to = getelementptr i8, ptr %dst, i64 %low
  %from = getelementptr i8, ptr %src, i64 %low
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %length, i1 false)
  ret void
}
"""


@functools.cache
def _parallel_copy() -> Recipe:
    (function,) = compile_functions(_COPY_TEXT, ["copy_parts"])
    return Recipe(function, _PARTS, 3, (), RELEASE_GIL)

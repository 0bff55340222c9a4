"""Small copies between host and device, each one native call: `.item()`, a tensor of a few numbers.

To the host: through a pinned buffer of the thread, waited for. To the device: the bytes are put into a ring of pinned memory,
from where the device fetches them in the order of the stream; when the ring is full, the device is waited for once.
"""

from __future__ import annotations

import ctypes
import functools
import threading

from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.launch import RELEASE_GIL, Recipe, launch
from tensorsmith.targets.cuda import devices, driver, pinned
from tensorsmith.targets.cuda.devices import Cell

MOST = 256 << 10  # bytes of a small copy
_RING_BYTES = 4 << 20
_FULL = 1 << 20  # code: the ring has no place
_SLOT = 256  # slots of the ring start at multiples

# Words: target, source, bytes, the error word; then the device's cell, pinned memory and, for the ring, its size and position.
_TEXT = r"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i32 @enter(ptr %cell, ptr %before_slot) {
entry:
  store ptr null, ptr %before_slot
  %get_at = getelementptr i64, ptr %cell, i64 {GET_CONTEXT}
  %get = load ptr, ptr %get_at
  %status0 = call i32 %get(ptr %before_slot)
  %before = load ptr, ptr %before_slot
  %context = load ptr, ptr %cell
  %there = icmp eq ptr %before, %context
  br i1 %there, label %exit, label %set
set:
  %set_at = getelementptr i64, ptr %cell, i64 {SET_CONTEXT}
  %set_function = load ptr, ptr %set_at
  %status = call i32 %set_function(ptr %context)
  ret i32 %status
exit:
  store ptr null, ptr %before_slot
  ret i32 0
}

define internal void @leave(ptr %cell, ptr %before_slot) {
entry:
  %before = load ptr, ptr %before_slot
  %nothing = icmp eq ptr %before, null
  br i1 %nothing, label %exit, label %set
set:
  %set_at = getelementptr i64, ptr %cell, i64 {SET_CONTEXT}
  %set_function = load ptr, ptr %set_at
  %status = call i32 %set_function(ptr %before)
  ret void
exit:
  ret void
}

define void @fetch(ptr %words, i32 %chunk, i32 %chunks, i32 %worker) {
entry:
  %before_slot = alloca ptr
  %target = load ptr, ptr %words
  %w1 = getelementptr i64, ptr %words, i64 1
  %source = load i64, ptr %w1
  %w2 = getelementptr i64, ptr %words, i64 2
  %bytes = load i64, ptr %w2
  %w3 = getelementptr i64, ptr %words, i64 3
  %error = load ptr, ptr %w3
  %w4 = getelementptr i64, ptr %words, i64 4
  %cell = load ptr, ptr %w4
  %w5 = getelementptr i64, ptr %words, i64 5
  %buffer = load ptr, ptr %w5
  %stream_at = getelementptr i64, ptr %cell, i64 {STREAM}
  %stream = load ptr, ptr %stream_at
  %entered = call i32 @enter(ptr %cell, ptr %before_slot)
  %fine0 = icmp eq i32 %entered, 0
  br i1 %fine0, label %copy, label %bad
copy:
  %copy_at = getelementptr i64, ptr %cell, i64 {COPY_TO_HOST}
  %copy_function = load ptr, ptr %copy_at
  %copied = call i32 %copy_function(ptr %buffer, i64 %source, i64 %bytes, ptr %stream)
  %fine1 = icmp eq i32 %copied, 0
  br i1 %fine1, label %wait, label %bad
wait:
  %wait_at = getelementptr i64, ptr %cell, i64 {SYNCHRONIZE_STREAM}
  %wait_function = load ptr, ptr %wait_at
  %waited = call i32 %wait_function(ptr %stream)
  %fine2 = icmp eq i32 %waited, 0
  br i1 %fine2, label %land, label %bad
land:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %buffer, i64 %bytes, i1 false)
  call void @leave(ptr %cell, ptr %before_slot)
  ret void
bad:
  %status = phi i32 [%entered, %entry], [%copied, %copy], [%waited, %wait]
  %code = zext i32 %status to i64
  store i64 %code, ptr %error
  call void @leave(ptr %cell, ptr %before_slot)
  ret void
}

define void @send(ptr %words, i32 %chunk, i32 %chunks, i32 %worker) {
entry:
  %before_slot = alloca ptr
  %target = load i64, ptr %words
  %w1 = getelementptr i64, ptr %words, i64 1
  %source = load ptr, ptr %w1
  %w2 = getelementptr i64, ptr %words, i64 2
  %bytes = load i64, ptr %w2
  %w3 = getelementptr i64, ptr %words, i64 3
  %error = load ptr, ptr %w3
  %w4 = getelementptr i64, ptr %words, i64 4
  %cell = load ptr, ptr %w4
  %w5 = getelementptr i64, ptr %words, i64 5
  %ring = load ptr, ptr %w5
  %w6 = getelementptr i64, ptr %words, i64 6
  %size = load i64, ptr %w6
  %w7 = getelementptr i64, ptr %words, i64 7
  %position_at = load ptr, ptr %w7
  %stream_at = getelementptr i64, ptr %cell, i64 {STREAM}
  %stream = load ptr, ptr %stream_at
  %position = load i64, ptr %position_at
  %end = add i64 %position, %bytes
  %padded = add i64 %end, {SLOT_MASK}
  %next = and i64 %padded, -{SLOT}
  %full = icmp ugt i64 %end, %size
  br i1 %full, label %no_place, label %place
no_place:
  store i64 {FULL}, ptr %error
  ret void
place:
  store i64 %next, ptr %position_at
  %slot = getelementptr i8, ptr %ring, i64 %position
  call void @llvm.memcpy.p0.p0.i64(ptr %slot, ptr %source, i64 %bytes, i1 false)
  %entered = call i32 @enter(ptr %cell, ptr %before_slot)
  %fine0 = icmp eq i32 %entered, 0
  br i1 %fine0, label %copy, label %bad
copy:
  %copy_at = getelementptr i64, ptr %cell, i64 {COPY_TO_DEVICE}
  %copy_function = load ptr, ptr %copy_at
  %copied = call i32 %copy_function(i64 %target, ptr %slot, i64 %bytes, ptr %stream)
  %fine1 = icmp eq i32 %copied, 0
  br i1 %fine1, label %exit, label %bad
exit:
  call void @leave(ptr %cell, ptr %before_slot)
  ret void
bad:
  %status = phi i32 [%entered, %place], [%copied, %copy]
  %code = zext i32 %status to i64
  store i64 %code, ptr %error
  call void @leave(ptr %cell, ptr %before_slot)
  ret void
}
"""


class _Thread(threading.local):
    """The recipes of a thread, with the buffers they go through."""

    def __init__(self) -> None:
        self.fetches: dict[int, Recipe] = {}


_thread = _Thread()
_rings: dict[int, tuple[Recipe, ctypes.c_int64]] = {}  # device -> recipe, position
_lock = threading.Lock()


def fetch(host: int, src: int, nbytes: int, index: int) -> None:
    """Copy at most `MOST` bytes from the device to the host on the current stream, and wait.

    Errors: CudaError.
    """
    recipe = _thread.fetches.get(index)
    if recipe is None:
        cell = devices.use(index).cell
        buffer = pinned.allocate(MOST)
        recipe = _thread.fetches[index] = Recipe(_functions()[0], 1, 3, (cell, buffer), RELEASE_GIL)
        recipe.keep = _Returned(buffer)
    code = launch(recipe.address, host, src, nbytes)
    if code is not None:
        raise driver.CudaError("cuMemcpyDtoHAsync", code)


def send(dst: int, host: int, nbytes: int, index: int) -> None:
    """Copy at most `MOST` bytes of the host to the device on the current stream; the host may change them at once.

    Errors: CudaError.
    """
    recipe, position = _rings.get(index) or _ring(index)
    code = launch(recipe.address, dst, host, nbytes)
    while code == _FULL:
        before = position.value
        devices.use(index)
        driver.call("cuCtxSynchronize")
        if position.value == before:  # else another thread put something in meanwhile, or began again
            position.value = 0
        code = launch(recipe.address, dst, host, nbytes)
    if code is not None:
        raise driver.CudaError("cuMemcpyHtoDAsync", code)


class _Returned:
    """Gives a thread's buffer back when the thread ends."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.free = pinned.free_list(MOST)

    def __del__(self) -> None:
        self.free.append(self.address)


def _ring(index: int) -> tuple[Recipe, ctypes.c_int64]:
    with _lock:
        found = _rings.get(index)
        if found is None:
            cell, position = devices.use(index).cell, ctypes.c_int64(0)
            constants = (cell, pinned.allocate(_RING_BYTES), _RING_BYTES, ctypes.addressof(position))
            found = _rings[index] = Recipe(_functions()[1], 1, 3, constants), position
    return found


@functools.cache
def _functions() -> list[int]:
    text = _TEXT.replace("{SLOT_MASK}", str(_SLOT - 1)).replace("{SLOT}", str(_SLOT)).replace("{FULL}", str(_FULL))
    for word in Cell:
        text = text.replace("{" + word.name + "}", str(word.value))
    return compile_functions(text, ["fetch", "send"])

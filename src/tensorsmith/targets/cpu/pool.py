"""The thread pool of the CPU target: its threads, its size, fork and exit.

The pool itself is machine code (``pool_text``).  Its workers are daemon Python threads parked in a call that has
released the GIL; they are started by the first job that has more than one chunk.  A job needs the pool's try-lock:
nested and concurrent callers run their chunks themselves.  Off Linux (and on unknown architectures) every job runs
serially and ``supported()`` says why.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.pool_text import AFFINITY_BYTES, MOST_THREADS, STATE, linux_architectures, pool_text
from tensorsmith.targets.cpu.processors import default_threads

_SPIN_SECONDS = 60e-6  # longer spins hurt when processors are shared, shorter ones pay a wake-up between kernels
_MOST_HINTED = 16  # the affinity hint is one system call a worker: too dear, and needless, on wide machines


@dataclass(frozen=True)
class NativePool:
    """Addresses of the pool's machine code and state, and its Python-callable parts (None without threads)."""

    execute: int
    state: int
    wait: int
    worker: Any = None
    try_lock: Any = None
    unlock: Any = None
    stop: Any = None
    pause: Any = None


_lock = threading.RLock()  # starting, stopping, resizing
_threads: list[threading.Thread] = []
_requested: int | None = None
_starting = False
_finished = False


def supported() -> tuple[bool, str]:
    """Whether jobs can run on several threads here, and if not, why."""
    if not sys.platform.startswith("linux"):
        return False, f"threads wait on a Linux futex, which {sys.platform} lacks; kernels run on one thread"
    if platform.machine() not in linux_architectures():
        return False, f"the thread pool is not written for {platform.machine()} processors; kernels run on one thread"
    return True, ""


@functools.cache
def native_pool() -> NativePool:
    """The pool's machine code, compiled or loaded at the first call."""
    able, _ = supported()
    if not able:
        pool = NativePool(*compile_functions(pool_text(None), ["execute", "pool_state", "pool_wait"]))
    else:
        names = ["worker", "try_lock", "unlock", "stop", "pause"]
        exported = ["execute", "pool_state", "pool_wait", *(f"pool_{name}" for name in names)]
        execute, state, wait, worker, try_lock, unlock, stop, pause = compile_functions(pool_text(platform.machine()), exported)
        pool = NativePool(
            execute,
            state,
            wait,
            ctypes.CFUNCTYPE(None, ctypes.c_int32)(worker),  # releases the GIL: a worker stays in it for its life
            ctypes.PYFUNCTYPE(ctypes.c_int32)(try_lock),
            ctypes.PYFUNCTYPE(None)(unlock),
            ctypes.PYFUNCTYPE(None)(stop),
            ctypes.PYFUNCTYPE(None, ctypes.c_int32)(pause),
        )
    # The state's word is borrowed: `ensure_started` is a module global and lives as long as the process.
    ctypes.c_void_p.from_address(pool.state + STATE.STARTER).value = id(ensure_started)
    return pool


def get_num_threads() -> int:
    """How many threads a parallel kernel uses (PyTorch's ``get_num_threads``)."""
    if not supported()[0]:
        return 1
    return _requested if _requested is not None else default_threads()


def set_num_threads(n: int) -> None:
    """Use ``n`` threads, the caller included; results do not depend on it.

    Raises:
        TypeError, ValueError: ``n`` is not an int, or outside [1, 512].
        RuntimeError: more than one thread where only one is supported.
    """
    global _requested
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"set_num_threads expects an int, got {type(n).__name__}")
    if not 1 <= n <= MOST_THREADS:
        raise ValueError(f"set_num_threads expects a number in [1, {MOST_THREADS}], got {n}")
    able, reason = supported()
    if n > 1 and not able:
        raise RuntimeError(f"cannot use {n} threads: {reason}")
    with _lock:
        if n == get_num_threads() and (not _threads or len(_threads) == n - 1):
            _requested = n
            return
        _requested = n
        _stop_workers()


def worker_count() -> int:
    """Number of worker threads alive now (0 before the first parallel job, and in a fresh child of a fork)."""
    return len(_threads)


def ensure_started() -> None:
    """Start the workers if they are wanted and not running; called by the first job with several chunks."""
    global _starting

    pool = native_pool()
    status = _word(pool, STATE.STATUS)
    if status.value:
        return
    with _lock:
        if status.value or _starting:  # a finaliser that runs while the threads start may launch: that job is serial
            return
        _starting = True
        try:
            wanted = 0 if _finished or pool.worker is None else get_num_threads() - 1
            if wanted > len(_threads):
                _start_workers(pool, wanted)
            _word(pool, STATE.WORKERS).value = len(_threads)
            status.value = 1
        finally:
            _starting = False


def _start_workers(pool: NativePool, wanted: int) -> None:
    import atexit

    _register_exit(atexit.register)
    if not _threads:  # else an interrupt came in between, and this continues
        _prepare(pool, wanted)
    try:
        for number in range(len(_threads) + 1, wanted + 1):
            thread = threading.Thread(target=_work, args=(pool, number), name=f"tensorsmith-{number}", daemon=True)
            thread.start()
            _threads.append(thread)
    except RuntimeError:  # no more threads (a limit, or the interpreter is ending): use those that started
        pass
    _word(pool, STATE.HINTED).value = len(_threads) if len(_threads) <= _MOST_HINTED else 0


def _work(pool: NativePool, number: int) -> None:
    _word(pool, STATE.THREADS + 4 * (number - 1)).value = threading.get_native_id()
    pool.worker(number)


def _word(pool: NativePool, offset: int) -> ctypes.c_int32:
    return ctypes.c_int32.from_address(pool.state + offset)


def _prepare(pool: NativePool, workers: int) -> None:
    """Fill in what the workers read: the spin count, measured, and the process's affinity mask."""
    pauses = 1000
    start = time.perf_counter()
    pool.pause(pauses)
    each = max((time.perf_counter() - start) / pauses, 1e-9)
    _word(pool, STATE.SPIN).value = max(100, min(200_000, int(_SPIN_SECONDS / each)))
    mask = bytearray(AFFINITY_BYTES)
    for cpu in os.sched_getaffinity(0):
        if cpu < AFFINITY_BYTES * 8:
            mask[cpu >> 3] |= 1 << (cpu & 7)
    ctypes.memmove(pool.state + STATE.MASK, bytes(mask), AFFINITY_BYTES)
    _word(pool, STATE.LAST_CPU).value = -1
    # Until a worker has noted its own number here, a hint to it must reach no other thread.
    ctypes.memset(pool.state + STATE.THREADS, 0xFF, 4 * workers)


def _acquire_native(pool: NativePool) -> None:
    """Wait until no job runs and none can start."""
    while pool.try_lock is not None and not pool.try_lock():
        time.sleep(20e-6)  # releases the GIL: the job's caller may need it to finish


def _stop_workers() -> None:
    """Let every worker return, then start again lazily. ``_lock`` is held."""
    pool = native_pool()
    if _threads:
        _acquire_native(pool)
        _word(pool, STATE.WORKERS).value = 0
        pool.stop()
        for thread in _threads:
            thread.join()
        _threads.clear()
        _word(pool, STATE.STOP).value = 0
        _word(pool, STATE.SLEEPERS).value = 0
        pool.unlock()
    _word(pool, STATE.STATUS).value = 0


@functools.cache
def _register_exit(register: Any) -> None:
    register(_finish)


def _finish() -> None:
    """At exit: workers return while Python can still end them; later jobs run serially."""
    global _finished
    with _lock:
        _finished = True
        _stop_workers()


def _before_fork() -> None:
    _lock.acquire()
    if native_pool.cache_info().currsize:
        _acquire_native(native_pool())


def _after_fork_in_parent() -> None:
    if native_pool.cache_info().currsize and native_pool().unlock is not None:
        native_pool().unlock()
    _lock.release()


def _after_fork_in_child() -> None:
    """The child has the code and the state but none of the workers: forget them, start fresh when needed."""
    if native_pool.cache_info().currsize:
        pool = native_pool()
        _threads.clear()
        starter = ctypes.c_void_p.from_address(pool.state + STATE.STARTER).value
        ctypes.memset(pool.state, 0, STATE.SIZE)
        ctypes.c_void_p.from_address(pool.state + STATE.STARTER).value = starter
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

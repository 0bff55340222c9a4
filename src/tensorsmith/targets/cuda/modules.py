"""Kernels in the process: text -> cubin (compiled once, kept on disk) -> module -> function, loaded at first use.

A cubin is kept under a hash of the text, the architecture, NVRTC's options and version, in the folder of the CPU's objects.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tensorsmith.targets.cpu.compiler import disk_cache
from tensorsmith.targets.cpu.processors import default_threads
from tensorsmith.targets.cuda import compile as compiler, devices, driver

_DEFAULT_SHARED = 48 << 10  # dynamic shared memory that a kernel may have without asking


@dataclass
class Statistics:
    """Counts since the process started: cubins compiled, read from disk; modules loaded."""

    compiled: int = 0
    from_disk: int = 0
    loaded: int = 0


statistics = Statistics()
_lock = threading.RLock()
_being_made: dict[str, threading.Lock] = {}
_cubins: dict[str, bytes] = {}
_modules: dict[tuple[int, str], int] = {}
_functions: dict[tuple[int, str, str], int] = {}
_shared: dict[int, int] = {}  # function -> dynamic shared memory that it may have


def cubin(source: str, name: str, architecture: str) -> bytes:
    """The cubin of CUDA text for an architecture: from memory, from disk, or compiled now.

    Errors: as `compile_cubin`.
    """
    key = _key(source, architecture)
    found = _cubins.get(key)
    if found is not None:
        return found
    with _lock:
        making = _being_made.setdefault(key, threading.Lock())
    with making:  # others that ask for the same text wait, those that ask for another do not
        found = _cubins.get(key)
        if found is None:
            found = disk_cache().load(key)
            if found is None:
                found = compiler.compile_cubin(source, name, architecture)
                disk_cache().store(key, found)
                statistics.compiled += 1
            else:
                statistics.from_disk += 1
            _cubins[key] = found
    return found


def compile_many(texts: Iterable[tuple[str, str]], architecture: str) -> None:
    """Compile several texts (source, name) at a time, as many as there are processors.

    Errors: the first that `compile_cubin` raises.
    """
    missing = {source: name for source, name in texts if _key(source, architecture) not in _cubins}
    if len(missing) < 2:
        for source, name in missing.items():
            cubin(source, name, architecture)
        return
    for made in [_pool().submit(cubin, source, name, architecture) for source, name in missing.items()]:
        made.result()


def function(source: str, name: str, index: int, shared_bytes: int = 0) -> int:
    """The handle of a kernel on a device, allowed to have so much dynamic shared memory.

    Errors: as `cubin`; CudaError where the driver refuses the module or the amount of shared memory.
    """
    architecture = devices.properties(index).architecture
    key = _key(source, architecture)
    found = _functions.get((index, key, name))
    if found is None:
        code = cubin(source, name, architecture)
        with _lock:
            devices.use(index)
            module = _modules.get((index, key))
            if module is None:
                module = _modules[index, key] = int(driver.call("cuModuleLoadData", code))
                statistics.loaded += 1
            found = _functions[index, key, name] = int(driver.call("cuModuleGetFunction", module, name.encode()))
    if shared_bytes > _shared.get(found, _DEFAULT_SHARED):
        with _lock:
            devices.use(index)
            most = driver.bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.call("cuFuncSetAttribute", found, most, shared_bytes)
            _shared[found] = shared_bytes
    return found


def attribute(function: int, name: str) -> int:
    """What the driver knows of a function: "NUM_REGS", "LOCAL_SIZE_BYTES", "SHARED_SIZE_BYTES", ..."""
    key = getattr(driver.bindings().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    return int(driver.call("cuFuncGetAttribute", key, function))


@functools.cache
def _maker(make: Callable[..., bytes]) -> bytes:
    """What makes cubins: NVRTC of some version, or what stands in for it."""
    return repr((make.__module__, compiler.compiler_version(), compiler.OPTIONS)).encode()


def _key(source: str, architecture: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for part in (b"cubin", _maker(compiler.compile_cubin), architecture.encode(), source.encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(default_threads(), "tensorsmith-nvrtc")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

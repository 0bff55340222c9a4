"""A CUDA device that is emulated on the CPU, for tests: no GPU is needed, g++ is.

`activate()` puts a fake libcuda.so.1 (`native/`) in the place of NVIDIA's before anything asks for the driver, and g++ in
the place of NVRTC: the CUDA C++ text of kernels is compiled against `native/device.h` and runs on this processor, block
after block, its threads as fibers that take turns where they wait for each other.

What it finds: results; accesses outside what was allocated (beyond the last page); misaligned vectors; local arrays that
are left; barriers that not all threads reach; shuffles with lanes outside their mask; memory that nobody wrote (device and
shared memory are NaN at first); host code that reads device memory (SIGSEGV); host addresses given to kernels.
What it does not find: races between threads, and missing waits between streams: all work is done when it is issued.

Environment: EMULATED_ARCHITECTURE (sm_80), EMULATED_MULTIPROCESSORS (4), EMULATED_DEVICES (2), EMULATED_MEMORY_MB (4096),
EMULATED_PROTECTION (1; 0 lets the host read device memory), EMULATED_TRACE (1 prints every launch with its time).
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_library: Any = None
_compiled: list[tuple[str, str]] = []  # texts that were compiled, and their names, where they are kept


def active() -> bool:
    """Whether the driver is the fake one."""
    return _library is not None


def activate() -> None:
    """Make the emulated device the only one of this process. RuntimeError where a driver was already loaded."""
    global _library
    if _library is not None:
        return
    from emulator.build import driver_library, module

    path = driver_library()
    _library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # later users find it by its name, libcuda.so.1
    found = ctypes.CDLL("libcuda.so.1")
    if found._handle != _library._handle:
        raise RuntimeError("another libcuda.so.1 was loaded before the emulated one")

    import tensorsmith.targets.cuda.compile as compiling

    real_compile, real_version = compiling.compile_cubin, compiling.compiler_version
    keep = os.environ.get("EMULATED_KEEP")

    def compile_cubin(source: str, name: str = "kernel", arch: str = compiling.DEFAULT_ARCHITECTURE) -> bytes:
        if keep:
            _write(keep, source, name)
        return module(source, name)

    def compiler_version() -> tuple[int, int]:
        return 0, 0  # no NVRTC: cubins that were kept for a device are never taken for modules of the emulator

    compile_cubin.real = real_compile  # type: ignore[attr-defined]
    compiler_version.real = real_version  # type: ignore[attr-defined]
    for where in list(sys.modules.values()):
        for name, old, new in (
            ("compile_cubin", real_compile, compile_cubin), ("compiler_version", real_version, compiler_version)
        ):  # fmt: skip
            if where.__dict__.get(name) is old:
                setattr(where, name, new)


def _write(folder: str, source: str, name: str) -> None:
    """Keep a text, for a compile check by NVRTC later."""
    import hashlib
    from pathlib import Path

    path = Path(folder) / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.cu"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

"""A CUDA device that is emulated on the CPU, for tests: no GPU is needed, g++ is.

`activate()` puts a fake libcuda.so.1 (`native/`) in the place of NVIDIA's before anything asks for the driver, and g++ in
the place of NVRTC where modules are loaded: the CUDA C++ text of kernels is compiled against `native/device.h` and runs on
this processor, block after block, its threads as fibers that take turns where they wait for each other.

What it finds: results; accesses outside what was allocated (beyond the last page); misaligned vectors; local arrays that
are left; barriers that not all threads reach; shuffles with lanes outside their mask; memory that nobody wrote (device and
shared memory are NaN at first); host code that reads device memory (SIGSEGV); host addresses given to kernels.
What it does not find: missing waits between streams, as all work is done when it is issued; and races between threads, but for
those that another order of the threads shows (EMULATED_ORDER).

Environment:
EMULATED_ARCHITECTURE (sm_80), EMULATED_MULTIPROCESSORS (4), EMULATED_DEVICES (2), EMULATED_MEMORY_MB (4096)
EMULATED_PROTECTION   0 lets the host read device memory
EMULATED_ORDER        a seed: threads and blocks run in another order, which must not change results
EMULATED_TRACE        1 prints every launch with its time
EMULATED_KEEP         a folder that gets the texts that were compiled
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

_library: Any = None


def active() -> bool:
    """Whether the driver is the fake one."""
    return _library is not None


def activate() -> None:
    """Make the emulated device the only one of this process. RuntimeError where a driver was already loaded.

    Under `pytest --device cuda` it does nothing: what is tested on the emulated device is tested on the card then.
    """
    global _library
    if _library is not None or os.environ.get("TENSORSMITH_TEST_DEVICE") == "cuda":
        return
    from emulator.build import driver_library

    path = driver_library()
    _library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # later users find it by its name, libcuda.so.1
    found = ctypes.CDLL("libcuda.so.1")
    if found._handle != _library._handle:
        raise RuntimeError("another libcuda.so.1 was loaded before the emulated one")

    import tensorsmith.targets.cuda.launch as launching
    import tensorsmith.targets.cuda.modules as modules

    modules.compiler = Compiler()  # type: ignore[attr-defined]
    launching.compile_cubin = compile_cubin


def compile_cubin(source: str, name: str = "kernel", arch: str = "") -> bytes:
    """CUDA C++ text as a module of the emulated device; EMULATED_KEEP names a folder that the text is written to."""
    from emulator.build import module

    keep = os.environ.get("EMULATED_KEEP")
    if keep:
        _write(keep, source, name)
    return module(source, name, arch)


class Compiler:
    """What takes the place of the module `targets/cuda/compile.py` where modules are loaded; that module itself stays."""

    OPTIONS = ()
    compile_cubin = staticmethod(compile_cubin)

    @staticmethod
    def compiler_version() -> tuple[int, int]:
        from emulator.build import version

        return 0, version()  # no NVRTC: what was kept for a device is never taken for the emulator's, nor the other way round


def _write(folder: str, source: str, name: str) -> None:
    """Keep a text, for a compile check by NVRTC later."""
    path = Path(folder) / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.cu"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

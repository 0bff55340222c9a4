"""NVIDIA's driver, checked: every call that does not succeed is a Python error that says which and why.

Nothing is imported or initialised before the first call. The bindings are `cuda.bindings.driver`; native code takes the
addresses of a few functions from the driver library itself.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from tensorsmith.targets.cuda.compile import CudaUnavailableError

LIBRARY = "libcuda.so.1"

# After these the context answers every call with the same error: only a new process can use the device again.
_STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721}
_NO_DEVICE = 100
_NOT_INITIALIZED = 3

_bindings: Any = None
_lock = threading.Lock()
_forked = False


class CudaError(RuntimeError):
    """The driver refused a call, or work that was given to the device failed.

    function: the driver's function (or the kernel) that reported it
    code, name: the driver's number and name of the error
    """

    def __init__(self, function: str, code: int, explanation: str = "") -> None:
        name, text = _describe(code)
        message = f"{function}: {text} ({name}, {code})"
        if code in _STICKY:
            message += "; the device's context is lost: a new process is needed to use the device again"
            if function.startswith("cu"):  # whatever failed was launched earlier
                message += ". ts.cuda.set_sync_debug(True) at the start raises at the launch that fails, and names the kernel"
        if code == _NOT_INITIALIZED and _forked:
            message += f"; {_FORK}"
        super().__init__(message + (f"; {explanation}" if explanation else ""))
        self.function = function
        self.code = code
        self.name = name


_FORK = (
    "CUDA was used before this process was forked, and a forked child cannot use it: start workers with the method 'spawn' "
    "or 'forkserver', or fork before CUDA is used"
)


def bindings() -> Any:
    """The module `cuda.bindings.driver` with the driver initialised.

    Errors: CudaUnavailableError, saying which of the bindings, the driver library and a device is missing.
    """
    global _bindings
    if _bindings is not None and not _forked:
        return _bindings
    with _lock:
        if _forked:
            raise CudaError("cuInit", _NOT_INITIALIZED)
        if _bindings is None:
            _bindings = _open()
    return _bindings


def initialized() -> bool:
    """Whether this process has asked for the driver, with success."""
    return _bindings is not None


def lost_by_fork() -> bool:
    """Whether this process was forked from one that used CUDA, so that it cannot."""
    return _forked


def call(name: str, *arguments: Any) -> Any:
    """The results of a driver function: None, one value or a list of several.

    Errors: CudaError for any status but success, CudaUnavailableError without a driver.
    """
    driver = bindings()
    status, *results = getattr(driver, name)(*arguments)
    if status:
        raise CudaError(name, int(status))
    return results[0] if len(results) == 1 else results or None


def status(name: str, *arguments: Any) -> int:
    """The status of a driver function that has no results: 0 for success. For what may be "not ready"."""
    return int(getattr(bindings(), name)(*arguments)[0])


def address(name: str) -> int:
    """The address of a driver function, for native code."""
    bindings()
    pointer = ctypes.cast(getattr(ctypes.CDLL(LIBRARY), name), ctypes.c_void_p).value
    assert pointer is not None
    return pointer


def _open() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CudaUnavailableError(
            f"CUDA devices need NVIDIA's Python bindings, which are not installed: pip install 'tensorsmith[cuda]' ({error})"
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except (RuntimeError, OSError) as error:  # the loader's own classes derive from these
        raise CudaUnavailableError(
            f"CUDA devices need NVIDIA's display driver, whose library {LIBRARY} was not found on this machine ({error})"
        ) from error
    if not status:
        status, count = driver.cuDeviceGetCount()
        if not status and count:
            return driver
    if not status or int(status) == _NO_DEVICE:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f"; CUDA_VISIBLE_DEVICES={visible!r} may hide it" if visible is not None else ""
        raise CudaUnavailableError(f"NVIDIA's driver is installed, but it finds no CUDA device{hidden}")
    _, text = driver.cuGetErrorString(status)
    raise CudaUnavailableError(
        f"NVIDIA's driver is installed, but it cannot be initialised: {bytes(text or b'unknown error').decode()} "
        f"(error {int(status)}); a driver older than CUDA 13 must be updated"
    )


def _describe(code: int) -> tuple[str, str]:
    """The name and the text of a status."""
    if _bindings is None:
        return "UNKNOWN", "unknown error"
    try:
        result = _bindings.CUresult(code)
    except ValueError:
        return "UNKNOWN", "unknown error"
    _, text = _bindings.cuGetErrorString(result)
    return result.name, bytes(text or b"unknown error").decode()


def _after_fork_in_child() -> None:
    global _forked, _lock
    _forked = _bindings is not None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

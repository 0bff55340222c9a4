"""What of autocast is on in the calling thread, and the functions that ask and set it.

As in PyTorch every device has a switch and a dtype; the switches are off, the dtypes bfloat16 on the CPU, float16 on the GPU.
"""

from __future__ import annotations

import threading
import warnings

from tensorsmith.amp.casting import casting
from tensorsmith.amp.policy import listed
from tensorsmith.core.dtypes import DType, as_dtype, bfloat16, float16
from tensorsmith.eager import fast
from tensorsmith.tensor.modes import modes

DEVICE_TYPES = ("cpu", "cuda")


class _Settings(threading.local):
    def __init__(self) -> None:
        self.enabled: dict[str, bool] = dict.fromkeys(DEVICE_TYPES, False)
        self.dtype: dict[str, DType] = {"cpu": bfloat16, "cuda": float16}
        self.keeps_casts = True
        self.nesting = 0

    def apply(self) -> None:
        """Make `modes.autocast` what the switches say."""
        was_on = modes.autocast is not None
        enabled = self.enabled
        if enabled["cpu"] or enabled["cuda"]:
            modes.autocast = casting({device: self.dtype[device] for device in DEVICE_TYPES if enabled[device]})
        else:
            modes.autocast = None
        is_on = modes.autocast is not None
        if is_on and not was_on:
            fast.start_routing(listed())
        elif was_on and not is_on:
            fast.stop_routing()
        if not self.keeps_casts:
            modes.casts = None
        elif is_on and modes.casts is None:
            modes.casts = {}


settings = _Settings()


class same_autocast:  # noqa: N801 - a context manager
    """What of autocast is on where it is made, for code that runs later: `with same_autocast(): ...`, any number of times."""

    def __init__(self) -> None:
        self._then = dict(settings.enabled), dict(settings.dtype), settings.keeps_casts
        self._before: list[tuple] = []

    def __enter__(self) -> None:
        self._before.append((settings.enabled, settings.dtype, settings.keeps_casts))
        enabled, dtype, settings.keeps_casts = self._then
        settings.enabled, settings.dtype = dict(enabled), dict(dtype)
        autocast_increment_nesting()
        settings.apply()

    def __exit__(self, *exc: object) -> None:
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        settings.enabled, settings.dtype, settings.keeps_casts = self._before.pop()
        settings.apply()


def check_device_type(device_type: str) -> str:
    """The device type; RuntimeError for one that autocast does not know."""
    if device_type not in DEVICE_TYPES:
        raise RuntimeError(f"unknown device type for autocast: {device_type!r}; it is one of {', '.join(DEVICE_TYPES)}")
    return device_type


def is_autocast_available(device_type: str) -> bool:
    """Whether there is a policy for a device type: "cpu" and "cuda"."""
    return device_type in DEVICE_TYPES


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether autocast is on in this thread for a device type."""
    return settings.enabled[check_device_type(device_type)]


def set_autocast_enabled(device_type: str | bool, enabled: bool | None = None) -> None:
    """Switch autocast of a device type on or off in this thread; `set_autocast_enabled(True)` is that of "cuda"."""
    if enabled is None:
        device_type, enabled = "cuda", bool(device_type)
    settings.enabled[check_device_type(str(device_type))] = bool(enabled)
    settings.apply()


def get_autocast_dtype(device_type: str) -> DType:
    """The dtype to which autocast casts on a device type."""
    return settings.dtype[check_device_type(device_type)]


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Choose that dtype, for this thread."""
    found = as_dtype(dtype)
    if found is None:
        raise TypeError("set_autocast_dtype(): argument 'dtype' must be a dtype, not None")
    settings.dtype[check_device_type(device_type)] = found
    settings.apply()


def is_autocast_cache_enabled() -> bool:
    """Whether casts of weights are kept while autocast is on."""
    return settings.keeps_casts


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Choose whether casts of weights are kept."""
    settings.keeps_casts = bool(enabled)
    settings.apply()


def clear_autocast_cache() -> None:
    """Let go of the casts of weights that this thread keeps."""
    if modes.casts:
        modes.casts.clear()


def autocast_increment_nesting() -> int:
    """Count one more context that is entered; how many there are now."""
    settings.nesting += 1
    return settings.nesting


def autocast_decrement_nesting() -> int:
    """Count one context less; how many there are now."""
    settings.nesting -= 1
    return settings.nesting


def _for_device(device_type: str, title: str) -> tuple:
    """PyTorch's older names for one device."""

    def deprecated(old: str, new: str) -> None:
        warnings.warn(
            f"ts.{old} is deprecated. Please use ts.{new} instead.", DeprecationWarning, stacklevel=3
        )

    def is_enabled() -> bool:
        deprecated(f"is_autocast_{title}_enabled()", f"is_autocast_enabled('{device_type}')")
        return is_autocast_enabled(device_type)

    def set_enabled(enabled: bool) -> None:
        deprecated(f"set_autocast_{title}_enabled(enabled)", f"set_autocast_enabled('{device_type}', enabled)")
        set_autocast_enabled(device_type, enabled)

    def get_dtype() -> DType:
        deprecated(f"get_autocast_{title}_dtype()", f"get_autocast_dtype('{device_type}')")
        return get_autocast_dtype(device_type)

    def set_dtype(dtype: DType) -> None:
        deprecated(f"set_autocast_{title}_dtype(dtype)", f"set_autocast_dtype('{device_type}', dtype)")
        set_autocast_dtype(device_type, dtype)

    return is_enabled, set_enabled, get_dtype, set_dtype


is_autocast_cpu_enabled, set_autocast_cpu_enabled, get_autocast_cpu_dtype, set_autocast_cpu_dtype = _for_device("cpu", "cpu")
_, _, get_autocast_gpu_dtype, set_autocast_gpu_dtype = _for_device("cuda", "gpu")

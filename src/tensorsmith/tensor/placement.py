"""Where new tensors go: the device that a call names, the default device, or the CPU."""

from __future__ import annotations

import functools
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.tensor.modes import modes

_numbered: dict[int, Device] = {}  # the CUDA devices that are known to be there, by number


def device_from(device: Any) -> Device:
    """The device that an argument names, numbered: "cuda" is the current CUDA device.

    Errors: as `Device`; CudaUnavailableError without NVIDIA's driver; ValueError for a number that no device has.
    """
    found = device if device.__class__ is Device else Device(device)
    if found.type == "cpu":
        if found.index:
            raise RuntimeError(f"there is one CPU, cpu or cpu:0, got device {found}")
        return CPU
    if found.index is None:
        index = _cuda().current_device()
        return _numbered.get(index) or _there(index)
    return found if found.index in _numbered else _there(found.index)


@functools.cache
def _cuda() -> Any:
    from tensorsmith.targets.cuda import devices

    return devices


def _there(index: int) -> Device:
    _cuda().device(index)  # refuses what does not exist
    return _numbered.setdefault(index, Device("cuda", index))


def place_of(device: Any) -> Device:
    """The device for a new tensor: the one asked for, else the default device."""
    if device is None:
        device = modes.device
        if device is None:
            return CPU
    return device_from(device)


def on(device: Device) -> dict[str, Device]:
    """The attribute that tells an operator without tensors where it makes one; none for the CPU."""
    return {} if device is CPU else {"device": device}


def set_default_device(device: Any) -> None:
    """Make new tensors on a device where a call names none; None is the CPU.

    >>> ts.set_default_device("cpu")
    """
    modes.device = None if device is None else Device(device)


def get_default_device() -> Device:
    """The device of new tensors where a call names none."""
    return CPU if modes.device is None else device_from(modes.device)


def _enter(self: Device) -> Device:
    modes.devices_before = (*modes.devices_before, modes.device)
    modes.device = self
    return self


def _exit(self: Device, *exc: object) -> None:
    *rest, modes.device = modes.devices_before
    modes.devices_before = tuple(rest)


# `with ts.device("cuda"):` new tensors are made there.
Device.__enter__ = _enter  # type: ignore[attr-defined]
Device.__exit__ = _exit  # type: ignore[attr-defined]

"""On which device a call runs: that of its tensors, or the one it names.

An operator that makes a tensor of numbers alone is told where by an attribute of that name, which its graph does not see.
Tensors of one call are on one device; a CPU tensor without axes may stand among tensors of a CUDA device, and is moved there,
as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.layout import Layout

NAME = "device"  # of the attribute


def without_device(attrs: dict[str, Any]) -> dict[str, Any]:
    """What the graph of a call is built with."""
    return {name: value for name, value in attrs.items() if name != NAME} if NAME in attrs else attrs


def device_of(name: str, kinds: Sequence[Any], attrs: dict[str, Any]) -> Device:
    """The device of a call. RuntimeError where its tensors are on several."""
    found: Device | None = attrs.get(NAME)
    for kind in kinds:
        if isinstance(kind, Layout) and kind.device is not found:
            if found is not None:
                raise RuntimeError(
                    f"{name}: Expected all tensors to be on the same device, but found at least two devices, {found} and "
                    f"{kind.device}; move one with .to({str(found)!r})"
                )
            found = kind.device
    return CPU if found is None else found


def to_move(kinds: Sequence[Any]) -> tuple[Device, tuple[int, ...]] | None:
    """The CUDA device that CPU tensors without axes among the operands go to, and which those are; None where none are."""
    devices = {kind.device for kind in kinds if isinstance(kind, Layout)}
    if len(devices) < 2 or CPU not in devices:
        return None
    lone = tuple([i for i, kind in enumerate(kinds) if isinstance(kind, Layout) and kind.device is CPU and not kind.shape])
    if any(isinstance(kind, Layout) and kind.device is CPU and i not in lone for i, kind in enumerate(kinds)):
        return None
    return next(kind.device for kind in kinds if isinstance(kind, Layout) and kind.device is not CPU), lone

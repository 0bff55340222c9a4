"""Device: where a tensor lives. One object a device, so that devices are compared by identity.

    Device("cpu")   Device("cuda")   Device("cuda:1")   Device("cuda", 1)

`Device("cuda")` without a number stands for the current CUDA device: a tensor lives on a numbered one.
"""

from __future__ import annotations

from typing import Any


class Device:
    """A kind of device, "cpu" or "cuda", and its number (None for the CPU, and for "the current one").

    Errors: RuntimeError for another kind or a number that is none; TypeError for what is no name of a device.
    """

    __slots__ = ("type", "index")

    type: str
    index: int | None

    def __new__(cls, type: Any, index: int | None = None) -> Device:  # noqa: A002 - PyTorch's name
        if index is None and type.__class__ is str:
            known = _named.get(type)
            if known is not None:
                return known
        name = type
        if isinstance(type, Device):
            return type
        if isinstance(type, int) and not isinstance(type, bool):
            type, index = "cuda", type  # as PyTorch: a bare number is a device of the accelerator
        if not isinstance(type, str):
            raise TypeError(f"argument 'device' must be a device such as \"cpu\", not {type.__class__.__name__}")
        kind, colon, number = type.partition(":")
        if kind not in ("cpu", "cuda"):
            raise RuntimeError(f"Expected one of cpu, cuda device type at start of device string: {type}")
        if colon:
            if not number.isdecimal() or (len(number) > 1 and number[0] == "0"):
                raise RuntimeError(f"Invalid device string: '{type}'")
            if index is not None:
                raise RuntimeError(f"type (string) must not include an index because index was passed explicitly: {type}")
            index = int(number)
        if index is not None and index < 0:
            raise RuntimeError(f"Device index must not be negative, got {index}")
        found = _devices.get((kind, index))
        if found is None:
            found = object.__new__(cls)
            found.type, found.index = kind, index
            found = _devices.setdefault((kind, index), found)
        if name.__class__ is str and name == str(found):
            _named[name] = found
        return found

    def __repr__(self) -> str:
        return f"device(type='{self.type}'" + (f", index={self.index})" if self.index is not None else ")")

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and str(self) == other)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.type, self.index)


_devices: dict[tuple[str, int | None], Device] = {}
_named: dict[str, Device] = {}  # by the names that were asked for

CPU = Device("cpu")

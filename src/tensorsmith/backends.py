"""Settings of the targets, shaped as `torch.backends`: `ts.backends.cpu.winograd`.

A setting holds for the whole process, all threads included, and for what is planned after it was changed: kept plans are
forgotten, compiled functions trace again, a call that runs meanwhile in another thread ends as it began.
"""

from __future__ import annotations

import sys
from types import ModuleType

from tensorsmith.passes import winograd as _winograd
from tensorsmith.targets.cpu.machine import machine as _machine


class _Cpu(ModuleType):
    """The CPU target's settings.

    winograd: which 3x3 convolutions of stride 1 in float32 use Winograd's algorithm, by a fixed rule on sizes.
        "off": none; "default": F(2x2, 3x3) where it is faster, whose errors are those of the direct sum; "fast": F(4x4, 3x3)
        too, whose errors are about three times as large (`docs/numerics.md`). ValueError for anything else.

    >>> ts.backends.cpu.winograd
    'default'
    """

    @property
    def winograd(self) -> str:
        """Which forms of Winograd's convolution may be chosen."""
        return _winograd.mode()

    @winograd.setter
    def winograd(self, value: str) -> None:
        _winograd.set_mode(value)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "winograd" and not name.startswith("__"):
            raise AttributeError(f"backends.cpu has no setting {name!r}; it has winograd")
        super().__setattr__(name, value)

    @staticmethod
    def get_cpu_capability() -> str:
        """The instruction set that kernels are written for, by PyTorch's names: "AVX512", "AVX2" or "DEFAULT"."""
        return {"avx512": "AVX512", "avx2": "AVX2"}.get(_machine().name, "DEFAULT")


cpu = _Cpu("tensorsmith.backends.cpu", _Cpu.__doc__)
sys.modules[cpu.__name__] = cpu

__all__ = ["cpu"]

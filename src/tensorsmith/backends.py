"""Settings of the targets, shaped as `torch.backends`: `ts.backends.cpu.winograd`.

A setting holds for the whole process, all threads included, and for what is planned after it was changed: kept plans are
forgotten, compiled functions trace again, a call that runs meanwhile in another thread ends as it began.
"""

from __future__ import annotations

import sys
from types import ModuleType

from tensorsmith.passes import winograd as _winograd
from tensorsmith.targets.cpu.machine import machine as _machine
from tensorsmith.targets.cuda import precision as _precision


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


class _Matmul(ModuleType):
    """Matrix products on CUDA.

    allow_tf32: whether those of float32 may round their operands to TF32; `ts.set_float32_matmul_precision` is the same switch.
    tune: whether a product of a new shape is measured with several kernels and tiles, of which the fastest is taken from then
        on, in later processes too (it is remembered in the cache folder). Off, a table chooses, so that results are the same
        bits on every card of a kind.
    """

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 products may use TF32: False at first."""
        return _precision.products_allow_tf32()

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        _precision.set_float32_matmul_precision("high" if value else "highest")

    @property
    def tune(self) -> bool:
        """Whether the fastest kernel is found by measuring: False at first."""
        return _precision.products_are_tuned()

    @tune.setter
    def tune(self, value: bool) -> None:
        _precision.set_products_tuned(value)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("allow_tf32", "tune") and not name.startswith("__"):
            raise AttributeError(f"backends.cuda.matmul has no setting {name!r}; it has allow_tf32 and tune")
        super().__setattr__(name, value)


class _Cuda(ModuleType):
    """The CUDA target's settings: those of products are in `matmul`."""

    matmul = _Matmul("tensorsmith.backends.cuda.matmul", _Matmul.__doc__)

    @staticmethod
    def is_built() -> bool:
        """Whether kernels for CUDA can be made: they can, everywhere."""
        return True


class _Cudnn(ModuleType):
    """Convolutions on CUDA, under the name of the library that PyTorch's go to; there is no such library here.

    allow_tf32: whether those of float32 may round their operands to TF32, True at first, as PyTorch's.
    """

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 convolutions may use TF32."""
        return _precision.convolutions_allow_tf32()

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        _precision.set_convolutions_allow_tf32(value)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "allow_tf32" and not name.startswith("__"):
            raise AttributeError(f"backends.cudnn has no setting {name!r}; it has allow_tf32")
        super().__setattr__(name, value)


cpu = _Cpu("tensorsmith.backends.cpu", _Cpu.__doc__)
cuda = _Cuda("tensorsmith.backends.cuda", _Cuda.__doc__)
cudnn = _Cudnn("tensorsmith.backends.cudnn", _Cudnn.__doc__)
for _module in (cpu, cuda, cuda.matmul, cudnn):
    sys.modules[_module.__name__] = _module

__all__ = ["cpu", "cuda", "cudnn"]

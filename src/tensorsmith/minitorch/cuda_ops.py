"""Module 3: the names of MiniTorch's CUDA backend. Tensors on a GPU are not there yet, and every call says so.

`CudaOps` can be named and made a backend of; its functions raise NotImplementedError when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tensorsmith.minitorch.tensor import Tensor
from tensorsmith.minitorch.tensor_data import TensorData
from tensorsmith.minitorch.tensor_ops import MapProto, TensorOps

THREADS_PER_BLOCK = 32


def _missing(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: needs tensors on an NVIDIA GPU, which are not implemented; use minitorch.TensorBackend(minitorch.FastOps)"
    )


class CudaOps(TensorOps):
    """Kernels on an NVIDIA GPU: not there yet."""

    cuda = True

    @staticmethod
    def map(fn: Callable[[float], float]) -> MapProto:
        def ret(a: Tensor, out: Tensor | None = None, /) -> Tensor:
            _missing("CudaOps.map")

        return ret

    @staticmethod
    def zip(fn: Callable[[float, float], float]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda a, b: _missing("CudaOps.zip")

    @staticmethod
    def reduce(fn: Callable[[float, float], float], start: float = 0.0) -> Callable[[Tensor, int], Tensor]:
        return lambda a, dim: _missing("CudaOps.reduce")

    @staticmethod
    def matrix_multiply(a: Tensor, b: Tensor) -> Tensor:
        _missing("CudaOps.matrix_multiply")


def sum_practice(a: Tensor) -> TensorData:
    """The practice kernel that sums blocks of 32 numbers in shared memory."""
    _missing("sum_practice")


def mm_practice(a: Tensor, b: Tensor) -> TensorData:
    """The practice kernel that multiplies two small square matrices in shared memory."""
    _missing("mm_practice")


def jit_sum_practice(*arguments: Any) -> None:
    """The compiled practice sum."""
    _missing("jit_sum_practice")


def jit_mm_practice(*arguments: Any) -> None:
    """The compiled practice matrix product."""
    _missing("jit_mm_practice")

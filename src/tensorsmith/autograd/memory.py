"""A tensor's memory as a NumPy array, for checks that look at values or disturb them: no version is counted."""

from __future__ import annotations

import ctypes

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import layout_of
from tensorsmith.tensor.tensor import Tensor, empty_tensor, readable


def as_array(tensor: Tensor) -> np.ndarray:
    """The elements where they lie, by the tensor's strides; valid while the tensor lives.

    Errors: NotImplementedError for a tensor on a CUDA device.
    """
    layout = tensor.layout
    if layout.level is not None:
        tensor = readable(tensor, "the values")
    if layout.device is not CPU:
        raise NotImplementedError(
            f"this check reads and writes memory of the host, and a tensor is on {layout.device}; move it with .cpu()"
        )
    if layout.numel == 0:
        return np.empty(layout.shape, layout.dtype.numpy)
    size = layout.dtype.itemsize
    block = (ctypes.c_char * (layout.extent * size)).from_address(tensor.ptr)
    tensor.storage.lend(block)  # which lives as long as the array and its views
    flat = np.frombuffer(memoryview(block), layout.dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat, layout.shape, [s * size for s in layout.strides])


def from_array(values: np.ndarray, dtype: DType, tracked: bool = False) -> Tensor:
    """A new contiguous leaf with these values."""
    tensor = empty_tensor(dtype, values.shape)
    as_array(tensor)[...] = values
    tensor.layout = layout_of(dtype, values.shape, None, tracked)
    return tensor

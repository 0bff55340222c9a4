"""A tensor's values as a NumPy array, for checks that look at them or disturb them: no version is counted.

On the CPU the array is the tensor's memory; of a tensor on a CUDA device it is a copy, and elements that change are copied back
one by one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import layout_of
from tensorsmith.tensor.host_values import values_at, write_values
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor, readable


def as_array(tensor: Tensor) -> np.ndarray:
    """The elements where they lie, by the tensor's strides, valid while the tensor lives; a read-only copy of a device's."""
    layout = tensor.layout
    if layout.level is not None:
        tensor = readable(tensor, "the values")
        layout = tensor.layout
    if layout.device is not CPU:
        return values_at(tensor)
    if layout.numel == 0:
        return np.empty(layout.shape, layout.dtype.numpy)
    size = layout.dtype.itemsize
    block = (ctypes.c_char * (layout.extent * size)).from_address(tensor.ptr)
    tensor.storage.lend(block)  # which lives as long as the array and its views
    flat = np.frombuffer(memoryview(block), layout.dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat, layout.shape, [s * size for s in layout.strides])


def from_array(values: np.ndarray, dtype: DType, tracked: bool = False, device: Device = CPU) -> Tensor:
    """A new contiguous leaf with these values."""
    layout = layout_of(dtype, values.shape, None, tracked, device)
    storage = storage_type(device)(layout.nbytes)
    tensor = make_tensor(layout, storage, storage.ptr)
    write_values(tensor, np.asarray(values).astype(dtype.numpy, copy=False))
    return tensor


class Elements:
    """The elements of a tensor, written one by one where they lie."""

    def __init__(self, tensor: Tensor) -> None:
        self.values = as_array(tensor)
        self.tensor = tensor if tensor.layout.level is None else readable(tensor, "the values")
        if not self.values.flags.writeable:
            self.tensor.storage.lend(self)  # whose writes nobody counts, as those to the CPU's array

    def __getitem__(self, index: tuple[int, ...]) -> Any:
        """An element as it was at first, or was written last on the CPU."""
        return self.values[index].copy()

    def __setitem__(self, index: tuple[int, ...], value: Any) -> None:
        layout = self.tensor.layout
        if layout.device is CPU:
            self.values[index] = value
            return
        from tensorsmith.targets.cuda.copies import copy_to_device

        assert layout.device.index is not None
        element = np.array(value, layout.dtype.numpy)
        place = self.tensor.ptr + layout.dtype.itemsize * sum(i * s for i, s in zip(index, layout.strides))
        copy_to_device(place, element.ctypes.data, element.nbytes, layout.device.index)

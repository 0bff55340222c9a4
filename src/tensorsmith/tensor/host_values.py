"""The values of a tensor on the host: where they lie on the CPU, a copy of a CUDA device's."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.views import Strided
from tensorsmith.runtime.requests import array_at
from tensorsmith.tensor.tensor import Tensor


def values_at(tensor: Tensor) -> np.ndarray:
    """The values by the tensor's strides, to be read while the tensor lives; everything launched before is done then."""
    layout = tensor.layout
    if layout.device is CPU:
        return array_at(tensor.ptr, Strided(layout.shape, layout.strides), layout.dtype)
    if not layout.numel:
        return np.empty(layout.shape, layout.dtype.numpy)
    assert layout.device.index is not None
    found = np.empty(layout.shape if layout.contiguous else layout.extent, layout.dtype.numpy)
    _to_host()(found.__array_interface__["data"][0], tensor.ptr, found.nbytes, layout.device.index)
    if layout.contiguous:
        found.flags.writeable = False  # writes would be lost
        return found
    strides = [s * layout.dtype.itemsize for s in layout.strides]
    return np.lib.stride_tricks.as_strided(found, layout.shape, strides, writeable=False)


@functools.cache
def _to_host() -> Callable[..., None]:
    from tensorsmith.targets.cuda.copies import copy_to_host

    return copy_to_host


def write_values(tensor: Tensor, values: np.ndarray) -> None:
    """Write values of its dtype over a row-major tensor that has just been made."""
    layout = tensor.layout
    if layout.device is CPU:
        array_at(tensor.ptr, Strided(layout.shape, layout.strides), layout.dtype)[...] = values
        return
    from tensorsmith.targets.cuda.copies import copy_to_device

    assert layout.contiguous and layout.device.index is not None
    if layout.numel:
        whole = np.ascontiguousarray(np.broadcast_to(values, layout.shape))
        copy_to_device(tensor.ptr, whole.ctypes.data, layout.nbytes, layout.device.index)

"""Sharing memory with other libraries: DLPack both ways, and CUDA's array interface.

Both sides see each other's writes. Work on a device is ordered by the protocols: who takes over names the stream that will
use the memory, and it waits for what ours has been given so far.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import from_numpy_dtype
from tensorsmith.core.layout import layout_of
from tensorsmith.ops.registry import method
from tensorsmith.tensor import dlpack_capsule
from tensorsmith.tensor.dlpack_capsule import Exported, Taken
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.placement import device_from
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor, need_memory

# Handles of streams in both protocols: 1 is CUDA's legacy default stream (our handle 0), 2 that of the thread.
_LEGACY = 1


def _shareable(tensor: Tensor, what: str) -> None:
    need_memory(what, tensor)
    if tensor.layout.tracked:
        raise BufferError(f"{what} of a tensor that requires a gradient: use tensor.detach()")


@method("__dlpack_device__")
def dlpack_device(self: Tensor) -> tuple[int, int]:
    """DLPack's kind of device and its number."""
    if self.layout.device is not CPU:
        return dlpack_capsule.CUDA, self.layout.device.index or 0
    return dlpack_capsule.CPU, 0  # pinned or not: few take memory that is called CUDA's of the host


@method("__dlpack__")
def dlpack(
    self: Tensor, *, stream: Any = None, max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None, copy: bool | None = None,
) -> Any:  # fmt: skip
    """The tensor as a DLPack capsule over its memory.

    stream: the consumer's stream on a CUDA device: 1 or None the legacy default stream, 2 the thread's, -1 no waiting
    max_version: versions from 1.0 on give the versioned structure; copy: True for memory of its own
    dl_device: where it is wanted; another device is a copy there, BufferError with copy=False
    Errors: BufferError for a tensor that requires a gradient or cannot be given so.
    """
    _shareable(self, "__dlpack__()")
    here = dlpack_device(self)
    if dl_device is not None and tuple(dl_device) != here:
        if copy is False:
            raise BufferError(f"a tensor of {self.layout.device} cannot be given on another device without a copy")
        kind, number = dl_device
        if kind not in (dlpack_capsule.CPU, dlpack_capsule.CUDA):
            raise BufferError(f"there is no copy to DLPack's device {tuple(dl_device)}")
        target = CPU if kind == dlpack_capsule.CPU else Device("cuda", number)
        self, copy = self.to(target), True  # type: ignore[attr-defined]
    elif copy:
        self = self.clone()  # type: ignore[attr-defined]
    if self.layout.device is not CPU:
        _order_before(self, 1 if stream is None else stream)
    elif stream is not None and stream != -1:
        raise BufferError("__dlpack__(): a stream has no meaning for a tensor of the CPU")
    layout = self.layout
    exported = Exported(self.storage)
    self.storage.lend(exported)
    versioned = max_version is not None and max_version[0] >= 1
    place = dlpack_device(self) if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    flags = dlpack_capsule.COPIED if copy else 0
    return dlpack_capsule.capsule(exported, self.ptr, place, layout.dtype, layout.shape, layout.strides, versioned, flags)


def _order_before(tensor: Tensor, consumer: int) -> None:
    """Let the consumer's stream wait for ours, and keep the memory until that stream is done with it."""
    if consumer == -1:
        return
    if consumer == 0:
        raise BufferError("__dlpack__(stream=0) is ambiguous: 1 is CUDA's legacy default stream, 2 that of the thread")
    from tensorsmith.targets.cuda.streams import Stream, current_stream

    index = tensor.layout.device.index
    assert index is not None
    ours = current_stream(index)
    if consumer == (ours.cuda_stream or _LEGACY):
        return
    theirs = Stream.of_handle(consumer, index)
    theirs.wait_stream(ours)
    tensor.record_stream(theirs)  # type: ignore[attr-defined]


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of another library's: an object with `__dlpack__`, or a capsule.

    device, copy: as the array standard has them; copy=True is memory of its own, False an error where it would be needed
    Errors: BufferError where the memory cannot be shared.

    >>> import numpy as np
    >>> import tensorsmith as ts
    >>> array = np.arange(3.0)
    >>> x = ts.from_dlpack(array)
    >>> array[0] = 7
    >>> x
    tensor([7., 1., 2.], dtype=tensorsmith.float64)
    """
    place = None if device is None else device_from(device)
    if not hasattr(ext_tensor, "__dlpack__"):
        return _placed(_over(Taken(ext_tensor), copy), place, copy)
    kind, number = ext_tensor.__dlpack_device__()
    given: dict[str, Any] = {}
    if kind in (dlpack_capsule.CUDA, dlpack_capsule.CUDA_MANAGED):
        from tensorsmith.targets.cuda.streams import current_stream

        given["stream"] = current_stream(number).cuda_stream or _LEGACY
    try:
        capsule = ext_tensor.__dlpack__(max_version=dlpack_capsule.VERSION, **given)
    except TypeError:  # older than the argument
        capsule = ext_tensor.__dlpack__(**given)
    return _placed(_over(Taken(capsule), copy), place, copy)


def to_dlpack(tensor: Tensor) -> Any:
    """The tensor as a DLPack capsule of the structure without version."""
    return dlpack(tensor)


def _placed(made: Tensor, device: Device | None, copy: bool | None) -> Tensor:
    if device is not None and device is not made.layout.device:
        if copy is False:
            raise BufferError(f"memory of {made.layout.device} cannot be a tensor of {device} without a copy")
        return made.to(device)  # type: ignore[attr-defined]
    return made.clone() if copy else made  # type: ignore[attr-defined]


def _over(taken: Taken, copy: bool | None) -> Tensor:
    """The tensor over what was taken."""
    kind, number = taken.device
    if kind in (dlpack_capsule.CPU, dlpack_capsule.CUDA_HOST):
        device = CPU
    elif kind in (dlpack_capsule.CUDA, dlpack_capsule.CUDA_MANAGED):
        device = Device("cuda", number)
    else:
        raise BufferError(f"from_dlpack: memory of DLPack's device {taken.device} cannot be used here")
    if taken.read_only and not copy:
        warnings.warn(
            "from_dlpack: the memory is read-only there, which tensors cannot be: writing to the result writes over it; "
            "copy=True makes memory of its own",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    if any(s < 0 for s in taken.strides):
        raise BufferError("from_dlpack: tensors with negative strides are not supported; copy it there first")
    return _foreign(taken, taken.ptr, device, taken.dtype, taken.shape, taken.strides)


def _foreign(owner: Any, ptr: int, device: Device, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    if ptr % dtype.itemsize:
        raise BufferError(f"the memory is not aligned to elements of {dtype.itemsize} bytes; copy it there first")
    layout = layout_of(dtype, tuple(shape), tuple(strides), False, device)
    storage = storage_type(device).foreign(ptr, layout.extent * dtype.itemsize, owner)
    made = make_tensor(layout, storage, ptr)
    note = getattr(modes.tracer, "note_constant", None)
    if note is not None:
        note(made, None)
    return made


def _get_interface(self: Tensor) -> dict[str, Any]:
    """CUDA's array interface, version 3, so that CuPy, Numba and others see the tensor's memory."""
    if self.layout.device is CPU:
        raise AttributeError("__cuda_array_interface__ is of tensors of a CUDA device; this one lives on the CPU")
    need_memory("__cuda_array_interface__", self)
    if self.layout.tracked:
        raise RuntimeError("__cuda_array_interface__ of a tensor that requires a gradient: use tensor.detach()")
    layout = self.layout
    if layout.dtype.name == "bfloat16":
        raise TypeError("__cuda_array_interface__ has no bfloat16; view(ts.uint16) shares the bits")
    from tensorsmith.targets.cuda.streams import current_stream

    itemsize = layout.dtype.itemsize
    return {
        "version": 3,
        "shape": layout.shape,
        "typestr": layout.dtype.numpy.str,
        "strides": None if layout.contiguous else tuple(s * itemsize for s in layout.strides),
        "data": (self.data_ptr() if layout.numel else 0, False),
        "stream": current_stream(layout.device.index).cuda_stream or _LEGACY,
    }


Tensor.__cuda_array_interface__ = property(_get_interface)  # type: ignore[assignment, method-assign]


def from_cuda_array_interface(source: Any) -> Tensor:
    """A tensor over the device memory of an object with `__cuda_array_interface__`; BufferError where that cannot be."""
    found = source.__cuda_array_interface__
    if found.get("mask") is not None:
        raise BufferError("masked arrays of a CUDA device cannot be tensors")
    dtype = from_numpy_dtype(np.dtype(found["typestr"]))
    shape = tuple(found["shape"])
    strides = found.get("strides")
    if strides is None:
        elements = layout_of(dtype, shape).strides
    else:
        if any(s < 0 or s % dtype.itemsize for s in strides):
            raise BufferError("a tensor's strides are not negative and whole elements; copy the array there first")
        elements = tuple(s // dtype.itemsize for s in strides)
    ptr, _ = found["data"]
    from tensorsmith.targets.cuda import driver
    from tensorsmith.targets.cuda.devices import current_device
    from tensorsmith.targets.cuda.streams import Stream, current_stream

    index = current_device()
    if ptr:
        names = driver.bindings()
        index = int(driver.call("cuPointerGetAttribute", names.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr))
    stream = found.get("stream")
    ours = current_stream(index)
    if stream is not None and stream != (ours.cuda_stream or _LEGACY):
        ours.wait_stream(Stream.of_handle(stream, index))
    return _foreign(source, ptr, Device("cuda", index), dtype, shape, elements)


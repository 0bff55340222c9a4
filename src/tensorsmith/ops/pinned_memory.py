"""Pinned memory of the host, and telling the allocator which streams use a tensor."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.device import CPU
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.ops.registry import method
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor, make_tensor, need_memory


@method()
def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """A copy in memory that a CUDA device reads and writes by itself, so that `to("cuda", non_blocking=True)` does not wait.

    The tensor itself where it is pinned; the copy is not tracked. device: accepted, all devices reach the memory
    Errors: CudaUnavailableError without a device; RuntimeError for a tensor of a CUDA device.
    """
    need_memory("pin_memory()", self)
    if self.layout.device is not CPU:
        raise RuntimeError(f"cannot pin a tensor of {self.layout.device}: only dense CPU tensors can be pinned")
    from tensorsmith.targets.cuda import copies, devices, pinned

    devices.device(devices.current_device())  # there is one, or an error that says what is missing
    layout = self.layout.with_tracking(False)
    nbytes = layout.extent * layout.dtype.itemsize
    if pinned.is_pinned(self.ptr, nbytes):
        return self
    source = self
    if not covers_once(Strided(layout.shape, layout.strides)):
        source = self.detach().contiguous()  # type: ignore[attr-defined]
        layout = source.layout
        nbytes = layout.nbytes
    storage = Storage.foreign(pinned.allocate(nbytes), nbytes, None)
    storage.free = pinned.free_list(nbytes)
    copies.copy_on_host(storage.ptr, source.ptr, nbytes)
    return make_tensor(layout, storage, storage.ptr)


@method()
def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Whether the tensor lies in pinned memory, ours or that of another library of this process."""
    if self.layout.device is not CPU or self.layout.level is not None or self.storage.traced:
        return False
    from tensorsmith.targets.cuda import pinned

    return bool(self.layout.numel) and pinned.is_pinned(self.ptr, self.layout.extent * self.layout.dtype.itemsize)


@method()
def record_stream(self: Tensor, s: Any) -> None:
    """Let the tensor's memory be reused only after what stream `s` has been given when the tensor dies.

    For a tensor made on one stream and used on another: the allocator knows only of the first.
    """
    need_memory("record_stream()", self)
    index = self.layout.device.index
    if index is None:
        raise RuntimeError("record_stream() needs a tensor of a CUDA device")
    from tensorsmith.targets.cuda import memory

    if self.storage.free is not None:
        self.storage.free = memory.record_stream(self.storage.free, index, s.cuda_stream)

"""Copies of tensors between devices.

A copy keeps the order of axes of what is dense and is row-major otherwise. It is one transfer of bytes: a tensor with gaps is
made dense where it is, first. The gradient of a copy is the copy of the gradient, back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tensorsmith.autograd.function import Function
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.views import Strided, covers_once
from tensorsmith.eager.devices import device_of
from tensorsmith.eager.operator import Operator
from tensorsmith.ir.graph import Primitive
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor

F = TypeVar("F", bound=Callable[..., Any])

_dense = Operator("dense", lambda x: x.graph.add(Primitive.CAST, (x,), dtype=x.dtype), fresh=True)


def to_device(x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
    """The tensor on a device: itself where it is there already, else a copy, which is recorded.

    non_blocking: return before the bytes of a pinned tensor have arrived; work launched later finds them there
    Errors: NotImplementedError while a function is traced or transformed.
    """
    if x.layout.device is device:
        return x
    if modes.tracer is not None and not x.layout.tracked and x.layout.level is None and _only_transformed():
        return transferred(x, device, non_blocking)  # a constant to the transforms: the places where a mask holds
    if modes.tracer is not None or x.layout.level is not None:
        raise NotImplementedError(
            f"a copy from {x.layout.device} to {device} inside a compiled or transformed function: its plan runs on one "
            "device; move the tensor before the call"
        )
    if x.layout.tracked and modes.grad:
        return _ToCopy.apply(x, device, non_blocking)
    return transferred(x, device, non_blocking)


def _only_transformed() -> bool:
    """Whether what sees the calls of this thread is the levels of transforms, within no compiled function."""
    return getattr(modes.tracer, "before", modes.tracer) is None


class _ToCopy(Function):
    """A copy on another device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, device: Device, non_blocking: bool) -> Tensor:  # type: ignore[override]
        ctx.source = x.layout.device
        return transferred(x, device, non_blocking)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return to_device(grad, ctx.source), None, None


def transferred(x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
    """A copy on another device, not recorded."""
    layout = x.layout.with_tracking(False)
    if not covers_once(Strided(layout.shape, layout.strides)):
        x = _dense(x.detach())  # type: ignore[attr-defined]
        layout = x.layout
    layout = layout.on(device)
    nbytes = layout.extent * layout.dtype.itemsize
    storage = storage_type(device)(nbytes)
    if nbytes:
        copy_bytes(storage.ptr, device, x, nbytes, non_blocking)
    return make_tensor(layout, storage, storage.ptr)


def copy_bytes(address: int, device: Device, x: Tensor, nbytes: int, non_blocking: bool = False) -> None:
    """Copy the first bytes of a dense tensor to an address on another device."""
    from tensorsmith.targets.cuda import copies

    source = x.layout.device
    if source is CPU:
        assert device.index is not None
        copies.copy_to_device(address, x.ptr, nbytes, device.index, blocking=not non_blocking)
    elif device is CPU:
        assert source.index is not None
        copies.copy_to_host(address, x.ptr, nbytes, source.index, blocking=not non_blocking)
    else:
        assert source.index is not None and device.index is not None
        copies.copy_on_device(address, device.index, x.ptr, source.index, nbytes)


def need_one_device(name: str, *tensors: Tensor) -> None:
    """RuntimeError where tensors are on several devices; those without axes may be on the CPU."""
    if len(tensors) > 1:
        device_of(name, [x.layout for x in tensors if x.layout.shape or x.layout.device is not CPU], {})


def beside_input(function: F) -> F:
    """A function whose results NumPy computes: they go to the device of its first tensor, where the others have to be too.

    A tensor without axes may be on the CPU, as everywhere.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        need_one_device(function.__name__, *given)
        found = function(*args, **kwargs)
        return found if not given or given[0].layout.device is CPU else moved(found, given[0].layout.device)

    return wrapped  # type: ignore[return-value]


def moved(found: Any, device: Device) -> Any:
    """Tensors, and tensors in tuples and lists, on a device."""
    if isinstance(found, Tensor):
        return to_device(found, device)
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*(moved(each, device) for each in found))
    return type(found)(moved(each, device) for each in found) if isinstance(found, tuple | list) else found


def copied_over(target: Tensor, x: Tensor, non_blocking: bool) -> bool:
    """Write a tensor of another device over one that lies alike, as bytes; False where they differ in more than that."""
    a, b = target.layout, x.layout
    alike = a.dtype is b.dtype and a.shape == b.shape and a.strides == b.strides
    recorded = modes.grad and (a.tracked or b.tracked)
    if not alike or recorded or modes.tracer is not None or not covers_once(Strided(a.shape, a.strides)):
        return False
    if a.numel:
        copy_bytes(target.ptr, a.device, x, a.extent * a.dtype.itemsize, non_blocking)
    target.storage.version += 1
    return True

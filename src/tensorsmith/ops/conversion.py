"""Between dtypes, and between tensors and NumPy or Python."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType, as_dtype
from tensorsmith.core.memory_format import contiguous_format, format_of, preserve_format, suggested
from tensorsmith.eager.operator import Operator
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ops.creation import array_of, from_numpy
from tensorsmith.ops.device_copies import to_device
from tensorsmith.ops.memory_formats import copied_in
from tensorsmith.ops.raw_keys import as_bool
from tensorsmith.ops.registry import method, public
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.placement import device_from
from tensorsmith.tensor.storage import Storage, storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor, need_memory


def _cast(x: Node, dtype: DType) -> Node:
    return x.graph.add(Primitive.CAST, (x,), dtype=dtype)


cast_operator = Operator("to_copy", _cast, pointwise=True)
clone_operator = Operator("clone", lambda x: _cast(x, x.dtype), pointwise=True)
contiguous_operator = Operator("contiguous", lambda x: _cast(x, x.dtype), fresh=True, node_name="Clone")


@public("conversion")
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:  # noqa: A002
    """A copy in new memory, in the same order of axes or in another memory format; gradients flow through."""
    form = format_of("clone", memory_format)
    return clone_operator(input) if form is preserve_format else copied_in(form, input)


@method()
def contiguous(self: Tensor, *, memory_format: Any = contiguous_format) -> Tensor:
    """The tensor itself where it is contiguous, else a row-major copy; the same of another memory format."""
    if memory_format is not contiguous_format:
        form = format_of("contiguous", memory_format, contiguous_format)
        if self.is_contiguous(memory_format=form):
            return self
        if form is preserve_format:
            raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
        return copied_in(form, self)
    return self if self.layout.contiguous else contiguous_operator(self)


@method()
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """In the dtype of another tensor."""
    return to(self, other.dtype)


def destination(args: Sequence[Any], dtype: DType | None, device: Any) -> tuple[DType | None, Device | None]:
    """dtype and device that the arguments of `to` ask for: among them a dtype, a device, or a tensor to be like."""
    for argument in args:
        if isinstance(argument, DType):
            dtype = argument
        elif isinstance(argument, Tensor):
            dtype, device = argument.dtype, argument.layout.device
        elif isinstance(argument, str | Device) or argument.__class__ is int:
            device = argument
        elif isinstance(argument, type):
            dtype = as_dtype(argument)
        elif argument is not None and not isinstance(argument, bool):
            raise TypeError(f"to(): expected a dtype, a device or a tensor, got {type(argument).__name__}")
    return as_dtype(dtype), None if device is None else device_from(device)


def cuda_device(device: Any) -> Device:
    """The CUDA device that `cuda(device)` names: the current one where it names none."""
    found = device_from("cuda" if device is None else device)
    if found.type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device, got {found}")
    return found


@method()
def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """On a CUDA device, the current one where none is given; the tensor itself where it is there."""
    return to(self, cuda_device(device), non_blocking=non_blocking, memory_format=memory_format)


@method()
def to(
    self: Tensor, *args: Any, dtype: DType | None = None, device: Any = None, copy: bool = False,
    non_blocking: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """`to(dtype)`, `to(device)`, `to(device, dtype)` or `to(other)`; the tensor itself where nothing changes."""
    dtype, place = destination(args, dtype, device)
    if place is not None and place is not self.layout.device:
        smaller = dtype is not None and dtype.itemsize < self.layout.dtype.itemsize
        moved = to_device(to(self, dtype) if smaller else self, place, non_blocking or (len(args) > 1 and args[-1] is True))
        return to(moved, dtype, memory_format=memory_format)
    if memory_format is not None:
        form = format_of("to", memory_format)
        if form is not preserve_format:
            lies = suggested(self.layout.shape, self.layout.strides) is form
            same = lies and not copy and dtype in (None, self.layout.dtype)
            return self if same else copied_in(form, self, dtype)
    if dtype is None or dtype is self.layout.dtype:
        return clone_operator(self) if copy else self
    if self.layout.dtype.is_complex and dtype.kind not in "cb":
        warnings.warn("Casting complex values to real discards the imaginary part; x.real says so", stacklevel=2)
    return cast_operator(self, dtype=dtype)


@method("type")
def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False, *, memory_format: Any = None) -> Any:
    """In a dtype; without one, the name of its type: "tensorsmith.FloatTensor". Such a name stands for its dtype too."""
    as_bool("type", non_blocking, "non_blocking")
    names = {f"tensorsmith.{dtypes.type_name(each)}Tensor": each for each in dtypes.ALL}
    if dtype is None:
        return f"tensorsmith.{dtypes.type_name(self.dtype)}Tensor"
    found = names.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, DType):
        raise ValueError(f"type(): expected a dtype or one of {', '.join(names)}, got {dtype!r}")
    return to(self, found, memory_format=memory_format)


def _shorthand(name: str, dtype: DType) -> None:
    def convert(self: Tensor, *, memory_format: Any = None) -> Tensor:
        return to(self, dtype, memory_format=memory_format)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"In {dtype.name}; the tensor itself where it is that already."
    setattr(Tensor, name, convert)


for _name, _dtype in {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int": dtypes.int32, "long": dtypes.int64, "short": dtypes.int16, "char": dtypes.int8, "byte": dtypes.uint8,
    "bool": dtypes.bool_, "cfloat": dtypes.complex64, "cdouble": dtypes.complex128,
}.items():  # fmt: skip
    _shorthand(_name, _dtype)


@method()
def chalf(self: Tensor, memory_format: Any = None) -> Tensor:
    """Refused: complex32, whose parts are float16, is not there; complex64 is the smallest complex dtype."""
    raise NotImplementedError("chalf(): complex32 is not implemented; use cfloat(), which is complex64")


@method()
def cpu(self: Tensor, *, memory_format: Any = None) -> Tensor:
    """On the CPU: the tensor itself where it is there."""
    return to(self, CPU, memory_format=memory_format)


class _Exported:
    """What NumPy keeps as the base of an exported array: it holds the storage."""

    def __init__(self, tensor: Tensor) -> None:
        layout = tensor.layout
        self.storage: Storage = tensor.storage
        itemsize = layout.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "shape": layout.shape,
            "strides": tuple(s * itemsize for s in layout.strides),
            "typestr": layout.dtype.numpy.str,
            "data": (tensor.ptr, False),
        }


@method()
def numpy(self: Tensor, *, force: bool = False) -> np.ndarray:
    """The tensor's memory as a NumPy array: both see each other's writes.

    Raises RuntimeError for a tensor that requires a gradient (detach it first, or pass force=True), TypeError for bfloat16,
    which NumPy does not have.
    """
    if modes.tracer is not None:
        modes.tracer.refuse(self, "numpy()")
    if self.layout.device is not CPU:
        if not force:
            raise TypeError(
                f"can't convert {self.layout.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        self = to(self.detach(), CPU)  # type: ignore[attr-defined]
    if self.layout.tracked and not force:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if self.layout.dtype is dtypes.bfloat16:
        raise TypeError("Got unsupported ScalarType BFloat16; use tensor.float().numpy()")
    if self.layout.numel == 0:
        return np.empty(self.layout.shape, self.layout.dtype.numpy)
    exported = _Exported(self)
    self.storage.lend(exported)
    return np.asarray(exported)


@method("__array__")
def as_array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """For np.asarray(tensor)."""
    array = numpy(self)
    return array if dtype is None else array.astype(dtype, copy=False)


@method("__array_wrap__")
def wrap_array(self: Tensor, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Tensor:
    """For NumPy's functions of tensors, whose results are tensors again; truth values become uint8, as in PyTorch."""
    array = np.asarray(array)
    return from_numpy(array.astype(np.uint8) if array.dtype == np.bool_ else array)


@method()
def item(self: Tensor) -> Any:
    """The value of a tensor of one element, as a Python number."""
    if modes.tracer is not None:
        modes.tracer.refuse(self, "item()")
    if self.layout.numel != 1:
        raise RuntimeError(f"a Tensor with {self.layout.numel} elements cannot be converted to Scalar")
    return array_of(self).reshape(()).item()


@method()
def tolist(self: Tensor) -> Any:
    """Nested lists of Python numbers (a number for a zero-dim tensor)."""
    if modes.tracer is not None:
        modes.tracer.refuse(self, "tolist()")
    return array_of(self).tolist()


def _number(name: str, convert: Any) -> None:
    def method_(self: Tensor) -> Any:
        if self.layout.numel != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        value = item(self)
        if isinstance(value, complex) and convert is not complex:
            if value.imag:
                raise RuntimeError(
                    f"value cannot be converted to type {convert.__name__} without overflow: {value} is not real"
                )
            value = value.real
        return convert(value)

    method_.__name__ = name
    setattr(Tensor, name, method_)


_number("__float__", float)
_number("__int__", int)
_number("__complex__", complex)


@method("__bool__")
def truth(self: Tensor) -> bool:
    """Truth of a tensor of one element."""
    if self.layout.numel != 1:
        if self.layout.numel == 0:
            raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    return bool(item(self))


@method("__index__")
def index(self: Tensor) -> int:
    """An integer tensor of one element as an index."""
    if self.layout.dtype.kind not in "iub" or self.layout.numel != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(item(self))


@method()
def detach(self: Tensor) -> Tensor:
    """A tensor over the same memory that autograd does not follow."""
    if modes.tracer is not None:
        return modes.tracer.detach(self)
    return make_tensor(self.layout.with_tracking(False), self.storage, self.ptr)


def _get_data(self: Tensor) -> Tensor:
    """The same memory, not tracked; its writes do not count as writes to this tensor."""
    if modes.tracer is not None:
        return modes.tracer.detach(self)
    alias = storage_type(self.layout.device).foreign(self.storage.ptr, self.storage.nbytes, self.storage)
    return make_tensor(self.layout.with_tracking(False), alias, self.ptr)


def _set_data(self: Tensor, value: Tensor) -> None:
    """Take over another tensor's memory; the version does not count."""
    if not isinstance(value, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
    if self.layout.tracked and value.layout.dtype.kind not in "fc":
        raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
    if modes.tracer is not None and self.layout.level is None and value.layout.level is None:
        if self.layout.dtype is not value.layout.dtype or self.layout.shape != value.layout.shape:
            raise NotImplementedError(
                f"setting the data of a tensor inside a compiled function to one of another kind: {self.layout.dtype.name}"
                f"{list(self.layout.shape)}, now {value.layout.dtype.name}{list(value.layout.shape)}"
            )
        modes.tracer.detach(self).copy_(value.detach())
        return
    need_memory("setting the data", self, value)
    self.storage, self.ptr = value.storage, value.ptr
    self.layout = value.layout.with_tracking(self.layout.tracked)


Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment, method-assign]

"""Tensor: data and identity, no mathematics.

A tensor is a Layout (dtype, shape, strides, tracked) over a Storage, at an address. What PyTorch calls autograd metadata is
two slots every tensor has (`node`, `output_number`: where its gradient flows to) and a `TensorState` made on demand.
Operators are bound onto the class by `ops/`.

For a view, `base` is the tensor that owns the data (never itself a view) and `stamp` the storage's version when `node` was
set: where they differ, somebody wrote through another view and `node` is derived anew from the base. `origin` says how the
view came about, where that forbids to write over it while gradients are recorded (see `Origin`).
"""

from __future__ import annotations

import enum
import weakref
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import Layout, layout_of
from tensorsmith.core.memory_format import MemoryFormat, contiguous_format, format_of, lies_in
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.storage import Storage, storage_type


class Origin(enum.Enum):
    """Why the history of a view cannot be derived from its base after a write; None for an ordinary view."""

    NO_GRAD = "no_grad"  # it was made while nothing was recorded
    INFERENCE = "inference"  # the same, in inference mode
    MULTIPLE = "multiple"  # an operator gave it with other views
    FUNCTION = "function"  # a custom Function gave it, which alone knows how it came about


class TensorState:
    """What few tensors have: gradient, hooks, a name."""

    __slots__ = ("grad", "hooks", "retains_grad", "accumulator", "post_hooks", "name", "own", "__weakref__")

    def __init__(self) -> None:
        self.grad: Tensor | None = None
        self.hooks: dict[int, Any] | None = None  # on the gradient of this tensor
        self.retains_grad = False
        self.accumulator: weakref.ref | None = None  # the node that accumulates into `grad` of a leaf
        self.post_hooks: dict[int, Any] | None = None  # after accumulation into a leaf
        self.name: str | None = None
        self.own = False  # of a view: a gradient was asked for itself, whatever its base does


class Size(tuple):
    """A shape: a tuple that prints as PyTorch's and counts its elements."""

    __slots__ = ()

    def numel(self) -> int:
        """Product of the extents."""
        n = 1
        for extent in self:
            n *= extent
        return n

    def __repr__(self) -> str:
        return f"tensorsmith.Size({list(self)})"

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, tuple(other)))


class Tensor:
    """A multi-dimensional array of one dtype, with PyTorch's semantics. Make one with `ts.tensor(...)`."""

    __slots__ = (
        "layout", "ptr", "storage", "node", "output_number", "base", "viewed", "stamp", "origin", "state", "__dict__",
        "__weakref__",
    )  # fmt: skip

    layout: Layout
    ptr: int  # address of the first element
    storage: Storage
    node: Any  # autograd node this tensor is an output of; None for a leaf
    output_number: int
    base: Tensor | None
    viewed: bool  # set, to True, where a view of this tensor was made: where it is not set there is none
    stamp: int
    origin: Origin | None  # of views only
    state: TensorState | None

    __array_priority__ = 1000  # NumPy arrays on the left leave binary operators to us

    # --- layout -----------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """Extents."""
        return Size(self.layout.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one extent."""
        if dim is None:
            return Size(self.layout.shape)
        shape = self.layout.shape
        if not -max(len(shape), 1) <= dim < max(len(shape), 1) or not shape:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-max(len(shape), 1)}, {max(len(shape), 1) - 1}], "
                f"but got {dim})"
            )
        return shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements, or one of them."""
        return self.layout.strides if dim is None else self.layout.strides[dim]

    @property
    def ndim(self) -> int:
        return len(self.layout.shape)

    def dim(self) -> int:
        """Number of axes."""
        return len(self.layout.shape)

    ndimension = dim

    def numel(self) -> int:
        """Number of elements."""
        return self.layout.numel

    nelement = numel

    @property
    def dtype(self) -> DType:
        return self.layout.dtype

    @property
    def itemsize(self) -> int:
        return self.layout.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.layout.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def device(self) -> Device:
        return self.layout.device

    @property
    def is_cpu(self) -> bool:
        return self.layout.device is CPU

    @property
    def is_cuda(self) -> bool:
        return self.layout.device.type == "cuda"

    def get_device(self) -> int:
        """The number of the CUDA device, -1 on the CPU."""
        index = self.layout.device.index
        return -1 if index is None else index

    def is_contiguous(self, *, memory_format: MemoryFormat = contiguous_format) -> bool:
        """Whether elements lie without gaps in row-major order, or in another memory format."""
        if memory_format is contiguous_format:
            return self.layout.contiguous
        return lies_in(format_of("is_contiguous", memory_format, contiguous_format), self.layout.shape, self.layout.strides)

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating one."""
        return self.layout.dtype.kind == "f"

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.layout.dtype.kind == "c"

    def is_signed(self) -> bool:
        """Whether the dtype holds negative numbers."""
        return self.layout.dtype.is_signed

    def data_ptr(self) -> int:
        """Address of the first element."""
        self.storage.lend(None)  # whoever asks may write there
        return self.ptr

    def storage_offset(self) -> int:
        """Elements between the start of the storage and the first element."""
        return (self.ptr - self.storage.ptr) // self.layout.dtype.itemsize

    def __len__(self) -> int:
        if not self.layout.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.layout.shape[0]

    __hash__ = object.__hash__

    # --- autograd identity ------------------------------------------------------------------------------------------

    @property
    def is_leaf(self) -> bool:
        """True where no recorded operator made this tensor."""
        return not self.layout.tracked or self.grad_fn is None

    @property
    def _version(self) -> int:
        return self.storage.version

    def _is_view(self) -> bool:
        return self.base is not None

    @property
    def _base(self) -> Tensor | None:
        return self.base

    def ensure_state(self) -> TensorState:
        """The TensorState, made where there is none."""
        if self.state is None:
            self.state = TensorState()
        return self.state


def make_tensor(layout: Layout, storage: Storage, ptr: int, cls: type[Tensor] = Tensor) -> Tensor:
    """A leaf over existing memory."""
    tensor = cls.__new__(cls)
    tensor.layout = layout
    tensor.storage = storage
    tensor.ptr = ptr
    tensor.node = None
    tensor.output_number = 0
    tensor.base = None
    tensor.state = None
    return tensor


def empty_tensor(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, device: Device = CPU
) -> Tensor:
    """A leaf over new memory that holds anything."""
    layout = layout_of(dtype, shape, strides, False, device)
    storage = storage_type(device)(layout.extent * dtype.itemsize)
    return make_tensor(layout, storage, storage.ptr)


def alias_of(tensor: Tensor, tracked: bool) -> Tensor:
    """Another tensor over the same memory, of no history: no view, no node."""
    found = make_tensor(tensor.layout.with_tracking(tracked), tensor.storage, tensor.ptr)
    if tensor.layout.level is not None:
        tensor.layout.level.keep(found, tensor)
    return found


def readable(tensor: Tensor, what: str) -> Tensor:
    """The tensor whose memory holds the values: of a transform's wrapper what it stands for, or an error (vmap)."""
    while tensor.layout.level is not None:
        tensor = tensor.layout.level.readable(tensor, what)
    return tensor


def refuse_value(tensor: Tensor, what: str) -> None:
    """Raise for a tensor of a trace, which has no values: by who traces, or RuntimeError where the trace has ended."""
    if modes.tracer is not None:
        modes.tracer.refuse(tensor, what)
    raise RuntimeError(
        f"{what} needs the value of a tensor that was made while a function was traced for ts.compile, and the trace failed"
    )


def need_memory(what: str, *tensors: Tensor) -> None:
    """Refuse a function transform's wrapper where memory is taken over or given up."""
    for tensor in tensors:
        if tensor.storage.traced:
            refuse_value(tensor, what)
    if any([tensor.layout.level is not None for tensor in tensors]):
        raise NotImplementedError(f"{what} of a tensor inside a function transform: its memory is another tensor's")


def unrecorded_origin() -> Origin:
    """The origin of a view that is made now, while nothing is recorded."""
    return Origin.INFERENCE if modes.inference else Origin.NO_GRAD


def make_view(source: Tensor, layout: Layout, offset: int) -> Tensor:
    """A tensor over the same storage, `offset` elements further; its base is the source's.

    While nothing is recorded, a view of a tracked tensor is tracked, without a node.
    """
    if source.layout.level is not None:
        return source.layout.level.view(source, layout, offset)
    view = Tensor.__new__(Tensor)
    view.layout = layout
    storage = view.storage = source.storage
    view.ptr = source.ptr + offset * layout.dtype.itemsize
    view.node = None
    view.output_number = 0
    if source.base is None:
        view.base, view.origin = source, None
        source.viewed = True
    else:
        view.base, view.origin = source.base, source.origin
    if not modes.grad:
        view.origin = unrecorded_origin()
        if view.base.layout.tracked and layout.dtype.kind in "fc":
            view.layout = layout.with_tracking(True)
    view.stamp = storage.version
    view.state = None
    return view

"""Tensors from nothing and from Python and NumPy data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import DType, as_dtype, from_numpy_dtype, get_default_dtype, int64, of_python_scalar
from tensorsmith.core.layout import layout_of
from tensorsmith.core.memory_format import format_of, format_strides, preserve_format
from tensorsmith.eager.fast import FAST, remember
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.ir.graph import Node
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.host_data import array_of, cast_array, from_python
from tensorsmith.ops.raw_keys import as_int, find
from tensorsmith.ops.registry import public
from tensorsmith.tensor.host_values import write_values
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.placement import device_from, on, place_of
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Size, Tensor, empty_tensor, make_tensor, need_memory

Shape = int | Sequence[int]


def shape_of(operator: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape from `f(2, 3)` or `f((2, 3))`."""
    if len(size) == 1 and isinstance(size[0], tuple | list):
        size = tuple(size[0])
    elif not size:
        raise TypeError(f'{operator}() missing 1 required positional arguments: "size"')
    if any(n.__class__ is bool for n in size):
        raise TypeError(f"{operator}(): argument 'size' must be tuple of ints, not bool")
    try:
        shape = tuple(n.__index__() for n in size)
    except AttributeError:
        raise TypeError(f"{operator}(): the size must be ints, got {[type(n).__name__ for n in size]}") from None
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    if math.prod(shape) >= 1 << 59:  # the widest dtype has 16 bytes
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
    return shape


def _finish(tensor: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        tensor.requires_grad_(True)
    return tensor


def accepts_out(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """With `out`, the dtype is that of `out` and the result is written over it."""

    @functools.wraps(function)
    def wrapped(*args: Any, dtype: DType | None = None, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        dtype = as_dtype(dtype)
        if out is None:
            return function(*args, dtype=dtype, **kwargs)
        from tensorsmith.ops.out import create_into

        return create_into(function, args, kwargs, dtype, out)

    wrapped.converts_dtype = True  # type: ignore[attr-defined]
    return wrapped


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor over the memory of a NumPy array; writes on either side are seen by the other."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    dtype = from_numpy_dtype(array.dtype)
    if any(s < 0 for s in array.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are not "
            "supported. (You can probably work around this by making a copy of your array with array.copy().)"
        )
    if any(s % dtype.itemsize for s in array.strides) and array.size > 1:
        raise ValueError("given numpy array strides not a multiple of the element byte size. Copy array first.")
    if not array.flags.aligned:
        array = np.ascontiguousarray(array).copy()
    strides = tuple(s // dtype.itemsize for s in array.strides)
    layout = layout_of(dtype, array.shape, strides)
    ptr = array.__array_interface__["data"][0]
    return _known_to_tracer(make_tensor(layout, Storage.foreign(ptr, layout.extent * dtype.itemsize, array), ptr), array)


def _known_to_tracer(made: Tensor, array: np.ndarray | None = None) -> Tensor:
    """Tell who traces a compiled function of a tensor that the function makes of Python's data."""
    note = getattr(modes.tracer, "note_constant", None)
    if note is not None:
        note(made, array)
    return made


def blank_tensor(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, like: Tensor | None = None,
    device: Device = CPU,
) -> Tensor:  # fmt: skip
    """A new tensor to be written by operators; while a function is traced, one without memory like every other result.

    like: the tensor it is made after; where that stands for one example of a vmap, so does the new one
    """
    if like is not None and like.layout.level is not None:
        return like.layout.level.blank(like, dtype, shape, strides)
    if modes.tracer is not None:
        return modes.tracer.blank(dtype, shape, strides, device)
    return empty_tensor(dtype, shape, strides, device)


def copy_array(array: np.ndarray, dtype: DType | None = None, device: Device = CPU) -> Tensor:
    """A tensor of its own with the values of an array, cast as tensors are."""
    dtype = dtype or from_numpy_dtype(array.dtype)
    result = empty_tensor(dtype, array.shape, None, device)
    if array.size:
        write_values(result, cast_array(array, dtype))
    return _known_to_tracer(result)


@public("creation", method=False)
def tensor(
    data: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A new tensor with a copy of `data`: numbers, nested sequences, NumPy arrays or tensors.

    dtype: inferred as PyTorch does where not given (float -> default dtype, int -> int64, bool -> bool).
    Raises TypeError or ValueError for data that is no rectangular array of numbers, RuntimeError for what is no number and
    for a Python number that an integer dtype cannot hold, ValueError for an int beyond 64 bits.

    >>> ts.tensor([[1.0, 2.0], [3.0, 4.0]]).shape
    tensorsmith.Size([2, 2])
    """
    dtype = as_dtype(dtype)
    if isinstance(data, Tensor):
        place = data.layout.device if device is None else device_from(device)
        result = copy_array(array_of(data), dtype or data.dtype, place)
    else:
        place = place_of(device)
        result = copy_array(*from_python(data, dtype), place)
    if pin_memory:
        result = result.pin_memory()  # type: ignore[attr-defined]
    return _finish(result, requires_grad)


@public("creation", method=False, aliases=("asarray",))
def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor sharing memory with `data` where possible (tensors, NumPy arrays), a copy otherwise."""
    dtype = as_dtype(dtype)
    if isinstance(data, Tensor):
        moved = data if device is None else data.to(device)  # type: ignore[attr-defined]
        return moved if dtype is None or dtype is data.dtype else moved.to(dtype)
    if hasattr(data, "__cuda_array_interface__"):
        from tensorsmith.ops.exchange import from_cuda_array_interface

        return as_tensor(from_cuda_array_interface(data), dtype, device)
    if place_of(device) is CPU and isinstance(data, np.ndarray) and (dtype is None or from_numpy_dtype(data.dtype) is dtype):
        return from_numpy(data) if all(s >= 0 for s in data.strides) else copy_array(data)
    return tensor(data, dtype=dtype, device=device)


def _full(*operands: Any, shape: tuple[int, ...], dtype: DType) -> Node:
    return build.broadcast_to(build.cast(operands[0], dtype), shape)


_full_operator = Operator("full", _full, fresh=True)


@public("creation", method=False)
@accepts_out
def full(
    size: Shape, fill_value: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A tensor of shape `size` filled with one value."""
    place = place_of(device)
    if not isinstance(size, tuple | list):
        raise TypeError(f"full(): argument 'size' (position 1) must be tuple of ints, not {type(size).__name__}")
    shape = shape_of("full", (size,))
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    if isinstance(fill_value, np.generic):
        fill_value = fill_value.item()
    dtype = dtype or of_python_scalar(fill_value)
    from tensorsmith.ops.inplace import number_for

    fill_value = number_for("full", fill_value, dtype)
    return _finish(_full_operator(fill_value, shape=shape, dtype=dtype, **on(place)), requires_grad)


def _constant(name: str, value: int, size: tuple, dtype: DType | None, device: Any, requires_grad: bool) -> Tensor:
    """zeros and ones, by the raw arguments where they were seen before."""
    dtype = dtype or get_default_dtype()
    place = place_of(device)
    plain = not requires_grad and all([n.__class__ is int for n in size])  # 2.0 would equal 2 in a key
    key = (name, size, dtype, place)
    if plain:
        entry = find(key)
        if entry is not None:
            return entry(value)
    shape = shape_of(name, size)
    result = full(shape, value, dtype=dtype, device=place, requires_grad=requires_grad)
    attrs = {"shape": shape, "dtype": dtype, **on(place)}
    entry = FAST.get((_full_operator, int, *attrs.items())) if plain else None
    if entry is not None:
        remember(key, entry)
    return result


@public("creation", method=False)
@accepts_out
def zeros(
    *size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, out: Tensor | None = None
) -> Tensor:
    """A tensor of zeros: `zeros(2, 3)` or `zeros((2, 3))`."""
    return _constant("zeros", 0, size, dtype, device, requires_grad)


@public("creation", method=False)
@accepts_out
def ones(
    *size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, out: Tensor | None = None
) -> Tensor:
    """A tensor of ones: `ones(2, 3)` or `ones((2, 3))`."""
    return _constant("ones", 1, size, dtype, device, requires_grad)


@public("creation", method=False)
@accepts_out
def empty(
    *size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: Any = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A tensor whose memory holds anything."""
    place = place_of(device)
    shape = shape_of("empty", size)
    strides = None if memory_format is None else format_strides(format_of("empty", memory_format), shape)
    made = blank_tensor(dtype or get_default_dtype(), shape, strides, device=place)
    return _finish(made.pin_memory() if pin_memory else made, requires_grad)  # type: ignore[attr-defined]


@public("creation", method=False)
def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of given strides whose memory holds anything."""
    place = place_of(device)
    if len(size) != len(stride):
        raise RuntimeError(f"empty_strided: dimensionality of sizes ({len(size)}) must match strides ({len(stride)})")
    if any(s < 0 for s in stride):
        raise RuntimeError(f"empty_strided: strides must not be negative, got {list(stride)}")
    shape = shape_of("empty_strided", (size,))
    return _finish(blank_tensor(dtype or get_default_dtype(), shape, tuple(stride), device=place), requires_grad)


def _filled(made: Tensor, value: Any) -> Tensor:
    """A new tensor with its first values, which do not count as a write."""
    made.fill_(value)
    made.storage.version = 0
    return made


def _like(name: str, value: Any) -> None:
    def function(
        input: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,  # noqa: A002
        memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        place = input.layout.device if device is None else device_from(device)
        strides = like_strides(input, name, memory_format)
        result = blank_tensor(dtype or input.dtype, input.layout.shape, strides, input, place)
        return _finish(result if value is None else _filled(result, value), requires_grad)

    function.__name__ = function.__qualname__ = name
    filled = "" if value is None else f", filled with {value}"
    function.__doc__ = f"A tensor of the shape, dtype and memory order of another{filled}."
    public("creation", method=False)(function)


def like_strides(source: Tensor, operator: str = "", memory_format: Any = None) -> tuple[int, ...]:
    """Strides of what is made like a tensor: in its order of axes without gaps, or in a memory format."""
    from tensorsmith.eager.entries import elementwise_strides

    if memory_format is not None and (form := format_of(operator, memory_format)) is not preserve_format:
        return format_strides(form, source.layout.shape)
    return elementwise_strides(source.layout.shape, [source.layout])


for _name, _value in {"zeros_like": 0, "ones_like": 1, "empty_like": None}.items():
    _like(_name, _value)


@public("creation", method=False)
def full_like(
    input: Tensor, fill_value: Any, *, dtype: DType | None = None, device: Any = None,  # noqa: A002
    requires_grad: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor like another, filled with one value."""
    place = input.layout.device if device is None else device_from(device)
    strides = like_strides(input, "full_like", memory_format)
    result = blank_tensor(dtype or input.dtype, input.layout.shape, strides, input, place)
    return _finish(_filled(result, fill_value), requires_grad)


def _arange(start: Any, step: Any, *, length: int, dtype: DType) -> Node:
    index = start.graph.iota(length)
    work = dtype if dtype.kind in "iu" and dtype.itemsize == 8 else (dtypes.float64 if dtype.kind == "f" else int64)
    positions = build.cast(index, work)
    return build.cast(build.cast(start, work) + positions * build.cast(step, work), dtype)


_arange_operator = Operator("arange", _arange, fresh=True)


@public("creation", method=False)
@accepts_out
def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """start, start + step, ... below end; `arange(n)` counts from 0.

    dtype: int64 where all arguments are ints, the default dtype otherwise.
    Raises RuntimeError for step 0 or bounds that the step does not lead between.
    """
    place = place_of(device)
    if end is None:
        start, end = 0, start
    values = [v.item() if isinstance(v, Tensor | np.generic) else v for v in (start, end, step)]
    start, end, step = values
    if any(isinstance(v, complex) for v in values):
        raise RuntimeError(f"arange(): the bounds and the step must be real numbers, got {values}")
    if step == 0:
        raise RuntimeError("arange(): step must be nonzero")
    if dtype is int64 and not all(isinstance(v, int) for v in values) and all(math.isfinite(v) for v in values):
        values = start, end, step = [int(v) for v in values]  # as PyTorch, for this dtype the length too is one of integers
        if step == 0:
            raise ValueError("arange(): step must be nonzero, and in int64 it is 0")
    if not all(math.isfinite(v) for v in values):
        raise RuntimeError(f"arange(): unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError("arange(): upper bound and lower bound inconsistent with step sign")
    if dtype is None:
        dtype = int64 if all(isinstance(v, int) for v in values) else get_default_dtype()
    if all(isinstance(v, int) for v in values):
        length = max(-(-(end - start) // step), 0)
    else:
        length = max(math.ceil((end - start) / step), 0)
    if dtype.kind in "bc":
        why = "complex numbers have no order" if dtype.kind == "c" else "convert the result"
        raise NotImplementedError(f"\"arange_cpu\" not implemented for '{dtypes.type_name(dtype)}': {why}")
    if dtype.kind in "iu":
        start, step = int(start), int(step)  # a step of 0 repeats the start, as in PyTorch
    else:
        start, step = float(start), float(step)
    result = _arange_operator(start, step, length=length, dtype=dtype, **on(place))
    return _finish(result, requires_grad)


def bounds_of_steps(start: Any, end: Any, dtype: DType) -> tuple[float, float]:
    """First and last of equally distant numbers: where the result is of integers they are integers too."""
    first, last = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    return (float(int(first)), float(int(last))) if dtype.kind in "iu" else (float(first), float(last))


def _linspace(start: Any, end: Any, *, steps: int, dtype: DType) -> Node:
    graph = start.graph
    index = build.cast(graph.iota(steps), dtypes.float64)
    work = dtypes.complex128 if dtype.is_complex else dtypes.float64
    a, b = build.cast(start, work), build.cast(end, work)
    step = (b - a) / float(max(steps - 1, 1))
    forward = a + index * step
    backward = b - (float(steps - 1) - index) * step  # from the end, so that the end is met exactly
    return build.cast(build.where(index < float(max(steps // 2, 1)), forward, backward), dtype)


_linspace_operator = Operator("linspace", _linspace, fresh=True)


@public("creation", method=False)
@accepts_out
def linspace(
    start: Any, end: Any, steps: int, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`steps` values from start to end, both included, at equal distances."""
    place = place_of(device)
    steps = as_int("linspace", steps, "steps")
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    if dtype is not None:
        refuse("linspace_cpu", dtype, "b")
    first, last = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    given_complex = isinstance(first, complex) or isinstance(last, complex)
    dtype = dtype or (of_python_scalar(0j) if given_complex else get_default_dtype())
    if given_complex and not dtype.is_complex:
        raise RuntimeError(f"linspace(): complex bounds need a complex dtype, got {dtype.name}")
    first, last = (complex(first), complex(last)) if given_complex else bounds_of_steps(first, last, dtype)
    return _finish(_linspace_operator(first, last, steps=steps, dtype=dtype, **on(place)), requires_grad)


def _eye(one: Any, *, n: int, m: int, dtype: DType) -> Node:
    graph = one.graph
    rows = build.reshape(graph.iota(n), (n, 1))
    columns = build.reshape(graph.iota(m), (1, m))
    return build.cast(rows == columns, dtype)


_eye_operator = Operator("eye", _eye, fresh=True)


@public("creation", method=False)
@accepts_out
def eye(
    n: int, m: int | None = None, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Ones on the diagonal of an (n, m) matrix of zeros."""
    place = place_of(device)
    n = as_int("eye", n, "n")
    columns = n if m is None else as_int("eye", m, "m")
    if n < 0 or columns < 0:
        raise RuntimeError(f"n must be greater or equal to 0, got {min(n, columns)}")
    made = _eye_operator(1, n=n, m=columns, dtype=dtype or get_default_dtype(), **on(place))
    return _finish(made, requires_grad)


@public("creation", method=False)
def scalar_tensor(value: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A zero-dim tensor in the default dtype."""
    return full((), value, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def _construct(self: Tensor, *data: Any, device: Any = None) -> None:
    """`Tensor([1, 2])` copies values into the default dtype, `Tensor(2, 3)` has that shape and holds anything, `Tensor(x)` is
    another tensor over the memory of x. `ts.tensor` is the better name for the first and `ts.empty` for the second."""
    place = place_of(device)
    if len(data) == 1 and isinstance(data[0], Tensor):
        made = data[0]
        if not made.storage.traced:
            need_memory("Tensor(x)", made)
    elif len(data) == 1 and isinstance(data[0], list | tuple | np.ndarray) and not isinstance(data[0], Size):
        made = tensor(data[0], dtype=get_default_dtype(), device=place)
    else:
        made = empty_tensor(get_default_dtype(), shape_of("Tensor", data or (0,)), None, place)
    self.layout, self.storage, self.ptr = made.layout.with_tracking(False), made.storage, made.ptr
    self.node, self.output_number, self.base, self.state = None, 0, None, None


Tensor.__init__ = _construct  # type: ignore[method-assign]

"""Tensors made from other tensors (`x.new_zeros(...)`), and less common ways to make one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.ops import creation
from tensorsmith.ops.checks import refuse
from tensorsmith.ops.conversion import clone
from tensorsmith.ops.creation import shape_of
from tensorsmith.ops.registry import TABLE, method, need_tensor, public
from tensorsmith.tensor.tensor import Tensor


def _beside(source: Tensor, device: Any) -> Any:
    """The device asked for, else that of the tensor it is made from."""
    return source.layout.device if device is None else device


def _new(name: str, make: Any, value: int | None) -> None:
    def function(
        self: Tensor, *size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False,
        layout: Any = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        if self.layout.level is not None:
            return _after(self, shape_of(name, size), value, dtype, requires_grad)
        return make(*size, dtype=dtype or self.layout.dtype, device=_beside(self, device), requires_grad=requires_grad)

    function.__name__ = function.__qualname__ = "new_" + name
    function.__doc__ = f"`{name}` in the dtype of this tensor."
    setattr(Tensor, "new_" + name, function)


for _name, _value in {"zeros": 0, "ones": 1, "empty": None}.items():
    _new(_name, getattr(creation, _name), _value)


def _after(source: Tensor, shape: tuple[int, ...], value: Any, dtype: DType | None, requires_grad: bool) -> Tensor:
    """A tensor after one that a function transform is at: under vmap, one for every example."""
    result = creation.blank_tensor(dtype or source.layout.dtype, shape, None, source, source.layout.device)
    if value is not None:
        result.fill_(value)
    return result.requires_grad_(True) if requires_grad else result


@method()
def new_full(
    self: Tensor, size: Sequence[int], fill_value: Any, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of one value in the dtype of this tensor."""
    if self.layout.level is not None:
        return _after(self, shape_of("full", (tuple(size),)), fill_value, dtype, requires_grad)
    dtype, place = dtype or self.layout.dtype, _beside(self, device)
    return creation.full(size, fill_value, dtype=dtype, device=place, requires_grad=requires_grad)


@method()
def new_tensor(
    self: Tensor, data: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A copy of data in the dtype of this tensor."""
    return creation.tensor(data, dtype=dtype or self.layout.dtype, device=_beside(self, device), requires_grad=requires_grad)


@method()
def new_empty_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Uninitialised memory of given strides in the dtype of this tensor."""
    return creation.empty_strided(
        size, stride, dtype=dtype or self.layout.dtype, device=device, requires_grad=requires_grad
    )


@public("creation", method=False)
def empty_permuted(
    size: Sequence[int], physical_layout: Sequence[int], *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Uninitialised memory whose axes lie in the order `physical_layout`, outermost first."""
    shape = shape_of("empty_permuted", (size,))
    if sorted(physical_layout) != list(range(len(shape))):
        raise RuntimeError(
            "Number of dimensions in size does not match the length of the physical_layout, or a dim is repeated: "
            f"{list(physical_layout)} for {len(shape)} dimensions"
        )
    packed = contiguous_strides(tuple(shape[i] for i in physical_layout))
    strides = [packed[list(physical_layout).index(i)] for i in range(len(shape))]
    return creation.empty_strided(shape, strides, dtype=dtype, device=device, requires_grad=requires_grad)


@public("creation", method=False)
@creation.accepts_out
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, out: Tensor | None = None, layout: Any = None,
) -> Tensor:  # fmt: skip
    """base ** x for `steps` equally distant x from start to end."""
    from tensorsmith.core.dtypes import complex128, float64, of_python_scalar

    of_complex = any(isinstance(v.item() if isinstance(v, Tensor) else v, complex) for v in (start, end, base))
    dtype = dtype or of_python_scalar(0j if of_complex else 0.0)
    refuse("logspace_cpu", dtype, "b")
    if not of_complex:
        start, end = creation.bounds_of_steps(start, end, dtype)
    found = (base ** creation.linspace(start, end, steps, dtype=complex128 if of_complex else float64, device=device)).to(dtype)
    return found.requires_grad_(True) if requires_grad else found


def _fill(input: Tensor, value: Any) -> Tensor:  # noqa: A002
    """A copy with one value everywhere."""
    return clone(need_tensor("fill", input)).fill_(value)


public("creation", name="fill", method=False)(_fill)
TABLE["fill"].inplace = True

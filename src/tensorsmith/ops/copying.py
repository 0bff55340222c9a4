"""Copies of tensors as Python makes them: `copy.copy`, `copy.deepcopy` and `pickle`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import BY_NAME
from tensorsmith.core.layout import Layout
from tensorsmith.ops.conversion import clone, detach
from tensorsmith.ops.host_data import array_of
from tensorsmith.ops.registry import method
from tensorsmith.tensor.host_values import write_values
from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor, empty_tensor, need_memory


@method("__copy__")
def shallow_copy(self: Tensor) -> Tensor:
    """Another leaf over the same memory."""
    need_memory("copy.copy", self)
    result = _leaf(type(self), self.layout, self.storage, self.ptr)
    result.__dict__.update(self.__dict__)
    return result


@method("__deepcopy__")
def deep_copy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """A leaf over a copy of the storage; tensors that share a storage share the copy, and the gradient comes along.

    Raises RuntimeError for a tensor that an operator made: the copy could not stay in its graph.
    """
    if self.storage.traced and self.is_leaf:
        result = memo[id(self)] = clone(detach(self)).requires_grad_(self.layout.tracked)
        return result
    need_memory("copy.deepcopy", self)
    found = memo.get(id(self))
    if found is not None:
        return found
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment. "
            "Use tensor.clone() to stay in the graph, or tensor.detach() first."
        )
    storage = memo.get(id(self.storage))
    if storage is None:
        storage = memo[id(self.storage)] = self.storage.copy()
    result = memo[id(self)] = _leaf(type(self), self.layout, storage, storage.ptr + (self.ptr - self.storage.ptr))
    if self.state is not None:
        if self.state.grad is not None:
            result.ensure_state().grad = deep_copy(self.state.grad, memo)
        if self.state.name is not None:
            result.ensure_state().name = self.state.name
    if self.__dict__:
        from copy import deepcopy

        result.__dict__.update(deepcopy(self.__dict__, memo))
    return result


def _leaf(cls: type[Tensor], layout: Layout, storage: Storage, ptr: int) -> Tensor:
    # Tensor's own __new__: that of a subclass (Parameter) wants data.
    tensor = Tensor.__new__(cls)
    tensor.layout, tensor.storage, tensor.ptr = layout, storage, ptr
    tensor.node, tensor.output_number, tensor.base, tensor.state = None, 0, None, None
    return tensor


def rebuild(
    cls: type[Tensor], dtype: str, shape: tuple[int, ...], data: bytes, tracked: bool, extra: dict, where: Device = CPU
) -> Tensor:
    """The tensor that `__reduce_ex__` took apart, on the device it was on."""
    found = BY_NAME[dtype]
    tensor = empty_tensor(found, shape, None, where)
    if data:
        write_values(tensor, np.frombuffer(data, found.numpy).reshape(shape))
    tensor = _leaf(cls, tensor.layout.with_tracking(tracked), tensor.storage, tensor.ptr)
    tensor.__dict__.update(extra)
    return tensor


def _reduce(self: Tensor, protocol: int) -> tuple[Any, ...]:
    """For pickle: class, dtype, shape, elements in row-major order, tracked or not, device; not the gradient.

    Raises RuntimeError for a tensor that an operator made.
    """
    if not self.is_leaf:
        raise RuntimeError("a tensor that is part of a graph cannot be pickled; detach() it first")
    data = np.ascontiguousarray(array_of(self)).tobytes()
    layout = self.layout
    where = () if layout.device is CPU else (layout.device,)
    return rebuild, (type(self), layout.dtype.name, layout.shape, data, layout.tracked, dict(self.__dict__), *where)


Tensor.__reduce_ex__ = _reduce  # type: ignore[method-assign,method-assign]

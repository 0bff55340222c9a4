"""Parameter and Buffer: tensors that a module registers when they are assigned to it."""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import get_default_dtype
from tensorsmith.tensor.tensor import Tensor, empty_tensor, need_memory


def make_member(cls: type[Tensor], data: Tensor, tracked: bool) -> Tensor:
    """A leaf of class `cls` over the memory of `data`."""
    if not data.storage.traced:
        need_memory(cls.__name__, data)
    tensor = Tensor.__new__(cls)
    tensor.layout = data.layout.with_tracking(tracked)
    tensor.storage = data.storage
    tensor.ptr = data.ptr
    tensor.node = None
    tensor.output_number = 0
    tensor.base = None
    tensor.state = None
    return tensor


class Parameter(Tensor):
    """A tensor that is learned: assigned as an attribute of a Module, it appears in `module.parameters()`.

    data: the tensor whose memory it shares (an empty one where not given)
    requires_grad: whether its gradient is computed
    Raises TypeError for data that is no tensor, RuntimeError for a dtype that cannot have a gradient.
    """

    __slots__ = ()

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = empty_tensor(get_default_dtype(), (0,))
        elif not isinstance(data, Tensor):
            raise TypeError(f"Parameter(): data must be a Tensor, not {type(data).__name__}")
        if requires_grad and data.layout.dtype.kind not in "fc":
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        return make_member(cls, data, bool(requires_grad))  # type: ignore[return-value]

    def __init__(self, *given: Any, **keywords: Any) -> None:
        """Nothing is left to do: `__new__` made it."""

    def __repr__(self) -> str:
        return "Parameter containing:\n" + Tensor.__repr__(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """Values and requires_grad in new memory; the gradient is not copied."""
        found = memo.get(id(self))
        if found is None:
            copied = self.detach().clone()
            found = memo[id(self)] = type(self)(copied, self.layout.tracked)
        return found


class Buffer(Tensor):
    """A tensor that belongs to a module's state but is not learned: assigned as an attribute it becomes a buffer.

    data: the tensor whose memory it shares; persistent: whether it is part of `state_dict()`.
    """

    __slots__ = ()

    persistent: bool  # in the instance's __dict__, so that copies and pickles keep it

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        if data is None:
            data = empty_tensor(get_default_dtype(), (0,))
        elif not isinstance(data, Tensor):
            raise TypeError(f"Buffer(): data must be a Tensor, not {type(data).__name__}")
        buffer = make_member(cls, data, data.layout.tracked)
        buffer.persistent = persistent  # type: ignore[attr-defined]
        return buffer  # type: ignore[return-value]

    def __init__(self, *given: Any, **keywords: Any) -> None:
        """Nothing is left to do: `__new__` made it."""

    def __repr__(self) -> str:
        return "Buffer containing:\n" + Tensor.__repr__(self)

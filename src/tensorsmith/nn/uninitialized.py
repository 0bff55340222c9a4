"""Parameters and buffers that wait for their shape."""

from __future__ import annotations

from typing import Any, NoReturn

from tensorsmith.core.dtypes import DType, get_default_dtype
from tensorsmith.nn.parameter import Parameter, make_member
from tensorsmith.ops.conversion import destination
from tensorsmith.tensor.placement import device_from, place_of
from tensorsmith.tensor.tensor import Tensor, empty_tensor

_LAYOUT: Any = Tensor.layout  # the slot itself, which UninitializedTensor puts a refusal before


class UninitializedTensor(Tensor):
    """A tensor that waits for its shape: it has a dtype, and everything that needs the shape raises."""

    __slots__ = ()

    cls_to_become: type[Tensor]

    @property
    def layout(self) -> Any:  # type: ignore[override]
        raise ValueError(
            f"Attempted to use an uninitialized parameter ({type(self).__name__}). Call the lazy module with a first batch, "
            "or load a state into it, before its parameters are used"
        )

    @layout.setter
    def layout(self, value: Any) -> None:
        _LAYOUT.__set__(self, value)

    def _refuse_shape(self) -> NoReturn:
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in `load_state_dict` "
            "when trying to load an uninitialized parameter into an initialized one. Call `forward` to initialize the "
            "parameters before accessing their attributes."
        )

    @property
    def shape(self) -> Any:  # type: ignore[override]
        self._refuse_shape()

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return _LAYOUT.__get__(self).dtype

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return _LAYOUT.__get__(self).tracked

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return True

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Whether the gradient is computed, once there is memory."""
        _LAYOUT.__set__(self, _LAYOUT.__get__(self).with_tracking(bool(requires_grad)))
        return self

    def detach(self) -> Any:
        """Itself: there are no values to share."""
        return self

    def materialize(self, shape: Any, device: Any = None, dtype: DType | None = None) -> None:
        """Give it memory of a shape (which holds anything yet) and make it an ordinary Parameter or Buffer."""
        own = _LAYOUT.__get__(self)
        made = empty_tensor(dtype or own.dtype, tuple(shape), None, own.device if device is None else device_from(device))
        self.storage, self.ptr = made.storage, made.ptr
        _LAYOUT.__set__(self, made.layout.with_tracking(own.tracked))
        self.__class__ = self.cls_to_become  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:
        """An empty tensor of its dtype; what is assigned gives the dtype that it waits with."""
        return empty_tensor(self.dtype, (0,), None, _LAYOUT.__get__(self).device)

    @data.setter
    def data(self, value: Tensor) -> None:
        made = empty_tensor(value.layout.dtype, (0,), None, value.layout.device)
        _LAYOUT.__set__(self, made.layout.with_tracking(self.requires_grad))

    def to(self, *args: Any, dtype: DType | None = None, device: Any = None, **options: Any) -> Any:
        """Have it wait with another dtype, or for another device."""
        dtype, place = destination(args, dtype, device)
        own = _LAYOUT.__get__(self)
        self.data = empty_tensor(dtype or own.dtype, (0,), None, place or own.device)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        found = memo.get(id(self))
        if found is None:
            found = memo[id(self)] = _uninitialized(type(self), self.requires_grad, _LAYOUT.__get__(self).device, self.dtype)
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _uninitialized, (type(self), self.requires_grad, None, self.dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def _uninitialized(cls: type[Tensor], tracked: bool, device: Any, dtype: DType | None) -> Any:
    return make_member(cls, empty_tensor(dtype or get_default_dtype(), (0,), None, place_of(device)), tracked)


class UninitializedParameter(UninitializedTensor, Parameter):
    """A Parameter whose shape is not known yet.

    requires_grad, device, dtype: what it will have once `materialize(shape)` has given it memory.
    Raises ValueError where an operator is to use it, RuntimeError where its shape is asked for.
    """

    __slots__ = ()

    cls_to_become = Parameter

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: DType | None = None) -> Any:
        return _uninitialized(cls, requires_grad, device, dtype)


class UninitializedBuffer(UninitializedTensor):
    """A buffer whose shape is not known yet; see `UninitializedParameter`."""

    __slots__ = ()

    cls_to_become = Tensor

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: DType | None = None, persistent: bool = True
    ) -> Any:
        return _uninitialized(cls, requires_grad, device, dtype)

    def __init__(self, *given: Any, **keywords: Any) -> None:
        """Nothing is left to do: `__new__` made it."""


def is_lazy(param: Any) -> bool:
    """Whether it is an UninitializedParameter or an UninitializedBuffer."""
    return isinstance(param, UninitializedTensor)

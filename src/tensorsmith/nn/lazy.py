"""Lazy modules: layers whose sizes follow from the first input.

Their parameters are `UninitializedParameter`s until the module is first called (or a state with sizes is loaded); then
`initialize_parameters` gives them memory and the module becomes an instance of the class it stands for.
"""

from __future__ import annotations

from typing import Any

from tensorsmith.core.dtypes import DType
from tensorsmith.nn.linear import Linear
from tensorsmith.nn.module import Module
from tensorsmith.nn.uninitialized import UninitializedParameter, UninitializedTensor, is_lazy
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


class LazyModuleMixin:
    """Put before a Module class: its parameters may be uninitialised until the first call.

    `initialize_parameters(*inputs)`, which the subclass defines, materialises them; afterwards the module is an instance
    of `cls_to_become`, where that is given. RuntimeError where the first call leaves a parameter without memory.
    """

    cls_to_become: type[Module] | None = None

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Give every uninitialised parameter the shape that follows from the inputs of `forward`."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def _own_members(self) -> list[tuple[str, Tensor]]:
        module: Any = self
        return [*module._parameters.items(), *module._buffers.items()]

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of this module still waits for its shape."""
        return any(is_lazy(member) for _, member in self._own_members())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if modes.tracer is not None and self.has_uninitialized_params():
            modes.tracer.note_uninitialized(self)
        self.initialize_parameters(*args, **kwargs)
        if self.has_uninitialized_params():
            raise RuntimeError(f"module {type(self).__name__} has not been fully initialized")
        if self.cls_to_become is not None:
            self.__class__ = self.cls_to_become  # type: ignore[assignment]
            return self(*args, **kwargs)
        return Module.__call__(self, *args, **kwargs)  # type: ignore[arg-type]

    def _before_load(self, state: dict[str, Any], prefix: str) -> None:
        """A state with sizes gives the sizes."""
        for name, member in self._own_members():
            given = state.get(prefix + name)
            if isinstance(member, UninitializedTensor) and isinstance(given, Tensor) and not is_lazy(given):
                member.materialize(given.shape)
        super()._before_load(state, prefix)  # type: ignore[misc]


class LazyLinear(LazyModuleMixin, Linear):
    """A Linear whose in_features is the extent of the last axis of its first input.

    >>> layer = ts.nn.LazyLinear(3)
    >>> layer(ts.ones(2, 5)).shape, layer
    (ts.Size([2, 3]), Linear(in_features=5, out_features=3, bias=True))
    """

    cls_to_become = Linear

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: DType | None = None) -> None:
        super().__init__(0, 0, False, device, dtype)  # memory of the right size comes with the first input
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        self.out_features = out_features
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw weight and bias, once they have their sizes."""
        if not self.has_uninitialized_params() and self.in_features:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:  # noqa: A002 - PyTorch's name
        """Take in_features from the input."""
        if self.has_uninitialized_params():
            self.in_features = input.shape[-1]
            for member, shape in ((self.weight, (self.out_features, self.in_features)), (self.bias, (self.out_features,))):
                if isinstance(member, UninitializedTensor):
                    member.materialize(shape)
            self.reset_parameters()
        elif not self.in_features:  # a state gave the sizes
            self.in_features = self.weight.shape[-1]

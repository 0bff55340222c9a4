"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build
from tensorsmith.tensor.tensor import Tensor

_join = Operator(
    "parameters_to_vector", lambda *nodes: build.concat([build.reshape(x, (x.numel,)) for x in nodes], 0), fresh=True
)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after the other, as one vector; gradients flow through."""
    found = list(parameters)
    if not found:
        raise ValueError("parameters_to_vector: there are no parameters")
    return _join(*found)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Have the parameters be slices of a vector, in the same order.

    Raises TypeError for anything but a tensor, ValueError where the vector is too short.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"vector_to_parameters: expected a Tensor, but got: {type(vec).__name__}")
    start = 0
    for parameter in parameters:
        count = parameter.numel()
        if start + count > vec.numel():
            raise ValueError(f"vector_to_parameters: the parameters need more than the vector's {vec.numel()} elements")
        part = vec.detach()[start : start + count]
        parameter.data = part.reshape(parameter.shape)
        start += count

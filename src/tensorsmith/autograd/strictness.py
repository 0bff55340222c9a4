"""Checks of `autograd.functional`: what the functions are given, and what strict mode does not allow, in PyTorch's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.tensor.tensor import Tensor

_NOT_ALLOWED = "This is not allowed in strict mode"


def as_tuple(values: Any, what: str, function: str) -> tuple[bool, tuple[Tensor, ...]]:
    """Whether a tuple of tensors was given, and a tuple of them. TypeError for anything else."""
    many = isinstance(values, tuple)
    found = values if many else (values,)
    for number, value in enumerate(found):
        if not isinstance(value, Tensor):
            which = f"value at index {number}" if many else f"given {what}"
            raise TypeError(
                f"The {what} given to {function} must be either a Tensor or a tuple of Tensors but the {which} has type "
                f"{type(value)}."
            )
    return many, found


def check_vectors(vectors: Sequence[Tensor], like: Sequence[Tensor], many: bool) -> None:
    """Refuse vectors that are not as many or not of the shapes of what they multiply."""
    if len(vectors) != len(like):
        if many:
            raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(vectors)}.")
        raise RuntimeError("The given v should contain a single Tensor.")
    for number, (vector, tensor) in enumerate(zip(vectors, like)):
        if vector.layout.shape != tensor.layout.shape:
            entry = f"Entry {number} in " if many else ""
            raise RuntimeError(f"{entry}v has invalid size: should be {tensor.shape} but got {vector.shape}.")


def check_scalar(many: bool, outputs: Sequence[Tensor], function: str) -> None:
    """Refuse a function that does not return one element."""
    if many:
        raise RuntimeError(f"The function given to {function} should return a single Tensor")
    if outputs[0].layout.numel != 1:
        raise RuntimeError(f"The Tensor returned by the function given to {function} should contain a single element")


def check_tracked(tensors: Sequence[Tensor | None], stage: str) -> None:
    """In strict mode: refuse values that depend on nothing. stage: outputs, gradients, jacobian or hessian."""
    for number, tensor in enumerate(tensors):
        if tensor is None:
            raise RuntimeError(f"The output of the user-provided function is independent of input {number}. {_NOT_ALLOWED}.")
        if tensor.layout.tracked:
            continue
        if stage == "hessian":
            raise RuntimeError(
                f"The hessian of the user-provided function with respect to input {number} is independent of the input. "
                f"{_NOT_ALLOWED}. You should ensure that your function is thrice differentiable and that the hessian depends "
                "on the inputs."
            )
        if stage == "jacobian":
            raise RuntimeError(
                "While computing the hessian, found that the jacobian of the user-provided function with respect to input "
                f"{number} is independent of the input. {_NOT_ALLOWED}. You should ensure that your function is twice "
                "differentiable and that the jacobian depends on the inputs (this would be violated by a linear function for "
                "example)."
            )
        if stage == "gradients":
            raise RuntimeError(
                f"The gradient with respect to input {number} is independent of the inputs of the user-provided function. "
                f"{_NOT_ALLOWED}."
            )
        raise RuntimeError(
            f"Output {number} of the user-provided function does not require gradients. The outputs must be computed in a "
            "differentiable manner from the input when running in strict mode."
        )


_MISSING = {
    "back": "The output of the user-provided function is independent of input {}. " + _NOT_ALLOWED + ".",
    "back_trick": "The gradient with respect to the input is independent of entry {} in the grad_outputs when using the double "
    "backward trick to compute forward mode gradients. " + _NOT_ALLOWED + ".",
    "double_back": "The jacobian of the user-provided function is independent of input {}. " + _NOT_ALLOWED + ".",
    "double_back_trick": "The hessian of the user-provided function is independent of entry {} in the grad_jacobian. "
    + _NOT_ALLOWED + " as it prevents from using the double backward trick to replace forward mode AD.",
}  # fmt: skip


def filled(
    gradients: Sequence[Tensor | None], like: Sequence[Tensor], strict: bool, create_graph: bool, stage: str
) -> tuple[Tensor, ...]:
    """Zeros for missing gradients. In strict mode RuntimeError for these, and for gradients that depend on nothing.

    stage: back, back_trick (J v by two backwards), double_back or double_back_trick.
    """
    found = []
    for number, (gradient, tensor) in enumerate(zip(gradients, like)):
        if gradient is None:
            if strict:
                raise RuntimeError(_MISSING[stage].format(number))
            gradient = arithmetic.zeros(tensor.layout.with_tracking(False))
        elif strict and create_graph and not gradient.layout.tracked:
            what = "hessian" if stage.startswith("double") else "jacobian"
            raise RuntimeError(
                f"The {what} of the user-provided function is independent of input {number}. {_NOT_ALLOWED} when "
                "create_graph=True."
            )
        found.append(gradient)
    return tuple(found)

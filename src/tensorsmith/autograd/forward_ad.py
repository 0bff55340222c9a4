"""Forward mode by hand: duals, tensors that carry a tangent through every operator, with PyTorch's API.

    with forward_ad.dual_level():
        x = forward_ad.make_dual(ts.tensor(3.0), ts.tensor(1.0))
        y, tangent = forward_ad.unpack_dual(x * x)              # 9 and 6

Duals take part in reverse mode: their gradients are duals, and so second derivatives come from one forward and one backward.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from tensorsmith.autograd.transforms import transforms
from tensorsmith.tensor.modes import _GradMode
from tensorsmith.tensor.tensor import Tensor


class _Entered(threading.local):
    level: Any = None  # the level of this thread; there is one at most, as in PyTorch


_entered = _Entered()


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` returns."""

    primal: Tensor
    tangent: Tensor | None


def enter_dual_level() -> int:
    """Make duals possible; returns the number of the level, 0. RuntimeError where a level is entered already."""
    if _entered.level is not None:
        raise RuntimeError("Nested forward mode AD is not supported at the moment. Use tensorsmith.func.jvp, which nests.")
    level = transforms.dual_level()
    level.__enter__()
    _entered.level = level
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Leave the level: all tangents are gone. RuntimeError where `level` is not the last that was entered."""
    current = -1 if _entered.level is None else 0
    if level is not None and level != current:
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is not supported."
        )
    if _entered.level is None:
        raise RuntimeError("Dual level must be a positive number. No level is entered: call enter_dual_level() first.")
    entered, _entered.level = _entered.level, None
    entered.__exit__(None, None, None)


class dual_level(_GradMode):  # noqa: N801 - PyTorch's name
    """A level as a context manager or decorator: `with dual_level(): ...`; entering gives its number.

    >>> from tensorsmith.autograd import forward_ad
    >>> with forward_ad.dual_level():
    ...     y = forward_ad.make_dual(ts.tensor(2.0), ts.tensor(1.0)) ** 3
    ...     forward_ad.unpack_dual(y).tangent
    tensor(12.)
    """

    def __enter__(self) -> int:  # type: ignore[override]
        return enter_dual_level()

    def __exit__(self, *exc: object) -> None:
        exit_dual_level()


def _level(name: str, level: int | None) -> Any:
    """The entered level; RuntimeError for another number than its."""
    if level not in (None, 0):
        raise RuntimeError(f"Invalid level given to {name}: {level}, expected 0")
    return _entered.level


def check_dual(primal: Tensor, tangent: Tensor) -> None:
    """Refuse what cannot be primal and tangent: ValueError for integers, RuntimeError for different shapes."""
    for what, tensor in (("primal", primal), ("tangent", tangent)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"make_dual(): argument '{what}' must be Tensor, not {type(tensor).__name__}")
        if tensor.layout.dtype.kind not in "fc":
            raise ValueError(f"Expected {what} to be floating point or complex, but got: {tensor.layout.dtype}")
    if primal.layout.shape != tangent.layout.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original Tensor, this is not "
            f"supported. Tensor is of size {list(primal.layout.shape)} while the given forward gradient is of size "
            f"{list(tangent.layout.shape)}."
        )


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A view of `tensor` that carries `tangent`, a tensor of its shape, through what is computed from it.

    The tangent is kept as it is where it lies in memory as the tensor does, else copied. Both may require gradients.
    Raises RuntimeError outside of a level, for different shapes, and where either has a tangent already; ValueError where one
    is not floating point.
    """
    found = _level("make_dual", level)
    if found is None:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first."
        )
    return found.make(tensor, tangent)


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """(primal, tangent) of a tensor; tangent is None where it has none (a zero tangent), and outside of a level."""
    found = _level("unpack_dual", level)
    if found is None:
        return UnpackedDualTensor(tensor, None)
    return UnpackedDualTensor(*found.parts(tensor))


__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]

"""Ready-made and refused saved-tensor hooks: `save_on_cpu`, `disable_saved_tensors_hooks`."""

from __future__ import annotations

from typing import Any

from tensorsmith.autograd.arithmetic import arithmetic
from tensorsmith.autograd.hooks import saved_tensors_hooks
from tensorsmith.core.layout import layout_of
from tensorsmith.tensor.modes import modes
from tensorsmith.tensor.tensor import Tensor


def _copied(tensor: Tensor) -> Tensor:
    return arithmetic.clone(tensor, layout_of(tensor.layout.dtype, tensor.layout.shape, device=tensor.layout.device))


def _as_it_is(packed: Tensor) -> Tensor:
    return packed


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - PyTorch's name
    """While active, what nodes save is kept as a copy in main memory.

    Tensors live there anyway: what is gained is that writing over a saved tensor is no error. pin_memory and device_type are
    accepted and have no meaning.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(_copied, _as_it_is)


class disable_saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """While active, entering saved-tensor hooks is a RuntimeError with `error_message`; also where some are active now."""

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message
        self._before: list[str | None] = []

    def __enter__(self) -> None:
        if modes.saved_hooks:
            raise RuntimeError(self.error_message)
        self._before.append(modes.saved_hooks_refused)
        modes.saved_hooks_refused = self.error_message

    def __exit__(self, *exc: Any) -> None:
        modes.saved_hooks_refused = self._before.pop()

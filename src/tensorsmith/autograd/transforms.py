"""What autograd needs of function transforms, which are a higher room: a level for duals, and vmap. `func/` lends both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Transforms:
    """The borrowed functions."""

    @staticmethod
    def dual_level() -> Any:
        """A level of recorded duals (`func/dual_level.py`), not entered yet."""
        raise NotImplementedError("forward mode needs the room func")

    @staticmethod
    def vmap(function: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0) -> Callable[..., Any]:
        """The function of many examples at once."""
        raise NotImplementedError("vmap needs the room func")


transforms = _Transforms()


def set_transforms(dual_level: Callable[[], Any], vmap: Callable[..., Any]) -> None:
    """Install the functions (called once, by `func/`)."""
    transforms.dual_level = dual_level  # type: ignore[method-assign]
    transforms.vmap = vmap  # type: ignore[method-assign]

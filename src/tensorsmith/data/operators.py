"""The operators that loading uses, found by their public names in the table of `ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorsmith.ops import registry
from tensorsmith.ops.creation import from_numpy, tensor

__all__ = ["from_numpy", "randint", "randperm", "stack", "tensor"]


def _operator(name: str) -> Callable[..., Any]:
    found = registry.TABLE.get(name)
    if found is None:
        raise NotImplementedError(f"loading data needs the operator {name}, which does not exist yet")
    return found.function


def stack(tensors: list[Any], dim: int = 0) -> Any:
    """Tensors of one shape along a new axis."""
    return _operator("stack")(tensors, dim)


def randperm(n: int, generator: Any = None) -> Any:
    """0, 1, ..., n - 1 in a random order."""
    return _operator("randperm")(n, generator=generator)


def randint(low: int, high: int, size: tuple[int, ...], generator: Any = None) -> Any:
    """Random integers, low <= x < high."""
    return _operator("randint")(low, high, size, generator=generator)

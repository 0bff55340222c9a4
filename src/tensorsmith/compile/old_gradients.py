"""Gradients that a compiled step replaces: their memory becomes that of the new ones, so that no two sets of them exist.

Eagerly, `zero_grad()` frees the old gradients before the forward begins. A plan is given the memory of its results before it
runs, while the leaves still have the gradients of the step before. Where nothing but the leaf refers to such a gradient and
the plan writes its successor after the last step that may raise, the old memory is taken for the new value; meanwhile the leaf
has no gradient, and if the run raises after all it has the old one again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tensorsmith.tensor.storage import Storage
from tensorsmith.tensor.tensor import Tensor

Successor = tuple[Tensor, int]  # a leaf, and the number of the plan's new buffer that will be its gradient


def _references(state: Any) -> tuple[int, int]:
    """How many references to a leaf's gradient, and to its storage, are counted here."""
    gradient = state.grad
    storage = gradient.storage
    return sys.getrefcount(gradient), sys.getrefcount(storage)


_ALONE = _references(SimpleNamespace(grad=SimpleNamespace(storage=SimpleNamespace())))


class OldGradients:
    """The gradients whose memory one run takes: `storages` by the number of the new buffer."""

    def __init__(self, successors: Sequence[Successor], new_bytes: Sequence[int]) -> None:
        self.storages: dict[int, Storage] = {}
        self.kept: list[tuple[Any, Tensor]] = []
        for leaf, buffer in successors:
            state = leaf.state
            if state is None or state.grad is None or _references(state) != _ALONE:
                continue
            gradient = state.grad
            storage = gradient.storage
            if storage.free is None or storage.nbytes != new_bytes[buffer] or storage.traced:
                continue
            self.storages[buffer] = storage
            self.kept.append((state, gradient))
            state.grad = None

    def put_back(self) -> None:
        """The run raised, before it wrote over any of them."""
        for state, gradient in self.kept:
            state.grad = gradient

    def let_go(self) -> None:
        """The memory holds the new values."""
        for _, gradient in self.kept:
            gradient.storage.version = 0
        self.kept.clear()

"""Kernels kept by what they were compiled for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Kernel = TypeVar("Kernel")


class CompiledOnce(Generic[Key, Kernel]):
    """Each kernel is compiled by the first call that asks for its key; other threads wait for it."""

    def __init__(self) -> None:
        self._found: dict[Key, Kernel] = {}
        self._lock = threading.Lock()

    def get(self, key: Key, compile: Callable[[], Kernel]) -> Kernel:
        """The kernel of a key, made by `compile` where there is none yet."""
        kernel = self._found.get(key)
        if kernel is None:
            with self._lock:
                kernel = self._found.get(key)
                if kernel is None:
                    kernel = self._found[key] = compile()
        return kernel

    def __len__(self) -> int:
        return len(self._found)

"""Storage: one block of memory and the version counter that all tensors over it share."""

from __future__ import annotations

from typing import Any

from tensorsmith.targets.cpu.memory import allocate, allocate_zeros, free_list


class Storage:
    """A block of bytes.

    ptr:     address of the first byte
    nbytes:  usable size
    free:    the free list that takes the address back, or None for foreign memory
    version: how often the contents were written in place
    owner:   what keeps foreign memory alive (a NumPy array, a mapped file)
    traced:  whether there is no memory: the address only tells offsets while a function is traced
    """

    traced = False

    __slots__ = ("ptr", "nbytes", "free", "version", "owner", "__weakref__")

    def __init__(self, nbytes: int) -> None:
        self.ptr = allocate(nbytes)
        self.free: list[int] | None = free_list(nbytes)
        self.nbytes = nbytes
        self.version = 0
        self.owner: Any = None

    def __del__(self) -> None:
        try:
            if self.free is not None:
                self.free.append(self.ptr)
        except AttributeError:  # an exception came before the memory did
            pass

    @classmethod
    def zeros(cls, nbytes: int) -> Storage:
        """A block of zeros."""
        storage = cls.foreign(allocate_zeros(nbytes), nbytes, None)
        storage.free = free_list(nbytes)
        return storage

    @classmethod
    def foreign(cls, ptr: int, nbytes: int, owner: Any) -> Storage:
        """Memory that somebody else frees; `owner` is kept alive."""
        storage = cls.__new__(cls)
        storage.ptr = ptr
        storage.nbytes = nbytes
        storage.free = None
        storage.version = 0
        storage.owner = owner
        return storage

"""Storage: one block of memory and the version counter that all tensors over it share."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

from tensorsmith.core.device import CPU, Device
from tensorsmith.targets.cpu.memory import allocate, allocate_zeros, free_list


class Lent:
    """Who else sees the memory of a storage, and may write it without counting."""

    __slots__ = ("for_ever", "returned", "borrowers")

    def __init__(self) -> None:
        self.for_ever = False
        self.returned = 0  # how many borrowers are gone
        self.borrowers: dict[int, weakref.ref[Any]] = {}  # by the reference's id: not all that borrows can be hashed

    def add(self, borrower: object | None) -> None:
        if borrower is None:
            self.for_ever = True
            return

        def gone(borrower: weakref.ref[Any]) -> None:
            self.returned += 1
            self.borrowers.pop(id(borrower), None)

        reference = weakref.ref(borrower, gone)
        self.borrowers[id(reference)] = reference


class Storage:
    """A block of bytes.

    ptr:     address of the first byte
    nbytes:  usable size
    free:    the free list that takes the address back, or None for foreign memory
    version: how often the contents were written in place
    owner:   what keeps foreign memory alive (a NumPy array, a mapped file); of our own, to whom it is `Lent`, if it ever was
    traced:  whether there is no memory: the address only tells offsets while a function is traced
    device:  where the memory is; storages of a CUDA device are of a subclass (`storage_type`)
    """

    traced = False
    device: Device = CPU
    allocate = staticmethod(allocate)
    free_list = staticmethod(free_list)

    __slots__ = ("ptr", "nbytes", "free", "version", "owner", "__weakref__")

    def __init__(self, nbytes: int) -> None:
        self.ptr = self.allocate(nbytes)
        self.free: list[int] | None = self.free_list(nbytes)
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

    def copy(self, nbytes: int | None = None) -> Storage:
        """A block that begins with the same bytes, of the same size or a larger one."""
        made = storage_type(self.device)(self.nbytes if nbytes is None else nbytes)
        ctypes.memmove(made.ptr, self.ptr, self.nbytes)
        return made

    @classmethod
    def foreign(cls, ptr: int, nbytes: int, owner: Any) -> Storage:
        """Memory that somebody else frees; `owner` is kept alive. Over that of another storage, it is lent by that one."""
        storage = cls.__new__(cls)
        storage.ptr = ptr
        storage.nbytes = nbytes
        storage.free = None
        storage.version = 0
        storage.owner = owner
        if isinstance(owner, Storage):
            owner.lend(storage)
        return storage

    def lend(self, borrower: object | None) -> None:
        """Somebody sees the memory who may write it without counting, as long as `borrower` lives (None: for ever)."""
        if self.free is None:
            if isinstance(self.owner, Storage):
                self.owner.lend(borrower)
            return  # foreign memory never was ours alone
        lent = self._lent()
        if lent is None:
            lent = self.owner = Lent()
        lent.add(borrower)

    def _lent(self) -> Lent | None:
        return getattr(self, "owner", None)  # the fastest entries leave it unset

    def stamp(self) -> object | None:
        """What differs from every earlier one if the contents were written since; None where writes may go unnoticed."""
        if self.free is None:
            return None
        lent = self._lent()
        if lent is None:
            return weakref.ref(self), self.version
        if lent.for_ever or lent.borrowers:
            return None
        return weakref.ref(self), self.version, lent.returned


def current_place(nbytes: int, device: Device) -> Any:
    """An object whose `free` is the free list for requests of `nbytes` on the current stream of a CUDA device."""
    from tensorsmith.targets.cuda import memory

    assert device.index is not None
    return memory.current_list(nbytes, device.index)


@functools.cache
def storage_type(device: Device) -> type[Storage]:
    """The class of storages on a device: `storage_type(device)(nbytes)` is new memory there."""
    if device is CPU:
        return Storage
    assert device.index is not None, "tensors live on a numbered device"
    index: int = device.index
    from tensorsmith.targets.cuda import copies, memory

    class CudaStorage(Storage):
        """A block of device memory."""

        __slots__ = ()

        @classmethod
        def zeros(cls, nbytes: int) -> Storage:
            made = cls(nbytes)
            copies.fill_zero(made.ptr, nbytes, index)
            return made

        def copy(self, nbytes: int | None = None) -> Storage:
            made = type(self)(self.nbytes if nbytes is None else nbytes)
            copies.copy_on_device(made.ptr, index, self.ptr, index, self.nbytes)
            return made

    CudaStorage.device = device
    CudaStorage.allocate = staticmethod(functools.partial(memory.allocate, index=index))  # type: ignore[assignment]
    CudaStorage.free_list = staticmethod(functools.partial(memory.free_list, index=index))  # type: ignore[assignment]
    return CudaStorage

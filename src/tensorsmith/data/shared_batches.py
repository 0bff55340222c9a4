"""Batches between processes: a file of shared memory holds the pickled structure and the tensors' elements.

The sender writes a file in a folder that belongs to the receiver, the receiver maps it and removes its name; the memory
lives as long as the tensors over it. A sender that dies leaves nothing behind but a file in that folder.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import BY_NAME
from tensorsmith.ops.creation import array_of, from_numpy
from tensorsmith.tensor.tensor import Tensor

_ALIGNMENT = 64
SHARED_MEMORY = "/dev/shm"


def new_folder() -> str:
    """A folder in shared memory, or where there is none, on disk."""
    place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    return tempfile.mkdtemp(prefix="tensorsmith-", dir=place)


class _Packer(pickle.Pickler):
    """Tensors are not pickled but noted: their elements follow the pickle in the file."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.arrays: list[np.ndarray] = []
        self.places: dict[int, tuple[Any, ...]] = {}  # the same tensor twice is one tensor on the other side
        self.end = 0

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tensor:  # parameters and other subclasses travel as pickle has them
            return None
        if id(obj) not in self.places:
            array = array_of(obj.detach().contiguous())
            self.places[id(obj)] = (len(self.arrays), self.end, obj.dtype.name, tuple(obj.shape), obj.requires_grad)
            self.arrays.append(array)
            self.end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return self.places[id(obj)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: Any, memory: Any, start: int) -> None:
        super().__init__(file)
        self.memory, self.start = memory, start
        self.found: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        number, offset, name, shape, tracked = pid
        if number not in self.found:
            dtype, count = BY_NAME[name].numpy, int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(self.memory, dtype, count, self.start + offset).reshape(shape)
            self.found[number] = from_numpy(array).requires_grad_(tracked)
        return self.found[number]


def write(batch: Any, folder: str, name: str) -> tuple[str, int]:
    """Write a batch to a file of the folder; its path and the length of the pickle tell how to read it."""
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(batch)
    text = stream.getvalue()
    start = -(-len(text) // _ALIGNMENT) * _ALIGNMENT
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(text)
        position = start
        for array in packer.arrays:
            file.seek(position)
            file.write(array.reshape(-1).view(np.uint8).data)
            position += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        file.truncate(max(position, 1))
    return path, len(text)


def read(path: str, length: int) -> Any:
    """The batch in a file; the file's name is gone afterwards."""
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    finally:
        Path(path).unlink(missing_ok=True)
    start = -(-length // _ALIGNMENT) * _ALIGNMENT
    return _Unpacker(io.BytesIO(memory[:length]), memory, start).load()

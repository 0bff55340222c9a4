"""`save` and `load`: nested state with tensors in one safetensors file, never pickle.

The tensors are ordinary entries of the file, named after their place in the object ("model.0.weight"), so that other
libraries read them; the object around them is JSON under the metadata key "tensorsmith".
"""

from __future__ import annotations

import ctypes
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tensorsmith.core.device import CPU, Device
from tensorsmith.core.dtypes import BY_NAME, DType
from tensorsmith.data.checkpoint_header import CODE_OF, CheckpointError, Entry, read_header
from tensorsmith.data.structure import BadStructure, Packing, decode
from tensorsmith.nn.parameter import Parameter
from tensorsmith.ops.creation import array_of
from tensorsmith.tensor.placement import device_from
from tensorsmith.tensor.tensor import Tensor, empty_tensor, make_tensor

FORMAT = 1
_COMPLEX128 = BY_NAME["complex128"]
_FLOAT64 = BY_NAME["float64"]


def save(obj: Any, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Write an object to a file: tensors, and dicts, lists and tuples of tensors, numbers, strings, bools and None.

    f: a path, or a binary file open for writing. A path gets the file whole or not at all: it is written beside it and
    moved over it when it is on the disk, so that an interruption leaves what was there before.
    Tensors that share memory are written one by one and share none when loaded; a view is written without its base.
    Raises TypeError, naming the place in the object, for anything else (pickle is never used).
    """
    packing = Packing()
    structure = packing.encode(obj)
    if isinstance(f, str | os.PathLike):
        _write_over(Path(f), structure, packing.tensors)
    elif hasattr(f, "write"):
        for part in _file_parts(structure, packing.tensors):
            f.write(part)
    else:
        raise TypeError(f"save(): f must be a path or a binary file, not {type(f).__name__}")


def _file_parts(structure: Any, tensors: dict[str, Tensor]) -> Iterator[Any]:
    """The bytes of the file, piece by piece."""
    # Large elements first, as the library does: everything is aligned then, whatever the shapes.
    order = sorted(tensors, key=lambda name: (-_stored(tensors[name])[0].itemsize, name))
    text = json.dumps({"version": FORMAT, "value": structure}, separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"tensorsmith": text}}
    position = 0
    for name in order:
        dtype, shape = _stored(tensors[name])
        end = position + tensors[name].nbytes
        header[name] = {"dtype": CODE_OF[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for name in order:
        if tensors[name].layout.numel:
            yield _bytes_of(tensors[name])


def _stored(tensor: Tensor) -> tuple[DType, tuple[int, ...]]:
    """dtype and shape in the file: the format has no complex128, which is stored as pairs of float64."""
    layout = tensor.layout
    return (_FLOAT64, (*layout.shape, 2)) if layout.dtype is _COMPLEX128 else (layout.dtype, layout.shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    if tensor.layout.contiguous and tensor.layout.level is None and tensor.layout.device is CPU:
        return memoryview((ctypes.c_char * tensor.layout.nbytes).from_address(tensor.ptr)).cast("B")
    return np.ascontiguousarray(array_of(tensor)).reshape(-1).view(np.uint8).data


def _write_over(path: Path, structure: Any, tensors: dict[str, Tensor]) -> None:
    """Write beside the target, to the disk, then move over it."""
    target = Path(os.path.realpath(path))  # through a link: the file it points to is replaced, not the link
    if not target.parent.is_dir():
        raise FileNotFoundError(f"save(): the folder {target.parent} does not exist; create it first")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            for part in _file_parts(structure, tensors):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:  # KeyboardInterrupt too
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # so that the new name is on the disk as well
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(f: str | os.PathLike[str] | BinaryIO, *, map_location: Any = None, weights_only: bool = True) -> Any:
    """The object of a file that `save` wrote; of another library's safetensors file, a dict of its tensors.

    f: a path, or a binary file that can seek. Nothing in a file is executed. Everything the header says is checked
    against the size of the file first.
    map_location: the device of the tensors, "cuda" or "cuda:1"; the CPU where not given
    weights_only: means nothing here, files hold tensors and plain values only
    Raises CheckpointError (a ValueError) for a file that is damaged, cut off or in another format: what was found.
    """
    place = None if map_location is None else device_from(map_location)
    if isinstance(f, str | os.PathLike):
        with open(f, "rb") as file:
            return _moved(_read(file, os.fspath(f)), place)
    if hasattr(f, "read") and hasattr(f, "seek"):
        return _moved(_read(f, str(getattr(f, "name", "file"))), place)
    raise TypeError(f"load(): f must be a path or a binary file, not {type(f).__name__}")


def _moved(value: Any, place: Device | None) -> Any:
    """What was read, with its tensors on a device; tensors that were one still are."""
    if place is None or place is CPU:
        return value
    known: dict[int, Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            found = known.get(id(value))
            if found is None:
                moved = value.detach().to(place).requires_grad_(value.layout.tracked)  # type: ignore[attr-defined]
                found = known[id(value)] = Parameter(moved, value.layout.tracked) if isinstance(value, Parameter) else moved
            return found
        if isinstance(value, dict):
            return type(value)((key, move(each)) for key, each in value.items())
        return type(value)(move(each) for each in value) if isinstance(value, list | tuple) else value

    return move(value)


def _read(file: BinaryIO, where: str) -> Any:
    start = file.tell()
    size = file.seek(0, io.SEEK_END) - start
    file.seek(start)
    header = read_header(file, size, where)
    text = header.metadata.get("tensorsmith")
    value = None if text is None else _structure(text, where)
    names = {entry.name for entry in header.entries}
    if text is not None:
        _check(value, names, where)
    tensors = {entry.name: _read_tensor(file, entry, where) for entry in header.entries}
    if text is None:
        return tensors
    return decode(value, lambda description: _described(tensors[description["name"]], description))


def _structure(text: str, where: str) -> Any:
    """The JSON value of the object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: the structure in its metadata is not valid JSON ({error})") from None
    if not isinstance(found, dict) or type(found.get("version")) is not int or "value" not in found:
        raise CheckpointError(f"{where}: the structure in its metadata has no version and value")
    if found["version"] > FORMAT:
        raise CheckpointError(
            f"{where}: it is of format {found['version']}, this version reads up to {FORMAT}: update tensorsmith"
        )
    return found["value"]


def _check(value: Any, names: set[str], where: str) -> None:
    """Walk the structure before any tensor is read."""

    def known(description: dict[str, Any]) -> None:
        if not isinstance(description.get("name"), str) or description["name"] not in names:
            raise BadStructure(f"it names a tensor that the file does not have: {str(description.get('name'))[:80]!r}")

    try:
        decode(value, known)
    except BadStructure as error:
        raise CheckpointError(f"{where}: the structure in its metadata is not one of save()'s: {error}") from None


def _read_tensor(file: BinaryIO, entry: Entry, where: str) -> Tensor:
    tensor = empty_tensor(entry.dtype, entry.shape)
    count = entry.stop - entry.start
    if not count:
        return tensor
    memory = memoryview((ctypes.c_char * count).from_address(tensor.ptr)).cast("B")
    done = 0
    while done < count:
        read = file.readinto(memory[done:]) if hasattr(file, "readinto") else None
        if read is None:
            piece = file.read(count - done)
            read = len(piece)
            memory[done : done + read] = piece
        if not read:
            raise CheckpointError(f"{where}: the file ended inside tensor {entry.name!r}; it changed while it was read")
        done += read
    if entry.dtype.kind == "b":  # a bool is 0 or 1, whatever the file says
        array = array_of(tensor).view(np.uint8)
        np.not_equal(array, 0, out=array.view(np.bool_))
    return tensor


def _described(tensor: Tensor, description: dict[str, Any]) -> Tensor:
    """The tensor as it was: complex128, a Parameter, tracked."""
    if description.get("complex128") is True and tensor.layout.dtype is _FLOAT64 and tensor.shape[-1:] == (2,):
        whole = empty_tensor(_COMPLEX128, tuple(tensor.shape[:-1]))
        if whole.layout.numel:
            ctypes.memmove(whole.ptr, tensor.ptr, whole.layout.nbytes)
        tensor = whole
    tracked = description.get("requires_grad") is True and tensor.layout.dtype.kind in "fc"
    if description.get("parameter") is True:
        return Parameter(tensor, tracked)
    return make_tensor(tensor.layout.with_tracking(tracked), tensor.storage, tensor.ptr)

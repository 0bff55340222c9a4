"""DLPack's structures: a tensor's memory in a capsule that other libraries take over, and the way back.

    DLTensor                  data 8 | device type 4, number 4 | axes 4 | dtype: code 1, bits 1, lanes 2 | shape 8 | strides 8 |
                              byte offset 8
    DLManagedTensor           DLTensor | context | deleter
    DLManagedTensorVersioned  major 4, minor 4 | context | deleter | flags 8 | DLTensor

What we give out is deleted by native code: a consumer may do so when Python is ending, or in a thread that Python does not
know. The context is a Python object that holds the structure and what owns the memory.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

from tensorsmith.core.dtypes import BY_NAME, DType
from tensorsmith.targets.cpu.compiler import compile_functions

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # kinds of devices
VERSION = (1, 0)
READ_ONLY, COPIED = 1, 2  # flags
_TENSOR = struct.Struct("<QiiiBBHQQQ")
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_NAMES = {False: (b"dltensor", b"used_dltensor"), True: (b"dltensor_versioned", b"used_dltensor_versioned")}

# The deleter of either structure gives up our reference to the context; the destructor of a capsule that nobody took deletes.
_TEXT = r"""
declare i32 @Py_IsInitialized()
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare void @Py_DecRef(ptr)
declare i32 @PyCapsule_IsValid(ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
@plain_name = private constant [9 x i8] c"dltensor\00"
@versioned_name = private constant [19 x i8] c"dltensor_versioned\00"

define internal void @give_up(ptr %context) {
entry:
  %running = call i32 @Py_IsInitialized()
  %ended = icmp eq i32 %running, 0
  br i1 %ended, label %exit, label %delete
delete:
  %state = call i32 @PyGILState_Ensure()
  call void @Py_DecRef(ptr %context)
  call void @PyGILState_Release(i32 %state)
  ret void
exit:
  ret void
}

define void @delete_plain(ptr %managed) {
  %at = getelementptr i8, ptr %managed, i64 48
  %context = load ptr, ptr %at
  call void @give_up(ptr %context)
  ret void
}

define void @delete_versioned(ptr %managed) {
  %at = getelementptr i8, ptr %managed, i64 8
  %context = load ptr, ptr %at
  call void @give_up(ptr %context)
  ret void
}

define void @destroy_plain(ptr %capsule) {
entry:
  %valid = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @plain_name)
  %taken = icmp eq i32 %valid, 0
  br i1 %taken, label %exit, label %delete
delete:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @plain_name)
  call void @delete_plain(ptr %managed)
  ret void
exit:
  ret void
}

define void @destroy_versioned(ptr %capsule) {
entry:
  %valid = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @versioned_name)
  %taken = icmp eq i32 %valid, 0
  br i1 %taken, label %exit, label %delete
delete:
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @versioned_name)
  call void @delete_versioned(ptr %managed)
  ret void
exit:
  ret void
}
"""


class Exported:
    """The context of what is given out: the structure's memory and what owns the tensor's."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.memory: Any = None


def capsule(
    exported: Exported, ptr: int, device: tuple[int, int], dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...],
    versioned: bool, flags: int = 0,
) -> Any:  # fmt: skip
    """A capsule over memory at `ptr`; strides in elements. Whoever takes it keeps `exported` alive until it deletes it."""
    rank = len(shape)
    head = 32 if versioned else 0
    size = _TENSOR.size + 32
    memory = exported.memory = ctypes.create_string_buffer(size + 16 * rank)
    start = ctypes.addressof(memory)
    code = _BFLOAT if dtype.name == "bfloat16" else _KINDS[dtype.kind]
    extents = start + size if rank else 0
    tensor = _TENSOR.pack(ptr, *device, rank, code, 8 * dtype.itemsize, 1, extents, extents + 8 * rank if rank else 0, 0)
    functions = _functions()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(exported))  # the structure's reference
    if versioned:
        before, after = struct.pack("<IIQQQ", *VERSION, id(exported), functions["delete_versioned"], flags), b""
    else:
        before, after = b"", struct.pack("<QQ", id(exported), functions["delete_plain"])
    content = before + tensor + after
    assert len(before) == head
    ctypes.memmove(start, content, len(content))
    ctypes.memmove(start + size, struct.pack(f"<{2 * rank}q", *shape, *strides), 16 * rank)
    destroy = functions["destroy_versioned" if versioned else "destroy_plain"]
    return _new_capsule()(start, _name(versioned, 0), destroy)


class Taken:
    """A capsule of another library that was taken over; what it holds is given back when this object dies.

    ptr, device (kind, number), dtype, shape, strides (elements), read_only
    """

    def __init__(self, capsule: Any) -> None:
        self._delete: Any = None
        valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
        versioned = bool(valid(capsule, _NAMES[True][0]))
        if not versioned and not valid(capsule, _NAMES[False][0]):
            raise ValueError("from_dlpack needs a DLPack capsule that nobody has taken yet, got " + repr(capsule))
        get = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
        managed = get(capsule, _NAMES[versioned][0])
        self.read_only = False
        at, deleter = managed, managed + 56
        if versioned:
            major, minor, _, _, flags = struct.unpack("<IIQQQ", ctypes.string_at(managed, 32))
            if major > VERSION[0]:
                raise BufferError(f"the capsule is of DLPack {major}.{minor}; {VERSION[0]}.x is understood")
            at, deleter, self.read_only = managed + 32, managed + 16, bool(flags & READ_ONLY)
        data, kind, number, rank, code, bits, lanes, shape, strides, offset = _TENSOR.unpack(ctypes.string_at(at, 48))
        self.ptr: int = data + offset
        self.device = (kind, number)
        self.dtype = _dtype(code, bits, lanes)
        self.shape: tuple[int, ...] = struct.unpack(f"<{rank}q", ctypes.string_at(shape, 8 * rank)) if rank else ()
        if strides:
            self.strides: tuple[int, ...] = struct.unpack(f"<{rank}q", ctypes.string_at(strides, 8 * rank)) if rank else ()
        else:
            extents = [*self.shape[1:], 1]
            found: list[int] = []
            for extent in reversed(extents):
                found.append(extent * (found[-1] if found else 1))
            self.strides = tuple(reversed(found))[: len(self.shape)]
        # From here on it is ours: nobody else takes it, and we delete it.
        _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(capsule, _name(versioned, 1))
        address = ctypes.c_uint64.from_address(deleter).value
        if address:
            self._delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._managed = managed

    def __del__(self) -> None:
        delete, self._delete = self._delete, None
        if delete is not None:
            delete(self._managed)


def _dtype(code: int, bits: int, lanes: int) -> DType:
    for dtype in BY_NAME.values():
        own = _BFLOAT if dtype.name == "bfloat16" else _KINDS[dtype.kind]
        if lanes == 1 and own == code and 8 * dtype.itemsize == bits:
            return dtype
    raise BufferError(f"from_dlpack: no dtype of ours is DLPack's (code {code}, {bits} bits, {lanes} lanes)")


@functools.cache
def _functions() -> dict[str, int]:
    names = ["delete_plain", "delete_versioned", "destroy_plain", "destroy_versioned"]
    return dict(zip(names, compile_functions(_TEXT, names)))


_kept_names = {versioned: [ctypes.create_string_buffer(name) for name in names] for versioned, names in _NAMES.items()}


def _name(versioned: bool, number: int) -> int:
    """The address of a capsule's name, which must live as long as the capsule."""
    return ctypes.addressof(_kept_names[versioned][number])


@functools.cache
def _api(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


def _new_capsule() -> Any:
    return _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

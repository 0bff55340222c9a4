"""Running a `Lowered` on NumPy arrays through the driver, the emulated one or a real one.

    code = run_lowered(lowered, [x, y, out], scalars=[1.5])

Words are what `targets/cuda/kernel.py` says: addresses of the arrays (inputs, then outputs), scalars, scratch buffers. An
array may be any view without negative strides: its memory is copied as it lies, so that the kernel sees the view's strides
and the alignment of its first element; buffers end where their memory ends. Scratch buffers are full of NaN.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

import emulator
from tensorsmith.targets.cuda.compile import compile_cubin
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, ErrorWord, Launch, Lowered, TensorMap, Word

CANARY = 0xA5
FRONT = 512  # bytes of canary before a buffer


def emulated_properties() -> DeviceProperties:
    """What the emulated device says of itself; the H200's properties where a card is tested."""
    if os.environ.get("TENSORSMITH_TEST_DEVICE") == "cuda":
        return DeviceProperties()
    architecture = os.environ.get("EMULATED_ARCHITECTURE", "sm_80")
    digits = int(architecture.removeprefix("sm_").rstrip("af"))
    optin = 227 if digits >= 90 else (163 if digits == 80 else 99) if digits >= 80 else 64
    return DeviceProperties(
        architecture=architecture if digits < 90 else "sm_90a",
        multiprocessors=int(os.environ.get("EMULATED_MULTIPROCESSORS", "4")),
        shared_bytes=optin * 1024, shared_bytes_a_multiprocessor=(optin + 1) * 1024, cache_bytes=1 << 20,
    )  # fmt: skip


def call(name: str, *arguments: Any) -> Any:
    """A driver function's result; RuntimeError with its name and the driver's message."""
    from cuda.bindings import driver

    status, *results = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"{name}: {bytes(text or b'unknown error').decode()} ({int(status)})")
    return results[0] if len(results) == 1 else results


class Buffer:
    """Device memory that holds the memory of an array, with canaries on both sides."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        low, high = _bounds(array)
        self.low, self.nbytes = low, high - low
        # The end of the buffer is the end of the allocation up to the alignment of its start.
        self.size = -(-(FRONT + self.nbytes + 16) // 512) * 512
        self.allocation = int(call("cuMemAlloc", self.size))
        start = self.allocation + self.size - self.nbytes
        self.start = start - (start - low) % 16
        image = np.full(self.size, CANARY, np.uint8)
        image[self._inside()] = np.frombuffer(_raw(low, self.nbytes), np.uint8)
        call("cuMemcpyHtoD", self.allocation, image.ctypes.data, self.size)
        self.address = self.start + array.__array_interface__["data"][0] - low

    def _inside(self) -> slice:
        return slice(self.start - self.allocation, self.start - self.allocation + self.nbytes)

    def finish(self, name: str) -> None:
        """Copy back, free; AssertionError where a canary is gone."""
        image = np.empty(self.size, np.uint8)
        call("cuMemcpyDtoH", image.ctypes.data, self.allocation, self.size)
        inside = self._inside()
        damaged = np.flatnonzero(np.concatenate([image[: inside.start], image[inside.stop :]]) != CANARY)
        if self.array.flags.writeable and self.nbytes:
            _raw(self.low, self.nbytes)[:] = image[inside].tobytes()
        call("cuMemFree", self.allocation)
        assert not len(damaged), f"{name}: {len(damaged)} bytes outside the buffer were written"


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """The first and the end address of an array's elements."""
    start = array.__array_interface__["data"][0]
    if not array.size:
        return start, start
    assert all(stride >= 0 for stride in array.strides), "negative strides"
    return start, start + sum(s * (n - 1) for s, n in zip(array.strides, array.shape)) + array.itemsize


def _raw(address: int, nbytes: int) -> Any:
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


@functools.cache
def context() -> tuple[Any, str]:
    """The first device's context, made current, and its architecture."""
    from cuda.bindings import driver

    call("cuInit", 0)
    device = call("cuDeviceGet", 0)
    retained = call("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", retained)
    attribute = driver.CUdevice_attribute
    major = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return retained, f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@functools.cache
def _function(source: str, name: str) -> Any:
    _, architecture = context()
    make = emulator.compile_cubin if emulator.active() else compile_cubin
    module = call("cuModuleLoadData", make(source, name, architecture))
    return call("cuModuleGetFunction", module, name.encode())


def run_lowered(lowered: Lowered, arrays: Sequence[np.ndarray], scalars: Sequence[int | float] = ()) -> int:
    """Run all launches; the arrays hold what their memory on the device holds afterwards.

    Returns the error word (0 where no kernel reported anything). Errors: RuntimeError of the driver, AssertionError where
    memory outside a buffer was written, ValueError where the number of words is not the one that `lowered` takes.
    """
    call("cuCtxSetCurrent", context()[0])
    if len(arrays) + len(scalars) != lowered.words:
        raise ValueError(f"{lowered.name} takes {lowered.words} words, got {len(arrays)} arrays and {len(scalars)} scalars")
    error = np.zeros(1, np.int64)
    scratch = [np.full(nbytes, 0xFF, np.uint8) for nbytes in lowered.scratch]
    buffers = [Buffer(array) for array in (*arrays, *scratch, error)]
    addresses = [struct.pack("<Q", buffer.address) for buffer in buffers]
    values = [_packed(value) for value in scalars]
    words = [*addresses[: len(arrays)], *values, *addresses[len(arrays) : -1]]
    for launch in lowered.launches:
        run_launch(launch, words, addresses[-1])
    call("cuCtxSynchronize")
    for number, buffer in enumerate(buffers):
        buffer.finish(f"{lowered.name}, buffer {number}")
    return int(error[0])


def _packed(word: int | float) -> bytes:
    return struct.pack("<d", word) if isinstance(word, float) else struct.pack("<Q", int(word) & (2**64 - 1))


def run_launch(launch: Launch, words: Sequence[bytes], error: bytes) -> None:
    """One launch on words of 8 bytes."""
    function = _function(launch.source, launch.name)
    from cuda.bindings import driver

    if launch.shared_bytes > 48 * 1024:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", function, attribute, launch.shared_bytes)
    keep = []
    for argument in launch.arguments:
        aligned = np.zeros(256, np.uint8)
        if isinstance(argument, Word):
            packed = words[argument.index]
        elif isinstance(argument, ErrorWord):
            packed = error
        elif isinstance(argument, Constant):
            packed = b"".join(map(_packed, argument.words))
            aligned = np.zeros(64 + len(packed), np.uint8)
        else:
            packed = encode(argument, struct.unpack("<Q", words[argument.index])[0])
        start = -aligned.ctypes.data % 64
        aligned[start : start + len(packed)] = np.frombuffer(packed, np.uint8)
        keep.append((aligned, aligned.ctypes.data + start))
    pointers = np.array([address for _, address in keep] or [0], np.uint64)
    if launch.cluster == (1, 1, 1) and not launch.together:
        geometry = (*launch.grid, *launch.block, launch.shared_bytes)
        call("cuLaunchKernel", function, *geometry, 0, pointers.ctypes.data, 0)
        return
    config = driver.CUlaunchConfig()
    cluster, together = driver.CUlaunchAttribute(), driver.CUlaunchAttribute()
    for field, value in zip(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"),
                            (*launch.grid, *launch.block)):  # fmt: skip
        setattr(config, field, value)
    config.sharedMemBytes = launch.shared_bytes
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = launch.cluster
    together.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    together.value.cooperative = int(launch.together)
    config.attrs, config.numAttrs = [cluster, together], 2
    if launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 8:
        call("cuFuncSetAttribute", function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    call("cuLaunchKernelEx", config, function, pointers.ctypes.data, 0)


def encode(tensor_map: TensorMap, address: int) -> bytes:
    """The 128 bytes of a CUtensorMap."""
    from cuda.bindings import driver

    rank = len(tensor_map.shape)
    space = ctypes.create_string_buffer(192)
    aligned = -(-ctypes.addressof(space) // 64) * 64  # as the driver wants it, which the bindings do not see to
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned),
        int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tensor_map.dtype}")),
        rank, ctypes.c_void_p((address + tensor_map.offset) & (-16 if tensor_map.tested else -1)),
        (ctypes.c_uint64 * rank)(*tensor_map.shape), (ctypes.c_uint64 * rank)(*tensor_map.strides),
        (ctypes.c_uint32 * rank)(*tensor_map.box), (ctypes.c_uint32 * rank)(*[1] * rank),
        0, {0: 0, 32: 1, 64: 2, 128: 3}[tensor_map.swizzle], 2, 0,
    )  # fmt: skip
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled refuses {tensor_map} at {address:#x} ({status})")
    return ctypes.string_at(aligned, 128)

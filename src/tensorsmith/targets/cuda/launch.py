"""Running one kernel on the first CUDA device through the driver: copy in, launch, copy out.

This is the direct way, for checking generated kernels; nothing stays on the device.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tensorsmith.kernels.spec import KernelSpec, Operand
from tensorsmith.targets.cuda.compile import CudaUnavailableError, compile_cubin
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Launch, Word
from tensorsmith.targets.cuda.lower import lower


def run_on_device(spec: KernelSpec, arrays: Sequence[np.ndarray], scalars: Sequence[int | float] = ()) -> int:
    """Run a kernel; the outputs' arrays are overwritten with its results.

    arrays:  one buffer an operand, inputs then outputs: C-contiguous, element 0 is the operand's element at the origin
    scalars: the run-time scalars of the spec
    Returns the kernel's error code, 0 for none. Errors: CudaUnavailableError without driver or device; ValueError for
    buffers that do not fit the spec; RuntimeError with the driver's message.
    """
    operands = [*spec.inputs, *(store.operand for store in spec.stores)]
    if len(arrays) != len(operands) or len(scalars) != len(spec.params):
        raise ValueError(
            f"{spec.name} takes {len(operands)} buffers and {len(spec.params)} scalars, "
            f"got {len(arrays)} and {len(scalars)}"
        )
    for number, (operand, array) in enumerate(zip(operands, arrays)):
        _check_buffer(spec, number, operand, array)
    lowered = lower(spec)
    driver = _Driver()
    with ExitStack() as stack:
        device = driver.call("cuDeviceGet", 0)
        driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))
        stack.callback(driver.call, "cuDevicePrimaryCtxRelease", device)
        error = np.zeros(1, np.int64)
        buffers = [*arrays, error, *(np.zeros(size, np.uint8) for size in lowered.scratch)]
        addresses = []
        for array in buffers:
            addresses.append(int(driver.call("cuMemAlloc", max(array.nbytes, 1))))
            stack.callback(driver.call, "cuMemFree", addresses[-1])
            driver.call("cuMemcpyHtoD", addresses[-1], array.ctypes.data, array.nbytes)
        given = [float(value) if d.kind == "f" else int(value) for d, value in zip(spec.params, scalars)]
        at = len(arrays)
        words = [*addresses[:at], *given, *addresses[at + 1 :]]
        for launch in lowered.launches:
            cubin = compile_cubin(launch.source, launch.name, driver.architecture(device))
            module = driver.call("cuModuleLoadData", cubin)
            stack.callback(driver.call, "cuModuleUnload", module)
            function = driver.call("cuModuleGetFunction", module, launch.name.encode())
            driver.launch(function, launch, words, addresses[at])
        driver.call("cuCtxSynchronize")
        for array, address in list(zip(buffers, addresses))[len(spec.inputs) : at + 1]:
            driver.call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)
        return int(error[0])


def _check_buffer(spec: KernelSpec, number: int, operand: Operand, array: np.ndarray) -> None:
    """Refuse a buffer that the kernel would leave."""
    lowest = sum(min(0, stride * (extent - 1)) for stride, extent in zip(operand.strides, spec.domain))
    highest = sum(max(0, stride * (extent - 1)) for stride, extent in zip(operand.strides, spec.domain))
    if array.dtype != operand.dtype.numpy or not array.flags.c_contiguous or lowest < 0 or highest >= array.size:
        raise ValueError(
            f"{spec.name}: buffer {number} is {array.dtype} with {array.size} elements, but the kernel reaches "
            f"elements {lowest} to {highest} of a contiguous {operand.dtype.name} buffer"
        )


class _Driver:
    """The driver's functions, checked; creating it finds the driver."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise CudaUnavailableError(
                f"running CUDA kernels needs NVIDIA's bindings: pip install 'tensorsmith[cuda]' ({error})"
            ) from error
        self._driver: Any = driver
        try:
            self.call("cuInit", 0)
            count = self.call("cuDeviceGetCount")
        except RuntimeError as error:
            raise CudaUnavailableError(f"no CUDA device can be used: {error}") from error
        if not count:
            raise CudaUnavailableError("the CUDA driver is present, but no device")

    def call(self, name: str, *arguments: Any) -> Any:
        """A driver function's result; RuntimeError with its name and the driver's message."""
        status, *results = getattr(self._driver, name)(*arguments)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            _, text = self._driver.cuGetErrorString(status)
            raise RuntimeError(f"{name}: {bytes(text or b'unknown error').decode()} ({int(status)})")
        return results[0] if len(results) == 1 else results

    def launch(self, function: Any, launch: Launch, words: Sequence[int | float], error: int) -> None:
        """Launch one kernel on the default stream."""
        packed = []
        for argument in launch.arguments:
            if isinstance(argument, Word):
                given: tuple[int | float, ...] = (words[argument.index],)
            elif isinstance(argument, Constant):
                given = argument.words
            else:
                assert isinstance(argument, ErrorWord)
                given = (error,)
            text = b"".join(struct.pack("d" if isinstance(word, float) else "q", word) for word in given)
            packed.append(np.frombuffer(text, np.uint8))
        pointers = np.array([word.ctypes.data for word in packed], np.uint64)  # one address an argument
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared_bytes
        attributes = []
        if launch.cluster != (1, 1, 1):
            cluster = self._driver.CUlaunchAttribute()
            cluster.id = self._driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension = cluster.value.clusterDim
            dimension.x, dimension.y, dimension.z = launch.cluster
            attributes.append(cluster)
        if launch.together:
            together = self._driver.CUlaunchAttribute()
            together.id = self._driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            together.value.cooperative = 1
            attributes.append(together)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        self.call("cuLaunchKernelEx", config, function, pointers.ctypes.data, 0)

    def architecture(self, device: Any) -> str:
        """The architecture to compile for, with the features of this very card from Hopper on."""
        attribute = self._driver.CUdevice_attribute
        major = self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

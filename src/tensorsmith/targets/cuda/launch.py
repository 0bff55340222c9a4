"""Running one kernel on the first CUDA device through the driver: copy in, launch, copy out.

This is the direct way, for checking generated kernels; nothing stays on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tensorsmith.kernels.spec import KernelSpec, Operand
from tensorsmith.targets.cuda.compile import CudaUnavailableError, compile_cubin
from tensorsmith.targets.cuda.render import render


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
    rendered = render(spec)
    driver = _Driver()
    with ExitStack() as stack:
        device = driver.call("cuDeviceGet", 0)
        driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))
        stack.callback(driver.call, "cuDevicePrimaryCtxRelease", device)
        cubin = compile_cubin(rendered.source, rendered.name, driver.architecture(device))
        module = driver.call("cuModuleLoadData", cubin)
        stack.callback(driver.call, "cuModuleUnload", module)
        function = driver.call("cuModuleGetFunction", module, rendered.name.encode())
        error = np.zeros(1, np.int64)
        buffers = [*arrays, error]
        addresses = []
        for array in buffers:
            addresses.append(driver.call("cuMemAlloc", max(array.nbytes, 1)))
            stack.callback(driver.call, "cuMemFree", addresses[-1])
            driver.call("cuMemcpyHtoD", addresses[-1], array.ctypes.data, array.nbytes)
        words = [np.array(int(address), np.uint64) for address in addresses[:-1]]
        words += [np.array(value, np.float64 if d.kind == "f" else np.int64) for d, value in zip(spec.params, scalars)]
        words += [np.array(int(addresses[-1]), np.uint64), np.array(rendered.sizes, np.int64)]
        pointers = np.array([word.ctypes.data for word in words], np.uint64)  # one address an argument
        stream, shared, extra = 0, 0, 0
        driver.call(
            "cuLaunchKernel",
            function,
            *(rendered.grid, 1, 1),
            *(*rendered.block, 1),
            shared,
            stream,
            pointers.ctypes.data,
            extra,
        )
        driver.call("cuCtxSynchronize")
        for array, address in list(zip(buffers, addresses))[len(spec.inputs) :]:
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

    def architecture(self, device: Any) -> str:
        """The architecture to compile for, with the features of this very card from Hopper on."""
        attribute = self._driver.CUdevice_attribute
        major = self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        minor = self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

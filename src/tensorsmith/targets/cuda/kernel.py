"""What a lowering gives: CUDA kernels as text, and how they are launched, before any device is looked at.

A spec (of a fused kernel, a product, a scan, ...) is lowered for the properties of a device to a `Lowered`: some launches,
in order, on one stream. Its *words* are what every run gives: addresses of the operands in the order of the spec, inputs
then outputs, the run-time scalars, then one address for every scratch buffer. All arguments of a kernel are 64-bit words
or structs of such:

    extern "C" __global__ void NAME(const float* in0, float* out0, double p0, long long* error, const Sizes sizes)

What only depends on structure is in the text; extents and strides are in the structs, so a new shape is no compilation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorsmith.kernels.joint import JointSpec
from tensorsmith.kernels.spec import KernelSpec


@dataclass(frozen=True)
class DeviceProperties:
    """What lowering asks of a device. The defaults are an H200's."""

    architecture: str = "sm_90a"
    multiprocessors: int = 132
    shared_bytes: int = 227 * 1024  # dynamic shared memory that a block may ask for
    shared_bytes_a_multiprocessor: int = 228 * 1024
    registers: int = 65536  # of a multiprocessor
    threads: int = 2048  # of a multiprocessor
    cache_bytes: int = 60 << 20  # level 2

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability: (9, 0) for sm_90a."""
        digits = self.architecture.removeprefix("sm_").rstrip("af")
        return int(digits[:-1]), int(digits[-1])


@dataclass(frozen=True)
class Word:
    """An argument: word `index` of the run (an address, a run-time scalar, a scratch buffer)."""

    index: int


@dataclass(frozen=True)
class Constant:
    """An argument: one 64-bit number, or several as a struct passed by value."""

    words: tuple[int | float, ...]


@dataclass(frozen=True)
class ErrorWord:
    """An argument: the address of the 64-bit word that a kernel writes an error code to; the host looks when it next waits."""


@dataclass(frozen=True)
class TensorMap:
    """An argument: a `CUtensorMap` over the memory at word `index`, made anew where that address changes.

    dtype:   the name of a CUtensorMapDataType without its prefix: "BFLOAT16", "FLOAT16", "FLOAT32"
    shape:   extents, innermost first; strides: bytes between elements of axis 1, 2, ... (multiples of 16)
    box:     extents of a tile, innermost first; swizzle: bytes, 0, 32, 64 or 128
    offset:  bytes from the word's address, a multiple of 16
    tested:  the kernel tests the address itself; one that is no multiple of 16 is rounded down, which is an error otherwise
    """

    index: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    offset: int = 0
    tested: bool = False


Argument = Word | Constant | ErrorWord | TensorMap


@dataclass(frozen=True)
class Launch:
    """One launch: the text of a kernel, its entry's name, geometry and arguments in the order of its parameters.

    together: all blocks run at the same time (a cooperative launch), so that they can wait for each other
    """

    source: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0  # dynamic
    cluster: tuple[int, int, int] = (1, 1, 1)
    together: bool = False


@dataclass(frozen=True)
class Lowered:
    """A step as launches.

    words:       how many words a run gives before the scratch buffers (operands and scalars)
    scratch:     bytes of every scratch buffer; their addresses are the last words
    bytes_moved: the fewest bytes of device memory that the work needs; flops: floating-point operations
    spec:        of a fused kernel, what it computes
    """

    name: str
    launches: tuple[Launch, ...]
    words: int
    scratch: tuple[int, ...] = field(default=())
    bytes_moved: int = 0
    flops: int = 0
    spec: KernelSpec | JointSpec | None = None

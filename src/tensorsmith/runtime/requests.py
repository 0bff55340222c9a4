"""Steps and requests: a native launch or a library call, before and after its buffers have addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorsmith.core import views
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.kernels.assemble import Kernel, assemble
from tensorsmith.kernels.errors import ZERO_DIVISION
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group
from tensorsmith.targets.cpu.recipe import RELEASE_GIL, Recipe

LONG_WORK = 1 << 18  # bytes moved from which other Python threads may run meanwhile


@dataclass
class KernelStep:
    """A native launch: recipe, and for each launch word (word number, byte offset)."""

    name: str
    recipe: Recipe
    sources: list[tuple[int, int]]
    bytes_moved: int
    flops: int
    error: Callable[[int, Sequence[int]], Exception]  # from the error code and the launch's addresses
    kernel: Any = None

    def describe(self) -> str:
        spec = getattr(self.kernel, "spec", None)
        return f"{self.name}: {self.recipe.chunks} chunks, {self.bytes_moved} bytes, {self.flops} flops" + (
            "\n" + str(spec) if spec is not None else ""
        )


@dataclass
class PythonStep:
    """A library call on arrays over the buffers, or what runs plans of its own. how: what computes it."""

    name: str
    sources: list[tuple[int, int]]
    call: Callable[[Sequence[Any]], None]
    bytes_moved: int = 0
    flops: int = 0
    how: str = "the reference in NumPy"

    def run(self, words: Sequence[int | float]) -> None:
        self.call([words[w] + o for w, o in self.sources])

    def describe(self) -> str:
        return f"{self.name}: by {self.how}"


Step = KernelStep | PythonStep


@dataclass
class Request:
    """A step before its buffers have addresses."""

    words: list[tuple[Node | None, int]]  # buffer and byte offset
    step: Callable[[list[tuple[int, int]]], Step]
    scratch_bytes: int = 0
    kernel: Any = None  # the assembled Kernel of a fused step
    untouched: int = 0  # bytes at the end of the scratch space that are for more workers than there are
    lowered: Any = None  # of a step on a CUDA device: its launches


@dataclass(frozen=True)
class NoError:
    """The exception for kernels that report only an integer division by zero. Files of plans hold it by its fields."""

    name: str

    def __call__(self, code: int, addresses: Sequence[int]) -> Exception:
        if code == ZERO_DIVISION:
            return RuntimeError(f"ZeroDivisionError: {self.name}: integer division or modulo by zero")
        return RuntimeError(f"{self.name}: kernel error {code}")


def kernel_request(kernel: Kernel) -> Request:
    """A lowered KernelSpec as a step."""
    from tensorsmith.targets.cpu.lower import lower  # the code generator loads when the first kernel is asked for

    lowered = lower(kernel.spec)
    spec = kernel.spec
    words: list[tuple[Node | None, int]] = [(r.node, r.offset * r.node.dtype.itemsize) for r in kernel.reads]
    words += [(node, offset * node.dtype.itemsize) for node, offset in kernel.writes]
    words += [(node, 0) for node in kernel.params]
    if lowered.workspace_bytes:
        words.append((None, 0))
    flags = RELEASE_GIL if lowered.bytes_moved >= LONG_WORK else 0
    recipe = Recipe(lowered.function_address, lowered.chunks, len(words), lowered.constants, flags)

    def step(sources: list[tuple[int, int]]) -> Step:
        return KernelStep(spec.name, recipe, sources, lowered.bytes_moved, lowered.flops, NoError(spec.name), lowered)

    return Request(words, step, lowered.workspace_bytes, kernel)


def fused_step(fusion: Fusion, group: Group) -> Request:
    """The step of a fused kernel."""
    return kernel_request(assemble(fusion, group))


def buffer_bytes(node: Node, place: Strided) -> int:
    """Memory of a value that lies as given, or as only a kernel knows."""
    if node.op is Primitive.LIBRARY and node.attrs["name"] == "packed_right":
        from tensorsmith.targets.cpu.gemm import packed_bytes

        K, N = node.shape
        return packed_bytes(node.dtype, K, N)
    return views.extent(place) * node.dtype.itemsize


def array_at(address: int, seen: Strided, dtype: Any) -> np.ndarray:
    """A NumPy array over memory of ours (valid while the buffer lives)."""
    itemsize = dtype.itemsize
    if 0 in seen.shape:
        return np.empty(seen.shape, dtype.numpy)
    extent = 1 + sum((n - 1) * max(s, 0) for n, s in zip(seen.shape, seen.strides))
    raw = (ctypes.c_char * (extent * itemsize)).from_address(address)
    flat = np.frombuffer(raw, dtype=dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat, seen.shape, [s * itemsize for s in seen.strides])

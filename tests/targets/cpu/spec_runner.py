"""Running a KernelSpec on the CPU target, with every buffer at the edge of an inaccessible page."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec import KernelSpec, Operand
from tensorsmith.targets.cpu.launch import launch
from tensorsmith.targets.cpu.lower import LoweredKernel, lower
from tensorsmith.targets.cpu.machine import NAMES, Machine, machine, select
from tensorsmith.targets.cpu.recipe import Recipe

sys.path.append(str(Path(__file__).parents[2] / "kernels"))
import spec_oracle  # noqa: E402 - the oracle lives beside the tests of kernels/

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def machines() -> list[Machine]:
    """The instruction sets that this CPU runs."""
    names = NAMES[NAMES.index(machine().name) :]
    triple, cpu, features = llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    return [select(name, triple, cpu, features) for name in names]


class Guarded:
    """`count` elements that end at an inaccessible page (or start after one): any access beyond them is a crash."""

    def __init__(self, dtype: DType, count: int, at_end: bool = True) -> None:
        size = count * dtype.itemsize
        body = -(-size // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, body + 2 * _PAGE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._body = body
        for page in (self._start, self._start + _PAGE + body):
            assert _libc.mprotect(page, _PAGE, 0) == 0
        offset = _PAGE + (body - size if at_end else 0)
        self.array = np.frombuffer(self._map, dtype.numpy, count, offset)
        self.address = self._start + offset

    def release(self) -> None:
        """Make the pages accessible again, so that the mapping can be dropped."""
        for page in (self._start, self._start + _PAGE + self._body):
            assert _libc.mprotect(page, _PAGE, 3) == 0


def extent_of(operand: Operand, domain: tuple[int, ...]) -> tuple[int, int]:
    """(elements from the lowest to the highest touched, position of coordinate 0 among them)."""
    low = sum((n - 1) * s for n, s in zip(domain, operand.strides) if s < 0)
    high = sum((n - 1) * s for n, s in zip(domain, operand.strides) if s > 0)
    return high - low + 1, -low


def run(lowered: LoweredKernel, *words: int | float) -> int | None:
    """Launch a lowered kernel once."""
    recipe = Recipe(lowered.function_address, lowered.chunks, lowered.launch_words, lowered.constants)
    return launch(recipe.address, *words)


def check(
    spec: KernelSpec,
    fill: list[np.ndarray],
    params: list[int | float] | None = None,
    on: Machine | None = None,
    at_end: bool = True,
    tolerance: float = 2e-6,
) -> list[np.ndarray]:
    """Run a spec on inputs filled from `fill` (flat, as long as each operand's extent) and compare with the oracle.

    Returns the outputs as the kernel wrote them, over the whole domain.
    """
    buffers, views, words = [], [], []
    for operand, values in zip(spec.inputs, fill):
        count, first = extent_of(operand, spec.domain)
        buffer = Guarded(operand.dtype, count, at_end)
        buffer.array[:] = values[:count]
        buffers.append(buffer)
        views.append(spec_oracle.view(operand, buffer.array, first, spec.domain))
        words.append(buffer.address + first * operand.dtype.itemsize)
    outputs, results = [], []
    for store in spec.stores:
        count, first = extent_of(store.operand, spec.domain)
        buffer = Guarded(store.operand.dtype, count, at_end)
        buffer.array.view(np.uint8)[:] = 0x5A
        buffers.append(buffer)
        outputs.append(buffer)
        words.append(buffer.address + first * store.operand.dtype.itemsize)
        results.append(spec_oracle.view(store.operand, buffer.array, first, spec.domain))
    expected = spec_oracle.evaluate(spec, views, params)
    code = run(lower(spec, on), *words, *(params or []))
    assert code is None
    found = [r.copy() for r in results]
    for store, buffer, got, want in zip(spec.stores, outputs, found, expected):
        _compare(got, want, store.operand.dtype, tolerance)
        touched = np.zeros(buffer.array.size, bool)
        _, first = extent_of(store.operand, spec.domain)
        np.lib.stride_tricks.as_strided(touched[first:], spec.domain, store.operand.strides, writeable=True)[...] = True
        rest = np.ascontiguousarray(buffer.array[~touched]).view(np.uint8)
        assert (rest == 0x5A).all(), "the kernel wrote outside its output"
    del views, results
    for buffer in buffers:
        buffer.release()
    return found


def _compare(got: np.ndarray, want: np.ndarray, dtype: DType, tolerance: float) -> None:
    if dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": tolerance, "float64": 1e-12}[dtype.name]
    wide = got.astype(np.float64)
    finite = want[np.isfinite(want)]
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    np.testing.assert_allclose(wide, want, rtol=unit, atol=unit * scale)

"""Steps of plans on a CUDA device: a `Lowered` (`targets/cuda/kernel.py`) as a request, and steps that NumPy computes.

A step is a recipe of the native launcher, as a step of the CPU's is one of the thread pool's, so a plan of CUDA launches is
one native call too. Launches are not waited for: what a kernel finds wrong is raised where the host next waits for the device
(`targets/cuda/errors.py`), or at the call under `ts.cuda.set_sync_debug`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tensorsmith.ir.graph import Node
from tensorsmith.passes.fusion import Fusion
from tensorsmith.runtime.requests import KernelStep, NoError, PythonStep, Request, Step, buffer_bytes
from tensorsmith.targets.cuda.kernel import Lowered

ALIGN = 256  # of scratch buffers

Found = Callable[[int, Sequence[int]], Exception]  # from a kernel's error code and the launch's addresses


class _Planning(threading.local):
    index = 0


_planning = _Planning()


@contextmanager
def planning_on(index: int) -> Iterator[None]:
    """Requests made meanwhile are for this device."""
    before, _planning.index = _planning.index, index
    try:
        yield
    finally:
        _planning.index = before


def planned_index() -> int:
    """The device that requests are made for now."""
    return _planning.index


def lowered_request(
    lowered: Lowered, words: Sequence[tuple[Node | None, int]], error: Found | None = None, kernel: Any = None
) -> Request:
    """Launches as one step.

    words:  buffer and byte offset of every word of the lowering, scratch buffers left out
    error:  the exception for an error code that a kernel wrote, a division by zero where not given
    kernel: the assembled Kernel of a fused step
    """
    assert len(words) == lowered.words, f"{lowered.name}: {len(words)} words for a lowering of {lowered.words}"
    index, found = _planning.index, error or NoError(lowered.name)
    places, size = list(words), 0
    for nbytes in lowered.scratch:
        places.append((None, size))
        size += -(-max(nbytes, 1) // ALIGN) * ALIGN

    def step(sources: list[tuple[int, int]]) -> Step:
        from tensorsmith.targets.cuda import launcher

        recipe = launcher.recipe(lowered, index, lambda code: found(code, ()))

        def failed(code: int, addresses: Sequence[int]) -> Exception:
            return launcher.failed(recipe, code)

        made = lowered if kernel is None else replace(lowered, spec=kernel.spec)
        return KernelStep(lowered.name, recipe, sources, lowered.bytes_moved, lowered.flops, failed, made)

    request = Request(places, step, size, kernel)
    request.lowered = lowered
    return request


def on_host(fusion: Fusion, made: Request, written: Sequence[Node]) -> Request:
    """A step that NumPy computes, between copies: its operands go to the host, its results come back.

    written: the values that it computes
    """
    index = _planning.index
    sizes: list[int] = []  # bytes of each word's buffer, 0 for a run-time scalar
    # A view may run backwards from where it starts in its buffer, so all of the buffer travels.
    starts = [offset for _, offset in made.words]
    for node, _ in made.words:
        if node is None:
            raise NotImplementedError("a routine with scratch memory, on a CUDA device")
        sizes.append(0 if node.attrs.get("param") else buffer_bytes(node, fusion.place(node)))
    comes_back = [any(node is each for each in written) for node, _ in made.words]
    inner = made.step([(number, 0) for number in range(len(made.words))])
    if not isinstance(inner, PythonStep):
        raise NotImplementedError(f"{inner.name} on a CUDA device")

    def call(given: Sequence[Any]) -> None:
        from tensorsmith.targets.cuda import copies

        arrays = [np.empty(size, np.uint8) for size in sizes]
        for array, address, start, size in zip(arrays, given, starts, sizes):
            if size:
                copies.copy_to_host(array.ctypes.data, address - start, size, index)
        inner.call([array.ctypes.data + start if array.size else word for array, word, start in zip(arrays, given, starts)])
        for array, address, start, back in zip(arrays, given, starts, comes_back):
            if back and array.size:
                copies.copy_to_device(address - start, array.ctypes.data, array.size, index)

    return Request(made.words, lambda sources: PythonStep(f"{inner.name} (on the host)", sources, call))

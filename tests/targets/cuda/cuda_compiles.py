"""Compiling what a lowering launches, without any device, and in a process where no device is emulated.

NVRTC reads, checks and assembles a text as ever, but leaves out most of its optimisations, which are more than half of the
time: what is compiled here is never run. `tests/emulator/compile_kept.py` compiles as for users.
"""

from __future__ import annotations

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from tensorsmith.targets.cuda.kernel import Lowered

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
OLDEST_AND_NEWEST = ("sm_75", "sm_90a")

_compiled: set[tuple[str, str]] = set()


def quick_cubin(source: str, name: str = "kernel", architecture: str = "sm_90a") -> bytes:
    """The cubin of a text, hardly optimised."""
    from tensorsmith.targets.cuda import compile as nvrtc

    whole = nvrtc.OPTIONS
    nvrtc.OPTIONS = (*whole, "--Ofast-compile=max")  # type: ignore[assignment]
    try:
        return nvrtc.compile_cubin(source, name, architecture)
    finally:
        nvrtc.OPTIONS = whole


def _fault(source: str, name: str, architecture: str) -> str:
    """What is wrong with a text; nothing where it compiles."""
    from tensorsmith.targets.cuda.compile import CudaCompileError

    try:
        return "" if quick_cubin(source, name, architecture).startswith(b"\x7fELF") else "no cubin"
    except CudaCompileError as error:
        return str(error)


@functools.cache
def _compiler() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def compile_all(lowered: Lowered, architectures: tuple[str, ...] = OLDEST_AND_NEWEST) -> None:
    """NVRTC takes every launch's text, for every architecture.

    A text that asks for no architecture takes the oldest and the newest: what both have, those between have.
    """
    assert lowered.launches
    for launch in lowered.launches:
        assert f"{launch.name}(" in launch.source
        for architecture in architectures:
            if (launch.source, architecture) not in _compiled:
                fault = _compiler().submit(_fault, launch.source, launch.name, architecture).result()
                assert not fault, fault
                _compiled.add((launch.source, architecture))

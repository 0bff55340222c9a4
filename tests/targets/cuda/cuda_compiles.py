"""Compiling what a lowering launches, without any device."""

from __future__ import annotations

from tensorsmith.targets.cuda import compile as compiling
from tensorsmith.targets.cuda.kernel import Lowered

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")

_compiled: set[tuple[str, str]] = set()


def compile_all(lowered: Lowered, architectures: tuple[str, ...] = ARCHITECTURES) -> None:
    """NVRTC takes every launch's text, for every architecture."""
    assert lowered.launches
    compile_cubin = getattr(compiling.compile_cubin, "real", compiling.compile_cubin)  # where the emulator has its own
    for launch in lowered.launches:
        assert f"{launch.name}(" in launch.source
        for architecture in architectures:
            if (launch.source, architecture) not in _compiled:
                assert compile_cubin(launch.source, launch.name, architecture).startswith(b"\x7fELF")
                _compiled.add((launch.source, architecture))

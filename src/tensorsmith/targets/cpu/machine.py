"""The instruction set that kernels are written for.

Chosen once from the CPU's features; ``TENSORSMITH_ISA=avx512|avx2|generic`` overrides the choice, so that one
machine can build and run the text of every vector width.  ``generic`` is the architecture's baseline (x86-64 with
SSE2, AArch64 with NEON).
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tensorsmith.targets.cpu.host import host

# What each instruction set must offer; the lists are those of the x86-64-v3 and x86-64-v4 levels that kernels rely on.
_AVX2_FEATURES = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")
NAMES = ("avx512", "avx2", "generic")


@dataclass(frozen=True)
class Machine:
    """One instruction set: the vector registers that schedules count on, and what LLVM is told about the CPU."""

    name: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    triple: str
    level2: int = 512 << 10  # bytes of a core's second-level cache

    def lanes(self, itemsize: int) -> int:
        """Number of elements of ``itemsize`` bytes in one vector register."""
        return max(1, self.vector_bytes // itemsize)

    def has(self, feature: str) -> bool:
        """Whether LLVM is told that the CPU has ``feature`` (an LLVM name such as ``avx512bf16``)."""
        return f"+{feature}" in self.features.split(",")


def is_x86(triple: str) -> bool:
    """Whether the target triple names 64-bit x86."""
    return triple.split("-", 1)[0].lower() in ("x86_64", "amd64")


def is_aarch64(triple: str) -> bool:
    """Whether the target triple names 64-bit ARM."""
    return triple.split("-", 1)[0].lower() in ("aarch64", "arm64")


def select(requested: str | None, triple: str, host_cpu: str, host_features: Mapping[str, bool]) -> Machine:
    """The machine for a CPU and an optional request.

    Args:
        requested: one of ``NAMES``, or None for the widest that the CPU has.
        triple: LLVM's name of the platform.
        host_cpu: LLVM's name of the CPU.
        host_features: feature name -> whether the CPU has it.

    Raises:
        ValueError: the request names no instruction set.
        RuntimeError: the CPU lacks the instruction set asked for; the missing features are named.
    """
    if requested is not None and requested not in NAMES:
        raise ValueError(f"TENSORSMITH_ISA={requested!r} is not an instruction set; choose one of {', '.join(NAMES)}")
    missing = {
        "avx512": [f for f in _AVX512_FEATURES if not host_features.get(f, False)],
        "avx2": [f for f in _AVX2_FEATURES if not host_features.get(f, False)],
        "generic": [],
    }
    if not is_x86(triple):
        missing["avx512"] = missing["avx2"] = ["an x86-64 CPU"]
    name = requested or next(candidate for candidate in NAMES if not missing[candidate])
    if missing[name]:
        raise RuntimeError(
            f"TENSORSMITH_ISA={name} asks for an instruction set that this CPU ({host_cpu}) lacks: "
            f"missing {', '.join(missing[name])}"
        )
    widest = next(candidate for candidate in NAMES if not missing[candidate])
    if name == "generic":
        cpu = "x86-64" if is_x86(triple) else "generic"
        return Machine(name, cpu, "", 16, 32 if is_aarch64(triple) else 16, triple)
    if name == widest:
        # Every feature is spelled out: an object cached on a network home must not be shared by unlike CPUs.
        features = ",".join(("+" if on else "-") + f for f, on in sorted(host_features.items()))
        cpu = host_cpu
    else:  # a narrower set than the CPU's: the level's own baseline, so that no wider instruction slips in
        cpu, features = "x86-64-v3", ",".join("+" + f for f in _AVX2_FEATURES)
    if name == "avx512":
        return Machine(name, cpu, features + ",-prefer-256-bit", 64, 32, triple)
    return Machine(name, cpu, features, 32, 16, triple)


@functools.cache
def machine() -> Machine:
    """The machine of this process (cached): the environment's request, else the widest that the CPU has."""
    told = host()
    requested = os.environ.get("TENSORSMITH_ISA", "").strip().lower() or None
    found = select(requested, told.triple, told.cpu, told.features)
    if found.has("amx-tile") and not _allow_tiles():
        features = [feature for feature in found.features.split(",") if not feature.startswith("+amx")]
        found = replace(found, features=",".join(features))
    return replace(found, level2=level2_bytes() or found.level2)


def _allow_tiles() -> bool:
    """Ask Linux for this process's use of AMX's registers, which are saved only for processes that asked."""
    request, code, registers = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    try:
        return ctypes.CDLL(None).syscall(request, code, registers) == 0
    except (AttributeError, OSError):  # not Linux
        return False


def level2_bytes(caches: str = "/sys/devices/system/cpu/cpu0/cache") -> int | None:
    """Bytes of the second-level cache as Linux tells them; None where it does not."""
    for place in sorted(Path(caches).glob("index*")):
        try:
            level, size = (place / "level").read_text().strip(), (place / "size").read_text().strip()
        except OSError:
            continue
        if level == "2" and size[-1:] in ("K", "M") and size[:-1].isdecimal():
            return int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]
    return None

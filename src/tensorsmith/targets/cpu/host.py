"""What LLVM says about this machine, remembered: asking takes its import, which is longer than a warm first call.

The answer is kept in the cache folder under the CPU's identity, as Linux tells it, and that of the LLVM that was asked.
Elsewhere, or without a folder, LLVM is imported and asked.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_IDENTITY = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_BLOCK = 1 << 14  # bytes of /proc/cpuinfo that hold the first processor


@dataclass(frozen=True)
class Host:
    """LLVM's names of the platform and the CPU, and which features the CPU has."""

    triple: str
    cpu: str
    features: Mapping[str, bool]


@functools.cache
def llvm_identity() -> str:
    """Which LLVM generates code: llvmlite's library by place, size and time, without importing it."""
    found = importlib.util.find_spec("llvmlite")
    places = [] if found is None else list(found.submodule_search_locations or ())
    for place in places:
        for library in sorted(Path(place, "binding").glob("*llvmlite*")):
            status = library.stat()
            return f"{library} {status.st_size} {status.st_mtime_ns}"
    import llvmlite  # installed in another way: what it says of itself
    import llvmlite.binding as llvm

    return f"llvmlite {llvmlite.__version__} llvm {llvm.llvm_version_info}"


def cpu_identity(file: str = "/proc/cpuinfo") -> str | None:
    """What tells this CPU from others; None where Linux does not say, or not all of it."""
    try:
        with open(file, "rb") as opened:
            text = opened.read(_BLOCK).decode(errors="replace")
    except OSError:
        return None
    block = text.split("\n\n", 1)[0]
    fields = dict(line.replace("\t", "").split(":", 1) for line in block.splitlines() if ":" in line)
    if not all(name in fields for name in _IDENTITY) or len(block) >= _BLOCK - 1:
        return None
    return "\n".join(fields[name].strip() for name in _IDENTITY)


def host() -> Host:
    """What LLVM says about this machine."""
    from tensorsmith.targets.cpu.compiler import disk_cache  # it is made of this module

    identity = cpu_identity()
    if identity is None:
        return _asked()
    cache = disk_cache()
    parts = "\0".join(("host", llvm_identity(), identity, os.uname().machine))
    key = hashlib.blake2b(parts.encode(), digest_size=32).hexdigest()
    raw = cache.load(key)
    if raw is not None:
        try:
            triple, cpu, features = json.loads(raw)
            return Host(triple, cpu, dict(features))
        except (ValueError, TypeError):  # whole, but not written by us
            cache.discard(key)
    found = _asked()
    cache.store(key, json.dumps([found.triple, found.cpu, dict(found.features)]).encode())
    return found


def _asked() -> Host:
    import llvmlite.binding as llvm

    try:
        features: Mapping[str, bool] = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this platform
        features = {}
    return Host(llvm.get_default_triple(), llvm.get_host_cpu_name(), features)

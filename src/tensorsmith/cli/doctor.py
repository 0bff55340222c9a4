"""Check this machine and this installation: one line a finding, OK, NOTE (works, but worth knowing) or FAIL.

Exit code 1 if something required fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

REQUIRED = ("numpy", "llvmlite", "ml_dtypes", "rich")
OVERRIDES = (
    "TENSORSMITH_ISA", "TENSORSMITH_NUM_THREADS", "TENSORSMITH_LAUNCH", "TENSORSMITH_CACHE", "TENSORSMITH_CACHE_BYTES",
    "TENSORSMITH_CACHED_BYTES", "TENSORSMITH_OPTIMISATION",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    verdict: Literal["OK", "NOTE", "FAIL"]
    subject: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`tensorsmith doctor` has no options."""


def run(options: argparse.Namespace) -> int:
    """Print every finding; 1 if one of them is a FAIL."""
    failed = 0
    for finding in examine():
        failed += finding.verdict == "FAIL"
        print(f"{finding.verdict:4s}  {finding.subject:13s} {finding.text}", flush=True)
    print(f"\n{failed} required thing{'s' if failed != 1 else ''} failed" if failed else "\neverything required works")
    return 1 if failed else 0


def examine() -> Iterator[Finding]:
    """All findings, in order; a check that breaks is itself a FAIL."""
    for subject, check in CHECKS.items():
        try:
            yield from check(subject)
        except Exception as error:  # noqa: BLE001 - the doctor reports what breaks, whatever it is
            yield Finding("FAIL", subject, f"{type(error).__name__}: {error}")


def _versions(subject: str) -> Iterator[Finding]:
    yield Finding("OK", subject, f"tensorsmith {metadata.version('tensorsmith')}")
    supported = sys.version_info >= (3, 11)
    text = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("OK" if supported else "FAIL", "python", text if supported else f"{text}; 3.11 or later is needed")
    missing, found = [], []
    for name in REQUIRED:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Finding("OK", "packages", ", ".join(found))
    if missing:
        yield Finding("FAIL", "packages", f"missing: {', '.join(missing)}; pip install {' '.join(missing)}")


def _platform(subject: str) -> Iterator[Finding]:
    text = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform.startswith("linux") and platform.machine().lower() in ("x86_64", "amd64"):
        yield Finding("OK", subject, text)
    else:
        yield Finding("NOTE", subject, f"{text}: tuned for Linux on x86-64; here the portable paths run")
    for name in OVERRIDES:
        if name in os.environ:
            yield Finding("NOTE", "override", f"{name}={os.environ[name]}")


def _instructions(subject: str) -> Iterator[Finding]:
    from tensorsmith.targets.cpu.machine import machine

    chosen = machine()
    lanes = f"{chosen.lanes(4)} float32 lanes, {chosen.registers} vector registers"
    extra = [name for name in ("avx512bf16", "avx512vnni", "amx-tile") if chosen.has(name)]
    text = f"{chosen.name} ({lanes}) on {chosen.cpu}" + (f"; also {', '.join(extra)}" if extra else "")
    if chosen.name == "generic" and "TENSORSMITH_ISA" not in os.environ:
        yield Finding("NOTE", subject, f"{text}: no AVX2 or AVX-512 here, kernels use the architecture's baseline")
    else:
        yield Finding("OK", subject, text)


def _threads(subject: str) -> Iterator[Finding]:
    from tensorsmith.targets.cpu.pool import get_num_threads, supported
    from tensorsmith.targets.cpu.processors import affinity_count, control_group_quota

    quota = control_group_quota()
    limits = f"{os.cpu_count()} processors, affinity {affinity_count()}, control-group quota {quota or 'none'}"
    yield Finding("OK", subject, f"{get_num_threads()} ({limits})")
    able, reason = supported()
    yield Finding("OK" if able else "NOTE", "thread pool", "native" if able else reason)


def _launch(subject: str) -> Iterator[Finding]:
    from tensorsmith.targets.cpu.launch import native_available

    able, reason = native_available()
    yield Finding("OK" if able else "NOTE", subject, "native builtins" if able else f"portable (ctypes): {reason}")


def _cache(subject: str) -> Iterator[Finding]:
    from tensorsmith.targets.cpu.compiler import disk_cache

    cache = disk_cache()
    if cache.folder is None:
        yield Finding("NOTE", subject, f"kernels are compiled anew by every process: {cache.reason}")
        return
    count = size = 0
    with os.scandir(cache.folder) as listing:
        for entry in listing:
            count += 1
            size += entry.stat(follow_symlinks=False).st_size
    text = f"{cache.folder}: {count} entries, {size / 2**20:.1f} MB of at most {cache.capacity / 2**20:.0f} MB"
    writable = os.access(cache.folder, os.W_OK)
    yield Finding("OK" if writable else "NOTE", subject, text + ("" if writable else "; not writable, read only"))


def _memory(subject: str) -> Iterator[Finding]:
    from tensorsmith.targets.cpu.memory import allocate, cached_bytes_cap, memory_stats, release

    size = 1 << 20
    address = allocate(size)
    release(address, size)
    aligned = address % 64 == 0
    text = f"caching allocator, {memory_stats()['reserved'] / 2**20:.1f} MB reserved, "
    text += f"keeps at most {cached_bytes_cap() / 2**20:.0f} MB idle"
    yield Finding("OK" if aligned else "FAIL", subject, text if aligned else f"block at {address:#x} is not aligned")


def _self_test(subject: str) -> Iterator[Finding]:
    """A fused kernel, a reduction over threads and a gradient, against NumPy in float64."""
    import numpy as np

    from tensorsmith.ops.creation import from_numpy
    from tensorsmith.ops.registry import namespace
    from tensorsmith.targets.cpu.compiler import statistics

    operators = namespace("")
    values = np.linspace(-8, 8, 1 << 18, dtype=np.float32).reshape(256, 1024)
    wide = values.astype(np.float64)
    x = from_numpy(values).requires_grad_(True)
    y = operators["softmax"](x * operators["sigmoid"](x), dim=1)
    inner = wide / (1 + np.exp(-wide))
    exponentials = np.exp(inner - inner.max(1, keepdims=True))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    weights = np.cos(wide)
    y.backward(from_numpy(weights.astype(np.float32)))
    flow = expected * (weights - (weights * expected).sum(1, keepdims=True))
    gate = 1 / (1 + np.exp(-wide))
    expected_grad = flow * (gate + wide * gate * (1 - gate))
    error = float(np.abs(y.detach().numpy() / expected - 1).max())
    assert x.grad is not None
    grad_error = float(np.abs(x.grad.numpy() - expected_grad).max() / np.abs(expected_grad).max())
    counts = statistics()
    text = f"value within {error:.1e}, gradient within {grad_error:.1e} of NumPy's float64; "
    text += f"{counts.compiled} objects compiled in {counts.compile_ms:.0f} ms, {counts.loaded} from the cache"
    yield Finding("OK" if error < 1e-4 and grad_error < 1e-4 else "FAIL", subject, text)


def _cuda(subject: str) -> Iterator[Finding]:
    from tensorsmith.targets.cuda.compile import CudaUnavailableError, compile_cubin, compiler_version

    try:
        version = ".".join(str(part) for part in compiler_version())
        source = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] *= 2.0f; }'
        size = len(compile_cubin(source, "probe"))
        yield Finding("OK", subject, f"NVRTC {version} compiles ({size} bytes for a probe)")
    except CudaUnavailableError as error:
        yield Finding("NOTE", subject, f"not installed (optional): {str(error).split(' (')[0]}")
        return
    yield from _gpus()


def _gpus() -> Iterator[Finding]:
    """Each device, its memory, and a kernel that is launched on it."""
    import ctypes

    from tensorsmith.targets.cpu.launch import launch
    from tensorsmith.targets.cuda import devices, driver, driver_memory, launcher, memory
    from tensorsmith.targets.cuda.compile import CudaUnavailableError
    from tensorsmith.targets.cuda.kernel import Launch, Lowered, Word

    try:
        driver.bindings()
    except CudaUnavailableError as error:
        yield Finding("NOTE", "gpu", f"CUDA text is compiled, not run: {str(error).split(' (')[0]}")
        return
    source = 'extern "C" __global__ void probe(long long* x) { x[threadIdx.x] = 3 * threadIdx.x; }'
    count, expected = 64, [3 * lane for lane in range(64)]
    for index in range(devices.device_count()):
        found, (free, total) = devices.properties(index), driver_memory.information(index)
        text = f"cuda:{index} {devices.name(index)}, {found.architecture}, {found.multiprocessors} multiprocessors, "
        text += f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        recipe = launcher.recipe(Lowered("probe", (Launch(source, "probe", (1, 1, 1), (count, 1, 1), (Word(0),)),), 1), index)
        address = memory.allocate(8 * count, index)
        code = launch(recipe.address, address)
        if code is not None:
            raise launcher.failed(recipe, code)
        result = (ctypes.c_int64 * count)()
        memory.copy_to_host(ctypes.addressof(result), address, 8 * count, index)
        memory.release(address, 8 * count, index)
        right = list(result) == expected
        yield Finding("OK" if right else "FAIL", "gpu", text + ("" if right else ": a kernel's results are wrong"))


CHECKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "tensorsmith": _versions,
    "system": _platform,
    "instructions": _instructions,
    "threads": _threads,
    "launch": _launch,
    "kernel cache": _cache,
    "memory": _memory,
    "self-test": _self_test,
    "cuda": _cuda,
}

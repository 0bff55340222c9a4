"""Compiling with g++: the fake driver library, and the modules of kernels. Results are kept under TENSORSMITH_CACHE."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from emulator.translate import Refused, translate

NATIVE = Path(__file__).parent / "native"
OPTIONS = ("-std=c++20", "-shared", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-w")
# Traps where a kernel would be wrong on a device: vectors at addresses that are not multiples of their size, local
# arrays that are left.
CHECKS = ("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error")


def cache() -> Path:
    """The folder of what was compiled."""
    given = os.environ.get("TENSORSMITH_CACHE")
    folder = Path(given) if given else Path.home() / ".cache" / "tensorsmith"
    folder = folder / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def driver_library() -> Path:
    """The fake libcuda.so.1, compiled where its text has changed."""
    sources = sorted(NATIVE.glob("*.cpp"))
    path = cache() / f"driver-{_digest(*(p.read_bytes() for p in sorted(NATIVE.iterdir())), _compiler())}.so"
    with open(path.with_suffix(".lock"), "w") as lock:  # one process compiles, whoever else starts now waits for it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        arguments = ["-std=c++17", "-O2", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"]
        _compile([*arguments, *map(str, sources), "-ldl"], path, "the fake driver")
    return path


# Instructions of Hopper: a text with them is compiled for it, whatever the emulated device calls itself.
_HOPPER = re.compile(r"wgmma|mbarrier|cp\.async\.bulk|stmatrix|setmaxnreg|barrier\.cluster|shared::cluster")


def module(source: str, name: str = "kernel", architecture: str = "") -> bytes:
    """CUDA C++ text as a shared library for the fake driver. Refused, or RuntimeError with the compiler's message."""
    given = architecture or os.environ.get("EMULATED_ARCHITECTURE", "sm_80")
    number = max(int(given.removeprefix("sm_").rstrip("af")), 90 if _HOPPER.search(source) else 0)
    defined = [f"-D__CUDA_ARCH__={10 * number}", *(["-D__CUDA_ARCH_FEAT_SM90_ALL=1"] if number == 90 else [])]
    text = translate(source)
    how = [*OPTIONS, *CHECKS, *defined]
    path = cache() / f"{_digest(text.encode(), _headers(), *(o.encode() for o in how), _compiler())}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "module.cpp"
            written.write_text(text)
            options = ["-O1", *how, "-fvisibility=hidden", "-fno-gnu-unique", "-Wl,-Bsymbolic", f"-I{NATIVE}"]
            _compile([*options, *_linker(), str(written), "-lm"], path, f"kernel {name} on the emulator", source)
    return path.read_bytes()


def _compile(arguments: list[str], path: Path, what: str, source: str = "") -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        temporary = file.name
    try:
        done = subprocess.run(["g++", *arguments, "-o", temporary], capture_output=True, text=True, check=False)
        if done.returncode:
            numbered = "\n".join(f"{number:4d}  {line}" for number, line in enumerate(source.splitlines(), 1))
            raise RuntimeError(f"g++ does not compile {what}:\n{done.stderr}\n\n{numbered}")
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)  # at once, so that no other process sees half a file
    finally:
        Path(temporary).unlink(missing_ok=True)


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:40]


@functools.cache
def version() -> int:
    """A number that changes with what modules are compiled against."""
    return int(_digest(_headers(), _compiler(), *(p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py"))))[:12], 16)


@functools.cache
def _compiler() -> bytes:
    return subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout


@functools.cache
def _linker() -> list[str]:
    """The quicker of the linkers that may be there."""
    return ["-fuse-ld=gold"] if shutil.which("ld.gold") else []


@functools.cache
def _headers() -> bytes:
    return b"".join(p.read_bytes() for p in sorted(NATIVE.glob("*.h")))


__all__ = ["Refused", "cache", "driver_library", "module"]

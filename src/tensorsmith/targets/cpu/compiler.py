"""LLVM text to callable machine code.

text -> object file (code generation only: kernels are written with explicit vectors, and the middle-end passes made
them no faster but two to four times slower to compile) -> disk cache -> put into the process as an image (`image.py`), or
linked by LLJIT.

Objects are cached under a hash of the text, the CPU, its features, the level of optimisation, which LLVM
makes them and this module's format version; the text holds no addresses, so an entry serves every process on the machine.

``TENSORSMITH_OPTIMISATION=0|1|2|3`` is the code generator's level, 3 where it is not given. Level 0 compiles in a third of
the time and gives the same results from code that runs several times longer: for tests, whose arrays are small.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorsmith.targets.cpu.host import llvm_identity
from tensorsmith.targets.cpu.image import Image, image_of, images_run_here, load
from tensorsmith.targets.cpu.machine import Machine, machine as default_machine

if TYPE_CHECKING:
    from tensorsmith.targets.cpu.disk_cache import DiskCache

_FORMAT = 2  # raise it when the same text must give another object (flags of the code generator)


class CompilationError(RuntimeError):
    """LLVM refused a kernel's text or the linker could not resolve a symbol."""


@dataclass
class Statistics:
    """Counts since the process started: objects built, read from disk, linked, found in memory; milliseconds spent."""

    compiled: int = 0
    loaded: int = 0
    linked: int = 0
    reused: int = 0
    compile_ms: float = 0.0
    load_ms: float = 0.0
    link_ms: float = 0.0
    code_bytes: int = 0


_LOCK = threading.RLock()  # guards LLVM, the registry and the counters; fork takes it, so no child inherits it held
_STATISTICS = Statistics()
# (key, names, symbols) -> (what keeps the code alive, addresses). Code is never unloaded: recipes hold bare addresses.
_ORIGINS: dict[int, tuple[str, str]] = {}  # function -> object and name, of what needs no symbols of ours
_OBJECTS: dict[str, bytes] = {}
_REGISTRY: dict[tuple[str, tuple[str, ...], tuple[tuple[str, int], ...]], tuple[Any, list[int]]] = {}


def compile_functions(
    text: str,
    names: Sequence[str],
    machine: Machine | None = None,
    symbols: Mapping[str, int] | None = None,
) -> list[int]:
    """Addresses of the functions ``names`` defined by the LLVM module ``text``.

    Args:
        text: LLVM IR without target lines (data layout and triple are set here).  It may call anything that the
            process exports (libc, the Python C API).
        names: functions (or globals) to look up, in the order of the result.
        machine: instruction set; the process's own by default.
        symbols: extra names that the text declares, and their addresses.

    Raises:
        CompilationError: LLVM's message, with the numbered line of the text where it names one.
    """
    machine = machine or default_machine()
    key = object_key(text, machine)
    entry = (key, tuple(names), tuple(sorted((symbols or {}).items())))
    with _LOCK:
        found = _REGISTRY.get(entry)
        if found is not None:
            _STATISTICS.reused += 1
            return list(found[1])
        code, fresh = _object(text, key, machine)
        start = time.perf_counter()
        try:
            keep, addresses = _link(code, entry)
        except CompilationError:
            if fresh:
                raise
            # A whole entry that does not link was written by something else: build it again, once.
            disk_cache().discard(key)
            code, _ = _object(text, key, machine)
            keep, addresses = _link(code, entry)
        _REGISTRY[entry] = (keep, addresses)
        if not symbols:
            _ORIGINS.update({address: (key, name) for address, name in zip(addresses, names)})
            _OBJECTS[key] = code
        _STATISTICS.linked += 1
        _STATISTICS.link_ms += (time.perf_counter() - start) * 1e3
        _STATISTICS.code_bytes += len(code)
        return list(addresses)


def image_of_functions(addresses: Sequence[int]) -> tuple[Image, list[int]] | None:
    """One image of the code of all these functions, and where in it each of them starts; None where there is no such image."""
    if not images_run_here() or not all(address in _ORIGINS for address in addresses):
        return None
    with _LOCK:
        numbers = {key: number for number, key in enumerate(dict.fromkeys(_ORIGINS[address][0] for address in addresses))}
        image = image_of([_OBJECTS[key] for key in numbers])
    if image is None:
        return None
    origins = [_ORIGINS[address] for address in addresses]
    return image, [image.exports[numbers[key]][name] for key, name in origins]


def is_function(word: int) -> bool:
    """Whether a number is the address of a function that was compiled here."""
    return word in _ORIGINS


def object_key(text: str, machine: Machine) -> str:
    """The name under which the object of ``text`` for ``machine`` is cached (64 hexadecimal digits)."""
    return key_of(machine, text)


def key_of(machine: Machine, *contents: str) -> str:
    """The name under which what was made of some contents for a machine is cached, by what makes it."""
    parts = (str(_FORMAT), str(optimisation()), llvm_identity(), machine.triple, machine.cpu, machine.features, *contents)
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def optimisation() -> int:
    """The code generator's level, from 0 (quickest to compile) to 3 (quickest to run), that the environment names; else 3.

    Raises:
        ValueError: ``TENSORSMITH_OPTIMISATION`` is not one of these.
    """
    named = os.environ.get("TENSORSMITH_OPTIMISATION", "").strip() or "3"
    if named not in ("0", "1", "2", "3"):
        raise ValueError(f"TENSORSMITH_OPTIMISATION={named!r} is not a level of optimisation; choose one of 0, 1, 2, 3")
    return int(named)


def emit_object(text: str, machine: Machine | None = None) -> bytes:
    """The object file of the LLVM module ``text``, straight from the code generator (no cache).

    Raises:
        CompilationError: the text is not valid LLVM IR.
    """
    with _LOCK:
        target, module = _parse(text, machine or default_machine())
        return bytes(target.emit_object(module))


def assembly(text: str, machine: Machine | None = None) -> str:
    """The assembly of the LLVM module ``text``, for reading."""
    with _LOCK:
        target, module = _parse(text, machine or default_machine())
        return str(target.emit_assembly(module))


def statistics() -> Statistics:
    """A copy of the counters."""
    with _LOCK:
        return Statistics(**vars(_STATISTICS))


@functools.cache
def disk_cache() -> DiskCache:
    """The process's disk cache, opened at first use from the environment."""
    from tensorsmith.targets.cpu.disk_cache import open_default

    return open_default()


@functools.cache
def _target_machine(machine: Machine, level: int) -> Any:
    import llvmlite.binding as llvm

    if machine.triple.split("-", 1)[0] == llvm.get_default_triple().split("-", 1)[0]:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:  # text for another architecture, to be read: it cannot be linked here
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=level, reloc="pic", codemodel="default", jit=False
    )


@functools.cache
def _jit() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # JITLink puts an object's sections side by side. The older linker maps each where there is room, and where memory is
    # crowded (a process with a GPU runtime) that is further than the 2 GB a constant's relocation reaches: LLVM aborts.
    return llvm.create_lljit_compiler(use_jit_link=True)


def _parse(text: str, machine: Machine) -> tuple[Any, Any]:
    import llvmlite.binding as llvm

    target = _target_machine(machine, optimisation())
    try:
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(target.target_data)
        for function in module.functions:
            # Nothing here throws, so a link need not register unwind tables.
            if not function.is_declaration:
                function.add_function_attribute("nounwind")
        module.verify()
    except RuntimeError as error:
        raise CompilationError(f"LLVM refused the text of a kernel: {error}") from None
    return target, module


def _object(text: str, key: str, machine: Machine) -> tuple[bytes, bool]:
    """The object of ``text`` and whether it was built just now (else it came from disk)."""
    start = time.perf_counter()
    code = disk_cache().load(key)
    if code is not None:
        _STATISTICS.loaded += 1
        _STATISTICS.load_ms += (time.perf_counter() - start) * 1e3
        return code, False
    target, module = _parse(text, machine)
    code = bytes(target.emit_object(module))
    disk_cache().store(key, code)
    _STATISTICS.compiled += 1
    _STATISTICS.compile_ms += (time.perf_counter() - start) * 1e3
    return code, True


def _link(code: bytes, entry: tuple[str, tuple[str, ...], tuple[tuple[str, int], ...]]) -> tuple[Any, list[int]]:
    """What keeps the code alive, and the addresses of the names: by an image, or by JITLink where there can be none."""
    _, names, symbols = entry
    if images_run_here():
        try:
            image = image_of([code])
            if image is not None and all(name in image.exports[0] for name in names):
                base = load(image, dict(symbols))
                return None, [base + image.exports[0][name] for name in names]
        except ValueError as error:
            raise CompilationError(f"cannot link {', '.join(names)}: {error}") from None
        except LookupError:  # JITLink looks in more places, and says what is missing
            pass
    return _link_by_llvm(code, entry)


_library_number = 0


def _link_by_llvm(code: bytes, entry: tuple[str, tuple[str, ...], tuple[tuple[str, int], ...]]) -> tuple[Any, list[int]]:
    import llvmlite.binding as llvm

    global _library_number
    key, names, symbols = entry
    _library_number += 1  # LLJIT never forgets a library's name, not even after a failure
    builder = llvm.JITLibraryBuilder().add_current_process().add_object_img(code)
    for name, address in symbols:
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(name)
    try:
        tracker = builder.link(_jit(), f"{key[:16]}.{_library_number}")
    except RuntimeError as error:
        raise CompilationError(f"cannot link {', '.join(names)}: {error}") from None
    return tracker, [int(tracker[name]) for name in names]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)

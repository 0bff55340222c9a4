"""Launching kernels from Python.

``launch(recipe_address, *words) -> None | int`` and ``launch_many(plan_address, *words) -> None | int`` are CPython
builtins emitted as machine code (some 30 ns a call); where those cannot be had (another interpreter, a free-threaded or
tracing build, ``TENSORSMITH_LAUNCH=portable``) the same functions go through ctypes.  They are made when first
asked for.

``None`` means success.  ``launch`` returns the kernel's error code, ``launch_many`` the step and code packed by
``recipe.encode_error``.  A wrong number of words or a word that is neither int nor float is a TypeError, an int outside
64 bits an OverflowError; both come before the kernel runs.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.launch_text import MESSAGES, launch_text
from tensorsmith.targets.cpu.pool import ensure_started, native_pool
from tensorsmith.targets.cpu.pool_text import STATE
from tensorsmith.targets.cpu.recipe import (
    PLAN_HEADER,
    RECIPE_HEADER,
    RELEASE_GIL,
    SOURCE_BITS,
    Given,
    NativePlan,
    Recipe,
    RecipeWord,
    Slot,
    decode_error,
    encode_error,
)

__all__ = [
    "RELEASE_GIL",
    "Given",
    "NativePlan",
    "Recipe",
    "Slot",
    "decode_error",
    "encode_error",
    "launch",
    "launch_many",
    "launch_many_portable",
    "launch_portable",
    "native_available",
]

Launch = Callable[..., "int | None"]
launch: Launch
launch_many: Launch

_METH_FASTCALL = 0x80


def native_available() -> tuple[bool, str]:
    """Whether the emitted builtins can be used in this interpreter, and if not, why."""
    if os.environ.get("TENSORSMITH_LAUNCH", "").strip().lower() == "portable":
        return False, "TENSORSMITH_LAUNCH=portable"
    if sys.implementation.name != "cpython":
        return False, f"{sys.implementation.name} does not have CPython's object layout"
    if "t" in getattr(sys, "abiflags", ""):
        return False, "the free-threaded build has another object layout"
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return False, "not a 64-bit little-endian platform"
    if sys.platform == "win32":
        return False, "the emitted builtins follow the System V and AAPCS calling conventions"
    for sample in (0, 1.0, None):  # a tracing build puts two pointers in front
        if ctypes.c_void_p.from_address(id(sample) + 8).value != id(type(sample)):
            return False, "this build of CPython has another object layout"
    return True, ""


class _MethodDefinition(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    ]


# A builtin points to its definition for as long as it lives, which is the process's life.
_definitions: list[_MethodDefinition] = []


def make_builtin(name: str, address: int, documentation: str = "") -> Launch:
    """A CPython builtin (METH_FASTCALL) around ``PyObject *f(PyObject *self, PyObject *const *args, Py_ssize_t n)``."""
    new = ctypes.pythonapi.PyCMethod_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.POINTER(_MethodDefinition), ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p]
    definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL, documentation.encode())
    _definitions.append(definition)
    builtin: Launch = new(ctypes.byref(definition), None, None, None)
    return builtin


@functools.cache
def _native() -> tuple[Launch, Launch]:
    pool = native_pool()
    one, many = compile_functions(
        launch_text(STATE.STATUS, STATE.STARTER),
        ["launch", "launch_many"],
        symbols={"execute": pool.execute, "pool_state": pool.state},
    )
    return (
        make_builtin("launch", one, "launch(recipe_address, *words) -> None | int\n\nRun a recipe."),
        make_builtin("launch_many", many, "launch_many(plan_address, *words) -> None | int\n\nRun a plan."),
    )


def launch_portable(*arguments: Any) -> int | None:
    """``launch`` through ctypes: the same arguments, results and errors, some microseconds a call."""
    address, given = _first_address(arguments)
    _, chunks, count, _, flags = _read(address, RECIPE_HEADER)
    words = _unbox_all(given, count)
    _ready(chunks)
    code = _run(address, words, bool(flags & RELEASE_GIL))
    return code or None


def launch_many_portable(*arguments: Any) -> int | None:
    """``launch_many`` through ctypes."""
    address, given = _first_address(arguments)
    steps, count, slots, _, flags, chunks = _read(address, PLAN_HEADER)
    table = _unbox_all(given, count)
    _ready(chunks)
    at = address + 8 * PLAN_HEADER
    table += _read(at, slots)
    at += 8 * slots
    for step in range(steps):
        (recipe,) = _read(at, 1)
        sources = _read(at + 8, _read(recipe, RECIPE_HEADER)[RecipeWord.GIVEN])
        at += 8 * (1 + len(sources))
        words = [ctypes.c_int64(table[source & (1 << SOURCE_BITS) - 1] + (source >> SOURCE_BITS)).value for source in sources]
        code = _run(recipe, words, bool(flags & RELEASE_GIL))
        if code:
            return encode_error(step, code)
    return None


@functools.cache
def _execute(release: bool) -> Callable[..., None]:
    kind = ctypes.CFUNCTYPE if release else ctypes.PYFUNCTYPE
    prototype = kind(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    return prototype(native_pool().execute)


def _run(recipe: int, words: list[int], release: bool) -> int:
    function, chunks, count, width, _ = _read(recipe, RECIPE_HEADER)
    error = ctypes.c_int64(0)
    constants = _read(recipe + 8 * RECIPE_HEADER, width)[count + 1 :]
    arguments = (ctypes.c_int64 * width)(*words, ctypes.addressof(error), *constants)
    _execute(release)(function, arguments, chunks)
    return error.value


def _read(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def _ready(chunks: int) -> None:
    if chunks > 1:
        ensure_started()


def _first_address(arguments: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    if not arguments:
        raise TypeError(MESSAGES["no_address"])
    address = arguments[0]
    if type(address) is not int:
        raise TypeError(MESSAGES["wrong_address"].replace("%R", repr(type(address))))
    if not -(1 << 63) <= address < 1 << 63:
        raise OverflowError("Python int too large to convert to C long")
    if address <= 0:
        raise ValueError(MESSAGES["null_address"].replace("%R", repr(address)))
    return address, arguments[1:]


def _unbox_all(given: tuple[Any, ...], count: int) -> list[int]:
    if len(given) != count:
        raise TypeError(MESSAGES["wrong_count"].replace("%zd", "{}").format(count, len(given)))
    words = []
    for index, value in enumerate(given):
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                raise OverflowError("Python int too large to convert to C long")
            words.append(int(value))
        elif isinstance(value, float):
            words.append(ctypes.c_int64.from_buffer(ctypes.c_double(value)).value)
        else:
            message = MESSAGES["wrong_word"].replace("%zd", str(index))
            raise TypeError(message.replace("%R", repr(type(value))))
    return words


def __getattr__(name: str) -> Any:
    if name not in ("launch", "launch_many"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    pair = _native() if native_available()[0] else (launch_portable, launch_many_portable)
    globals().update(launch=pair[0], launch_many=pair[1])
    return globals()[name]

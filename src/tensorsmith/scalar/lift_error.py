"""The error of lifting, and the user's line that it names."""

import inspect
import linecache
import os
import sys
import types
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class LiftError(TypeError):
    """A function cannot be lifted. `filename` and `lineno` name the user's line."""

    def __init__(self, problem: str, filename: str | None = None, lineno: int | None = None):
        self.filename = filename
        self.lineno = lineno
        if filename is not None and lineno is not None:
            source = linecache.getline(filename, lineno).strip()
            problem = f"{filename}:{lineno}: {problem}" + (f"\n    {source}" if source else "")
        super().__init__(problem)


def definition(function: Any) -> tuple[str | None, int | None]:
    """File and first line of a function, Nones for one without Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else (None, None)


def is_ours(filename: str) -> bool:
    """Whether a file belongs to this room."""
    return os.path.dirname(os.path.abspath(filename)) == _HERE


def is_standard_library(filename: str) -> bool:
    """Whether a frame of this file is only the machinery of a call (functools, frozen modules)."""
    return filename.startswith("<frozen") or filename.startswith(os.path.dirname(os.__file__) + os.sep + "functools")


def user_line() -> tuple[str | None, int | None]:
    """File and line of the innermost caller outside this room."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else (None, None)

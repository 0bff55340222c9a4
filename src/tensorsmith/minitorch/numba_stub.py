"""A `numba` for machines that lack it: course programs import it, this layer never needs it.

`njit`, `jit` and `prange` leave a function as it is (the layer lifts the function itself), `cuda.is_available()` is False.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The function itself; as a decorator with or without options."""
    return (lambda given: given) if function is None else function


def _is_available() -> bool:
    return False


def install() -> None:
    """Make `import numba` work: with numba itself where it is installed, with this stub elsewhere.

    MiniTorch's tests use `numba.cuda` without importing it, so it is imported here.
    """
    try:
        import numba.cuda  # noqa: F401
    except ImportError:
        stub, cuda = ModuleType("numba", __doc__), ModuleType("numba.cuda", __doc__)
        cuda.__dict__.update(is_available=_is_available, jit=njit)
        stub.__dict__.update(njit=njit, jit=njit, prange=range, cuda=cuda, __path__=[])
        sys.modules["numba"], sys.modules["numba.cuda"] = stub, cuda

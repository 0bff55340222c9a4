"""`import minitorch` means the course layer, once this has run. It is a plugin of pytest as well, for worker processes."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from tensorsmith.minitorch import numba_stub

_NOT_MINITORCH = ("__main__", "alias", "numba_stub")


def install() -> None:
    """Put the layer and its modules under the name `minitorch`."""
    numba_stub.install()
    package = importlib.import_module("tensorsmith.minitorch")
    sys.modules["minitorch"] = package
    for found in pkgutil.iter_modules(package.__path__):
        if found.name not in _NOT_MINITORCH:
            sys.modules[f"minitorch.{found.name}"] = importlib.import_module(f"tensorsmith.minitorch.{found.name}")


install()

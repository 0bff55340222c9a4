"""Guards: the Python values that a trace read from its surroundings, and whether they still are what they were.

Tensors and arguments have guards of their own (`specialisation.py`). Here are numbers, strings and tuples of them, which end
up as constants of the graph: in the closure of the function, among the globals that its code names, in plain lists, dicts and
objects found there, on the object a method is bound to, and on the modules that were called.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from tensorsmith.core.dtypes import DType

_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType)
_MISSING = object()
MOST_ENTRIES = 64  # of a list or dict that are looked at


def is_plain(value: Any) -> bool:
    """Whether a value is compared as a constant."""
    if isinstance(value, tuple):
        return len(value) <= MOST_ENTRIES and all(is_plain(each) for each in value)
    return isinstance(value, _PLAIN)


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are the same constant; 0.0 is not -0.0, and NaN is NaN."""
    if a is b:
        return True
    return type(a) is type(b) and (repr(a) == repr(b) if isinstance(a, float | complex | tuple) else bool(a == b))


class Guards:
    """Values by where they are: entries of dicts, cells of closures, whole lists."""

    def __init__(self) -> None:
        self.entries: list[tuple[dict, Any, Any, str]] = []
        self.cells: list[tuple[types.CellType, Any, str]] = []
        self.lists: list[tuple[list, list, str]] = []
        self.seen: set[int] = set()

    def changed(self) -> str | None:
        """The name of the first value that has changed; None where all are as they were."""
        for namespace, key, value, name in self.entries:
            found = namespace.get(key, _MISSING)
            if found is not value and not (is_plain(found) and is_plain(value) and same(found, value)):
                return name
        for cell, value, name in self.cells:
            found = _content(cell)
            if found is not value and not (is_plain(found) and is_plain(value) and same(found, value)):
                return name
        for items, before, name in self.lists:
            if len(items) != len(before) or not all(
                a is b or (is_plain(a) and is_plain(b) and same(a, b)) for a, b in zip(items, before)
            ):
                return name
        return None

    def watch_function(self, function: Any) -> None:
        """What a function, a bound method or an object that can be called reads from its surroundings."""
        if isinstance(function, types.MethodType):
            self.watch("self", function.__self__)
            function = function.__func__
        if not isinstance(function, types.FunctionType):
            if not isinstance(function, type | types.BuiltinFunctionType):
                self.watch(type(function).__name__, function)
                if _is_users(function):
                    self.watch_function(type(function).__dict__.get("__call__"))
            return
        if id(function) in self.seen or function.__module__.partition(".")[0] == "tensorsmith":
            return
        self.seen.add(id(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            value = _content(cell)
            if is_plain(value) or value is _MISSING:
                self.cells.append((cell, value, name))
            else:
                self.watch(name, value)
        for name in dict.fromkeys(_names(function.__code__)):
            value = function.__globals__.get(name, _MISSING)
            if is_plain(value):
                self.entries.append((function.__globals__, name, value, name))
            elif value is not _MISSING:
                self.watch(name, value)

    def watch(self, name: str, value: Any) -> None:
        """The plain values in a list, a dict or the attributes of an object; functions of the user's are followed."""
        if id(value) in self.seen or isinstance(value, type | types.ModuleType) or hasattr(value, "layout"):
            return
        if hasattr(value, "_parameters"):  # a module notes itself when it is called
            return
        if isinstance(value, types.FunctionType | types.MethodType):
            self.watch_function(value)
            return
        self.seen.add(id(value))
        if isinstance(value, list):
            if len(value) <= MOST_ENTRIES:
                self.lists.append((value, list(value), name))
        elif isinstance(value, dict):
            self.watch_entries(name, value)
        elif _is_users(value) and not hasattr(value, "param_groups"):  # an optimiser says itself what it relies on
            self.watch_entries(name, value.__dict__)

    def watch_entries(self, name: str, entries: dict) -> None:
        """The plain entries of a dict."""
        if len(entries) <= MOST_ENTRIES:
            self.entries += [(entries, key, value, f"{name}.{key}") for key, value in entries.items() if is_plain(value)]

    def watch_module(self, module: Any) -> None:
        """The plain attributes of a module that is called (its mode and what it holds are guarded by the trace)."""
        if id(module) not in self.seen:
            self.seen.add(id(module))
            self.entries += [
                (module.__dict__, key, value, f"{type(module).__name__}.{key}")
                for key, value in module.__dict__.items()
                if key != "training" and not key.startswith("_") and is_plain(value)
            ]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _is_users(value: Any) -> bool:
    """Whether an object has attributes and is of a class that is not ours."""
    return hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in ("tensorsmith", "builtins", "numpy")


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code, and functions defined in it, look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

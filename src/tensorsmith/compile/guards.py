"""Guards: what a trace found in its surroundings, and whether all of it still is as it was.

Tensors and arguments have guards of their own (`specialisation.py`). Here are the Python values that end up as constants of
the graph, and which tensor, module or function stands where. `reach.py` says where a function may look; what is found there
is kept by `Guards`, compared at every call, and put back where a trace fails.

A value is the same if it is the same object, or an equal number, string or tuple of them. Containers are compared element by
element through views that stay alive, all of them in one sweep, because this is done at every call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType

_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType)
MISSING = object()
MOST_IN_TUPLES = 64


def is_plain(value: Any) -> bool:
    """Whether a value is compared as a constant."""
    if isinstance(value, tuple):
        return len(value) <= MOST_IN_TUPLES and all(is_plain(each) for each in value)
    return isinstance(value, _PLAIN)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same object, or the same constant; 0.0 is not -0.0, and NaN is NaN."""
    if a is b:
        return True
    if type(a) is not type(b) or not is_plain(a) or not is_plain(b):
        return False
    return repr(a) == repr(b) if isinstance(a, float | complex | tuple) else bool(a == b)


@dataclass
class _Span:
    """Elements of one container among those of all."""

    name: str
    container: Any  # a list, deque or set; for a dict the dict
    start: int
    count: int
    keys: tuple  # of a dict
    entry: str  # what a changed value is called, with {key}


class Guards:
    """Values by where they are: elements of containers, entries of namespaces, and what a function gives."""

    def __init__(self) -> None:
        self._measured: list[Any] = []  # containers whose length is compared
        self._lengths: list[int] = []
        self._measured_names: list[tuple[str, Any]] = []  # what they are called, and their keys where they are namespaces
        self._views: list[Any] = []  # containers, and values of dicts, whose elements are compared
        self._elements: list[Any] = []
        self._spans: list[_Span] = []
        self._spaces: list[dict] = []  # namespaces of which single entries are compared
        self._keys: list[str] = []
        self._values: list[Any] = []
        self._entry_names: list[str] = []
        self._asked: list[tuple[Callable[[], Any], Callable[[Any], None] | None, Any, str]] = []
        self._arrays: list[tuple[Callable[[], np.ndarray], np.ndarray, str]] = []
        self._streams: list[tuple[Callable[[], Any], Callable[[Any], None], Any, str]] = []
        self.elements = 0  # how many elements of containers are compared

    # --- what is kept -----------------------------------------------------------------------------------------------

    def measure(self, container: Any, name: str, keys: bool = False) -> None:
        """Compare the length of a container; of a namespace (`keys`) what is new is deleted where a trace fails."""
        self._measured.append(container)
        self._lengths.append(len(container))
        self._measured_names.append((name, tuple(container) if keys else None))

    def elements_of(self, container: Any, name: str, entry: str = "", keys: bool = True) -> None:
        """Compare what a list, set, deque or dict holds, of a dict its keys too unless the values say enough (`keys`).

        Where that is a tensor of the trace, there is nothing to compare.
        """
        view = container.values() if isinstance(container, dict) else container
        items = list(view)
        if any(getattr(getattr(each, "storage", None), "traced", False) for each in items):
            return
        self.measure(container, name)
        names = tuple(container) if isinstance(container, dict) else ()
        if items and names and keys:
            self._views.append(container.keys())
            self._elements += names
        if items:
            self._views.append(view)
        self._spans.append(_Span(name, container, len(self._elements), len(items), names, entry or name))
        self._elements += items
        self.elements += len(items)

    def entry(self, namespace: dict, key: str, name: str) -> None:
        """Compare one entry of a namespace, which may be missing."""
        self._spaces.append(namespace)
        self._keys.append(key)
        self._values.append(namespace.get(key, MISSING))
        self._entry_names.append(name)

    def ask(self, get: Callable[[], Any], name: str, put: Callable[[Any], None] | None = None) -> None:
        """Compare what a function gives: the content of a cell, an attribute without a namespace."""
        self._asked.append((get, put, get(), name))

    def array(self, get: Callable[[], np.ndarray], name: str) -> None:
        """Compare the values of an array that `get` gives."""
        self._arrays.append((get, get().copy(), name))

    def stream(self, get: Callable[[], Any], put: Callable[[Any], None], name: str) -> None:
        """Random numbers that are not ours: `get` gives the state, `put` sets it."""
        self._streams.append((get, put, get(), name))

    # --- what became of it --------------------------------------------------------------------------------------------

    def changed(self) -> str | None:
        """The name of the first value that has changed; None where all are as they were."""
        try:
            if (
                list(map(len, self._measured)) == self._lengths
                and all(map(operator.is_, chain.from_iterable(self._views), self._elements))
                and all(map(operator.is_, map(dict.get, self._spaces, self._keys, repeat(MISSING)), self._values))
                and (not self._asked or self._answers())
                and (not self._arrays or self._array_that_changed() is None)
            ):
                return None
            return self._first_that_changed()
        except RuntimeError:  # a container changed its size meanwhile
            return "something that another thread is changing"

    def conditions(self, name: Callable[[str, Any], str]) -> list[str]:
        """The same by identity alone, as Python text; `name(prefix, object)` gives an object a name in it."""
        found = []
        if self._measured:
            found.append(f"list(map(len, {name('m', self._measured)})) == {name('m', self._lengths)}")
        if self._views:
            parts = (operator.is_, chain.from_iterable, self._views, self._elements)
            same_object, joined, views, elements = (name("g", each) for each in parts)
            found.append(f"all(map({same_object}, {joined}({views}), {elements}))")
        missing, values, asked = name("missing", MISSING), name("v", self._values), name("asked", self._asked)
        for k, (space, key) in enumerate(zip(self._spaces, self._keys)):
            found.append(f"{name('d', space)}.get({key!r}, {missing}) is {values}[{k}]")
        found += [f"{name('get', get)}() is {asked}[{k}][2]" for k, (get, *_) in enumerate(self._asked)]
        if self._arrays:
            found.append(f"{name('a', self._array_that_changed)}() is None")
        return found

    def _answers(self) -> bool:
        return all([get() is value for get, _, value, _ in self._asked])

    def _array_that_changed(self) -> str | None:
        for get, before, name in self._arrays:
            array = get()
            if array.shape != before.shape or array.dtype != before.dtype or array.tobytes() != before.tobytes():
                return name
        return None

    def _first_that_changed(self) -> str | None:
        """The same one by one; what is equal but another object is taken over, so that the next comparison is quick."""
        for container, length, (name, _) in zip(self._measured, self._lengths, self._measured_names):
            if len(container) != length:
                return name
        for span in self._spans:
            container = span.container
            if span.keys and tuple(container) != span.keys:
                return span.name
            for k, found in enumerate(container.values() if isinstance(container, dict) else container):
                if not same(found, self._elements[span.start + k]):
                    return span.entry.format(key=span.keys[k] if span.keys else k)
                self._elements[span.start + k] = found
        for k, (space, key) in enumerate(zip(self._spaces, self._keys)):
            found = space.get(key, MISSING)
            if not same(found, self._values[k]):
                return self._entry_names[k]
            self._values[k] = found
        for k, (get, put, value, name) in enumerate(self._asked):
            found = get()
            if not same(found, value):
                return name
            self._asked[k] = (get, put, found, name)
        return self._array_that_changed()

    def drawn(self) -> tuple[str, Callable[[], bool]] | None:
        """A stream of random numbers that is not ours and has moved on, and what says so; all are put back."""
        moved = None
        for get, put, before, name in self._streams:
            if not equal_states(get(), before):
                put(before)
                moved = moved or (name, lambda get=get, before=before: not equal_states(get(), before))
        return moved

    def put_back(self) -> None:
        """What a failed trace has changed becomes what it was: elements, entries, random states."""
        self.drawn()
        for container, (_, keys) in zip(self._measured, self._measured_names):
            for key in [key for key in container if key not in keys] if keys is not None else ():
                del container[key]
        for span in self._spans:
            before = self._elements[span.start : span.start + span.count]
            container = span.container
            found = list(container.values() if isinstance(container, dict) else container)
            if len(found) == len(before) and all(map(operator.is_, found, before)):
                continue
            if isinstance(container, dict):
                container.clear()
                container.update(zip(span.keys, before))
            elif isinstance(container, list):
                container[:] = before
            else:
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(before)
        for space, key, value in zip(self._spaces, self._keys, self._values):
            if space.get(key, MISSING) is not value:
                if value is MISSING:
                    del space[key]
                else:
                    space[key] = value
        for get, put, value, _ in self._asked:
            if put is not None and get() is not value:
                put(value)
        for get, before_values, _ in self._arrays:
            array = get()
            if array.flags.writeable and array.tobytes() != before_values.tobytes():
                array[...] = before_values


def equal_states(a: Any, b: Any) -> bool:
    """Whether two states of a random generator are equal: nests of numbers and arrays."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal_states(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, tuple) and a and any(isinstance(each, np.ndarray | dict | tuple) for each in a):
        return len(a) == len(b) and all(map(equal_states, a, b))
    return bool(a == b)

"""Nested Python state as JSON, with tensors taken out and put back.

What JSON has no word for is an object with one key: {"list": [...]}, {"tuple": [...]}, {"dict": [[key, value], ...]},
{"ordered_dict": [...]}, {"size": [...]}, {"float": "nan"}, {"tensor": {"name": ..., ...}}. Nothing else can be saved,
and nothing that is loaded runs code.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from tensorsmith.nn.parameter import Parameter
from tensorsmith.tensor.tensor import Size, Tensor

DEEPEST = 200  # levels of nesting; both ways stay far from Python's recursion limit

_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", Size: "size"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered_dict"}


class Packing:
    """The way out: `encode(obj)` gives JSON, `tensors` collects name -> tensor."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.open: set[int] = set()

    def encode(self, value: Any, path: str = "obj", name: str = "", depth: int = 0) -> Any:
        """JSON for a value; `path` is how errors name it, `name` what a tensor there is called."""
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            return {"tensor": self.take(value, name)}
        if kind not in _CONTAINERS and kind not in _MAPPINGS:
            raise TypeError(f"cannot save {path}: it is a {_describe(value)}; {_advice(value)}")
        if id(value) in self.open:
            raise ValueError(f"cannot save {path}: it contains itself")
        if depth >= DEEPEST:
            raise ValueError(f"cannot save {path}: it is nested more than {DEEPEST} levels deep")
        self.open.add(id(value))
        try:
            if kind in _CONTAINERS:
                inside = [self.encode(x, f"{path}[{i}]", _join(name, i), depth + 1) for i, x in enumerate(value)]
                return {_CONTAINERS[kind]: inside}
            pairs = []
            for key, each in value.items():
                if type(key) not in (str, int):
                    raise TypeError(f"cannot save {path}: its key {key!r} is a {_describe(key)}, not a string or int")
                pairs.append([key, self.encode(each, f"{path}[{key!r}]", _join(name, key), depth + 1)])
            return {_MAPPINGS[kind]: pairs}
        finally:
            self.open.discard(id(value))

    def take(self, tensor: Tensor, name: str) -> dict[str, Any]:
        """Put a tensor aside under a name of its own."""
        free = base = "_metadata_" if name == "__metadata__" else name or "tensor"
        number = 1
        while free in self.tensors:
            number += 1
            free = f"{base}#{number}"
        self.tensors[free] = tensor
        found: dict[str, Any] = {"name": free}
        if tensor.layout.tracked:
            found["requires_grad"] = True
        if isinstance(tensor, Parameter):
            found["parameter"] = True
        if tensor.layout.dtype.name == "complex128":
            found["complex128"] = True
        return found


def _join(name: str, part: str | int) -> str:
    return f"{name}.{part}" if name else str(part)


def _describe(value: Any) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        if kind.__name__ == "function":
            return "lambda" if value.__name__ == "<lambda>" else f"function ({value.__qualname__})"
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: Any) -> str:
    if type(value).__module__.partition(".")[0] == "numpy":
        return "use tensorsmith.from_numpy(x) for an array, x.item() for a number"
    if hasattr(value, "state_dict"):
        return "save its state_dict()"
    return "tensors, numbers, strings, bools, None, and lists, tuples and dicts of them can be saved"


class BadStructure(ValueError):
    """The JSON is not what `Packing` writes."""


def decode(value: Any, tensor: Callable[[dict[str, Any]], Any], depth: int = 0) -> Any:
    """The object of a JSON value; `tensor` gives the tensor of a description. BadStructure for anything unknown."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > DEEPEST:
        raise BadStructure(f"it is nested more than {DEEPEST} levels deep")
    if not isinstance(value, Mapping) or len(value) != 1:
        raise BadStructure("an entry is neither a plain value nor an object with one key")
    ((kind, inside),) = value.items()
    if kind == "tensor" and isinstance(inside, dict):
        return tensor(inside)
    if kind == "float" and inside in ("nan", "inf", "-inf"):
        return float(inside)
    if kind in ("list", "tuple", "size") and isinstance(inside, list):
        parts = [decode(x, tensor, depth + 1) for x in inside]
        if kind == "size" and not all(type(n) is int for n in parts):
            raise BadStructure("a size holds something that is no int")
        return parts if kind == "list" else tuple(parts) if kind == "tuple" else Size(parts)
    if kind in ("dict", "ordered_dict") and isinstance(inside, list):
        found: dict[Any, Any] = {} if kind == "dict" else OrderedDict()
        for pair in inside:
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int) or pair[0] in found:
                raise BadStructure("a dict is not a list of pairs with different keys")
            found[pair[0]] = decode(pair[1], tensor, depth + 1)
        return found
    raise BadStructure(f"an entry is of unknown kind {str(kind)[:40]!r}")

"""Nests of tensors: tuples, lists, dicts and dataclasses with tensors at the leaves, as functions take and return them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import DType
from tensorsmith.tensor.tensor import Tensor


def flatten(value: Any, path: str = "argument") -> tuple[list[Tensor], Any]:
    """Tensors of a nest of tuples, lists, dicts and dataclasses, and the nest with numbers in their place."""
    tensors: list[Tensor] = []

    def walk(item: Any) -> Any:
        if isinstance(item, Tensor):
            tensors.append(item)
            return Leaf(len(tensors) - 1)
        if isinstance(item, tuple | list):
            return Nest(type(item), tuple([walk(x) for x in item]))
        if isinstance(item, dict):
            kind: Any = type(item)
            if isinstance(item, defaultdict):
                kind = _Default(item.default_factory)
            elif kind not in (dict, OrderedDict):
                return item
            return Nest(kind, tuple([(k, walk(v)) for k, v in item.items()]))
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            before = len(tensors)
            fields = tuple([(f.name, walk(getattr(item, f.name))) for f in dataclasses.fields(item) if hasattr(item, f.name)])
            if len(tensors) > before:
                return Nest(_Data(type(item)), fields)
        return item

    return tensors, walk(value)


class Leaf(int):
    """The place of a tensor in a nest."""


class Nest(tuple):
    """(type, children) of a container."""

    def __new__(cls, kind: Any, children: tuple) -> Nest:
        return super().__new__(cls, (kind, children))


@dataclasses.dataclass(frozen=True)
class _Default:
    """A defaultdict with this factory."""

    factory: Any


@dataclasses.dataclass(frozen=True)
class _Data:
    """A dataclass."""

    type: type


def unflatten(nest: Any, tensors: Sequence[Tensor]) -> Any:
    """The inverse of `flatten`. Dataclasses are made without their `__init__`."""
    if isinstance(nest, Leaf):
        return tensors[nest]
    if not isinstance(nest, Nest):
        return nest
    kind, children = nest
    if isinstance(kind, _Data):
        made: Any = object.__new__(kind.type)
        for name, child in children:
            object.__setattr__(made, name, unflatten(child, tensors))
        return made
    if isinstance(kind, _Default):
        return defaultdict(kind.factory, {k: unflatten(v, tensors) for k, v in children})
    if issubclass(kind, dict):
        return kind((k, unflatten(v, tensors)) for k, v in children)
    values = [unflatten(x, tensors) for x in children]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def hashable(nest: Any) -> Any:
    """A nest as a key: equal for nests that a trace does not tell apart."""
    if isinstance(nest, Leaf):
        return ("tensor", int(nest))
    if isinstance(nest, Nest):
        kind, children = nest
        if isinstance(kind, _Data | _Default) or issubclass(kind, dict):
            return (kind, tuple([(k, hashable(v)) for k, v in children]))
        return (kind, tuple([hashable(x) for x in children]))
    if isinstance(nest, float):
        return (type(nest), repr(nest))  # -0.0 is another number than 0.0, and one NaN is as good as another
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type) and type(nest).__hash__ is None:
        return (type(nest), tuple([hashable(getattr(nest, f.name, None)) for f in dataclasses.fields(nest)]))
    return (type(nest), nest)


def objects(nest: Any) -> Iterator[Any]:
    """What is in a nest beside tensors and containers."""
    if isinstance(nest, Nest):
        kind, children = nest
        for child in children:
            yield from objects(child[1] if isinstance(kind, _Data | _Default) or issubclass(kind, dict) else child)
    elif not isinstance(nest, Leaf):
        yield nest


def is_made_anew(value: Any) -> bool:
    """Whether an object can be changed by who gets it, so that two calls are not to give the same one."""
    if isinstance(value, type | ModuleType | FunctionType | BuiltinFunctionType | Enum | DType | np.generic):
        return False
    return hasattr(value, "__dict__") or isinstance(value, set | bytearray | np.ndarray | deque | dict | Iterator)

"""Nests of tensors: tuples, lists and dicts with tensors at the leaves, as functions take and return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.tensor.tensor import Tensor


def flatten(value: Any, path: str = "argument") -> tuple[list[Tensor], Any]:
    """Tensors of a nest of tuples, lists and dicts, and the nest with numbers in their place."""
    tensors: list[Tensor] = []

    def walk(item: Any, path: str) -> Any:
        if isinstance(item, Tensor):
            tensors.append(item)
            return Leaf(len(tensors) - 1)
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return Nest(type(item), tuple(walk(x, f"{path}.{n}") for n, x in zip(item._fields, item)))
        if isinstance(item, tuple | list):
            return Nest(type(item), tuple(walk(x, f"{path}[{i}]") for i, x in enumerate(item)))
        if isinstance(item, dict):
            return Nest(dict, tuple((k, walk(v, f"{path}[{k!r}]")) for k, v in item.items()))
        return item

    return tensors, walk(value, path)


class Leaf(int):
    """The place of a tensor in a nest."""


class Nest(tuple):
    """(type, children) of a container."""

    def __new__(cls, kind: type, children: tuple) -> Nest:
        return super().__new__(cls, (kind, children))


def unflatten(nest: Any, tensors: Sequence[Tensor]) -> Any:
    """The inverse of `flatten`."""
    if isinstance(nest, Leaf):
        return tensors[nest]
    if isinstance(nest, Nest):
        kind, children = nest
        if kind is dict:
            return {k: unflatten(v, tensors) for k, v in children}
        values = [unflatten(x, tensors) for x in children]
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    return nest


def hashable(nest: Any) -> Any:
    if isinstance(nest, Leaf):
        return ("tensor", int(nest))
    if isinstance(nest, Nest):
        kind, children = nest
        if kind is dict:
            return (kind, tuple((k, hashable(v)) for k, v in children))
        return (kind, tuple(hashable(x) for x in children))
    if isinstance(nest, float):
        return (type(nest), repr(nest))  # -0.0 is another number than 0.0, and one NaN is as good as another
    return (type(nest), nest)

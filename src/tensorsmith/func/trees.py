"""Nests of tuples, named tuples, lists and dicts: taken apart into leaves and put together again."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spec:
    """The structure of a nest: its class, the keys of a dict, the structures of its parts. A leaf has class None."""

    kind: Any
    keys: tuple = ()
    parts: tuple[Spec, ...] = ()

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return 1 if self.kind is None else sum(part.leaves for part in self.parts)

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        if self.keys:
            return "{" + ", ".join(f"{k!r}: {p!r}" for k, p in zip(self.keys, self.parts)) + "}"
        return f"{self.kind.__name__}({', '.join(map(repr, self.parts))})"


LEAF = Spec(None)


def _taken_apart(value: Any) -> tuple[tuple, tuple] | None:
    """(keys, parts) of a container; None for a leaf."""
    if isinstance(value, dict) and type(value) in (dict, OrderedDict, defaultdict):
        return tuple(value), tuple(value.values())
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (), tuple(value)
    return None


def flatten(value: Any) -> tuple[list[Any], Spec]:
    """The leaves of a nest from left to right, and its structure. Everything that is no container is a leaf, None too."""
    apart = _taken_apart(value)
    if apart is None:
        return [value], LEAF
    leaves: list[Any] = []
    specs = []
    for part in apart[1]:
        below, spec = flatten(part)
        leaves += below
        specs.append(spec)
    return leaves, Spec(type(value), apart[0], tuple(specs))


def unflatten(leaves: Sequence[Any], spec: Spec) -> Any:
    """The nest of this structure with these leaves."""
    if len(leaves) != spec.leaves:
        raise ValueError(f"a nest of {spec.leaves} leaves from {len(leaves)}")
    rest = iter(leaves)

    def build(spec: Spec) -> Any:
        if spec.kind is None:
            return next(rest)
        parts = [build(part) for part in spec.parts]
        if spec.kind is defaultdict:
            return defaultdict(None, zip(spec.keys, parts))
        if issubclass(spec.kind, dict):
            return spec.kind(zip(spec.keys, parts))
        return spec.kind(*parts) if hasattr(spec.kind, "_fields") else spec.kind(parts)

    return build(spec)


def map_leaves(function: Callable[..., Any], value: Any) -> Any:
    """The nest with `function` of every leaf."""
    leaves, spec = flatten(value)
    return unflatten([function(leaf) for leaf in leaves], spec)


def broadcast(prefix: Any, spec: Spec) -> list[Any] | None:
    """A value for every leaf of a structure, from a nest that stops earlier; None where it does not fit."""
    apart = _taken_apart(prefix)
    if apart is None:
        return [prefix] * spec.leaves
    keys, parts = apart
    if spec.kind is not type(prefix) or keys != spec.keys or len(parts) != len(spec.parts):
        return None
    found: list[Any] = []
    for part, below in zip(parts, spec.parts):
        values = broadcast(part, below)
        if values is None:
            return None
        found += values
    return found

"""Scalar: a number that remembers how it was made, and differentiates backwards through its history."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorsmith.scalar.algebra import Operators, apply
from tensorsmith.scalar.fn import Fn, Typing
from tensorsmith.scalar.functions import add
from tensorsmith.scalar.table import TABLE
from tensorsmith.scalar.values import Number


@dataclass(frozen=True, slots=True)
class History:
    """The call that made a Scalar: a function of the table and its inputs, Scalars or plain numbers."""

    fn: Fn
    inputs: tuple[Any, ...]


class Scalar(Operators):
    """A float with a history.

    Arithmetic on Scalars computes at once and records what it did; `backward()` adds the derivative with respect to
    every leaf to the leaf's `grad`. Comparisons compare the values and give plain bools.
    """

    __slots__ = ("__weakref__", "grad", "history", "name", "requires_grad", "value")

    def __init__(self, value: Any, requires_grad: bool = True, name: str | None = None):
        self.value = float(value)
        self.requires_grad = requires_grad
        self.name = name
        self.history: History | None = None
        self.grad: Any = None

    @property
    def is_leaf(self) -> bool:
        """Whether this was given, not computed from Scalars that require a gradient."""
        return self.history is None

    def _apply_(self, fn: Fn, *args: Any) -> Any:
        values: list[Number] = []
        for arg in args:
            if isinstance(arg, Scalar):
                values.append(arg.value)
            elif isinstance(arg, (int, float)):
                values.append(arg)
            else:
                return NotImplemented
        row = TABLE[fn]
        out = row.value(*values)
        if row.typing is Typing.BOOL:
            return out
        needed = row.differentiable and any(isinstance(arg, Scalar) and arg.requires_grad for arg in args)
        result = Scalar(out, requires_grad=needed)
        if needed:
            result.history = History(fn, args)
        return result

    def backward(self, seed: Any = 1.0, create_graph: bool = False) -> None:
        """Adds seed times the derivative of this number to `grad` of every leaf that requires one.

        With create_graph the gradients are Scalars with a history of their own, for higher derivatives. Iterative:
        the history may be 100,000 operations deep. Raises RuntimeError when nothing requires a gradient.
        """
        if not self.requires_grad:
            raise RuntimeError("backward: this Scalar does not require a gradient, nor does anything it was made from")
        gradients: dict[Scalar, Any] = {self: seed}
        for scalar in reversed(history_of(self)):
            if not scalar.requires_grad or scalar not in gradients:
                continue
            gradient = gradients.pop(scalar)
            if scalar.history is None:
                scalar.grad = gradient if scalar.grad is None else add(scalar.grad, gradient)
                continue
            inputs = scalar.history.inputs
            needed = [isinstance(arg, Scalar) and arg.requires_grad for arg in inputs]
            factors = [gradient if need else None for need in needed]
            args = inputs if create_graph else tuple(_plain(arg) for arg in inputs)
            out = scalar if create_graph else scalar.value
            for arg, term in zip(inputs, TABLE[scalar.history.fn].products(args, out, factors), strict=True):
                if term is not None:
                    gradients[arg] = add(gradients[arg], term) if arg in gradients else term

    def detach(self) -> "Scalar":
        """The same value without the history."""
        return Scalar(self.value, requires_grad=False)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return self.value

    def __int__(self) -> int:
        return int(self.value)

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.value, ndigits) if ndigits else apply(Fn.ROUND, self)

    def __repr__(self) -> str:
        if self.history is not None:
            return f"Scalar({self.value!r}, made by {self.history.fn.value})"
        return f"Scalar({self.value!r}{'' if self.requires_grad else ', requires_grad=False'})"

    def graph(self) -> str:
        """The history as text, one line a number: its name, how it was made, its value, and a leaf's gradient."""
        names = _names(self)
        lines = []
        for scalar, name in names.items():
            if scalar.history is None:
                gradient = "" if scalar.grad is None else f"    # grad = {_plain(scalar.grad)!r}"
                lines.append(f"{name} = {scalar.value!r}{gradient}")
            else:
                inputs = ", ".join(_input_text(arg, names) for arg in scalar.history.inputs)
                lines.append(f"{name} = {scalar.history.fn.value}({inputs})    # {scalar.value!r}")
        return "\n".join(lines)

    def to_dot(self) -> str:
        """The history in Graphviz's language: boxes are leaves and constants, ellipses are functions."""
        names = _names(self)
        lines = ["digraph history {", "  rankdir=LR;"]
        constants = 0
        for scalar, name in names.items():
            if scalar.history is None:
                lines.append(f'  "{name}" [shape=box, label="{name}\\n{scalar.value:g}"];')
                continue
            lines.append(f'  "{name}" [label="{scalar.history.fn.value}\\n{scalar.value:g}"];')
            for arg in scalar.history.inputs:
                if isinstance(arg, Scalar):
                    lines.append(f'  "{names[arg]}" -> "{name}";')
                else:
                    constants += 1
                    lines.append(f'  "constant {constants}" [shape=box, style=dashed, label="{arg}"];')
                    lines.append(f'  "constant {constants}" -> "{name}";')
        return "\n".join([*lines, "}"])


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Scalar) else value


def history_of(*roots: Scalar) -> list[Scalar]:
    """Every Scalar the roots were made from, and the roots, each once and after its inputs."""
    order: list[Scalar] = []
    seen: set[Scalar] = set()
    stack: list[tuple[Scalar, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        scalar, expanded = stack.pop()
        if expanded:
            order.append(scalar)
        elif scalar not in seen:
            seen.add(scalar)
            stack.append((scalar, True))
            if scalar.history is not None:
                stack.extend((arg, False) for arg in reversed(scalar.history.inputs) if isinstance(arg, Scalar))
    return order


def _names(root: Scalar) -> dict[Scalar, str]:
    """A name for every Scalar of the history: its own, or leaf0, leaf1, ... and v0, v1, ..."""
    names: dict[Scalar, str] = {}
    taken: set[str] = set()
    counts = {"leaf": 0, "v": 0}
    for scalar in history_of(root):
        name = scalar.name
        while name is None or name in taken:
            kind = "leaf" if scalar.history is None else "v"
            name = f"{kind}{counts[kind]}"
            counts[kind] += 1
        taken.add(name)
        names[scalar] = name
    return names


def _input_text(arg: Any, names: dict[Scalar, str]) -> str:
    return names[arg] if isinstance(arg, Scalar) else repr(arg)


def gradients(function: Callable[..., Any], args: Sequence[float]) -> list[float]:
    """The derivatives of a function of numbers at args, by one backward pass."""
    leaves = [Scalar(arg) for arg in args]
    result = function(*leaves)
    if isinstance(result, Scalar) and result.requires_grad:
        result.backward()
    return [0.0 if leaf.grad is None else leaf.grad for leaf in leaves]

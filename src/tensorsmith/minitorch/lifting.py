"""A scalar function given to map, zip or reduce, lifted once: on NumPy arrays for the reference, a kernel for the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.core.dtypes import float64
from tensorsmith.eager.fast import FAST
from tensorsmith.eager.operator import Operator
from tensorsmith.ir.build import broadcast_to, cast, full
from tensorsmith.ir.graph import Graph, Node
from tensorsmith.minitorch import operators
from tensorsmith.scalar.algebra import apply
from tensorsmith.scalar.expression import Expr, topological
from tensorsmith.scalar.lift import lift
from tensorsmith.targets.reference.scalars import SCALARS
from tensorsmith.tensor.tensor import Tensor as EngineTensor


class Lifted:
    """A Python function of one or two numbers as an expression, lifted when it is first needed.

    A function that numba compiled is taken by its `py_func`. LiftError (at the line) for what has no expression.
    """

    def __init__(self, fn: Callable[..., float], arity: int) -> None:
        self.function = getattr(fn, "py_func", fn)
        self.name = getattr(self.function, "__name__", type(self.function).__name__)
        self.arity = arity

    @functools.cached_property
    def expression(self) -> Expr:
        """The function as an expression of the scalar table."""
        return lift(self.function, self.arity)

    @functools.cached_property
    def operator(self) -> Operator:
        """The eager operator on tensors, which broadcasts; compiled at its first call."""
        # Fresh: in row-major order whatever the operands' is, and a copy where the function gives its argument back.
        return Operator(f"minitorch.{self.name}", lambda *nodes: built(self.expression, nodes), fresh=True)

    def one(self, x: EngineTensor) -> EngineTensor:
        """The operator on one tensor: the entry that was made for a call like this, or the dispatcher."""
        entry = FAST.get((self.operator, x.layout))
        return entry(x) if entry is not None else self.operator(x)  # type: ignore[no-any-return]

    def two(self, x: EngineTensor, y: EngineTensor) -> EngineTensor:
        """The same on two tensors."""
        entry = FAST.get((self.operator, x.layout, y.layout))
        return entry(x, y) if entry is not None else self.operator(x, y)  # type: ignore[no-any-return]

    @functools.cached_property
    def on_arrays(self) -> Callable[..., np.ndarray]:
        """The same on float64 arrays, function by function in NumPy: what is right."""
        slots: dict[Expr, int] = {}
        values: list[Any] = [None] * self.arity
        steps: list[tuple[Any, tuple[int, ...], int]] = []
        for node in topological(self.expression):
            if node.fn is not None:
                steps.append((SCALARS[node.fn], tuple(slots[arg] for arg in node.args), len(values)))
            if node.index is not None:
                slots[node] = node.index
            else:
                slots[node] = len(values)
                values.append(None if node.fn is not None else np.asarray(node.value, np.float64))
        result, count = slots[self.expression], self.arity
        # Where every operand is met on the way, the result has their common shape by itself.
        met = {i for _, arguments, _ in steps for i in arguments}
        shaped = bool(steps) and met.issuperset(range(count))

        def run(*arrays: np.ndarray) -> np.ndarray:
            known = list(values)
            known[:count] = arrays
            with np.errstate(all="ignore"):
                for function, arguments, slot in steps:
                    known[slot] = function(*[known[i] for i in arguments])
            out = np.asarray(known[result], np.float64)
            if not shaped:
                shape = np.broadcast_shapes(*[array.shape for array in arrays])
                out = out if out.shape == shape else np.broadcast_to(out, shape)
            # In row-major order, and never an operand itself: id(x) is a copy.
            return np.array(out, order="C") if not steps or not out.flags.c_contiguous else out

        return run


@functools.cache
def _known() -> dict[Expr, str]:
    """Expressions of (so far, next) that are a reduction of the CPU's own."""
    functions: Sequence[tuple[Callable[..., Any], str]] = (
        (operators.add, "sum"),
        (lambda x, y: y + x, "sum"),
        (operators.mul, "prod"),
        (lambda x, y: y * x, "prod"),
        (operators.max, "amax"),
        (lambda x, y: y if y > x else x, "amax"),
        (lambda x, y: max(x, y), "amax"),
        (lambda x, y: x if x < y else y, "amin"),
        (lambda x, y: min(x, y), "amin"),
    )
    return {lift(function, 2): name for function, name in functions}


NEUTRAL = {"sum": 0.0, "prod": 1.0, "amax": -np.inf, "amin": np.inf}
ON_ARRAYS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


def reduction_of(lifted: Lifted) -> str | None:
    """The name of the tensor reduction that folds by this function, or None: then it is folded step by step."""
    return _known().get(lifted.expression)


def built(expression: Expr, nodes: Sequence[Node]) -> Node:
    """The float64 graph of an expression on float64 operands; its constants are float64 too, as Python's numbers are."""
    graph = nodes[0].graph
    results: dict[Expr, Node] = {}
    for part in topological(expression):
        if part.fn is not None:
            results[part] = apply(part.fn, *[results[arg] for arg in part.args])
        elif part.index is not None:
            results[part] = nodes[part.index]
        else:
            results[part] = full(graph, (), float(part.value or 0.0), float64)
    shape = np.broadcast_shapes(*[node.shape for node in nodes])
    return broadcast_to(cast(results[expression], float64), shape)


def graph_of(lifted: Lifted, shapes: Sequence[tuple[int, ...]]) -> Graph:
    """The graph of a call on float64 operands of these shapes (for records of what its kernel does)."""
    graph = Graph()
    graph.outputs = (built(lifted.expression, [graph.input(shape, float64) for shape in shapes]),)
    return graph

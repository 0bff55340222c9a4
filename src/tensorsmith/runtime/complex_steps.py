"""Complex numbers as NumPy steps: how a plan runs a node that makes complex numbers or is made of some.

Kernels know real numbers only. `numpy_step` computes any primitive by its reference (`targets/reference/primitives.py`), in
complex128, and rounds once; a view is a copy where its result needs memory. Which nodes these are says
`passes/fusion.py:Fusion.is_numpy_step`. What is made of numbers alone (a run-time scalar cast to complex64) is computed
within the step that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorsmith.ir.graph import Node, Primitive, base_of
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.walk import Group, of_numbers
from tensorsmith.runtime.requests import PythonStep, Request, Step, array_at
from tensorsmith.targets.reference.primitives import PRIMITIVES
from tensorsmith.targets.reference.representation import rounded, scalar, widen

Reader = Callable[[Sequence[Any]], np.ndarray]  # from the words of the step


def numpy_step(fusion: Fusion, group: Group) -> Request:
    """The step that computes the root of a group from its operands."""
    root = group.roots[0]
    compute, place, dtype = PRIMITIVES[root.op], fusion.place(root), root.dtype
    words: list[tuple[Node | None, int]] = []
    readers = [_reader(fusion, operand, words) for operand in root.inputs]
    words.append((root, place.offset * dtype.itemsize))

    def call(given: Sequence[Any]) -> None:
        with np.errstate(all="ignore"):
            result = compute(root, [read(given) for read in readers])
            array_at(given[-1], place, dtype)[...] = rounded(result, dtype)

    def step(sources: list[tuple[int, int]]) -> Step:
        return PythonStep(str(root.attrs["fn"].value if root.op is Primitive.MAP else root.op.value), sources, call)

    return Request(words, step)


def _reader(fusion: Fusion, node: Node, words: list[tuple[Node | None, int]]) -> Reader:
    """What gives the values of an operand, as the reference holds them; the words it needs are added to `words`."""
    if not of_numbers(base_of(node)):
        base, seen = fusion.locate(node)
        dtype, number = node.dtype, len(words)
        words.append((base, seen.offset * dtype.itemsize))
        return lambda given: widen(array_at(given[number], seen, dtype), dtype)
    if node.op is Primitive.INPUT:
        number, dtype = len(words), node.dtype
        words.append((node, 0))
        if not dtype.is_complex:
            return lambda given: scalar(given[number], dtype)
        words.append((node, 1))
        return lambda given: scalar(complex(given[number], given[number + 1]), dtype)
    compute = PRIMITIVES[node.op]
    readers = [_reader(fusion, operand, words) for operand in node.inputs]
    return lambda given: np.asarray(compute(node, [read(given) for read in readers]))

"""`interpret(graph, arrays)`: what a graph means, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.targets.reference.primitives import PRIMITIVES
from tensorsmith.targets.reference.representation import rounded, scalar, widen


def interpret(graph: Graph, arrays: Sequence[np.ndarray | bool | int | float]) -> list[np.ndarray]:
    """The outputs of the unfused graph, computed in float64 (integers exactly) and rounded once, at the outputs.

    arrays: one per input, of its shape, taken in its dtype; a number for a run-time scalar. A CAST between floating
    dtypes inside the graph does not round; a cast to an integer truncates and saturates, NaN gives 0. A constant is
    rounded to the dtype in which kernels compute with it. Integers wrap around.
    Raises ValueError for a wrong number or shape of arrays, IndexError for an index out of range,
    ZeroDivisionError for an integer divided by zero.
    """
    if len(arrays) != len(graph.inputs):
        raise ValueError(f"interpret: the graph has {len(graph.inputs)} inputs, got {len(arrays)} arrays")
    values: dict[Node, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for node in graph.live_nodes():
            if node.op is Primitive.INPUT:
                values[node] = _argument(node, arrays[node.attrs["number"]])
            else:
                values[node] = np.asarray(PRIMITIVES[node.op](node, [values[operand] for operand in node.inputs]))
    return [np.ascontiguousarray(rounded(values[node], node.dtype)).reshape(node.shape) for node in graph.outputs]


def _argument(node: Node, value: np.ndarray | bool | int | float) -> np.ndarray:
    if np.shape(value) != node.shape:
        number = node.attrs["number"]
        raise ValueError(f"interpret: input {number} has shape {node.shape}, got an array of shape {np.shape(value)}")
    if node.attrs["param"]:
        return scalar(np.asarray(value).item(), node.dtype)
    return widen(rounded(np.asarray(value), node.dtype), node.dtype)

"""`ts.compile(..., verify=True)`: a new plan against the same operators run one by one, without passes and without fusion.

Both are plans of the traced graph that write nothing over. Where they disagree, the values of the graph are compared one
after the other, each computed in both ways, and the first that differs is named, with the user's line that made it and the
pass without which it agrees.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorsmith.core.device import CPU
from tensorsmith.core.dtypes import DType, finfo
from tensorsmith.core.layout import layout_of
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, copy_into
from tensorsmith.passes.manager import PLANNING, Difference, names, optimise
from tensorsmith.runtime.plan import build_plan
from tensorsmith.tensor.host_values import values_at
from tensorsmith.tensor.storage import Storage, storage_type
from tensorsmith.tensor.tensor import Tensor, make_tensor

ULPS = 4096  # of the largest element: passes may add up in another order
_QUIET = frozenset({Primitive.INPUT, Primitive.CONST, Primitive.IOTA, *VIEWS})


def check_agreement(
    name: str, graph: Graph, places: Sequence[Strided | None], operands: Sequence[Any], left_out: frozenset[str],
    lines: Sequence[tuple[int, str]],
) -> None:  # fmt: skip
    """Raise Difference unless the graph with its passes computes what it does without."""
    expected = _computed(graph, places, operands, frozenset(names()))
    found = _computed(graph, places, operands, left_out)
    if all(_agree(a, b, node.dtype) for a, b, node in zip(expected, found, graph.outputs)):
        return
    number = next(k for k, (a, b, n) in enumerate(zip(expected, found, graph.outputs)) if not _agree(a, b, n.dtype))
    for node in graph.live_nodes():
        if node.op in _QUIET:
            continue
        alone = _only(graph, node)
        wanted, got = [_computed(alone, places, operands, off)[0] for off in (frozenset(names()), left_out)]
        if not _agree(wanted, got, node.dtype):
            raise Difference(_message(name, node, wanted, got, alone, places, operands, left_out, lines))
    raise Difference(
        f"compile: output {number} of {name} differs from that of the operators run one by one, although every value that it "
        f"is made of agrees when it is computed alone: largest difference {_largest(expected[number], found[number])}"
    )


def _message(
    name: str, node: Node, wanted: np.ndarray, got: np.ndarray, alone: Graph, places: Sequence[Strided | None],
    operands: Sequence[Any], left_out: frozenset[str], lines: Sequence[tuple[int, str]],
) -> str:  # fmt: skip
    at = bisect.bisect_right([start for start, _ in lines], node.index) - 1
    line = lines[at][1] if at >= 0 else "an unknown line"
    guilty = [
        each for each in names()
        if each not in left_out and _agree(wanted, _computed(alone, places, operands, left_out | {each})[0], node.dtype)
    ]  # fmt: skip
    blame = f"it agrees without pass {guilty[0]!r}" if guilty else "it differs whichever pass is left out"
    return (
        f"compile: the first value of {name} that differs from the operators run one by one is\n  {node!r}\n"
        f"of {line}\nlargest difference {_largest(wanted, got)}; {blame}"
    )


def _only(graph: Graph, node: Node) -> Graph:
    """The part of a graph that computes one node; inputs keep their numbers."""
    part = graph.empty()
    mapping = copy_into(
        part, _with_outputs(graph, (node,)), [part.input(n.shape, n.dtype, n.attrs["param"]) for n in graph.inputs]
    )
    part.outputs = (mapping[node],)
    return part


def _with_outputs(graph: Graph, outputs: tuple[Node, ...]) -> Graph:
    """A graph with the same nodes and other outputs."""
    shown = graph.empty()
    shown.nodes, shown.inputs, shown.outputs = graph.nodes, graph.inputs, outputs
    return shown


def _computed(
    graph: Graph, places: Sequence[Strided | None], operands: Sequence[Any], left_out: frozenset[str]
) -> list[np.ndarray]:
    """The outputs of a graph as arrays of their own."""
    if set(names()) - set(PLANNING) - left_out:
        graph, _ = optimise(graph, left_out, debug=True)
    device = next((each.layout.device for each in operands if isinstance(each, Tensor)), CPU)
    plan = build_plan(graph, places, left_out=left_out, device=device)
    new = storage_type(device)
    storages = [new(n) for n in plan.new_bytes]
    words: list[Any] = [operands[i].ptr for i in plan.tensor_inputs]
    words += [s.ptr for s in storages]
    words += plan.number_words(operands)
    plan.run(words)
    found = []
    for output in plan.outputs:
        held = operands[output.input] if output.input is not None else storages[output.buffer]
        assert isinstance(held, Tensor | Storage)
        seen, storage = output.strided, held.storage if isinstance(held, Tensor) else held
        layout = layout_of(output.dtype, seen.shape, seen.strides, device=device)
        found.append(values_at(make_tensor(layout, storage, held.ptr + seen.offset * output.dtype.itemsize)).copy())
    return found


def _agree(a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    """Whether two results are equal up to the rounding of another order of computing."""
    if dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    a, b = _wide(a), _wide(b)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    scale = max(float(np.abs(a[finite]).max()), finfo(dtype).smallest_normal)
    return bool(np.abs(a[finite] - b[finite]).max() <= ULPS * finfo(dtype).eps * scale)


def _wide(a: np.ndarray) -> np.ndarray:
    return a if a.dtype.kind == "c" else a.astype(np.float64)


def _largest(a: np.ndarray, b: np.ndarray) -> str:
    """The largest difference between two results, and where it is."""
    with np.errstate(all="ignore"):
        distance = np.abs(_wide(a) - _wide(b))
    distance = np.where(np.isnan(distance), np.inf, distance)
    distance = np.where((_wide(a) == _wide(b)) | (np.isnan(_wide(a)) & np.isnan(_wide(b))), 0, distance)
    position = np.unravel_index(int(distance.argmax()), a.shape) if a.ndim else ()
    return f"at {[int(i) for i in position]}: {a[position]} one by one, {b[position]} compiled"

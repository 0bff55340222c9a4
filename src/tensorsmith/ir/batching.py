"""Batching as a graph transformation: `batch(graph, batched, extent)` computes the graph for many examples at once.

The batch is a new leading axis of every value that depends on a batched input; what does not stays as it is. `RULES` has one
rule per primitive and `LIBRARY_RULES` one per NumPy routine that can do it in one call; a routine without a rule runs once
per example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorsmith.ir import attention, convolution, recurrent
from tensorsmith.ir.build import broadcast_to, concat, permute, reshape, slice_
from tensorsmith.ir.graph import Graph, Node, Primitive, replay
from tensorsmith.ir.library_gradients import POINTWISE

# rule(node of one example, operands, which of them have the batch axis, extent) -> node with the batch axis
Rule = Callable[[Node, Sequence[Node], Sequence[bool], int], Node]


def batch(graph: Graph, batched: Sequence[bool], extent: int) -> Graph:
    """The graph for `extent` examples: inputs flagged in `batched`, and every output, have the batch as first axis."""
    result = Graph()
    inputs = [
        result.input((extent, *node.shape), node.dtype) if flag else result.input(node.shape, node.dtype, node.attrs["param"])
        for node, flag in zip(graph.inputs, batched, strict=True)
    ]
    result.outputs = tuple(batch_into(result, graph, inputs, batched, extent))
    return result


def batch_into(
    target: Graph, source: Graph, arguments: Sequence[Node], batched: Sequence[bool], extent: int
) -> list[Node]:
    """The outputs of `source`, written into `target` for arguments of which those flagged have the batch axis.

    Every output has the batch axis: one that is the same for all examples is repeated.
    """
    values: dict[Node, Node] = {}
    flags: dict[Node, bool] = {}
    for node in source.live_nodes():
        if node.op is Primitive.INPUT:
            number = node.attrs["number"]
            values[node], flags[node] = arguments[number], bool(batched[number])
            continue
        operands = [values[operand] for operand in node.inputs]
        which = [flags[operand] for operand in node.inputs]
        flags[node] = any(which)
        values[node] = RULES[node.op](node, operands, which, extent) if flags[node] else replay(target, node, operands)
    return [with_batch(values[node], flags[node], extent) for node in source.outputs]


def with_batch(x: Node, batched: bool, extent: int) -> Node:
    """`x` with the batch axis: repeated where it has none."""
    return x if batched else broadcast_to(reshape(x, (1, *x.shape)), (extent, *x.shape))


def _all(operands: Sequence[Node], batched: Sequence[bool], extent: int) -> list[Node]:
    return [with_batch(x, flag, extent) for x, flag in zip(operands, batched)]


# --- pointwise --------------------------------------------------------------------------------------------------------


def _pointwise(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return operands[0].graph.add(node.op, _all(operands, batched, extent), **node.attrs)


# --- one operand, whose axes move up by one ---------------------------------------------------------------------------


def _reshape(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return reshape(operands[0], (extent, *node.shape))


def _permute(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return permute(operands[0], (0, *[a + 1 for a in node.attrs["axes"]]))


def _expand(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return broadcast_to(operands[0], (extent, *node.shape))


def _one_axis(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return operands[0].graph.add(node.op, operands, **{**node.attrs, "axis": node.attrs["axis"] + 1})


def _flip(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return operands[0].graph.add(Primitive.FLIP, operands, axes=tuple(a + 1 for a in node.attrs["axes"]))


def _diagonal(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    attrs = node.attrs
    return operands[0].graph.add(
        Primitive.DIAGONAL, operands, offset=attrs["offset"], axis1=attrs["axis1"] + 1, axis2=attrs["axis2"] + 1
    )


def _as_strided(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return operands[0].graph.add(
        Primitive.AS_STRIDED, operands, shape=(extent, *node.attrs["shape"]),
        strides=(node.inputs[0].numel, *node.attrs["strides"]), offset=node.attrs["offset"],
    )  # fmt: skip


def _pad(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    attrs = node.attrs
    low, high, step = (0, *attrs["low"]), (0, *attrs["high"]), (1, *attrs["step"])
    return operands[0].graph.add(Primitive.PAD, operands, **{**attrs, "low": low, "high": high, "step": step})


# --- several operands -------------------------------------------------------------------------------------------------


def _along_axis(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return _one_axis(node, _all(operands, batched, extent), batched, extent)


def _matmul(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    a, b = operands
    if batched[0] and not batched[1] and node.ndim == 2:  # one product: the examples are further rows
        rows, inner = node.shape[0], a.shape[-1]
        product = a.graph.add(Primitive.MATMUL, (reshape(a, (extent * rows, inner)), b))
        return reshape(product, (extent, *node.shape))
    return a.graph.add(Primitive.MATMUL, _all(operands, batched, extent))


def _conv(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    x, w = operands
    return convolution.batched(node, x, w, batched, extent)


def _attention(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return attention.batched(node, _all(operands, batched, extent), extent)


def _recurrent(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    return recurrent.batched(node, operands, batched, extent)


def _spread(index: Node, like: Sequence[int], axis: int) -> Node:
    """An index (batch, positions) as one position for every element of a value: axes of `like` around `axis`."""
    shape = [like[0], *[1] * (len(like) - 1)]
    shape[axis] = index.shape[1]
    whole = [*like]
    whole[axis] = index.shape[1]
    return broadcast_to(reshape(index, shape), whole)


def _take(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    x, index = operands
    axis = node.attrs["axis"]
    if not batched[1]:
        return x.graph.add(Primitive.TAKE, (x, index), axis=axis + 1)
    if batched[0]:
        return x.graph.add(Primitive.GATHER, (x, _spread(index, x.shape, axis + 1)), axis=axis + 1)
    count = index.shape[1]
    taken = x.graph.add(Primitive.TAKE, (x, reshape(index, (extent * count,))), axis=axis)
    taken = reshape(taken, (*x.shape[:axis], extent, count, *x.shape[axis + 1 :]))
    return permute(taken, (axis, *[i for i in range(taken.ndim) if i != axis]))


def _put(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    base, index, source = operands
    axis, reduce = node.attrs["axis"] + 1, node.attrs["reduce"]
    base, source = with_batch(base, batched[0], extent), with_batch(source, batched[2], extent)
    if not batched[1]:
        return base.graph.add(Primitive.PUT, (base, index, source), axis=axis, reduce=reduce)
    places = _spread(index, base.shape, axis)
    return base.graph.add(Primitive.SCATTER, (base, places, source), axis=axis, reduce=reduce)


# --- library routines -------------------------------------------------------------------------------------------------


def _library(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    rule = LIBRARY_RULES.get(node.attrs["name"], _one_by_one)
    return rule(node, operands, batched, extent)


def _library_axis(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    """A routine along one axis of operands and result of the same rank."""
    attrs = {**node.attrs, "axis": node.attrs["axis"] % max(node.ndim, 1) + 1, "shape": (extent, *node.shape)}
    return operands[0].graph.add(Primitive.LIBRARY, _all(operands, batched, extent), **attrs)


def _library_leading(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    """A routine of elements, or of the matrices in the last axes."""
    attrs = {**node.attrs, "shape": (extent, *node.shape)}
    return operands[0].graph.add(Primitive.LIBRARY, _all(operands, batched, extent), **attrs)


def _searchsorted(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    """Rows of values in rows of sequences; one sequence serves values of any shape."""
    sequence, values = operands
    graph, attrs = sequence.graph, dict(node.attrs)
    if not batched[0] and sequence.ndim == 1:
        return graph.add(Primitive.LIBRARY, (sequence, values), **{**attrs, "shape": values.shape})
    sequence, values = _all(operands, batched, extent)
    if sequence.ndim == 2:
        values = reshape(values, (extent, node.numel))
    found = graph.add(Primitive.LIBRARY, (sequence, values), **{**attrs, "shape": values.shape})
    return reshape(found, (extent, *node.shape))


def _one_by_one(node: Node, operands: Sequence[Node], batched: Sequence[bool], extent: int) -> Node:
    """A routine that knows no batch: once per example."""
    graph = operands[0].graph
    if extent == 0:
        raise NotImplementedError(f"vmap: the routine {node.attrs['name']!r} over a batch of no examples")
    results = []
    for i in range(extent):
        one = [
            reshape(slice_(x, 0, i, 1), x.shape[1:]) if flag else x for x, flag in zip(operands, batched)
        ]
        results.append(reshape(graph.add(Primitive.LIBRARY, one, **node.attrs), (1, *node.shape)))
    return concat(results, 0)


RULES: dict[Primitive, Rule] = {
    Primitive.RANDOM: _pointwise,
    Primitive.MAP: _pointwise,
    Primitive.CAST: _pointwise,
    Primitive.AS_REAL: _pointwise,
    Primitive.AS_COMPLEX: _pointwise,
    Primitive.PAIR: _pointwise,
    Primitive.RESHAPE: _reshape,
    Primitive.PERMUTE: _permute,
    Primitive.EXPAND: _expand,
    Primitive.SLICE: _one_axis,
    Primitive.FLIP: _flip,
    Primitive.DIAGONAL: _diagonal,
    Primitive.UNFOLD: _one_axis,
    Primitive.AS_STRIDED: _as_strided,
    Primitive.AGAIN: _pointwise,
    Primitive.PAD: _pad,
    Primitive.CONCAT: _along_axis,
    Primitive.REDUCE: _one_axis,
    Primitive.SCAN: _one_axis,
    Primitive.MATMUL: _matmul,
    Primitive.ATTENTION: _attention,
    Primitive.ATTENTION_GRADIENT: _attention,
    Primitive.RECURRENT: _recurrent,
    Primitive.RECURRENT_GRADIENT: _recurrent,
    Primitive.CONV: _conv,
    Primitive.TAKE: _take,
    Primitive.GATHER: _along_axis,
    Primitive.SCATTER: _along_axis,
    Primitive.PUT: _put,
    Primitive.LIBRARY: _library,
}

# Primitives without a rule: nothing they take can depend on an example.
SOURCES = frozenset({Primitive.INPUT, Primitive.CONST, Primitive.IOTA})

LIBRARY_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        POINTWISE | {"exponent", "mantissa", "matrix_exp", "nearest_isometry", "singular_values", "solve"}, _library_leading
    ),
    "argsort": _library_axis,
    "scatter_reduce": _library_axis,
    "searchsorted": _searchsorted,
}

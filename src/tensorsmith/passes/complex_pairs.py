"""Complex graphs as graphs on pairs of real values, so that the kernels of real dtypes run them on every target.

A complex value of shape S lies in memory as a real one of shape S + (2,): inputs and outputs are seen so, and whatever only
moves values (views, gathers, joins) or acts on each part alone (sums, additions) moves and adds whole pairs. Where parts mix,
a value is *split* into a real and an imaginary node of shape S, on which the scalar functions of `scalar/complex_table.py`
are ordinary real expressions; a split value that needs memory is joined by PAIR, one kernel with two stores a point.

    z = x * y              xr, xi = x[..., 0], x[..., 1]   (views)      z = pair(xr * yr - xi * yi, xr * yi + xi * yr)

A product of matrices is one real product of twice the size, in which every element of the right matrix is the block
[[re, im], [-im, re]] (for few rows, two products with the right matrix as it lies). Each part is a sum of 2 K products,
with the error bound of the textbook's four products.

What has no lowering here (a running product, a library routine) stays a step on complex numbers between the two views
AS_COMPLEX and AS_REAL of pairs; a graph of nothing else stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tensorsmith.core.dtypes import DType, bool_, float32, real_dtype
from tensorsmith.ir import build
from tensorsmith.ir.graph import VIEWS, Graph, Node, Primitive, replay, touches_complex
from tensorsmith.scalar.complex_parts import DOUBLE, SINGLE, Complex, multiply
from tensorsmith.scalar.complex_table import BY_PARTS, COMPLEX
from tensorsmith.scalar.table import Fn


class NoLowering(Exception):
    """Raised where a node has no meaning on pairs."""


@dataclass
class Value:
    """A complex value in the real graph: `joined`, with the pair axis last, `parts`, or both."""

    joined: Node | None = None
    parts: tuple[Node, Node] | None = None


def lower_pairs(graph: Graph, written: Collection[int] = ()) -> Graph | None:
    """The graph on pairs; None for one without complex numbers, or without a step on them that has a lowering.

    A complex tensor input is a real one of shape S + (2,), a complex run-time scalar two real ones, one after the other.
    written: outputs that are to lie as the caller says, and are computed there.
    """
    if not any(node.dtype.is_complex for node in graph.live_nodes()):
        return None
    lowering = _Lowering(graph, written)
    return lowering.result if lowering.lowered or not lowering.islands else None


class _Lowering:
    def __init__(self, source: Graph, written: Collection[int]) -> None:
        self.result = source.empty()
        self.real: dict[Node, Node] = {}
        self.pairs: dict[Node, Value] = {}
        self.lowered = self.islands = 0  # steps on complex numbers that have a lowering, and that have none
        for node in source.inputs:
            if not node.dtype.is_complex:
                self.real[node] = self.result.input(node.shape, node.dtype, node.attrs["param"])
            elif node.attrs["param"]:
                first, second = (self.result.input((), real_dtype(node.dtype), param=True) for _ in range(2))
                self.pairs[node] = Value(parts=(first, second))
            else:
                self.pairs[node] = Value(self.result.input((*node.shape, 2), real_dtype(node.dtype)))
        for node in source.live_nodes():
            if node.op is not Primitive.INPUT:
                self.lower(node)
        self.result.outputs = tuple(
            self.output(node, number in written) if node.dtype.is_complex else self.real[node]
            for number, node in enumerate(source.outputs)
        )

    def output(self, node: Node, written: bool) -> Node:
        """An output as pairs; one that the caller places is computed where it belongs, not viewed from elsewhere."""
        value = self.pairs[node]
        if written and value.joined is None and value.parts is not None:
            return self.pair(value)
        return self.joined(node)

    def pair(self, value: Value) -> Node:
        assert value.parts is not None
        return self.result.add(Primitive.PAIR, value.parts)

    def joined(self, node: Node) -> Node:
        """A complex node's value with its pair axis."""
        value = self.pairs[node]
        if value.joined is None:
            if node.op in VIEWS:  # of a split value: the value below is what lies in memory
                value.joined = self.view(node, self.joined(node.inputs[0]))
            else:
                value.joined = self.pair(value)
        return value.joined

    def parts(self, node: Node) -> tuple[Node, Node]:
        """A complex node's real and imaginary part."""
        value = self.pairs[node]
        if value.parts is None:
            assert value.joined is not None
            value.parts = split(value.joined)
        return value.parts

    def is_joined(self, *nodes: Node) -> bool:
        """Whether the pairs of all nodes lie in memory, or are computed as such."""
        return all(self.pairs[node].joined is not None for node in nodes)

    def lower(self, node: Node) -> None:
        if not touches_complex(node):
            self.real[node] = replay(self.result, node, [self.real[x] for x in node.inputs])
            return
        if node.op in VIEWS:
            self.pairs[node] = self.lower_view(node)
            return
        try:
            if node.op not in RULES:
                raise NoLowering
            result = RULES[node.op](self, node)
            self.lowered += node.op not in FREE
        except NoLowering:
            result = self.island(node)
        if isinstance(result, Value):
            self.pairs[node] = result
        else:
            self.real[node] = result

    def island(self, node: Node) -> Value | Node:
        """A node without a lowering, on complex numbers."""
        self.islands += 1
        operands = [build.as_complex(self.joined(x)) if x.dtype.is_complex else self.real[x] for x in node.inputs]
        made = replay(self.result, node, operands)
        return Value(build.as_real(made)) if node.dtype.is_complex else made

    def lower_view(self, node: Node) -> Value:
        below = self.pairs[node.inputs[0]]
        if below.joined is not None or node.op is Primitive.AS_STRIDED:
            return Value(self.view(node, self.joined(node.inputs[0])))
        first, second = self.parts(node.inputs[0])
        return Value(parts=(replay(self.result, node, [first]), replay(self.result, node, [second])))

    def view(self, node: Node, x: Node) -> Node:
        """The view `node` of the leading axes of pairs."""
        attrs = dict(node.attrs)
        if node.op in (Primitive.RESHAPE, Primitive.EXPAND):
            attrs["shape"] = (*node.shape, 2)
        elif node.op is Primitive.PERMUTE:
            attrs["axes"] = (*attrs["axes"], node.ndim)
        elif node.op is Primitive.AS_STRIDED:
            attrs = {"shape": (*node.shape, 2), "strides": (*(2 * s for s in attrs["strides"]), 1)}
            attrs["offset"] = 2 * node.attrs["offset"]
        seen = self.result.add(node.op, (x,), **attrs)
        if node.op in (Primitive.DIAGONAL, Primitive.UNFOLD):  # their new axis came behind the pair axis
            seen = build.transpose(seen, seen.ndim - 2, seen.ndim - 1)
        return seen


def split(joined: Node) -> tuple[Node, Node]:
    """The parts of pairs, as views."""
    last = joined.ndim - 1
    shape = joined.shape[:-1]
    first, second = (build.reshape(build.slice_(joined, last, part, 1), shape) for part in (0, 1))
    return first, second


def _map(at: _Lowering, node: Node) -> Value | Node:
    fn = node.attrs["fn"]
    row = COMPLEX.get(fn)
    if row is None:
        raise NoLowering
    if fn in BY_PARTS and at.is_joined(*node.inputs):
        return Value(at.result.add(Primitive.MAP, [at.joined(x) for x in node.inputs], fn=fn))
    if fn is Fn.WHERE and at.is_joined(*node.inputs[1:]):
        condition, *chosen = node.inputs
        operands = [_along_pairs(at.real[condition]), *(at.joined(x) for x in chosen)]
        return Value(at.result.add(Primitive.MAP, operands, fn=fn))
    # Parts of run-time scalars alone would be computed as Python's numbers are; here they have their own precision.
    split_operands: list[Any] = [
        tuple(build.as_value(part) for part in at.parts(x)) if x.dtype.is_complex else at.real[x] for x in node.inputs
    ]
    limits = SINGLE if real_dtype(node.inputs[-1].dtype) is float32 else DOUBLE
    result = row(limits, *split_operands)
    if not isinstance(result, tuple):
        return result
    first, second = result
    return Value(parts=(first, second))


def _along_pairs(x: Node) -> Node:
    """A real value repeated over both parts."""
    return build.broadcast_to(build.reshape(x, (*x.shape, 1)), (*x.shape, 2))


def _cast(at: _Lowering, node: Node) -> Value | Node:
    x, dtype = node.inputs[0], node.dtype
    if not x.dtype.is_complex:
        first = _converted(at.real[x], real_dtype(dtype))
        return Value(parts=(first, build.full(at.result, x.shape, 0, real_dtype(dtype))))
    if dtype is bool_:
        first, second = (build.map_(Fn.NE, part, 0) for part in at.parts(x))
        return build.map_(Fn.LOGICAL_OR, first, second)
    if not dtype.is_complex:
        return at.result.add(Primitive.CAST, (at.parts(x)[0],), dtype=dtype)
    if at.is_joined(x):
        return Value(at.result.add(Primitive.CAST, (at.joined(x),), dtype=real_dtype(dtype)))
    first, second = (_converted(part, real_dtype(dtype)) for part in at.parts(x))
    return Value(parts=(first, second))


def _converted(x: Node, dtype: DType) -> Node:
    return build.as_value(build.cast(x, dtype))


def _constant(at: _Lowering, node: Node) -> Value:
    value, dtype = complex(node.attrs["value"]), real_dtype(node.dtype)
    return Value(parts=(at.result.constant(value.real, dtype), at.result.constant(value.imag, dtype)))


def _reduce(at: _Lowering, node: Node) -> Value:
    (x,) = node.inputs
    if node.attrs["kind"] == "prod":
        return Value(parts=_product(at.parts(x), node.attrs["axis"]))
    if node.attrs["kind"] != "sum":
        raise NoLowering
    inside = math.prod(x.shape[node.attrs["axis"] + 1 :])
    if at.is_joined(x) and inside > 1:  # whole rows of pairs; otherwise the parts are two sums over one row
        return Value(at.result.add(node.op, (at.joined(x),), **node.attrs))
    first, second = (at.result.add(node.op, (part,), **node.attrs) for part in at.parts(x))
    return Value(parts=(first, second))


def _product(parts: Complex, axis: int) -> Complex:
    """The product along an axis by halves: its first half times its second, until one element is left."""
    extent = parts[0].shape[axis]
    if extent == 0:
        shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis + 1 :])
        first, second = (build.full(parts[0].graph, shape, value, parts[0].dtype) for value in (1, 0))
        return first, second
    rest: Complex | None = None
    while extent > 1:
        half = extent // 2
        if extent % 2:
            last = _sliced(parts, axis, extent - 1, 1)
            rest = last if rest is None else multiply(rest, last)
        parts, extent = multiply(_sliced(parts, axis, 0, half), _sliced(parts, axis, half, half)), half
    return parts if rest is None else multiply(parts, rest)


def _sliced(parts: Complex, axis: int, start: int, length: int) -> Complex:
    return build.slice_(parts[0], axis, start, length), build.slice_(parts[1], axis, start, length)


def _scan(at: _Lowering, node: Node) -> Value:
    if node.attrs["kind"] != "sum":
        raise NoLowering
    (x,) = node.inputs
    if math.prod(x.shape[node.attrs["axis"] + 1 :]) > 1:
        return Value(at.result.add(node.op, (at.joined(x),), **node.attrs))
    first, second = (at.result.add(node.op, (part,), **node.attrs) for part in at.parts(x))
    return Value(parts=(first, second))


def _pad(at: _Lowering, node: Node) -> Value:
    low, high, step = ((*node.attrs[name], end) for name, end in (("low", 0), ("high", 0), ("step", 1)))
    return Value(at.result.add(node.op, (at.joined(node.inputs[0]),), low=low, high=high, step=step))


def _concat(at: _Lowering, node: Node) -> Value:
    return Value(at.result.add(node.op, [at.joined(x) for x in node.inputs], axis=node.attrs["axis"]))


def _matmul(at: _Lowering, node: Node) -> Value:
    """(..., M, 2 K) @ (..., 2 K, 2 N): the pairs of the left matrix as they lie, the right one's as blocks of 2 by 2.

    Where the right matrix is the larger by far it stays as it lies instead: (..., 2 M, K) @ (..., K, 2 N) are the products of
    it with the real and with the imaginary part of the left one, and what belongs together is added after that.
    """
    a, b = node.inputs
    *batch, rows, inner = a.shape
    columns = b.shape[-1]
    if 4 * rows * inner + 10 * rows * columns < 8 * inner * columns:
        return _of_few_rows(at, a, b)
    first, second = at.parts(b)
    above = build.reshape(at.joined(b), (*batch, inner, 1, columns, 2))
    below = at.result.add(
        Primitive.PAIR, [build.reshape(x, (*batch, inner, 1, columns)) for x in (-second, first)]
    )
    blocks = build.concat([above, below], len(batch) + 1)
    product = build.matmul(
        build.reshape(at.joined(a), (*batch, rows, 2 * inner)),
        build.reshape(blocks, (*batch, 2 * inner, 2 * columns)),
    )
    return Value(build.reshape(product, (*batch, rows, columns, 2)))


def _of_few_rows(at: _Lowering, a: Node, b: Node) -> Value:
    *batch, rows, inner = a.shape
    columns = b.shape[-1]
    axis = len(batch)
    left = build.concat(list(at.parts(a)), axis)
    product = build.matmul(left, build.reshape(at.joined(b), (*batch, inner, 2 * columns)))
    by_real, by_imaginary = (
        split(build.reshape(build.slice_(product, axis, start, rows), (*batch, rows, columns, 2))) for start in (0, rows)
    )
    return Value(parts=(by_real[0] - by_imaginary[1], by_real[1] + by_imaginary[0]))


def _slices(at: _Lowering, node: Node) -> Value:
    """TAKE and PUT move whole slices, pairs with them."""
    operands = [at.joined(x) if x.dtype.is_complex else at.real[x] for x in node.inputs]
    return Value(at.result.add(node.op, operands, **node.attrs))


def _elements(at: _Lowering, node: Node) -> Value:
    """GATHER and SCATTER move both parts from and to the same place."""
    operands = [at.joined(x) if x.dtype.is_complex else _along_pairs(at.real[x]) for x in node.inputs]
    return Value(at.result.add(node.op, operands, **node.attrs, of_pairs=True))  # an error names the pair, not the part


# What is no step of its own.
FREE = frozenset({Primitive.CONST, Primitive.AS_REAL, Primitive.AS_COMPLEX})

RULES: dict[Primitive, Callable[[_Lowering, Node], Value | Node]] = {
    Primitive.MAP: _map,
    Primitive.CAST: _cast,
    Primitive.CONST: _constant,
    Primitive.AS_REAL: lambda at, node: at.joined(node.inputs[0]),
    Primitive.AS_COMPLEX: lambda at, node: Value(at.real[node.inputs[0]]),
    Primitive.REDUCE: _reduce,
    Primitive.SCAN: _scan,
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.MATMUL: _matmul,
    Primitive.TAKE: _slices,
    Primitive.PUT: _slices,
    Primitive.GATHER: _elements,
    Primitive.SCATTER: _elements,
}

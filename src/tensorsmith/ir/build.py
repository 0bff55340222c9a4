"""Builders: how graphs are written by hand. Each takes nodes (and Python numbers) and returns nodes.

They do what the primitives leave to their callers: promotion, broadcasting, several axes, negative axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorsmith.core.dtypes import (
    DType,
    bool_,
    complex128,
    compute_dtype,
    float64,
    of_python_scalar,
    promote_operands,
    promote_types,
)
from tensorsmith.core.shapes import broadcast_shapes, normalise_axes
from tensorsmith.ir.constants import cast_value, in_dtype
from tensorsmith.ir.graph import Graph, Node, Primitive
from tensorsmith.ir.rules import float_result
from tensorsmith.scalar.table import TABLE, Fn, Typing

Operand = Node | bool | int | float | complex


def graph_of(operands: Sequence[Any]) -> Graph:
    """The graph of the first node among the operands."""
    for operand in operands:
        if isinstance(operand, Node):
            return operand.graph
    raise TypeError("at least one operand must be a node")


def _is_weak(operand: Operand) -> bool:
    return not isinstance(operand, Node) or operand.weak


def operand_dtype(operand: Operand) -> DType:
    """dtype of a node, or of a Python number before promotion (a run-time scalar is one: its float is the default's)."""
    if not isinstance(operand, Node):
        return of_python_scalar(operand)
    if operand.weak and operand.dtype.kind in "fc":
        return of_python_scalar(0.0 if operand.dtype.kind == "f" else 0j)
    return operand.dtype


def promote(operands: Sequence[Operand]) -> DType:
    """PyTorch's result type: dimensioned nodes first, zero-dim nodes next, Python numbers and run-time scalars last."""
    weak = [operand_dtype(x) for x in operands if _is_weak(x)]
    zero_dim = [x.dtype for x in operands if isinstance(x, Node) and not _is_weak(x) and not x.shape]
    dimensioned = [x.dtype for x in operands if isinstance(x, Node) and not _is_weak(x) and x.shape]
    return promote_operands(dimensioned, zero_dim, weak)


def cast(x: Operand, dtype: DType, graph: Graph | None = None) -> Node:
    """`x` in `dtype`; the node itself where it has it already."""
    if not isinstance(x, Node):
        if graph is None:
            raise TypeError("cast: a Python number needs a graph")
        return graph.constant(x, dtype)
    if x.dtype is dtype:
        return x
    if x.op is Primitive.CONST and dtype.is_complex:
        value = x.attrs["value"] if x.dtype.is_complex else in_dtype(x.attrs["value"], x.dtype)
        return x.graph.constant(value, dtype)
    if x.op is Primitive.CONST and not x.dtype.is_complex:
        return x.graph.constant(cast_value(x.attrs["value"], x.dtype, dtype), dtype)
    return x.graph.add(Primitive.CAST, (x,), dtype=dtype)


def wide(x: Node) -> Node:
    """A half-precision value in float32, in which sums are taken; another as it is."""
    return cast(x, compute_dtype(x.dtype))


def as_value(x: Node) -> Node:
    """A value of run-time scalars alone as an ordinary one, which beside Python numbers keeps its dtype."""
    return x.graph.add(Primitive.RESHAPE, (x,), shape=()) if x.weak else x


def broadcast_to(x: Node, shape: Sequence[int]) -> Node:
    """Expand by the usual rule: axes are matched from the right, extent 1 repeats."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    if x.ndim < len(shape):
        x = reshape(x, (1,) * (len(shape) - x.ndim) + x.shape)
    return x if x.shape == shape else x.graph.add(Primitive.EXPAND, (x,), shape=shape)


_UNROUNDED = frozenset({Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV})


def _loses_a_number(fn: Fn, operands: Sequence[Operand], dtype: DType) -> bool:
    """Arithmetic of a half type with a number (a run-time scalar, a zero-dim tensor) that the type may not hold.

    The number takes part in float32, as in PyTorch: in float16 the divisor 70000 would be infinite. Comparisons round it.
    """
    if not dtype.is_half or fn not in _UNROUNDED:
        return False
    return any(isinstance(x, Node) and (x.weak or (not x.shape and x.dtype is not dtype)) for x in operands)


def _widest(dtype: DType) -> DType:
    """The dtype Python itself computes in."""
    return float64 if dtype.kind == "f" else complex128 if dtype.kind == "c" else dtype


def map_(fn: Fn, *operands: Operand) -> Node:
    """A scalar function over tensors: operands are promoted and broadcast, then mapped."""
    graph = graph_of(operands)
    row = TABLE[fn]
    weak = all(_is_weak(x) for x in operands)  # computed from numbers alone: as Python would, in float64
    if row.typing is Typing.SELECT:
        condition, *rest = operands
        dtype = promote(rest)
        dtype = _widest(dtype) if weak else dtype
        nodes = [cast(condition, bool_, graph), *(cast(x, dtype, graph) for x in rest)]
    else:
        if fn in (Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.LOGICAL_XOR, Fn.LOGICAL_NOT):
            promote(operands)  # refuses what has no common type
            dtype = bool_
        else:
            dtype = promote(operands)
        if row.typing is Typing.FLOAT:
            dtype = float_result(dtype)
        if weak:
            dtype = _widest(dtype)
        if _loses_a_number(fn, operands, dtype):
            return cast(map_(fn, *[cast(x, compute_dtype(dtype), graph) for x in operands]), dtype)
        nodes = [cast(x, dtype, graph) for x in operands]
    shape = broadcast_shapes(*(x.shape for x in nodes))
    return graph.add(Primitive.MAP, [broadcast_to(x, shape) for x in nodes], fn=fn)


def where(condition: Operand, a: Operand, b: Operand) -> Node:
    """a where the condition holds, else b."""
    return map_(Fn.WHERE, condition, a, b)


def full(graph: Graph, shape: Sequence[int], value: bool | int | float | complex, dtype: DType) -> Node:
    """A constant of any shape."""
    return broadcast_to(graph.constant(value, dtype), shape)


def as_real(x: Node) -> Node:
    """Complex (...) as real (..., 2): the parts along a new last axis."""
    return x.inputs[0] if x.op is Primitive.AS_COMPLEX else x.graph.add(Primitive.AS_REAL, (x,))


def as_complex(x: Node) -> Node:
    """Real (..., 2) as complex (...)."""
    return x.inputs[0] if x.op is Primitive.AS_REAL else x.graph.add(Primitive.AS_COMPLEX, (x,))


def part(x: Node, number: int) -> Node:
    """The real (0) or imaginary (1) part of complex values."""
    return reshape(slice_(as_real(x), x.ndim, number, 1), x.shape)


def conj(x: Node) -> Node:
    """The complex conjugate; real values as they are."""
    return map_(Fn.CONJ, x) if x.dtype.is_complex else x


def make_complex(real: Node, imaginary: Node) -> Node:
    """Complex values from their parts, which are promoted and broadcast."""
    dtype = promote([real, imaginary])
    shape = broadcast_shapes(real.shape, imaginary.shape)
    parts = [reshape(broadcast_to(cast(x, dtype), shape), (*shape, 1)) for x in (real, imaginary)]
    return as_complex(concat(parts, len(shape)))


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """The same elements in row-major order under another shape."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    if x.op is Primitive.RESHAPE:
        return reshape(x.inputs[0], shape)
    return x.graph.add(Primitive.RESHAPE, (x,), shape=shape)


def permute(x: Node, axes: Sequence[int]) -> Node:
    """Axis i of the result is axis axes[i] of x."""
    axes = tuple(axes)
    if x.op is Primitive.PERMUTE:
        return permute(x.inputs[0], [x.attrs["axes"][a] for a in axes])
    if axes == tuple(range(x.ndim)):
        return x
    return x.graph.add(Primitive.PERMUTE, (x,), axes=axes)


def transpose(x: Node, a: int, b: int) -> Node:
    """Axes a and b exchanged."""
    axes = list(range(x.ndim))
    axes[a], axes[b] = axes[b], axes[a]
    return permute(x, axes)


def slice_(x: Node, axis: int, start: int, length: int, step: int = 1) -> Node:
    """`length` positions of one axis from `start` in steps of `step`."""
    if start == 0 and length == x.shape[axis] and step == 1:
        return x
    return x.graph.add(Primitive.SLICE, (x,), axis=axis, start=start, length=length, step=step)


def flip(x: Node, axes: Sequence[int]) -> Node:
    """The axes reversed."""
    return x.graph.add(Primitive.FLIP, (x,), axes=tuple(sorted(axes))) if axes else x


def pad(
    x: Node, low: Sequence[int], high: Sequence[int], step: Sequence[int] | None = None, value: float = 0
) -> Node:
    """Zeros, or `value`, around x, and step - 1 of them between its elements."""
    step = tuple(step) if step is not None else (1,) * x.ndim
    if not any(low) and not any(high) and all(s == 1 for s in step):
        return x
    of_value = {"value": value} if value else {}
    return x.graph.add(Primitive.PAD, (x,), low=tuple(low), high=tuple(high), step=step, **of_value)


def concat(nodes: Sequence[Node], axis: int) -> Node:
    """Joined along an existing axis, promoted to one dtype."""
    dtype = nodes[0].dtype
    for node in nodes[1:]:
        dtype = promote_types(dtype, node.dtype)
    nodes = [cast(node, dtype) for node in nodes]
    return nodes[0] if len(nodes) == 1 else nodes[0].graph.add(Primitive.CONCAT, nodes, axis=axis)


def reduce(x: Node, kind: str, axes: Sequence[int] | None = None, keepdim: bool = False) -> Node:
    """sum, prod, max or min over axes (all by default), argmax or argmin over one.

    Runs of adjacent axes are merged first, the rest is reduced one after the other from the right; for max and min the
    axes are brought together instead, since the gradient is shared equally among all ties.
    """
    axes = normalise_axes(axes, x.ndim)
    kept_shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if kind in ("max", "min") and axes and len(axes) <= axes[-1] - axes[0]:
        kept = [i for i in range(x.ndim) if i not in axes]
        x = reduce(permute(x, [*kept, *axes]), kind, range(len(kept), x.ndim))
        return reshape(x, kept_shape) if keepdim else x
    runs: list[list[int]] = []
    for axis in sorted(axes):
        if runs and runs[-1][-1] == axis - 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    shape = list(x.shape)
    for run in reversed(runs):
        first, last = run[0], run[-1]
        extent = 1
        for axis in run:
            extent *= shape[axis]
        merged = (*shape[:first], extent, *shape[last + 1 :])
        x = reshape(x, merged)
        x = x.graph.add(Primitive.REDUCE, (x,), kind=kind, axis=first)
        shape[first : last + 1] = [1]
    return reshape(x, kept_shape if keepdim else tuple(n for i, n in enumerate(kept_shape) if i not in axes))


def sum_to(x: Node, shape: Sequence[int]) -> Node:
    """The inverse of broadcasting: sum over the axes that `shape` does not have or has with extent 1."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    lead = x.ndim - len(shape)
    axes = [*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 and x.shape[i + lead] != 1)]
    return reshape(reduce(x, "sum", axes, keepdim=True) if axes else x, shape)


def matmul(a: Node, b: Node) -> Node:
    """Batched matrix product of nodes of at least two axes; batch axes broadcast."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = broadcast_to(a, batch + a.shape[-2:])
    b = broadcast_to(b, batch + b.shape[-2:])
    return a.graph.add(Primitive.MATMUL, (a, b))

"""Shape and dtype rule of every primitive: `infer(op, inputs, attrs) -> (shape, dtype)`.

A rule also refuses what the primitive cannot mean, so that a graph that exists is well formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorsmith.core.dtypes import (
    DType,
    bool_,
    complex_dtype,
    float32,
    float64,
    get_default_dtype,
    int64,
    real_dtype,
    type_name,
    uint32,
)
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.scalar.complex_values import COMPLEX_VALUES
from tensorsmith.scalar.table import TABLE, Fn, Typing

Inferred = tuple[tuple[int, ...], DType]


def _same_dtype(op: Primitive, inputs: tuple[Node, ...]) -> DType:
    dtype = inputs[0].dtype
    for node in inputs[1:]:
        if node.dtype is not dtype:
            raise TypeError(f"{op.value}: operands have dtypes {[n.dtype.name for n in inputs]}; cast them first")
    return dtype


def _map(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    fn = attrs["fn"]
    row = TABLE[fn]
    if len(inputs) != row.arity:
        raise TypeError(f"{row.name}: takes {row.arity} operands, got {len(inputs)}")
    for node in inputs[1:]:
        if node.shape != inputs[0].shape:
            raise ValueError(f"{row.name}: operands have shapes {[n.shape for n in inputs]}; broadcast them first")
    if row.typing is Typing.SELECT:
        if inputs[0].dtype is not bool_:
            raise TypeError(f"{row.name}: the condition is {inputs[0].dtype.name}, expected bool")
        return inputs[0].shape, _same_dtype(Primitive.MAP, inputs[1:])
    dtype = _same_dtype(Primitive.MAP, inputs)
    if dtype.is_complex and fn not in COMPLEX_VALUES:
        raise NotImplementedError(
            f"\"{row.name}_cpu\" not implemented for '{type_name(dtype)}': {row.name} has no meaning for complex numbers; "
            "apply it to abs(), real or imag"
        )
    if fn in REAL_VALUED:
        dtype = real_dtype(dtype)
    return inputs[0].shape, bool_ if row.typing is Typing.BOOL else dtype


REAL_VALUED = frozenset({Fn.ABS, Fn.ANGLE})  # of complex numbers too


def _as_real(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x = inputs[0]
    if not x.dtype.is_complex:
        raise TypeError(f"as_real: the operand is {x.dtype.name}, expected a complex dtype")
    return (*x.shape, 2), real_dtype(x.dtype)


def _as_complex(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x = inputs[0]
    if x.dtype not in (float32, float64):
        raise TypeError(f"as_complex: the operand is {x.dtype.name}, expected float32 or float64")
    if x.shape[-1:] != (2,):
        raise ValueError(f"as_complex: the last axis of shape {x.shape} must have extent 2")
    return x.shape[:-1], complex_dtype(x.dtype)


def _cast(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    return inputs[0].shape, attrs["dtype"]


def _random(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    key, counter = inputs
    if key.shape != counter.shape or key.dtype is not int64 or counter.dtype is not int64:
        raise TypeError("random: key and counter must be int64 of equal shape")
    return counter.shape, uint32


def _reshape(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    shape = tuple(attrs["shape"])
    if math.prod(shape) != inputs[0].numel:
        raise ValueError(f"reshape: shape {list(shape)} is invalid for input of size {inputs[0].numel}")
    return shape, inputs[0].dtype


def _permute(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    axes = attrs["axes"]
    if sorted(axes) != list(range(inputs[0].ndim)):
        raise ValueError(f"permute: {axes} is no permutation of {inputs[0].ndim} axes")
    return tuple(inputs[0].shape[a] for a in axes), inputs[0].dtype


def _expand(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    shape = tuple(attrs["shape"])
    if len(shape) != inputs[0].ndim or any(a != b and a != 1 for a, b in zip(inputs[0].shape, shape)):
        raise ValueError(f"expand: {inputs[0].shape} does not expand to {shape}")
    return shape, inputs[0].dtype


def _slice(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x, axis, start, length, step = inputs[0], attrs["axis"], attrs["start"], attrs["length"], attrs["step"]
    if step < 1 or start < 0 or length < 0 or (length and start + (length - 1) * step >= x.shape[axis]):
        raise ValueError(f"slice: start {start}, length {length}, step {step} leave axis {axis} of shape {x.shape}")
    return x.shape[:axis] + (length,) + x.shape[axis + 1 :], x.dtype


def _flip(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    return inputs[0].shape, inputs[0].dtype


def _diagonal(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x, offset, a, b = inputs[0], attrs["offset"], attrs["axis1"], attrs["axis2"]
    rows, columns = x.shape[a], x.shape[b]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    return tuple(n for i, n in enumerate(x.shape) if i not in (a, b)) + (length,), x.dtype


def _unfold(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x, axis, size, step = inputs[0], attrs["axis"], attrs["size"], attrs["step"]
    windows = (x.shape[axis] - size) // step + 1
    return x.shape[:axis] + (windows,) + x.shape[axis + 1 :] + (size,), x.dtype


def _as_strided(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    return tuple(attrs["shape"]), inputs[0].dtype


def _pad(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    if attrs.get("value") and inputs[0].dtype.is_complex:
        raise NotImplementedError("pad: around complex numbers stand zeros only")
    shape = []
    for n, low, high, step in zip(inputs[0].shape, attrs["low"], attrs["high"], attrs["step"]):
        shape.append(low + ((n - 1) * step + 1 if n else 0) + high)
    return tuple(shape), inputs[0].dtype


def _concat(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    axis = attrs["axis"]
    dtype = _same_dtype(Primitive.CONCAT, inputs)
    first = inputs[0].shape
    for node in inputs:
        if node.ndim != len(first) or any(i != axis and a != b for i, (a, b) in enumerate(zip(node.shape, first))):
            raise ValueError(f"concat: shapes {[n.shape for n in inputs]} differ outside axis {axis}")
    return first[:axis] + (sum(n.shape[axis] for n in inputs),) + first[axis + 1 :], dtype


def _pair(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    first, second = inputs
    dtype = _same_dtype(Primitive.PAIR, inputs)
    if first.shape != second.shape:
        raise ValueError(f"pair: shapes {first.shape} and {second.shape} differ")
    return (*first.shape, 2), dtype


def _reduce(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x, axis = inputs[0], attrs["axis"]
    if x.dtype.is_complex and attrs["kind"] not in ("sum", "prod"):
        raise NotImplementedError(
            f"\"{attrs['kind']}\" not implemented for '{type_name(x.dtype)}': complex numbers have no order; reduce abs(), "
            "real or imag"
        )
    dtype = int64 if attrs["kind"] in ("argmax", "argmin") else x.dtype
    return x.shape[:axis] + (1,) + x.shape[axis + 1 :], dtype


def _scan(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    if inputs[0].dtype.is_complex and attrs["kind"] in ("max", "min", "argmax", "argmin"):
        name = f"cum{attrs['kind'].removeprefix('arg')}_cpu"
        raise NotImplementedError(
            f"\"{name}\" not implemented for '{type_name(inputs[0].dtype)}': complex numbers have no order"
        )
    return inputs[0].shape, int64 if attrs["kind"] in ("argmax", "argmin") else inputs[0].dtype


def _matmul(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    a, b = inputs
    dtype = _same_dtype(Primitive.MATMUL, inputs)
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: {a.shape} and {b.shape} do not contract")
    return (*a.shape[:-1], b.shape[-1]), dtype


def _conv(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    from tensorsmith.ir.convolution import result_shape  # it is written with the builders, which use these rules

    x, w = inputs
    dtype = _same_dtype(Primitive.CONV, inputs)
    if dtype.is_complex or dtype is bool_:
        raise NotImplementedError(f"\"conv\" not implemented for '{type_name(dtype)}'")
    kernels = (*w.shape[1:], 3, 3) if "winograd" in attrs else w.shape  # transformed ones: `passes/winograd.py`
    return result_shape(x.shape, kernels, attrs), dtype


def _attention(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    from tensorsmith.ir.attention import PARTS, check  # it is written with the builders, which use these rules

    dtype = check(inputs, 3, attrs["dropout"])
    (*lead, length, _), width = inputs[0].shape, inputs[2].shape[-1]
    return (math.prod(lead) * length * (width + (PARTS if dtype.is_half else 1)),), dtype


def _attention_gradient(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    from tensorsmith.ir.attention import check

    dtype = check(inputs, 6, attrs["dropout"])
    return (sum(node.numel for node in inputs[:3]),), dtype


def _recurrent(op: Primitive) -> Callable[[tuple[Node, ...], dict[str, Any]], Inferred]:
    def rule(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
        from tensorsmith.ir.recurrent import check

        return check(op, inputs, attrs)

    return rule


def _check_index(op: str, index: Node) -> None:
    if index.dtype is not int64:
        raise TypeError(f"{op}: index is {index.dtype.name}, expected int64")


def _take(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x, index = inputs
    _check_index("take", index)
    if index.ndim != 1:
        raise ValueError(f"take: index has shape {index.shape}, expected one axis")
    axis = attrs["axis"]
    return x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.dtype


def _gather(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    x, index = inputs
    _check_index("gather", index)
    axis = attrs["axis"]
    if x.ndim != index.ndim or any(i != axis and n > m for i, (n, m) in enumerate(zip(index.shape, x.shape))):
        raise ValueError(f"gather: index {index.shape} does not fit {x.shape} outside axis {axis}")
    return index.shape, x.dtype


def _scatter(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    base, index, src = inputs
    _check_index("scatter", index)
    if src.dtype is not base.dtype or src.shape != index.shape:
        raise ValueError(f"scatter: src {src.shape} {src.dtype.name} for index {index.shape}, base {base.dtype.name}")
    return base.shape, base.dtype


def _put(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    base, index, src = inputs
    _check_index("put", index)
    axis = attrs["axis"]
    expected = base.shape[:axis] + index.shape + base.shape[axis + 1 :]
    if src.dtype is not base.dtype or src.shape != expected:
        raise ValueError(f"put: src {src.shape} {src.dtype.name}, expected {expected} {base.dtype.name}")
    return base.shape, base.dtype


# The library routines that are computed of complex numbers too.
COMPLEX_ROUTINES = frozenset(
    {
        "cond", "matrix_exp", "nearest_isometry", "nearest_isometry_pull", "scatter_reduce", "singular_diagonal",
        "singular_values", "singular_values_pull", "solve", "while_loop",
        "while_loop_gradient",
    }
)  # fmt: skip


def _library(inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    for operand in inputs:
        if operand.dtype.is_complex and (attrs["name"] not in COMPLEX_ROUTINES or attrs.get("reduce") in ("amax", "amin")):
            raise NotImplementedError(
                f"\"{attrs['name']}_cpu\" not implemented for '{type_name(operand.dtype)}': apply it to abs(), real or imag"
            )
    return tuple(attrs["shape"]), attrs["dtype"]


RULES: dict[Primitive, Callable[[tuple[Node, ...], dict[str, Any]], Inferred]] = {
    Primitive.MAP: _map,
    Primitive.CAST: _cast,
    Primitive.AS_REAL: _as_real,
    Primitive.AS_COMPLEX: _as_complex,
    Primitive.RANDOM: _random,
    Primitive.RESHAPE: _reshape,
    Primitive.PERMUTE: _permute,
    Primitive.EXPAND: _expand,
    Primitive.SLICE: _slice,
    Primitive.FLIP: _flip,
    Primitive.DIAGONAL: _diagonal,
    Primitive.UNFOLD: _unfold,
    Primitive.AS_STRIDED: _as_strided,
    Primitive.AGAIN: lambda inputs, attrs: (inputs[0].shape, inputs[0].dtype),
    Primitive.PAD: _pad,
    Primitive.CONCAT: _concat,
    Primitive.PAIR: _pair,
    Primitive.REDUCE: _reduce,
    Primitive.SCAN: _scan,
    Primitive.MATMUL: _matmul,
    Primitive.ATTENTION: _attention,
    Primitive.ATTENTION_GRADIENT: _attention_gradient,
    Primitive.RECURRENT: _recurrent(Primitive.RECURRENT),
    Primitive.RECURRENT_GRADIENT: _recurrent(Primitive.RECURRENT_GRADIENT),
    Primitive.CONV: _conv,
    Primitive.TAKE: _take,
    Primitive.GATHER: _gather,
    Primitive.SCATTER: _scatter,
    Primitive.PUT: _put,
    Primitive.LIBRARY: _library,
}


def infer(op: Primitive, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Inferred:
    """Shape and dtype of the node; ValueError or TypeError where the primitive does not apply."""
    return RULES[op](inputs, attrs)


def float_result(dtype: DType) -> DType:
    """Where a floating-point function is applied: integers and bool become the default dtype."""
    return dtype if dtype.kind in "fc" else get_default_dtype()

"""Every primitive on NumPy arrays, as plainly as NumPy says it: `PRIMITIVES[op](node, arrays) -> array`.

Arrays are held as `representation.py` says. Nothing here is fast; it is what the targets are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tensorsmith.ir.attention import part_weights
from tensorsmith.ir.dropout import BLOCKS, GROUP, limit, whole_groups
from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.scalar.table import Fn
from tensorsmith.targets.reference.complex_scalars import COMPLEX_SCALARS, logaddexp
from tensorsmith.targets.reference.library import ROUTINES
from tensorsmith.targets.reference.random import random_bits
from tensorsmith.targets.reference.recurrent import recurrent
from tensorsmith.targets.reference.representation import converted, rounded, scalar, widen
from tensorsmith.targets.reference.scalars import SCALARS

Arrays = Sequence[np.ndarray]


def _map(node: Node, arrays: Arrays) -> np.ndarray:
    fn = node.attrs["fn"]
    if fn is Fn.NEXTAFTER:  # the neighbour in the dtype itself
        x, y = (rounded(array, node.dtype) for array in arrays)
        return widen(np.where(x == y, y, np.nextafter(x, y)), node.dtype)  # of equal zeros the second, as in C
    of_complex = COMPLEX_SCALARS.get(fn) if arrays[-1].dtype.kind == "c" else None
    return widen((of_complex or SCALARS[fn])(*arrays), node.dtype)


def _as_complex(node: Node, arrays: Arrays) -> np.ndarray:
    result = np.empty(node.shape, np.complex128)
    result.real, result.imag = arrays[0][..., 0], arrays[0][..., 1]
    return result


def _diagonal(node: Node, arrays: Arrays) -> np.ndarray:
    return np.diagonal(arrays[0], node.attrs["offset"], node.attrs["axis1"], node.attrs["axis2"])


def _slice(node: Node, arrays: Arrays) -> np.ndarray:
    axis, start, length, step = (node.attrs[key] for key in ("axis", "start", "length", "step"))
    where = [slice(None)] * node.ndim
    where[axis] = slice(start, start + length * step, step) if length else slice(0, 0)
    return arrays[0][tuple(where)]


def _unfold(node: Node, arrays: Arrays) -> np.ndarray:
    axis = node.attrs["axis"]
    windows = sliding_window_view(arrays[0], node.attrs["size"], axis)
    where = [slice(None)] * windows.ndim
    where[axis] = slice(None, None, node.attrs["step"])
    return windows[tuple(where)]


def _as_strided(node: Node, arrays: Arrays) -> np.ndarray:
    position = np.full(node.shape, node.attrs["offset"])
    for axis, stride in enumerate(node.attrs["strides"]):
        position += stride * np.arange(node.shape[axis]).reshape((-1,) + (1,) * (node.ndim - axis - 1))
    _check_range(node, position, arrays[0].size)
    return arrays[0].reshape(-1)[position]


def _pad(node: Node, arrays: Arrays) -> np.ndarray:
    result = np.full(node.shape, node.attrs.get("value", 0), arrays[0].dtype)
    where: list[slice] = []
    for low, extent, step in zip(node.attrs["low"], arrays[0].shape, node.attrs["step"]):
        where.append(slice(low, low + extent * step, step) if extent else slice(0, 0))
    result[tuple(where)] = arrays[0]
    return result


_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp,
}  # fmt: skip


def _reduce(node: Node, arrays: Arrays) -> np.ndarray:
    (x,), kind, axis = arrays, node.attrs["kind"], node.attrs["axis"]
    if kind in ("max", "min", "argmax", "argmin") and x.shape[axis] == 0:
        raise IndexError(f"reduce: {kind} over axis {axis} with size 0 of shape {x.shape}")
    if kind in ("argmax", "argmin"):  # NumPy's: the first of equals, and NaN before everything
        return np.expand_dims((np.argmax if kind == "argmax" else np.argmin)(x, axis), axis).astype(np.int64)
    return _REDUCTIONS[kind].reduce(x, axis, dtype=x.dtype, keepdims=True)


def _running(combine: Callable[..., np.ndarray], x: np.ndarray, axis: int) -> np.ndarray:
    """What `ufunc.accumulate` computes, for a function that is no ufunc."""
    result = np.array(x)
    rows = np.moveaxis(result, axis, 0)
    for i in range(1, len(rows)):
        rows[i] = combine(rows[i - 1], rows[i])
    return result


def _record_places(x: np.ndarray, kind: str, axis: int) -> np.ndarray:
    """Where the extreme so far was met last; NaN is one."""
    record = (_REDUCTIONS[kind].accumulate(x, axis) == x) | (x != x)
    place = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return np.maximum.accumulate(np.where(record, place, 0), axis)


def _scan(node: Node, arrays: Arrays) -> np.ndarray:
    (x,), kind = arrays, node.attrs["kind"]
    if kind == "logsumexp" and x.dtype.kind == "c":
        return _running(logaddexp, x, node.attrs["axis"])
    if kind in ("argmax", "argmin"):
        return _record_places(x, kind.removeprefix("arg"), node.attrs["axis"])
    result = _REDUCTIONS[kind].accumulate(x, node.attrs["axis"], dtype=x.dtype)
    return result + 0.0 if kind == "sum" and x.dtype.kind in "fc" else result  # sums start from 0.0, not from -0.0


def _check_range(node: Node, index: np.ndarray, extent: int) -> None:
    outside = (index < 0) | (index >= extent)
    if outside.any():
        where = f"axis {node.attrs['axis']} with size {extent}" if "axis" in node.attrs else f"{extent} elements"
        raise IndexError(f"{node.op.value}: index {int(index[outside].flat[0])} is out of bounds for {where}")


def _slices_at(node: Node, index: np.ndarray, extent: int) -> tuple:
    """NumPy's index of the slices that TAKE reads and PUT writes."""
    _check_range(node, index, extent)
    return (slice(None),) * node.attrs["axis"] + (index,)


def _elements_at(node: Node, index: np.ndarray, extent: int) -> tuple:
    """NumPy's index of the elements that GATHER reads and SCATTER writes."""
    _check_range(node, index, extent)
    where: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    where[node.attrs["axis"]] = index
    return tuple(where)


def _take(node: Node, arrays: Arrays) -> np.ndarray:
    x, index = arrays
    return x[_slices_at(node, index, x.shape[node.attrs["axis"]])]


def _gather(node: Node, arrays: Arrays) -> np.ndarray:
    x, index = arrays
    return x[_elements_at(node, index, x.shape[node.attrs["axis"]])]


def _written(node: Node, base: np.ndarray, where: tuple, src: np.ndarray) -> np.ndarray:
    result = base.copy()
    if node.attrs["reduce"] == "add":
        np.add.at(result, where, src)
    elif node.attrs["reduce"] == "set":
        result[where] = src
    else:
        raise NotImplementedError(f"{node.op.value}: reduce {node.attrs['reduce']!r}")
    return result


def _put(node: Node, arrays: Arrays) -> np.ndarray:
    base, index, src = arrays
    return _written(node, base, _slices_at(node, index, base.shape[node.attrs["axis"]]), src)


def _scatter(node: Node, arrays: Arrays) -> np.ndarray:
    base, index, src = arrays
    return _written(node, base, _elements_at(node, index, base.shape[node.attrs["axis"]]), src)


def _conv(node: Node, arrays: Arrays) -> np.ndarray:
    """One product of matrices per position of the kernel."""
    x, w = arrays
    attrs, space = node.attrs, node.shape[2:]
    groups, (batch, channels) = attrs["groups"], x.shape[:2]
    if 0 in node.shape or not w.size:
        return np.zeros(node.shape, x.dtype)
    spread = np.zeros((batch, channels, *((n - 1) * step + 1 for n, step in zip(x.shape[2:], attrs["step"]))), x.dtype)
    every: tuple[Any, ...] = tuple(slice(None, None, step) for step in attrs["step"])
    spread[(..., *every)] = x
    ends = zip(spread.shape[2:], attrs["low"], attrs["high"])
    cut: tuple[Any, ...] = tuple(slice(max(-low, 0), n - max(-high, 0)) for n, low, high in ends)
    around = [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in zip(attrs["low"], attrs["high"]))]
    padded = np.pad(spread[(..., *cut)], around)
    kernels = w.reshape(groups, -1, *w.shape[1:])
    total = np.zeros((batch, groups, kernels.shape[1], int(np.prod(space))), x.dtype)
    for k in np.ndindex(*w.shape[2:]):
        starts = [i * dilation for i, dilation in zip(k, attrs["dilation"])]
        seen: tuple[Any, ...] = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, space, attrs["stride"]))
        part = padded[(..., *seen)].reshape(batch, groups, channels // groups, -1)
        at: tuple[Any, ...] = (..., *k)
        total += np.matmul(kernels[at], part)
    return total.reshape(node.shape)


def _attention(node: Node, arrays: Arrays) -> np.ndarray:
    """Both primitives of attention by the formulas of `ir/attention.py`, scores and all; results one after the other."""
    backward = node.op is Primitive.ATTENTION_GRADIENT
    q, k, v = arrays[:3]
    scale, dropout, count = node.attrs["scale"], node.attrs["dropout"], 6 if backward else 3
    kept: Any = 1.0
    if dropout:
        *arrays, streams = arrays
        kept = dropout_factors(streams, q.shape[-2], k.shape[-2], dropout)
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    if len(arrays) > count:
        mask = arrays[count]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if node.attrs["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    if not backward:
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        largest = np.where(np.isneginf(largest), 0, largest)
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True)
        total = np.where(total == 0, 1, total)
        lse = largest + np.log(total)
        flat = [_heads_beside(np.matmul(weights / total * kept, v), node)]
        for weight in part_weights(node.dtype) if node.dtype.is_half else (1.0,):
            flat.append(widen(rounded(lse.ravel() / weight, node.dtype), node.dtype))
            found = flat[-1].reshape(lse.shape) * weight
            lse = np.where(np.isfinite(found), lse - found, 0.0)
        return np.concatenate(flat)
    g, lse, delta = arrays[3:6]
    weights = np.exp(scores - lse[..., None])
    change = weights * (np.matmul(g, np.swapaxes(v, -1, -2)) * kept - delta[..., None]) * scale
    turned = np.swapaxes(weights * kept, -1, -2)
    parts = (np.matmul(change, k), np.matmul(np.swapaxes(change, -1, -2), q), np.matmul(turned, g))
    return np.concatenate([_heads_beside(part, node) for part in parts])


def dropout_factors(streams: np.ndarray, rows: int, keys: int, p: float) -> np.ndarray:
    """0 where a weight is dropped, 1 / (1 - p) elsewhere, by the formula of `ir/dropout.py`."""
    j = np.arange(keys)
    words = np.arange(rows)[:, None] * whole_groups(keys) + j // GROUP * GROUP + j % BLOCKS * 4 + j // BLOCKS % 4
    counter = streams[..., 1, None, None] + words
    bits = random_bits(np.broadcast_to(streams[..., 0, None, None], counter.shape), counter)
    return np.where(bits < limit(p), 0.0, 1.0 / (1.0 - p))


def _heads_beside(part: np.ndarray, node: Node) -> np.ndarray:
    """All elements; of (batch, heads, rows, columns) in the order (batch, rows, heads, columns) where they lie so."""
    return (part.swapaxes(1, 2) if node.attrs["beside"] else part).ravel()


def _library(node: Node, arrays: Arrays) -> np.ndarray:
    name = node.attrs["name"]
    if name not in ROUTINES:
        raise NotImplementedError(f"library routine {name!r} has no reference")
    return widen(ROUTINES[name](arrays, node.attrs), node.dtype)


PRIMITIVES: dict[Primitive, Callable[[Node, Arrays], np.ndarray]] = {
    Primitive.CONST: lambda node, arrays: scalar(node.attrs["value"], node.dtype),
    Primitive.IOTA: lambda node, arrays: np.arange(node.attrs["extent"], dtype=np.int64),
    Primitive.RANDOM: lambda node, arrays: random_bits(*arrays),
    Primitive.MAP: _map,
    Primitive.CAST: lambda node, arrays: converted(arrays[0], node.dtype),
    Primitive.AS_REAL: lambda node, arrays: np.stack([arrays[0].real, arrays[0].imag], -1),
    Primitive.AS_COMPLEX: _as_complex,
    Primitive.RESHAPE: lambda node, arrays: arrays[0].reshape(node.shape),
    Primitive.PERMUTE: lambda node, arrays: arrays[0].transpose(node.attrs["axes"]),
    Primitive.EXPAND: lambda node, arrays: np.broadcast_to(arrays[0], node.shape),
    Primitive.SLICE: _slice,
    Primitive.FLIP: lambda node, arrays: np.flip(arrays[0], node.attrs["axes"]),
    Primitive.DIAGONAL: _diagonal,
    Primitive.UNFOLD: _unfold,
    Primitive.AS_STRIDED: _as_strided,
    Primitive.AGAIN: lambda node, arrays: arrays[0],
    Primitive.PAD: _pad,
    Primitive.CONCAT: lambda node, arrays: np.concatenate(arrays, node.attrs["axis"]),
    Primitive.PAIR: lambda node, arrays: np.stack(arrays, -1),
    Primitive.REDUCE: _reduce,
    Primitive.SCAN: _scan,
    Primitive.CONV: _conv,
    Primitive.ATTENTION: _attention,
    Primitive.ATTENTION_GRADIENT: _attention,
    Primitive.RECURRENT: recurrent,
    Primitive.RECURRENT_GRADIENT: recurrent,
    Primitive.MATMUL: lambda node, arrays: np.matmul(arrays[0], arrays[1]),
    Primitive.TAKE: _take,
    Primitive.GATHER: _gather,
    Primitive.SCATTER: _scatter,
    Primitive.PUT: _put,
    Primitive.LIBRARY: _library,
}

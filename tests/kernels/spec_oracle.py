"""What a KernelSpec means, in NumPy: integers exactly, floats in float64 and rounded only by casts and stores."""

from __future__ import annotations

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand
from tensorsmith.scalar.table import Fn
from tensorsmith.scalar.values import VALUES

_UFUNCS = {
    Fn.ADD: np.add, Fn.SUB: np.subtract, Fn.MUL: np.multiply, Fn.DIV: np.divide, Fn.NEG: np.negative, Fn.ABS: np.abs,
    Fn.EXP: np.exp, Fn.LOG: np.log, Fn.SQRT: np.sqrt, Fn.TANH: np.tanh, Fn.SIN: np.sin, Fn.COS: np.cos,
    Fn.MAXIMUM: np.maximum, Fn.MINIMUM: np.minimum, Fn.EQ: np.equal, Fn.NE: np.not_equal, Fn.LT: np.less,
    Fn.LE: np.less_equal, Fn.GT: np.greater, Fn.GE: np.greater_equal, Fn.WHERE: np.where, Fn.FLOOR: np.floor,
    Fn.LOGICAL_NOT: np.logical_not, Fn.BITWISE_AND: np.bitwise_and, Fn.RSQRT: lambda x: 1 / np.sqrt(x),
    Fn.LEFT_SHIFT: np.left_shift,
}  # fmt: skip


def philox_reference(key: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10 in Python integers: word c % 4 of block c // 4 for each element counter c."""
    out = []
    for c in counters.ravel().tolist():
        block, keys = c // 4, [key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF]
        x = [block & 0xFFFFFFFF, (block >> 32) & 0xFFFFFFFF, 0, 0]
        for _ in range(10):
            a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
            x = [(b >> 32) ^ x[1] ^ keys[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ keys[1], a & 0xFFFFFFFF]
            keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
        out.append(x[c % 4])
    return np.array(out, np.uint32).reshape(counters.shape)


def view(operand: Operand, buffer: np.ndarray, first: int, domain: tuple[int, ...]) -> np.ndarray:
    """The operand as a strided view of a flat buffer, `first` being the element at coordinate 0."""
    strides = tuple(s * buffer.itemsize for s in operand.strides)
    return np.lib.stride_tricks.as_strided(buffer[first:], domain, strides, writeable=True)


def cast(value: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """A cast as kernels do it; floats are held in float64 but rounded to the target."""
    if target.kind == "b":
        return value != 0
    if target.kind == "f":
        return value.astype(np.float64) if target is dtypes.float64 else value.astype(target.numpy).astype(np.float64)
    if source.kind != "f":
        return value.astype(target.numpy)
    limits = np.iinfo(target.numpy)
    whole = [0 if np.isnan(v) else limits.max if v >= limits.max else limits.min if v <= limits.min else int(v)
             for v in value.ravel().tolist()]  # fmt: skip
    return np.array(whole, target.numpy).reshape(value.shape)


def _reduce(instr: Instr, value: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    if instr.reduction in ("argmax", "argmin"):
        (axis,) = axis
        found = getattr(np, instr.reduction)(value, axis=axis)
        return np.expand_dims(found, axis).astype(np.int64)
    function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[instr.reduction]
    if value.dtype == np.bool_:
        function = np.logical_or if instr.reduction in ("sum", "max") else np.logical_and
        return function.reduce(value, axis=axis, keepdims=True)
    return function.reduce(value, axis=axis, keepdims=True, dtype=value.dtype)


def evaluate(spec: KernelSpec, inputs: list[np.ndarray], params: list[int | float] | None = None) -> list[np.ndarray]:
    """The value of every store, over the whole domain (row values broadcast along the reduced axis)."""
    values: list[np.ndarray] = []
    for instr in spec.body:
        args = [values[a] for a in instr.args]
        if instr.kind is Kind.LOAD:
            loaded = inputs[instr.index]
            value = loaded.astype(np.float64) if instr.dtype.kind == "f" else loaded
        elif instr.kind is Kind.CONST:
            value = cast(
                np.array(instr.value), dtypes.float64 if isinstance(instr.value, float) else instr.dtype, instr.dtype
            )
        elif instr.kind is Kind.PARAM:
            given = spec.params[instr.index]
            value = cast(np.array((params or [])[instr.index]), given, instr.dtype)
        elif instr.kind is Kind.INDEX:
            shape = tuple(n if a == instr.index else 1 for a, n in enumerate(spec.domain))
            value = np.arange(spec.domain[instr.index], dtype=np.int64).reshape(shape)
        elif instr.kind is Kind.CAST:
            value = cast(args[0], spec.body[instr.args[0]].dtype, instr.dtype)
        elif instr.kind is Kind.REDUCE:
            value = _reduce(instr, np.broadcast_to(args[0], spec.domain), spec.reduce_axes)
        elif instr.kind is Kind.RANDOM:
            value = philox_reference(int(args[0]), np.asarray(args[1]))
        else:
            function = _UFUNCS.get(instr.fn) or np.vectorize(VALUES[instr.fn], otypes=[np.float64])
            with np.errstate(all="ignore"):
                value = function(*args)
            if instr.dtype.kind in "iu":
                value = value.astype(instr.dtype.numpy)
        values.append(np.asarray(value))
    return [
        cast(np.broadcast_to(values[s.value], spec.domain), spec.body[s.value].dtype, s.operand.dtype)
        for s in spec.stores
    ]

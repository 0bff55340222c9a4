"""Run generated CUDA kernels on this machine's GPU and compare them with NumPy and the scalar table.

    python benchmarks/cuda_check.py

Kernels: a gelu (contiguous, transposed, broadcast), a softmax along either axis (short, long; float32, bfloat16),
transposed copies, every reduction, every scalar function over special values, every cast, Philox bits. Prints cases and
exits 1 if one is wrong.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8, uint32
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.scalar.table import TABLE, Fn, Typing
from tensorsmith.targets.cuda.launch import run_on_device
from tensorsmith.targets.cuda.scalars import C_TYPES

Case = tuple[str, bool, str]  # name, right, detail


def distances(found: np.ndarray, expected: np.ndarray, dtype: DType) -> np.ndarray:
    """Differences in units in the last place of `dtype`; infinite where NaN or infinity differ."""
    found, expected = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    equal = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(expected)[1], math.frexp(dtypes.finfo(dtype).tiny)[1])
        units = np.abs(found - expected) / np.ldexp(dtypes.finfo(dtype).eps / 2, exponent)
    units[equal] = 0
    units[np.isnan(units)] = np.inf
    return units


def pointwise(name: str, body: Sequence[Instr], inputs: Sequence[np.ndarray], types: Sequence[DType]) -> np.ndarray:
    """The last value of a body over flat inputs of equal length."""
    size = len(inputs[0])
    result = body[-1].dtype
    operands = tuple(Operand(d, (1,)) for d in types)
    store = Store(Operand(result, (1,)), len(body) - 1)
    output = np.zeros(size, result.numpy)
    code = run_on_device(KernelSpec((size,), None, operands, tuple(body), (store,), name=name), [*inputs, output])
    assert code == 0, f"{name} reported {code}"
    return output


# ------------------------------------------------------------------------------------------------- the two kernels


def gelu_body() -> list[Instr]:
    """x / 2 * (1 + erf(x / sqrt 2)) * p0."""
    return [
        Instr(Kind.LOAD, float32, index=0),
        Instr(Kind.CONST, float32, value=2**-0.5),
        Instr(Kind.APPLY, float32, (0, 1), fn=Fn.MUL),
        Instr(Kind.APPLY, float32, (2,), fn=Fn.ERF),
        Instr(Kind.CONST, float32, value=1.0),
        Instr(Kind.APPLY, float32, (3, 4), fn=Fn.ADD),
        Instr(Kind.CONST, float32, value=0.5),
        Instr(Kind.APPLY, float32, (0, 6), fn=Fn.MUL),
        Instr(Kind.APPLY, float32, (7, 5), fn=Fn.MUL),
        Instr(Kind.PARAM, float32, index=0),
        Instr(Kind.APPLY, float32, (8, 9), fn=Fn.MUL),
    ]


def gelu_cases(random: np.random.Generator) -> Iterator[Case]:
    erf = np.vectorize(math.erf)
    for name, domain, strides in (
        ("contiguous", (3_000_001,), (1,)),
        ("transposed", (300, 1001), (1, 300)),
        ("broadcast", (64, 7, 100), (100, 0, 1)),
        ("one point", (), ()),
    ):
        size = 1 + sum(stride * (extent - 1) for stride, extent in zip(strides, domain))
        x = (random.standard_normal(size) * 3).astype(np.float32)
        seen = np.lib.stride_tricks.as_strided(x, domain, [4 * s for s in strides]).astype(np.float64)
        y = np.zeros(domain, np.float32)
        dense = tuple(math.prod(domain[axis + 1 :]) for axis in range(len(domain)))
        store = Store(Operand(float32, dense), 10)
        spec = KernelSpec(domain, None, (Operand(float32, strides),), tuple(gelu_body()), (store,), (float64,), "gelu")
        flat = y.reshape(-1)
        run_on_device(spec, [x, flat], [1.5])
        expected = seen / 2 * (1 + erf(seen * 2**-0.5)) * 1.5
        error = float(np.abs(y - expected).max())
        yield f"gelu {name} {domain}", error < 2e-6, f"largest error {error:.2g}"


def softmax_cases(random: np.random.Generator) -> Iterator[Case]:
    for rows, length, axis, dtype in (
        (1000, 10, 1, float32), (33, 1024, 1, float32), (7, 50_001, 1, float32), (40, 3000, 1, bfloat16),
        (3, 200_000, 1, float32), (2, 3_000_000, 1, float32), (300, 70, 0, float32), (8192, 96, 0, bfloat16),
        (70_000, 40, 0, float32),
    ):  # fmt: skip
        x = (random.standard_normal((rows, length)) * 4).astype(dtype.numpy)
        y = np.zeros_like(x)
        body = [Instr(Kind.LOAD, dtype, index=0), Instr(Kind.CAST, float32, (0,))]
        body += [
            Instr(Kind.REDUCE, float32, (1,), reduction="max"),
            Instr(Kind.APPLY, float32, (1, 2), fn=Fn.SUB),
            Instr(Kind.APPLY, float32, (3,), fn=Fn.EXP),
            Instr(Kind.REDUCE, float32, (4,), reduction="sum"),
            Instr(Kind.APPLY, float32, (4, 5), fn=Fn.DIV),
            Instr(Kind.CAST, dtype, (6,)),
        ]
        operand = Operand(dtype, (length, 1))
        spec = KernelSpec((rows, length), axis, (operand,), tuple(body), (Store(operand, 7),), name="softmax")
        run_on_device(spec, [x.reshape(-1), y.reshape(-1)])
        wide = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis, keepdims=True))
        wide /= wide.sum(axis, keepdims=True)
        error = float((np.abs(y.astype(np.float64) - wide) / wide).max())
        limit = 4e-6 if dtype is float32 else 2**-8
        name = f"softmax ({rows}, {length}) along axis {axis} {dtype.name}"
        yield name, error < limit, f"largest relative error {error:.2g}"


def transposed_cases(random: np.random.Generator) -> Iterator[Case]:
    for rows, columns, dtype in ((1000, 513, float32), (513, 1000, bfloat16), (256, 384, uint8), (65, 33, float64)):
        x = random.integers(0, 100, (columns, rows)).astype(dtype.numpy)
        y = np.zeros((rows, columns), dtype.numpy)
        body = (Instr(Kind.LOAD, dtype, index=0),)
        store = Store(Operand(dtype, (columns, 1)), 0)
        spec = KernelSpec((rows, columns), None, (Operand(dtype, (1, rows)),), body, (store,), name="transposed")
        run_on_device(spec, [x.reshape(-1), y.reshape(-1)])
        yield f"transposed ({rows}, {columns}) {dtype.name}", bool((y == x.T).all()), ""


# ------------------------------------------------------------------------------------------------------ reductions

_NUMPY: dict[str, Any] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin,
}  # fmt: skip


def reduction_cases(random: np.random.Generator) -> Iterator[Case]:
    for kind, dtype, length in itertools.product(_NUMPY, (float32, float64, int32, uint8, bool_), (1, 100, 5000)):
        if dtype is bool_ and kind in ("sum", "prod"):
            continue
        x = (random.standard_normal((20, length)) * 3).astype(dtype.numpy)
        if dtype.kind == "f":
            x = x + 1 if kind == "prod" else x
            if kind not in ("sum", "prod"):
                x[3, length // 2] = x[3, length // 3] = np.nan  # the first NaN is the answer
                x[4] = 1  # a tie: the first index
        result = int64 if kind.startswith("arg") else dtype
        y = np.zeros(20, result.numpy)
        body = (Instr(Kind.LOAD, dtype, index=0), Instr(Kind.REDUCE, result, (0,), reduction=kind))
        store = Store(Operand(result, (1, 0)), 1, row=True)
        spec = KernelSpec((20, length), 1, (Operand(dtype, (length, 1)),), body, (store,), name=kind)
        run_on_device(spec, [x.reshape(-1), y])
        with np.errstate(all="ignore"):
            accumulated = {"dtype": np.float64 if dtype.kind == "f" else dtype.numpy} if kind in ("sum", "prod") else {}
            expected = _NUMPY[kind](x, axis=1, **accumulated)
        if dtype.kind == "f" and accumulated:
            scale = np.abs(x).astype(np.float64).sum(1) if kind == "sum" else np.abs(expected)
            limit = (1e-5 if dtype is float32 else 1e-13) * (1 if kind == "sum" else 10)
            with np.errstate(all="ignore"):
                close = np.abs(y - expected) <= limit * scale
                tiny = (np.abs(expected) < 1e-30) | (np.abs(expected) > 1e30)  # of a product: outside float32's range
            right = bool((close | (tiny if kind == "prod" else False)).all())
        else:
            right = np.array_equal(y, expected, equal_nan=dtype.kind == "f")
        yield f"{kind} of {length} {dtype.name}", right, ""


# ------------------------------------------------------------------------------------------------- scalar functions

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 10.0, -7.25, 1e-8, -1e-30, 88.0, -104.0, 1e5, 1e20,
            math.inf, -math.inf, math.nan, 0.999999, 2.0**-140]  # fmt: skip
_WHOLE = [0, 1, -1, 2, 3, -3, 7, 8, 31, 32, 63, 64, -64, 100, 127, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


def arguments(dtype: DType, arity: int, random: np.random.Generator) -> list[np.ndarray]:
    """All combinations of special values, then random ones."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            special = np.array(_SPECIAL, np.float64).astype(dtype.numpy)
        more = (random.standard_normal((arity, 2000)) * 4).astype(dtype.numpy)
    elif dtype.kind == "b":
        special, more = np.array([False, True]), random.integers(0, 2, (arity, 10)).astype(bool)
    else:
        info = np.iinfo(dtype.numpy)
        special = np.array([v for v in _WHOLE if info.min <= v <= info.max], dtype.numpy)
        more = random.integers(max(info.min, -1000), min(info.max, 1000), (arity, 500)).astype(dtype.numpy)
    grids = np.meshgrid(*[special] * arity, indexing="ij")
    return [np.concatenate([grid.ravel(), values]) for grid, values in zip(grids, more)]


# Their zeros come from cancellation: errors count in units of the larger of the value and 1.
NEAR_ZERO = {Fn.LGAMMA, Fn.DIGAMMA, Fn.LOGADDEXP}


def skipped(fn: Fn, dtype: DType) -> bool:
    typing = TABLE[fn].typing
    no_bool = {Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD, Fn.POW, Fn.NEG, Fn.LEFT_SHIFT, Fn.RIGHT_SHIFT}
    return (
        (typing is Typing.FLOAT and dtype.kind != "f")
        or (typing is Typing.INTEGER and dtype.kind == "f")
        or (dtype.kind == "b" and fn in no_bool)
    )


def expected_values(fn: Fn, dtype: DType, result: DType, inputs: list[np.ndarray], condition: np.ndarray) -> np.ndarray:
    """The table's values on Python numbers, wrapped or rounded to the result's dtype."""
    row = TABLE[fn]
    convert: Any = {"f": float, "b": bool}.get(dtype.kind, int)
    columns = [[convert(v) for v in values] for values in inputs]
    if row.typing is Typing.SELECT:
        columns = [[bool(v) for v in condition], *columns]
    values = [row.value(*args) for args in zip(*columns)]
    if result.kind == "f":
        return np.array(values, np.float64)
    bits = [int(v) & ((1 << 8 * result.itemsize) - 1) for v in values]
    return np.array(bits, f"u{result.itemsize}").view(result.numpy)


def function_cases(random: np.random.Generator) -> Iterator[Case]:
    for fn, dtype in itertools.product(Fn, (float32, float64, float16, int32, int64, int8, uint8, bool_)):
        row = TABLE[fn]
        if skipped(fn, dtype):
            continue
        select = row.typing is Typing.SELECT
        inputs = arguments(dtype, 2 if select else row.arity, random)
        condition = random.integers(0, 2, len(inputs[0])).astype(bool)
        if dtype.kind in "iu" and fn in (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD):
            inputs = [values[inputs[1] != 0] for values in inputs]  # a zero divisor is reported: its own case
            condition = condition[: len(inputs[0])]
        result = bool_ if row.typing is Typing.BOOL else dtype
        arrays, types = (inputs + [condition], [dtype] * 2 + [bool_]) if select else (inputs, [dtype] * row.arity)
        body = [Instr(Kind.LOAD, d, index=i) for i, d in enumerate(types)]
        args = (2, 0, 1) if select else tuple(range(row.arity))
        body.append(Instr(Kind.APPLY, result, args, fn=fn))
        found = pointwise(fn.name.lower(), body, arrays, types)
        expected = expected_values(fn, dtype, result, inputs, condition)
        if result.kind != "f":
            wrong = np.flatnonzero(found != expected)
            detail = "" if not len(wrong) else _example(wrong, inputs, found, expected)
            yield f"{fn.value} {dtype.name}", not len(wrong), detail
            continue
        rounded = expected
        if fn is Fn.NEXTAFTER:
            rounded = np.nextafter(*inputs) if dtype is not float16 else found  # a float32 neighbour rounds back
        with np.errstate(all="ignore"):
            rounded = rounded.astype(np.float32).astype(dtype.numpy) if dtype is not float64 else rounded
        limit = row.ulp + (2 if row.ulp else 0.5)  # the stated bound, and what CUDA's own functions may add
        units = distances(found, rounded, dtype)
        if fn in NEAR_ZERO:
            with np.errstate(all="ignore"):
                units = np.fmin(units, np.abs(found - expected) / dtypes.finfo(dtype).eps)
        if fn is Fn.ERFINV and dtype is float64:
            limit = 1e5  # near 1 the table's own value, two Newton steps on erf, has lost as many digits
        wrong = np.flatnonzero(units > limit)
        detail = f"{units.max():.3g} ulp" + ("; " + _example(wrong, inputs, found, rounded) if len(wrong) else "")
        yield f"{fn.value} {dtype.name}", not len(wrong), detail


def _example(wrong: np.ndarray, inputs: list[np.ndarray], found: np.ndarray, expected: np.ndarray) -> str:
    shown = [f"f({', '.join(str(v[i]) for v in inputs)}) = {found[i]}, not {expected[i]}" for i in wrong[:4]]
    return f"{len(wrong)} wrong: " + "; ".join(shown)


def error_cases() -> Iterator[Case]:
    for fn in (Fn.FLOOR_DIVIDE, Fn.REMAINDER, Fn.FMOD):
        operand = Operand(int32, (1,))
        body = (*(Instr(Kind.LOAD, int32, index=i) for i in range(2)), Instr(Kind.APPLY, int32, (0, 1), fn=fn))
        spec = KernelSpec((3,), None, (operand, operand), body, (Store(operand, 2),), name=fn.value)
        arrays = [np.array([1, 2, 3], np.int32), np.array([1, 0, 1], np.int32), np.zeros(3, np.int32)]
        code = run_on_device(spec, arrays)
        yield f"{fn.value} by zero is reported", code == -1, f"code {code}"


# ---------------------------------------------------------------------------------------------------- casts and bits


def expected_cast(value: Any, source: DType, target: DType) -> Any:
    if target.kind == "b":
        return value != 0
    if target.kind == "f":
        with np.errstate(all="ignore"):
            step = np.float32 if target in (float16, bfloat16) else np.float64  # halves are reached through float32
            return np.asarray(value).astype(step).astype(target.numpy)
    info = np.iinfo(target.numpy)
    if source.kind == "f":
        value = float(value)
        if math.isnan(value):
            return 0
        return max(info.min, min(info.max, int(value))) if math.isfinite(value) else info.max if value > 0 else info.min
    bits = int(value) & ((1 << 8 * target.itemsize) - 1)
    return bits - (1 << 8 * target.itemsize) if bits > info.max else bits


def cast_cases(random: np.random.Generator) -> Iterator[Case]:
    for source, target in itertools.product(C_TYPES, C_TYPES):
        (values,) = arguments(source, 1, random)
        if source.kind == "f":
            with np.errstate(all="ignore"):
                large = np.array([127.5, -128.5, 255.9, -0.9, 2e9, -3e9, 5e9, 1e19, 2e19, -1e19, 65504.0, 65520.0])
                values = np.concatenate([values, large.astype(source.numpy)])
        body = [Instr(Kind.LOAD, source, index=0), Instr(Kind.CAST, target, (0,))]
        found = pointwise("cast", body, [values], [source])
        expected = np.array([expected_cast(v, source, target) for v in values], target.numpy)
        if target.kind == "f":
            same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        else:
            same = found == expected
        wrong = np.flatnonzero(~same)
        yield f"{source.name} to {target.name}", not len(wrong), _example(wrong, [values], found, expected)


def philox(key: int, counter: int) -> int:
    """The reference on Python integers (Salmon et al. 2011)."""
    mask = 0xFFFFFFFF
    block = counter >> 2
    c, k = [block & mask, block >> 32, 0, 0], [key & mask, key >> 32 & mask]
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [second >> 32 ^ c[1] ^ k[0], second & mask, first >> 32 ^ c[3] ^ k[1], first & mask]
        k = [k[0] + 0x9E3779B9 & mask, k[1] + 0xBB67AE85 & mask]
    return c[counter & 3]


def random_cases() -> Iterator[Case]:
    key, offset = 0x123456789ABCDEF, 2**34 - 3
    body = (
        Instr(Kind.PARAM, int64, index=0),
        Instr(Kind.INDEX, int64, index=0),
        Instr(Kind.CONST, int64, value=offset),
        Instr(Kind.APPLY, int64, (1, 2), fn=Fn.ADD),
        Instr(Kind.RANDOM, uint32, (0, 3)),
    )
    spec = KernelSpec((100,), None, (), body, (Store(Operand(uint32, (1,)), 4),), (int64,), "random")
    found = np.zeros(100, np.uint32)
    run_on_device(spec, [found], [key])
    yield "philox", found.tolist() == [philox(key, offset + i) for i in range(100)], ""


def main() -> int:
    random = np.random.default_rng(0)
    groups = (
        gelu_cases(random), softmax_cases(random), transposed_cases(random), reduction_cases(random),
        function_cases(random), error_cases(),
        cast_cases(random), random_cases(),
    )  # fmt: skip
    failed = total = 0
    for name, right, detail in itertools.chain.from_iterable(groups):
        total += 1
        failed += not right
        if not right or detail:
            print(f"{'ok   ' if right else 'WRONG'} {name}  {detail if not right or len(detail) < 60 else ''}")
    print(f"{total - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

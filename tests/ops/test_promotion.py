"""Result dtypes, values and error classes of operators over every pair of dtypes, against PyTorch.

Operands are a tensor with dimensions, a zero-dim tensor or a Python number, on either side. Where PyTorch has no kernel for a
dtype (NotImplementedError: most operators on uint16, uint32 and uint64) ours may work.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import ALL
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")

DTYPES = [d.name for d in ALL if d.kind != "c"]
NUMBERS: tuple[Any, ...] = (True, 2, 2.5)
LEFT, RIGHT = (3, 1, 2), (1, 2, 2)
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-11}
PICKED = (True, False, True)
PLACES = (0, 1, 2)
Operand = tuple[str, bool] | bool | int | float  # a dtype and whether with dimensions, or a number

OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda L, a, b: a + b, "-": lambda L, a, b: a - b, "*": lambda L, a, b: a * b, "/": lambda L, a, b: a / b,
    "//": lambda L, a, b: a // b, "%": lambda L, a, b: a % b, "**": lambda L, a, b: a**b, "&": lambda L, a, b: a & b,
    "|": lambda L, a, b: a | b, "^": lambda L, a, b: a ^ b, "<<": lambda L, a, b: a << b, ">>": lambda L, a, b: a >> b,
    ">=": lambda L, a, b: a >= b, "!=": lambda L, a, b: a != b,
    "div trunc": lambda L, a, b: L.div(a, b, rounding_mode="trunc"),
    "div floor": lambda L, a, b: L.div(a, b, rounding_mode="floor"),
    "add alpha": lambda L, a, b: L.add(a, b, alpha=2), "add alpha float": lambda L, a, b: L.add(a, b, alpha=2.5),
    "where": lambda L, a, b: L.where(L.tensor(PICKED), a, b), "cat": lambda L, a, b: L.cat([a, b]),
    "stack": lambda L, a, b: L.stack([a, b]), "lerp": lambda L, a, b: L.lerp(a, b, 0.5),
    "lerp weight": lambda L, a, b: L.lerp(a, a, b), "clamp": lambda L, a, b: L.clamp(a, b),
    "clamp both": lambda L, a, b: L.clamp(a, a, b), "addcmul": lambda L, a, b: L.addcmul(a, b, b),
    "addcdiv": lambda L, a, b: L.addcdiv(a, a, b), "rsub": lambda L, a, b: L.rsub(a, b),
    "copy_": lambda L, a, b: a.clone().copy_(b), "add_": lambda L, a, b: a.clone().add_(b),
    "mul_": lambda L, a, b: a.clone().mul_(b), "div_": lambda L, a, b: a.clone().div_(b),
    "eq_": lambda L, a, b: a.clone().eq_(b), "bitwise_and_": lambda L, a, b: a.clone().bitwise_and_(b),
    "fill_": lambda L, a, b: a.clone().fill_(b), "masked_fill": lambda L, a, b: a.masked_fill(L.tensor(PICKED), b),
    "index_put": lambda L, a, b: L.cat([a.reshape(-1)] * 3).index_put((L.tensor(PLACES),), b),
    "setitem": lambda L, a, b: _set(a.clone().reshape(-1), b), "isin": lambda L, a, b: L.isin(a, b),
    "block_diag": lambda L, a, b: L.block_diag(a, b), "result_type": lambda L, a, b: L.result_type(a, b),
    **{
        name: lambda L, a, b, name=name: getattr(L, name)(a, b)
        for name in (
            "remainder", "fmod", "pow", "maximum", "minimum", "fmax", "eq", "lt", "bitwise_and", "atan2", "hypot",
            "copysign", "nextafter", "xlogy", "logaddexp", "heaviside", "ldexp", "float_power", "logical_and", "searchsorted",
            "dot", "equal", "isclose", "masked_scatter",
        )
    },
}  # fmt: skip
OPERATORS["masked_scatter"] = lambda L, a, b: a.masked_scatter(L.tensor(PICKED), b)
# In sorted values only: the last two of LEFT.
OPERATORS["searchsorted"] = lambda L, a, b: L.searchsorted(a[1:] if isinstance(a, L.Tensor) and a.ndim else a, b)

# Every pair of dtypes for these; of the others half of the dtypes, in turn, beside float16, int64, bool and uint16. Those
# four meet each other with and without dimensions on either side; of the ways of other pairs each has one, another for
# every pair and operator.
THOROUGH = ("+", "/", "//", "where", "cat", "add_", "lt", "result_type")
FEW = ("float16", "int64", "bool", "uint16")


def _set(x: Any, value: Any) -> Any:
    x[:] = value
    return x


WAYS = tuple(itertools.product((True, False), repeat=2))  # whether each operand has dimensions


def ways(name: str, a: str, b: str, few: tuple[str, ...] = FEW) -> tuple[tuple[bool, bool], ...]:
    """With and without dimensions, for a pair of dtypes."""
    return WAYS if a in few and b in few else (WAYS[zlib.crc32(f"{name} {a} {b}".encode()) % 4],)


def operands(name: str) -> Iterator[tuple[Operand, Operand]]:
    for a, b in itertools.product(DTYPES, DTYPES):
        both, one = a in FEW and b in FEW, a in FEW or b in FEW
        if name in THOROUGH or both or (one and zlib.crc32(f"{b} {name} {a}".encode()) % 2):
            for left, right in ways(name, a, b):
                yield (a, left), (b, right)
    for dtype, (place, number) in itertools.product(DTYPES, enumerate(NUMBERS)):
        for dims in (True, False) if dtype in FEW else ((DTYPES.index(dtype) + place) % 2 == 0,):
            yield (dtype, dims), number
            yield number, (dtype, dims)


def made(L: Any, operand: Operand, values: tuple[int, ...]) -> Any:
    if not isinstance(operand, tuple):
        return operand
    x = L.from_numpy(np.array(values, np.int64)).to(getattr(L, operand[0]))
    return x if operand[1] else x[0]


def outcome(L: Any, function: Callable[..., Any], a: Operand, b: Operand) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(L, made(L, a, LEFT), made(L, b, RIGHT))
    except Exception as error:
        return error


# A bool to the power True is returned as it is in PyTorch, before its kernel would refuse bools.
KNOWN = {name: {(("bool", dims), True) for dims in (True, False)} for name in ("**", "pow")}


def difference(ours: Any, theirs: Any) -> str:
    """How the outcomes differ; empty where they agree."""
    if isinstance(theirs, NotImplementedError):
        return ""
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        return "" if isinstance(ours, Exception) and isinstance(ours, type(theirs)) else f"{ours!r}, PyTorch {theirs!r}"
    if not isinstance(theirs, torch.Tensor):
        return "" if str(ours).split(".")[-1] == str(theirs).split(".")[-1] else f"{ours}, PyTorch {theirs}"
    dtype = str(theirs.dtype).split(".")[-1]
    if ours.dtype.name != dtype or tuple(ours.shape) != tuple(theirs.shape):
        return f"{ours.dtype.name} {tuple(ours.shape)}, PyTorch {dtype} {tuple(theirs.shape)}"
    wanted = (theirs.double() if theirs.is_floating_point() else theirs).numpy()
    tolerance = TOLERANCE.get(dtype, 0.0)
    if not np.allclose(array_of(ours).astype(wanted.dtype), wanted, rtol=tolerance, atol=tolerance / 100, equal_nan=True):
        return f"{ours}, PyTorch {theirs}"
    return ""


@pytest.mark.parametrize("name", OPERATORS)
def test_every_pair_of_dtypes(name: str) -> None:
    found = {}
    for a, b in operands(name):
        ours, theirs = (outcome(L, OPERATORS[name], a, b) for L in (ts, torch))
        message = difference(ours, theirs)
        if message and (a, b) not in KNOWN.get(name, ()):
            found[a, b] = message
    assert not found, f"{len(found)} pairs differ: {list(found.items())[:5]}"

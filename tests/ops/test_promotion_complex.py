"""Result dtypes, values and error classes where an operand is complex, against PyTorch."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import ALL
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).parent))
from test_promotion import OPERATORS, ways  # noqa: E402

DTYPES = [d.name for d in ALL]
COMPLEX = ("complex64", "complex128")
NUMBERS = (True, 2, 2.5, 1.5 - 2j)
# float16 with a complex number would be complex32 in PyTorch, which is not there here; unsigned types have few operators there.
PARTNERS = [d for d in DTYPES if d not in ("float16", "uint16", "uint32", "uint64")]
THOROUGH = ("+", "/", "where", "cat", "result_type")  # of the others every complex dtype beside these
FEW = ("bool", "int64", "bfloat16", "float64", "complex64")
ALL_WAYS = ("bool", "int64", "float64", "complex64")  # among these with and without dimensions on either side
NUMBERS_APART = ("searchsorted",)  # which error a complex number meets first depends on the shapes
Operand = tuple[str, bool] | bool | int | float | complex


def made(L: Any, operand: Operand, values: list[complex]) -> Any:
    if not isinstance(operand, tuple):
        return operand
    dtype, dims = operand
    x = L.tensor(values if dtype in COMPLEX else [int(v.real) for v in values]).to(getattr(L, dtype))
    return x if dims else x[0]


def outcome(L: Any, function: Callable[..., Any], a: Operand, b: Operand) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(L, made(L, a, [3 + 1j, 1 - 1j, 2 + 0j]), made(L, b, [1 - 2j, 2 + 2j, 2 + 1j]))
    except Exception as error:
        return error


def difference(ours: Any, theirs: Any) -> str:
    """How the outcomes differ; empty where they agree."""
    if isinstance(theirs, NotImplementedError) and isinstance(ours, NotImplementedError | RuntimeError | TypeError):
        return ""
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        alike = isinstance(ours, Exception) and isinstance(ours, type(theirs))
        return "" if alike else f"{ours!r}, PyTorch {theirs!r}"
    if not isinstance(theirs, torch.Tensor):
        return "" if str(ours).split(".")[-1] == str(theirs).split(".")[-1] else f"{ours}, PyTorch {theirs}"
    dtype = str(theirs.dtype).split(".")[-1]
    if ours.dtype.name != dtype or tuple(ours.shape) != tuple(theirs.shape):
        return f"{ours.dtype.name} {tuple(ours.shape)}, PyTorch {dtype} {tuple(theirs.shape)}"
    wanted = (theirs.float() if dtype == "bfloat16" else theirs).resolve_conj().numpy()
    tolerance = {"complex128": 1e-11, "float64": 1e-11, "bfloat16": 1.6e-2}.get(dtype, 2e-5)
    near = np.allclose(array_of(ours).astype(wanted.dtype), wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    return "" if near else f"{ours}, PyTorch {theirs}"


@pytest.mark.parametrize("name", OPERATORS)
def test_every_pair_with_a_complex_dtype(name: str) -> None:
    operands: list[tuple[Operand, Operand]] = []
    partners = PARTNERS if name in THOROUGH else FEW
    for number, other in itertools.product(COMPLEX, partners):
        for a, b in dict.fromkeys([(number, other), (other, number)]):
            operands += [((a, left), (b, right)) for left, right in ways(name, a, b, ALL_WAYS)]
    for dtype, dims, scalar in itertools.product(dict.fromkeys((*partners, "complex64")), (True, False), NUMBERS):
        if dtype in COMPLEX or isinstance(scalar, complex):
            operands += [((dtype, dims), scalar), (scalar, (dtype, dims))]
    if name == "ldexp":  # with a zero-dim operand PyTorch's precision depends on which power is rounded first
        operands = [(a, b) for a, b in operands if isinstance(a, tuple) and isinstance(b, tuple) and a[1] and b[1]]
    if name in NUMBERS_APART:
        operands = [(a, b) for a, b in operands if isinstance(a, tuple) and isinstance(b, tuple)]
    found = {}
    for a, b in operands:
        message = difference(*(outcome(L, OPERATORS[name], a, b) for L in (ts, torch)))
        if message:
            found[a, b] = message
    assert not found, f"{len(found)} of {len(operands)} pairs differ: {list(found.items())[:5]}"

"""`can_cast`, `promote_types` and `result_type` of every pair of dtypes, complex ones too, against PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tensorsmith as ts
from tensorsmith.core.dtypes import ALL

torch = pytest.importorskip("torch")

DTYPES = [d.name for d in ALL]
NUMBERS = (True, 2, 2.5, 1.5 - 2j)


def name_of(dtype: Any) -> str:
    return str(dtype).split(".")[-1]


def same(ours: Any, theirs: Any, case: Any) -> None:
    """Both give the same dtype, or both raise RuntimeError. There is no complex32: its place has complex64."""
    try:
        wanted = name_of(theirs())
    except RuntimeError:
        with pytest.raises(RuntimeError):
            ours()
        return
    assert name_of(ours()) == wanted.replace("complex32", "complex64"), case


@pytest.mark.parametrize("a", DTYPES)
def test_every_pair_of_dtypes(a: str) -> None:
    for b in DTYPES:
        ours, theirs = ((getattr(L, a), getattr(L, b)) for L in (ts, torch))
        assert ts.can_cast(*ours) == torch.can_cast(*theirs), b
        same(lambda d=ours: ts.promote_types(*d), lambda d=theirs: torch.promote_types(*d), b)
        for dims in itertools.product(((), (2,)), repeat=2):
            x, y = ([L.zeros(s, dtype=getattr(L, d)) for s, d in zip(dims, (a, b))] for L in (ts, torch))
            same(lambda x=x: ts.result_type(*x), lambda y=y: torch.result_type(*y), (b, dims))


@pytest.mark.parametrize("a", DTYPES)
def test_beside_numbers(a: str) -> None:
    for number, dims in itertools.product(NUMBERS, ((), (2,))):
        x, y = (L.zeros(dims, dtype=getattr(L, a)) for L in (ts, torch))
        same(lambda x=x, n=number: ts.result_type(x, n), lambda y=y, n=number: torch.result_type(y, n), (number, dims))
        same(lambda x=x, n=number: ts.result_type(n, x), lambda y=y, n=number: torch.result_type(n, y), (number, dims))

"""Compiled functions that write through views of arguments with gaps in memory, against PyTorch's eager answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")


def shift(L: Any, x: Any) -> Any:
    x[1:] = x[:-1].clone()
    return x * 1


def read_before_write(L: Any, x: Any) -> Any:
    row = x[0]
    doubled = row * 2
    x.mul_(3)
    return doubled, row + 0, x * 1


def through_transposed(L: Any, x: Any) -> Any:
    other = x.transpose(0, -1)
    other.add_(1)
    x[0] += x[1]
    return other * 2, x * 1


def overlapping_views(L: Any, x: Any) -> Any:
    late, early = x[1:], x[:-1]
    late.add_(1)
    early.mul_(2)
    return late * 1, early * 1


def diagonal(L: Any, x: Any) -> Any:
    x.diagonal().fill_(9)
    return x.sum()


def running(L: Any, x: Any) -> Any:
    total = x[0] * 0
    for i in range(x.shape[0]):
        total = total + x[i]
        x[i] = total
    return total


FUNCTIONS = [shift, read_before_write, through_transposed, overlapping_views, diagonal, running]
PLACES: dict[str, Callable[[Any], Any]] = {
    "dense": lambda a: a[:3, :4],
    "every other column": lambda a: a[:3, :8:2],
    "every other row": lambda a: a[:6:2, :4],
    "both": lambda a: a[1:7:2, 1:9:2],
    "columns first": lambda a: a[:8:2, :6:2].t(),
    "one column": lambda a: a[:4, 1:2],
    "three axes": lambda a: a.view(2, 4, 10)[:, ::2, 1::3],
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_writes_reach_the_argument_and_nothing_else(function: Callable[..., Any], place: str, dtype: str) -> None:
    values = np.arange(80.0).reshape(8, 10)
    theirs, ours = torch.from_numpy(values.copy()), ts.from_numpy(values.copy())
    theirs, ours = theirs.to(getattr(torch, dtype)), ours.to(getattr(ts, dtype))
    compiled = ts.compile(lambda x: function(ts, x))
    for _ in range(2):
        wanted = function(torch, PLACES[place](theirs))
        found = compiled(PLACES[place](ours).detach())
        pairs = [(found, wanted)] if isinstance(wanted, torch.Tensor) else list(zip(found, wanted, strict=True))
        for a, b in pairs:
            np.testing.assert_array_equal(array_of(a), b.numpy())
        np.testing.assert_array_equal(array_of(ours), theirs.numpy())

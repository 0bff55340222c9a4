"""Joining, repeating, turning, padding and choosing against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal, refuse

import tensorsmith as ts
from tensorsmith.ops.joining import pad as our_pad


def pad(L: Any, *arguments: Any, **keywords: Any) -> Any:
    return (our_pad if L is ts else L.nn.functional.pad)(*arguments, **keywords)


CASES: dict[str, tuple[Any, ...]] = {
    "cat": (lambda L, a, b: L.cat([a, b]), (2, 3), (4, 3)),
    "cat along the last axis": (lambda L, a, b: L.cat((a, b), -1), (2, 3), (2, 1)),
    "cat of transposed": (lambda L, a, b: L.cat([a.t(), b]), (2, 3), (4, 2)),
    "cat with an empty vector": (lambda L, a: L.cat([a, L.empty(0, dtype=a.dtype)]), (2, 3)),
    "cat of one": (lambda L, a: L.cat([a]), (2, 3)),
    "stack": (lambda L, a, b: L.stack([a, b], 1), (2, 3), (2, 3)),
    "stack last": (lambda L, a, b: L.stack([a, b], -1), (2, 3), (2, 3)),
    "hstack": (lambda L, a, b: L.hstack([a, b]), (2, 3), (2, 4)),
    "vstack": (lambda L, a, b: L.vstack([a, b]), (3,), (3,)),
    "dstack": (lambda L, a, b: L.dstack([a, b]), (2, 3), (2, 3)),
    "column_stack": (lambda L, a, b: L.column_stack([a, b]), (3,), (3, 2)),
    "block_diag": (lambda L, a, b: L.block_diag(a, b), (2, 3), (1, 2)),
    "repeat": (lambda L, a: a.repeat(2, 1, 2), (2, 3)),
    "tile": (lambda L, a: L.tile(a, (2,)), (2, 3)),
    "repeat_interleave": (lambda L, a: a.repeat_interleave(3, 1), (2, 3)),
    "repeat_interleave flat": (lambda L, a: a.repeat_interleave(2), (2, 3)),
    "repeat_interleave by counts": (lambda L, a: a.repeat_interleave(L.tensor([1, 0, 2]), 1), (2, 3)),
    "flip": (lambda L, a: a.flip(0, 1), (2, 3)),
    "flip of transposed": (lambda L, a: a.t().flip((0,)), (2, 3)),
    "fliplr": (lambda L, a: L.fliplr(a), (2, 3)),
    "flipud": (lambda L, a: L.flipud(a), (2, 3)),
    "roll": (lambda L, a: a.roll((1, -1), (0, 1)), (2, 3)),
    "roll flat": (lambda L, a: a.roll(4), (2, 3)),
    "rot90": (lambda L, a: a.rot90(1), (2, 3)),
    "rot90 twice": (lambda L, a: a.rot90(2), (2, 3)),
    "rot90 back": (lambda L, a: a.rot90(-1), (2, 3)),
    "meshgrid ij": (lambda L, a, b: tuple(L.meshgrid(a, b, indexing="ij")), (3,), (2,)),
    "meshgrid xy": (lambda L, a, b: tuple(L.meshgrid(a, b, indexing="xy")), (3,), (2,)),
    "cartesian_prod": (lambda L, a, b: L.cartesian_prod(a, b), (3,), (2,)),
    "combinations": (lambda L, a: L.combinations(a, 2), (4,)),
    "tril": (lambda L, a: a.tril(), (4, 5)),
    "triu of a batch": (lambda L, a: a.triu(1), (2, 4, 5)),
    "diag of a vector": (lambda L, a: L.diag(a, -2), (3,)),
    "diag of a matrix": (lambda L, a: L.diag(a, 1), (3, 4)),
    "diag_embed": (lambda L, a: L.diag_embed(a, -1, 0, 2), (2, 3)),
    "diagflat": (lambda L, a: L.diagflat(a, 1), (2, 2)),
    "pad": (lambda L, a: pad(L, a, (1, 2, 0, 1)), (2, 3)),
    "pad with a value": (lambda L, a: pad(L, a, (1, 2, 0, 1), value=3.5), (2, 3)),
    "pad that cuts": (lambda L, a: pad(L, a, (-1, 2)), (2, 3)),
    "pad reflect": (lambda L, a: pad(L, a, (1, 2), mode="reflect"), (2, 3, 4)),
    "pad replicate": (lambda L, a: pad(L, a, (3, 2), mode="replicate"), (2, 3, 4)),
    "pad circular": (lambda L, a: pad(L, a, (3, 2), mode="circular"), (2, 3, 4)),
    "where": (lambda L, a, b: L.where(a > 0, a, b), (2, 3), (3,)),
    "where with a number": (lambda L, a: L.where(a > 0, a, 1.5), (2, 3)),
    "positions of where": (lambda L, a: L.where(a > 0), (2, 3)),
    "masked_fill": (lambda L, a: a.masked_fill(a > 0, 2.5), (2, 3)),
    "masked_fill_": (lambda L, a: (a * 1).masked_fill_(a > 0, 2.5), (2, 3)),
    "masked_select": (lambda L, a: a.masked_select(a > 0), (2, 3)),
    "masked_scatter": (lambda L, a, b: a.masked_scatter(a > 0, b), (2, 3), (6,)),
    "clamp": (lambda L, a: a.clamp(-0.5, 0.5), (2, 3)),
    "clamp from below": (lambda L, a: a.clamp(min=0.0), (2, 3)),
    "clamp by tensors": (lambda L, a, b, c: a.clamp(b, c), (2, 3), (3,), (3,)),
    "clamp_max": (lambda L, a: L.clamp_max(a, 0.5), (2, 3)),
    "lerp": (lambda L, a, b: L.lerp(a, b, 0.3), (2, 3), (2, 3)),
    "lerp by a tensor": (lambda L, a, b, c: L.lerp(a, b, c), (2, 3), (2, 3), (2, 3)),
    "addcmul": (lambda L, a, b, c: L.addcmul(a, b, c, value=0.5), (2, 3), (2, 3), (3,)),
    "addcdiv": (lambda L, a, b, c: L.addcdiv(a, b, c, value=0.5), (2, 3), (2, 3), (3,)),
    "select_scatter": (lambda L, a, b: a.select_scatter(b, 1, 2), (2, 3), (2,)),
    "slice_scatter": (lambda L, a, b: a.slice_scatter(b, 1, 0, 3, 2), (2, 3), (2, 2)),
    "diagonal_scatter": (lambda L, a, b: a.diagonal_scatter(b), (3, 3), (3,)),
    "permute_copy": (lambda L, a: L.permute_copy(a, (1, 0)), (2, 3)),
    "sum_to_size": (lambda L, a: a.sum_to_size(1, 3), (4, 2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    function, *shapes = CASES[name]
    agree(function, *(normal(*s, seed=i) for i, s in enumerate(shapes)), strides=not name.endswith("_copy"))


def test_cat_promotes() -> None:
    agree(lambda L, a, b: L.cat([a, b]), np.arange(3), normal(2).astype(np.float32))
    agree(lambda L, a, b: L.cat([a, b]), np.array([True]), np.array([2], np.int8))


def test_the_gradient_of_clamp_is_one_on_the_bounds() -> None:
    agree(lambda L, x: x.clamp(-1.0, 1.0), np.array([-2.0, -1.0, 0.0, 1.0, 2.0]))


def test_clamp_keeps_nan_and_integers() -> None:
    agree(lambda L, x: x.clamp(-1.0, 1.0), np.array([np.nan, 3.0]), gradient=False)
    agree(lambda L, x: x.clamp(1, 2), np.arange(5))
    agree(lambda L, x: x.clamp(0.5), np.arange(5))


REFUSED = {
    "cat of nothing": lambda L: L.cat([]),
    "cat of a number": lambda L: L.cat([L.tensor(1.0)]),
    "cat of sizes": lambda L: L.cat([L.ones(2, 3), L.ones(3, 2)]),
    "cat of ranks": lambda L: L.cat([L.ones(2, 3), L.ones(3)]),
    "stack of sizes": lambda L: L.stack([L.ones(2), L.ones(3)]),
    "repeat with too few counts": lambda L: L.ones(2, 3).repeat(2),
    "rot90 of a vector": lambda L: L.ones(3).rot90(),
    "reflect too far": lambda L: pad(L, L.ones(1, 1, 3), (3, 0), mode="reflect"),
    "clamp without bounds": lambda L: L.ones(3).clamp(),
    "mask of ints": lambda L: L.ones(3).masked_fill(L.tensor([1, 0, 1]), 1.0),
    "tril of a vector": lambda L: L.ones(3).tril(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])

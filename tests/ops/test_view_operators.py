"""Views against PyTorch: geometry, aliasing, gradients, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from both_libraries import agree, normal, refuse
from hypothesis import given, settings, strategies as st

import tensorsmith as ts

ARRAY = normal(2, 3, 4)
VIEWS = {
    "view": lambda L, x: x.view(6, 4),
    "view with -1": lambda L, x: x.view(-1, 2),
    "reshape": lambda L, x: x.reshape((4, 6)),
    "reshape that copies": lambda L, x: x.transpose(0, 1).reshape(6, 4).sum(0),
    "permute": lambda L, x: x.permute(2, 0, 1),
    "permute function": lambda L, x: L.permute(x, (2, 0, 1)),
    "unsqueeze first": lambda L, x: x.unsqueeze(0),
    "unsqueeze last": lambda L, x: x.unsqueeze(-1),
    "unsqueeze of transposed": lambda L, x: x.transpose(0, 2).unsqueeze(1),
    "squeeze": lambda L, x: x.unsqueeze(1).squeeze(),
    "squeeze of one axis": lambda L, x: x.unsqueeze(1).squeeze(1),
    "squeeze of nothing": lambda L, x: x.squeeze(1),
    "mT": lambda L, x: x.mT,
    "T": lambda L, x: x[0].T,
    "t": lambda L, x: x[0].t(),
    "swapaxes": lambda L, x: x.swapaxes(0, -1),
    "movedim": lambda L, x: x.movedim((0, 1), (-1, 0)),
    "select": lambda L, x: x.select(-1, -1),
    "narrow": lambda L, x: x.narrow(2, 1, 2),
    "unbind": lambda L, x: x.unbind(1),
    "unbind of one": lambda L, x: x[:, :1].unbind(1),
    "chunk": lambda L, x: x.chunk(3, 2),
    "chunk to one": lambda L, x: x.chunk(1, 2),
    "split": lambda L, x: x.split(2, 1),
    "split by sizes": lambda L, x: L.split(x, [1, 2], 1),
    "tensor_split": lambda L, x: x.tensor_split(3, 2),
    "tensor_split at": lambda L, x: x.tensor_split((1, 3), dim=2),
    "hsplit": lambda L, x: x.hsplit(3),
    "vsplit": lambda L, x: x.vsplit([1]),
    "dsplit": lambda L, x: x.dsplit(2),
    "diagonal": lambda L, x: x.diagonal(0, 1, 2),
    "diagonal below": lambda L, x: x.diagonal(-1, 0, 2),
    "unfold": lambda L, x: x.unfold(2, 2, 1),
    "unfold with steps": lambda L, x: x.unfold(2, 3, 2),
    "flatten": lambda L, x: x.flatten(1),
    "flatten of one axis": lambda L, x: x.flatten(1, 1),
    "unflatten": lambda L, x: x.unflatten(2, (2, -1)),
    "ravel": lambda L, x: x.ravel(),
    "expand": lambda L, x: x.unsqueeze(1).expand(-1, 7, 3, 4),
    "expand in front": lambda L, x: x.expand(5, 2, 3, 4),
    "expand with ones in front": lambda L, x: x[0, 0].expand(1, 1, 3, 1, 4),
    "broadcast_to": lambda L, x: L.broadcast_to(x[0], (6, 3, 4)),
    "broadcast_tensors": lambda L, x: L.broadcast_tensors(x[:, :1], x[0]),
    "as_strided": lambda L, x: x.as_strided((2, 2), (1, 2), 3),
    "as_strided overlapping": lambda L, x: x.as_strided((5, 3), (1, 1), 2),
    "atleast_3d": lambda L, x: L.atleast_3d(x[0, 0], x[0], x),
    "atleast_2d": lambda L, x: L.atleast_2d(x[0, 0, 0], x[0, 0]),
    "view_as": lambda L, x: x.view_as(x.view(4, 6)),
    "iteration": lambda L, x: list(x),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_agree(name: str) -> None:
    agree(VIEWS[name], ARRAY, views="copies" not in name)


@pytest.mark.parametrize("name", ["view", "select", "diagonal", "unbind", "narrow", "as_strided", "unfold", "T"])
def test_writing_through_a_view_is_seen_by_the_base(name: str) -> None:
    def write(L: Any, x: Any) -> Any:
        base = x.detach().clone()
        part = VIEWS[name](L, base)
        part = part[0] if isinstance(part, tuple | list) else part
        if name == "unfold":
            part = part[..., 0]  # windows share elements
        part.fill_(7.0)
        return base

    agree(write, ARRAY)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_reshape_is_a_view_exactly_where_pytorch_makes_one(shape: list[int], random: Any) -> None:
    axes = list(range(len(shape)))
    random.shuffle(axes)
    factors = [f for n in shape for f in ((2, 2) if n == 4 else (n,))]
    random.shuffle(factors)
    cut = random.randint(0, len(factors))
    target = (math.prod(factors[:cut]), *factors[cut:])
    array = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    agree(lambda L, x: x.permute(axes).reshape(target), array, views=True)
    agree(lambda L, x: x.permute(axes).view(target), array, views=True)


def test_dtypes_of_views() -> None:
    array = np.array([[1.5, -2.0], [0.0, 3.0]], np.float32)
    agree(lambda L, x: x.detach().view(L.int32), array, gradient=False)
    agree(lambda L, x: x.detach().view(L.int16), array, gradient=False)
    agree(lambda L, x: x.detach().view(L.float64), array, gradient=False)
    agree(lambda L, x: x.detach().t().view(L.float64), array, gradient=False)


REFUSED = {
    "view across subspaces": lambda L: L.ones(2, 3, 4).transpose(0, 1).view(6, 4),
    "view of another size": lambda L: L.ones(6).view(4, -1),
    "two unknown sizes": lambda L: L.ones(6).view(-1, -1),
    "expand of an axis": lambda L: L.ones(2, 3).expand(3, 3),
    "expand to fewer axes": lambda L: L.ones(2, 3).expand(3),
    "axis out of range": lambda L: L.ones(2, 3).unsqueeze(4),
    "permute twice": lambda L: L.ones(2, 3).permute(0, 0),
    "permute of another rank": lambda L: L.ones(2, 3).permute(0, 1, 2),
    "t of three axes": lambda L: L.ones(2, 3, 4).t(),
    "split that does not add up": lambda L: L.ones(4).split([1, 2]),
    "chunk into none": lambda L: L.ones(4).chunk(0),
    "select outside": lambda L: L.ones(2, 3).select(1, 3),
    "narrow outside": lambda L: L.ones(4).narrow(0, 2, 3),
    "as_strided outside": lambda L: L.ones(4).as_strided((3, 3), (2, 1)),
    "unfold too large": lambda L: L.ones(4).unfold(0, 5, 1),
    "iteration over a number": lambda L: list(L.ones(())),
    "a float as a size": lambda L: L.ones(4).view(2.0, 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])


def test_the_error_of_view_says_what_to_do() -> None:
    refuse(REFUSED["view across subspaces"], "view size is not compatible with input tensor's size and stride", ".reshape(")


def test_a_call_seen_before_checks_its_arguments_all_the_same() -> None:
    x = ts.ones(4)
    for _ in range(2):
        assert x.view(2, 2).shape == (2, 2)
        with pytest.raises(RuntimeError):
            x.view(3, 2)
        with pytest.raises(IndexError):
            x.transpose(0, 5)

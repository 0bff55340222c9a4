"""Tensors made from tensors, copies of views, resizing, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from both_libraries import agree, normal, refuse

import tensorsmith as ts

MADE = {
    "new_zeros": lambda L, x: x.detach().new_zeros(2, 3),
    "new_ones": lambda L, x: x.detach().new_ones((2, 3), dtype=L.int32),
    "new_full": lambda L, x: x.detach().new_full((2,), 1.5),
    "new_tensor": lambda L, x: x.detach().new_tensor([1, 2]),
    "shape of new_empty": lambda L, x: tuple(x.detach().new_empty(4, 0, 2).shape),
    "strides of new_empty_strided": lambda L, x: x.detach().new_empty_strided((2, 3), (1, 2)).stride(),
    "strides of empty_permuted": lambda L, x: L.empty_permuted((2, 3, 4), (0, 2, 1)).stride(),
    "logspace": lambda L, x: L.logspace(-1, 2, 7, dtype=L.float64),
    "logspace of base 2": lambda L, x: L.logspace(0, 4, 5, base=2, dtype=L.float64),
    "fill": lambda L, x: L.fill(x, 2.5),
}


@pytest.mark.parametrize("name", MADE)
def test_made(name: str) -> None:
    agree(MADE[name], normal(3, 2))


COPIES = {
    "expand_copy": lambda L, x: L.expand_copy(x[:, :1], (3, 4)),
    "diagonal_copy": lambda L, x: L.diagonal_copy(x, 1),
    "as_strided_copy": lambda L, x: L.as_strided_copy(x, (2, 2), (1, 2), 1),
    "narrow_copy": lambda L, x: L.narrow_copy(x, 1, 1, 2),
    "view_copy": lambda L, x: L.view_copy(x, (2, 6)),
    "unbind_copy": lambda L, x: L.unbind_copy(x, 1),
    "unfold_copy": lambda L, x: L.unfold_copy(x, 1, 2, 1),
    "squeeze_copy": lambda L, x: L.squeeze_copy(x.unsqueeze(0)),
    "transpose_copy": lambda L, x: L.transpose_copy(x, 0, 1),
    "alias_copy": lambda L, x: L.alias_copy(x),
    "slice_copy": lambda L, x: L.slice_copy(x, 1, 0, 4, 2),
    "split_with_sizes_copy": lambda L, x: L.split_with_sizes_copy(x, (1, 3), 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_share_no_memory(name: str) -> None:
    agree(COPIES[name], normal(3, 4), strides=False)
    x = ts.tensor(normal(3, 4))
    before = x.tolist()
    found = COPIES[name](ts, x)
    for part in found if isinstance(found, tuple) else (found,):
        part.fill_(9.0)
    assert x.tolist() == before


def test_resizing_keeps_what_was_there() -> None:
    agree(lambda L, x: L.arange(6).resize_(2, 2), np.zeros(1))
    agree(lambda L, x: L.arange(6).resize_(4, 4).flatten()[:6], np.zeros(1))
    agree(lambda L, x: L.arange(6).resize_as_(L.zeros(3, 2)), np.zeros(1))


REFUSED = {
    "resizing a leaf that needs a gradient": lambda L: L.ones(2, requires_grad=True).resize_(3),
    "an order that is none": lambda L: L.empty_permuted((2, 3), (0, 0)),
    "a source of another shape": lambda L: L.ones(2, 3).select_scatter(L.ones(3), 1, 0),
    "a size that was not expanded": lambda L: L.ones(2, 3).sum_to_size(4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])


LAID_OUT_ANEW = {
    "unsqueeze_": lambda L, x: x.unsqueeze_(-1),
    "squeeze_": lambda L, x: x[:, :1].squeeze_(),
    "squeeze_ of an axis": lambda L, x: x[:1].squeeze_(0),
    "t_": lambda L, x: x.t_(),
    "transpose_": lambda L, x: x.transpose_(0, -1),
    "swapaxes_": lambda L, x: x.swapaxes_(0, 1),
    "swapdims_": lambda L, x: x.swapdims_(1, 0),
    "one after the other": lambda L, x: x.t_().unsqueeze_(0).squeeze_(0).add_(1),
    "no such axis": lambda L, x: x.unsqueeze_(4),
}


@pytest.mark.parametrize("name", LAID_OUT_ANEW)
def test_a_tensor_takes_another_layout(name: str) -> None:
    agree(LAID_OUT_ANEW[name], np.arange(12).reshape(3, 4))


def test_another_layout_is_of_the_tensor_itself() -> None:
    def program(L, x):
        y, before = x[1:], x._version
        z = y.t_()
        y.mul_(10)
        return x, y, z is y, x._version - before

    agree(program, np.arange(12).reshape(3, 4))
    with pytest.raises(RuntimeError, match="unsqueeze_: a leaf Variable"):
        ts.ones(2, requires_grad=True).unsqueeze_(0)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (4, 7), (7, 3), (4, 3), (10, 3), (3, 0), (2, 2, 2), (2, 3, 3), (3,)])
def test_fill_diagonal(shape: tuple[int, ...], wrap: bool) -> None:
    agree(lambda L, x: (x * 1).fill_diagonal_(5, wrap=wrap), normal(*shape))
    if len(shape) == 2:
        agree(lambda L, x: (x * 1).t().fill_diagonal_(5, wrap=wrap), normal(*shape))


def test_type_names_and_converts() -> None:
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"):
        ours, theirs = ts.ones(2).type(getattr(ts, name)), torch.ones(2).type(getattr(torch, name))
        assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1] == name
        assert ours.type().split(".")[1] == theirs.type().split(".")[1]
        assert ts.ones(2).type(ours.type()).dtype is ours.dtype
    with pytest.raises(ValueError, match="LongTensor"):
        ts.ones(2).type("tensorsmith.WordTensor")

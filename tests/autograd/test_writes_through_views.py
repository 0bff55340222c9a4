"""Writes through views whose history is not the ordinary one: made without gradients, or of a base with gaps in memory."""

from __future__ import annotations

from typing import Any

import pytest

import tensorsmith as ts

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("write", ["mul_", "zero_", "setitem", "copy_"])
def test_a_view_made_without_gradients_is_not_written_with_them(leaf: bool, write: str) -> None:
    """The write would change what the tensor is and leave its gradient as it was."""

    def attempt(L: Any) -> None:
        x = L.ones(4, requires_grad=True)
        y = x if leaf else x * 2
        with L.no_grad():
            v = y[:2]
        if write == "mul_":
            v.mul_(3)
        elif write == "zero_":
            v.zero_()
        elif write == "copy_":
            v.copy_(L.ones(2))
        else:
            v[0] = 5.0

    with pytest.raises(RuntimeError, match="no_grad mode"):
        attempt(torch)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        attempt(ts)


def test_writes_without_gradients_go_on_working() -> None:
    x = ts.ones(4, requires_grad=True)
    with ts.no_grad():
        v = x[:2]
        v.mul_(3)
    x.detach()[2:].zero_()
    x.data.view(2, 2)[1].add_(7)
    assert x.tolist() == [3.0, 3.0, 7.0, 7.0]


def test_a_view_older_than_its_bases_history_takes_part_in_it() -> None:
    base, w = ts.zeros(4), ts.ones(4, requires_grad=True)
    view = base[:2]
    base.add_(w)
    view.mul_(2)
    base.sum().backward()
    assert w.grad.tolist() == [2.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_gradients_through_views_of_a_base_with_gaps(order: tuple[int, int]) -> None:
    results = []
    for L in (torch, ts):
        base = L.arange(96.0).reshape(8, 12)[::2, 1::3].permute(order).detach()  # a base of its own, strides with gaps
        w = L.arange(1.0, base.shape[1] + 1).requires_grad_()
        base[1].mul_(w)
        base.t()[0].mul_(2)
        other = base[:, 1:]
        base[2:] += w
        results.append([base.detach().tolist(), L.autograd.grad((base * base).sum() + other.sum(), w)[0].tolist()])
    assert results[0] == results[1]

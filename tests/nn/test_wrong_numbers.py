"""Numbers and sizes that cannot be: PyTorch's class of error, and a message that names what was given."""

from __future__ import annotations

import math

import pytest
import torch

import tensorsmith as ts

WRONG = {
    "a rate that is a word": (lambda L: L.optim.Adam([L.nn.Parameter(L.ones(1))], lr="fast"), "fast"),
    "a NaN of dropout": (lambda L: L.nn.functional.dropout(L.ones(2), math.nan), "nan"),
    "a NaN of resizing": (lambda L: L.nn.functional.interpolate(L.ones(1, 1, 2), scale_factor=math.nan), "nan"),
    "an infinity of resizing": (lambda L: L.nn.functional.interpolate(L.ones(1, 1, 2), scale_factor=math.inf), "inf"),
    "a value of a reflection": (lambda L: L.nn.functional.pad(L.ones(1, 3), (1, 1), "reflect", 2.0), "value"),
    "a class out of range": (lambda L: L.nn.functional.multi_margin_loss(L.ones(2, 3), L.tensor([0, 5])), "5"),
    "rows of different numbers": (lambda L: L.utils.data.TensorDataset(L.ones(2), L.ones(3)), r"\[2, 3\]"),
    "shares above 1": (lambda L: L.utils.data.random_split([1, 2], [0.5, 0.6]), r"\[0.5, 0.6\] sum to 1.1"),
    "no steps": (lambda L: L.nn.LSTM(3, 4, proj_size=2)(L.ones(0, 2, 3)), "sequence length"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refused_as_pytorch_does(name):
    call, words = WRONG[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - its class is compared
        call(torch)
    with pytest.raises(theirs.type, match=words):
        call(ts)

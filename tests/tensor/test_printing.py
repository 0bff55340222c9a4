"""Printed tensors against PyTorch's, character for character."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

import tensorsmith as ts

torch = pytest.importorskip("torch")
RANDOM = np.random.default_rng(0)

VALUES = {
    "whole floats": [1.0, 2.0],
    "floats": [1.5, 2.25, -3.0],
    "small and large": [1e-5, 1.0],
    "large": [1e9, 1.0],
    "just not scientific": [1.0, 1000.0],
    "just scientific": [1.0, 1001.0, 0.5],
    "nan": [math.nan, 1.0],
    "infinities": [math.inf, -math.inf, -1.5],
    "zeros": [0.0, 0.0],
    "number": 3.5,
    "small number": 1e-7,
    "ints": [[1, 2], [3, 4000]],
    "bools": [True, False],
    "empty": [],
    "empty matrix": [[]],
    "empty of three axes": np.zeros((2, 0, 3)),
    "three axes": RANDOM.standard_normal((2, 3, 4)),
    "four axes": RANDOM.standard_normal((2, 2, 2, 2)),
    "summarised matrix": RANDOM.standard_normal((40, 40)),
    "summarised vector": RANDOM.standard_normal(2000),
    "summarised ints": np.arange(1001),
    "wide": RANDOM.standard_normal((2, 30)),
    "summarised in one axis": np.arange(1200.0).reshape(2, 600),
    "thousands": RANDOM.standard_normal((3, 3)) * 1000,
}


@pytest.fixture(autouse=True)
def usual_options() -> Iterator[None]:
    yield
    ts.set_printoptions(profile="default")
    torch.set_printoptions(profile="default")


def check(values: object) -> None:
    ours, theirs = repr(ts.tensor(values)), repr(torch.tensor(values))
    # the name of the dtype is longer here, so that the line before it may break
    assert unbroken(ours.replace("tensorsmith.", "torch.")) == unbroken(theirs)


def unbroken(text: str) -> str:
    return text.replace(",\n       dtype=", ", dtype=")


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    check(VALUES[name])
    if not isinstance(VALUES[name], np.ndarray):
        return
    check(VALUES[name].astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "float64"])
def test_dtypes(dtype: str) -> None:
    values = [[1, 2.5], [30, 4]]
    ours, theirs = ts.tensor(values).to(getattr(ts, dtype)), torch.tensor(values).to(getattr(torch, dtype))
    assert repr(ours).replace("tensorsmith.", "torch.") == repr(theirs)


def test_history() -> None:
    def texts(L: object) -> list[str]:
        x = L.tensor([1.0, 2.0], requires_grad=True)  # type: ignore[attr-defined]
        return [repr(x), repr(x * 2), repr((x * 2).sum()), repr(x.view(2, 1)), repr(x.detach())]

    assert texts(ts) == texts(torch)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 2}, {"sci_mode": True}, {"sci_mode": False}, {"threshold": 5, "edgeitems": 1}, {"linewidth": 40},
        {"profile": "short"}, {"profile": "full"},
    ],
    ids=str,
)  # fmt: skip
def test_options(options: dict) -> None:
    ts.set_printoptions(**options)
    torch.set_printoptions(**options)
    for name in ("three axes", "summarised ints", "wide", "small and large"):
        check(VALUES[name])


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="profile"):
        ts.set_printoptions(profile="long")


def test_format_of_a_number() -> None:
    assert f"{ts.tensor(2.5):.3f}" == "2.500" and f"{ts.tensor(3)}" == "3" and f"{ts.tensor([1.0])}" == "tensor([1.])"
    assert f"{ts.tensor(2.5, requires_grad=True) * 2:.1f}" == "5.0"

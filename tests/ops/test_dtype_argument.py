"""`dtype=` of reductions, scans, softmax, norms and creation: values, dtypes and classes of errors are PyTorch's."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")

GIVEN = ("bool", "uint8", "int64", "float16", "float32", "complex64")
ASKED = (None, "bool", "uint8", "int32", "int64", "float16", "bfloat16", "float64", "complex64")

# Of a (2, 3) tensor, and a dtype or None.
OF_A_TENSOR: dict[str, Callable[..., Any]] = {
    "sum": lambda t, x, d: t.sum(x, dtype=d),
    "sum of rows": lambda t, x, d: x.sum(1, dtype=d),
    "nansum": lambda t, x, d: t.nansum(x, dtype=d),
    "mean": lambda t, x, d: t.mean(x, 0, dtype=d),
    "nanmean": lambda t, x, d: x.nanmean(dtype=d),
    "prod": lambda t, x, d: t.prod(x, dtype=d),
    "prod of rows": lambda t, x, d: t.prod(x, 1, dtype=d),
    "cumsum": lambda t, x, d: t.cumsum(x, 1, dtype=d),
    "cumprod": lambda t, x, d: x.cumprod(0, dtype=d),
    "softmax": lambda t, x, d: t.softmax(x, 1, dtype=d),
    "log_softmax": lambda t, x, d: x.log_softmax(0, dtype=d),
    "functional.softmin": lambda t, x, d: t.nn.functional.softmin(x, 1, dtype=d),
    "functional.softmax": lambda t, x, d: t.nn.functional.softmax(x, 0, dtype=d),
    "vector_norm": lambda t, x, d: t.linalg.vector_norm(x, dtype=d),
    "vector_norm 1": lambda t, x, d: t.linalg.vector_norm(x, 1, 1, dtype=d),
    "matrix_norm": lambda t, x, d: t.linalg.matrix_norm(x, dtype=d),
    "linalg.norm": lambda t, x, d: t.linalg.norm(x, dtype=d),
    "norm": lambda t, x, d: t.norm(x, 2, 1, dtype=d),
    "zeros_like": lambda t, x, d: t.zeros_like(x, dtype=d),
    "full_like": lambda t, x, d: t.full_like(x, 1, dtype=d),
    "new_ones": lambda t, x, d: x.new_ones(2, dtype=d),
    "new_full": lambda t, x, d: x.new_full((2,), 1, dtype=d),
    "new_tensor": lambda t, x, d: x.new_tensor([1, 0], dtype=d),
}
OF_NOTHING: dict[str, Callable[..., Any]] = {
    "zeros": lambda t, d: t.zeros(2, dtype=d),
    "ones": lambda t, d: t.ones((2, 1), dtype=d),
    "full": lambda t, d: t.full((2,), 1, dtype=d),
    "full of a float": lambda t, d: t.full((2,), 1.5, dtype=d),
    "full of a complex": lambda t, d: t.full((2,), 1j, dtype=d),
    "eye": lambda t, d: t.eye(2, dtype=d),
    "arange": lambda t, d: t.arange(3, dtype=d),
    "arange of floats": lambda t, d: t.arange(0.5, 3, 0.5, dtype=d),
    "linspace": lambda t, d: t.linspace(0, 1, 3, dtype=d),
    "linspace of a complex": lambda t, d: t.linspace(0, 1j, 3, dtype=d),
    "logspace": lambda t, d: t.logspace(0, 1, 2, dtype=d),
    "tensor": lambda t, d: t.tensor([1, 0], dtype=d),
    "tensor of floats": lambda t, d: t.tensor([1.5, 0], dtype=d),
    "as_tensor": lambda t, d: t.as_tensor([1, 0], dtype=d),
    "scalar_tensor": lambda t, d: t.scalar_tensor(1, dtype=d),
    "empty": lambda t, d: t.empty(2, dtype=d).zero_(),
    "rand": lambda t, d: t.rand(2, dtype=d) * 0,
    "randn": lambda t, d: t.randn(2, dtype=d) * 0,
    "randint": lambda t, d: t.randint(1, (2,), dtype=d),
    "randperm": lambda t, d: t.randperm(1, dtype=d),
    "tril_indices": lambda t, d: t.tril_indices(2, 2, dtype=d),
    "hann_window": lambda t, d: t.hann_window(4, dtype=d),
    "bartlett_window": lambda t, d: t.bartlett_window(4, dtype=d),
}
# Where we do otherwise, by call, given and asked dtype: the reason.
ON_PURPOSE: dict[tuple[str, str | None, str | None], str] = {
    ("functional.softmin", "uint8", asked): "PyTorch negates the bytes before it converts them, which wraps around"
    for asked in ("float16", "bfloat16", "float64")
}


def outcome(library: Any, call: Callable[..., Any], given: str | None, asked: str | None) -> Any:
    """The result of a call, or its error."""
    dtype = None if asked is None else getattr(library, asked)
    arguments = [] if given is None else [library.tensor([[1.0, 0.0, 2.0], [3.0, 1.0, 1.0]]).to(getattr(library, given))]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return call(library, *arguments, dtype)
        except Exception as error:
            return error


def difference(name: str, call: Callable[..., Any], given: str | None, asked: str | None) -> str:
    """How a call differs from PyTorch's; "" where it does not."""
    wanted, found = outcome(torch, call, given, asked), outcome(ts, call, given, asked)
    where = f"{name} of {given} with dtype={asked}"
    if (name, given, asked) in ON_PURPOSE:
        return ""
    if isinstance(wanted, Exception) or isinstance(found, Exception):
        same = isinstance(wanted, Exception) and isinstance(found, type(wanted))
        brief = [f"{type(x).__name__}: {str(x)[:90]}" if isinstance(x, Exception) else "accepted" for x in (wanted, found)]
        return "" if same else f"{where}: {brief[0]}; here {brief[1]}"
    if str(found.dtype).split(".")[-1] != str(wanted.dtype).split(".")[-1] or found.shape != tuple(wanted.shape):
        return f"{where}: {wanted.dtype} {tuple(wanted.shape)}; here {found.dtype} {tuple(found.shape)}"
    left = np.asarray(array_of(found)).astype(np.complex128)
    right = wanted.to(torch.complex128).numpy()
    near = 1e-2 if wanted.dtype in (torch.float16, torch.bfloat16) else 1e-5
    same = np.allclose(left, right, rtol=near, atol=near, equal_nan=True)
    return "" if same else f"{where}: {right.tolist()}; here {left.tolist()}"


@pytest.mark.parametrize("name", OF_A_TENSOR)
def test_dtype_of_what_is_made_from_a_tensor(name):
    pairs = itertools.product(GIVEN, ASKED)
    found = [words for given, asked in pairs if (words := difference(name, OF_A_TENSOR[name], given, asked))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", OF_NOTHING)
def test_dtype_of_what_is_made_from_nothing(name):
    found = [words for asked in ASKED if (words := difference(name, OF_NOTHING[name], None, asked))]
    assert not found, "\n".join(found)

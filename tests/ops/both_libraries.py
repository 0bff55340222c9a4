"""Run the same lines with our library and with PyTorch and compare everything: `agree(lambda L, x: L.sum(x), array)`.

The function gets the library and one tensor an array. Compared are values, dtypes, shapes, strides, with `views` whether
the result is a view, and the gradients of all floating arrays; or, where PyTorch raises, the class of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.autograd.backward import grad as our_grad
from tensorsmith.ops.creation import array_of

torch = pytest.importorskip("torch")

TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def tensors(library: Any, arrays: tuple[Any, ...], dtype: str | None, track: bool) -> list[Any]:
    """One tensor an array (other arguments as they are); floating ones become leaves."""
    found = []
    for array in arrays:
        if not isinstance(array, np.ndarray):
            found.append(array)
            continue
        x = library.from_numpy(array.copy())
        if dtype is not None and array.dtype.kind == "f":
            x = x.to(getattr(library, dtype))
        x = x.detach()
        found.append(x.requires_grad_() if track and x.is_floating_point() else x)
    return found


def parts(result: Any) -> list[Any]:
    """The tensors of a result."""
    return [x for part in result for x in parts(part)] if isinstance(result, list | tuple) else [result]


def name_of(dtype: Any) -> str:
    return str(dtype).split(".")[-1]


def assert_same(ours: Any, theirs: Any, strides: bool = True) -> None:
    """Equal in dtype, shape, strides and (to the rounding of the dtype) values."""
    if not isinstance(theirs, torch.Tensor):
        assert type(ours) is type(theirs) and ours == theirs, (ours, theirs)
        return
    assert name_of(ours.dtype) == name_of(theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    if strides and theirs.numel():
        assert tuple(ours.stride()) == tuple(theirs.stride())
    tolerance = TOLERANCE.get(name_of(theirs.dtype), 0)
    wanted = theirs.detach()
    wanted = (wanted.double() if wanted.is_floating_point() else wanted).numpy(force=True)
    np.testing.assert_allclose(array_of(ours).astype(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)


def agree(
    function: Callable[..., Any], *arrays: Any, dtype: str | None = None, gradient: bool = True, strides: bool = True,
    views: bool = False,
) -> None:  # fmt: skip
    """Both libraries give the same, and the same gradients of a random weighting of it."""
    ours, theirs = (tensors(L, arrays, dtype, gradient) for L in (ts, torch))
    try:
        expected = function(torch, *theirs)
    except Exception as error:
        with pytest.raises(type(error)):
            function(ts, *ours)
        return
    result = function(ts, *ours)
    assert len(parts(result)) == len(parts(expected))
    for a, b in zip(parts(result), parts(expected)):
        assert_same(a, b, strides)
        if views and isinstance(b, torch.Tensor):
            assert a._is_view() == b._is_view()
    if not gradient:
        return
    pairs = [(a, b) for a, b in zip(parts(result), parts(expected)) if isinstance(b, torch.Tensor) and b.requires_grad]
    if not pairs:
        return
    generator = np.random.default_rng(7)
    weights = [generator.standard_normal(tuple(b.shape)) for _, b in pairs]
    leaves = [i for i, x in enumerate(theirs) if isinstance(x, torch.Tensor) and x.requires_grad]
    their_weights = [torch.from_numpy(w).to(b.dtype) for w, (_, b) in zip(weights, pairs)]
    our_weights = [ts.from_numpy(w).to(a.dtype) for w, (a, _) in zip(weights, pairs)]
    wanted = torch.autograd.grad([b for _, b in pairs], [theirs[i] for i in leaves], their_weights, allow_unused=True)
    found = our_grad([a for a, _ in pairs], [ours[i] for i in leaves], our_weights, allow_unused=True)
    for a, b in zip(found, wanted):
        if b is None:
            assert a is None or not array_of(a).any()
        elif a is None:
            assert not b.numpy(force=True).any()
        else:
            assert_same(a, b, strides=False)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float64 numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def refuse(function: Callable[[Any], Any], *words: str) -> None:
    """Both libraries raise the same class of error, and ours contains the words."""
    with pytest.raises(Exception) as theirs:
        function(torch)
    with pytest.raises(theirs.type) as ours:
        function(ts)
    for word in words:
        assert word in str(ours.value)

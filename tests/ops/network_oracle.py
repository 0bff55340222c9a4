"""Compare an operator of ours with PyTorch's: values, gradients and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.autograd.backward import grad as our_grad
from tensorsmith.eager.operator import Operator
from tensorsmith.ir import build

torch = pytest.importorskip("torch")

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def pair(array: Any, dtype: str | None = None, track: bool = True) -> tuple[Any, Any]:
    """The same values as our tensor and as PyTorch's, in the array's strides; floats become leaves with gradient."""
    if not isinstance(array, np.ndarray):
        return array, array
    ours, theirs = ts.from_numpy(array), torch.from_numpy(array)
    if array.dtype.kind != "f":
        return ours, theirs
    if dtype is not None and dtype != str(array.dtype):
        ours, theirs = ours.to(getattr(ts, dtype)), theirs.to(getattr(torch, dtype))
    return ours.detach().requires_grad_(track), theirs.detach().requires_grad_(track)


def numbers(tensor: Any) -> np.ndarray:
    """Values as float64."""
    if isinstance(tensor, ts.Tensor):
        return np.asarray(tensor.detach().to(ts.float64).numpy())
    return tensor.detach().to(torch.float64).numpy(force=True)


def assert_same(ours: Any, theirs: Any, tolerance: float, what: str) -> None:
    """Shape, dtype and values agree."""
    assert tuple(ours.shape) == tuple(theirs.shape), what
    assert ours.dtype.name == str(theirs.dtype).split(".")[-1], what
    expected = numbers(theirs)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    np.testing.assert_allclose(numbers(ours), expected, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def compare(
    ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any, dtype: str = "float64", gradients: int = 2,
    track: Sequence[bool] | None = None, tolerance: float | None = None, **keywords: Any,
) -> None:  # fmt: skip
    """Both functions on the same arrays (floating ones as `dtype`): values, and gradients up to the given order."""
    tolerance = tolerance or TOLERANCE[dtype]
    flags = track or [True] * len(arrays)
    pairs = [pair(a, dtype, flag) for a, flag in zip(arrays, flags)]
    mine, expected = [p[0] for p in pairs], [p[1] for p in pairs]
    result, wanted = ours(*mine, **keywords), theirs(*expected, **keywords)
    assert_same(result, wanted, tolerance, "value")
    leaves = [(m, e) for m, e in zip(mine, expected) if isinstance(e, torch.Tensor) and e.requires_grad]
    random = np.random.default_rng(7)
    for order in range(1, gradients + 1):
        if not wanted.requires_grad:
            assert not result.requires_grad, f"gradient {order}"
            return
        cotangent, other = pair(random.standard_normal(tuple(wanted.shape)), str(wanted.dtype).split(".")[-1], False)
        more = order < gradients
        if order > 1 and not result.requires_grad:  # linear: PyTorch may find zeros
            found: Sequence[Any] = [None] * len(leaves)
        else:
            found = our_grad([result], [m for m, _ in leaves], [cotangent], create_graph=more, allow_unused=True)
        right = torch.autograd.grad([wanted], [e for _, e in leaves], [other], create_graph=more, allow_unused=True)
        sums: list[list[Any]] = [[], []]
        for number, (a, b) in enumerate(zip(found, right)):
            what = f"gradient {order} of operand {number}"
            if a is None or b is None:
                present = b if a is None else a
                assert present is None or not numbers(present).any(), what
                continue
            assert_same(a, b, tolerance * 10, what)
            if more and b.requires_grad:
                weight, again = pair(random.standard_normal(tuple(b.shape)), str(b.dtype).split(".")[-1], False)
                sums[0].append(a * weight)
                sums[1].append((b * again).sum())
        if not more or not sums[1]:
            return
        wanted = sum(sums[1][1:], sums[1][0])
        result = total(sums[0])


def total(products: Sequence[Any]) -> Any:
    """The sum of all elements of some tensors."""
    value = _SUM(products[0])
    for product in products[1:]:
        value = value + _SUM(product)
    return value


_SUM = Operator("sum_of_all_for_tests", lambda x: build.reduce(x, "sum"))


def same_error(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Both raise, the same class with the same words; ours may say more."""
    with pytest.raises(Exception) as right:
        theirs()
    with pytest.raises(type(right.value)) as found:
        ours()
    assert str(found.value).startswith(str(right.value).split("\n")[0])

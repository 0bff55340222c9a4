"""Forward mode through every operator of the package, nested with reverse mode, with itself and with vmap."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.autograd import forward_ad
from tensorsmith.eager.operator import operators
from tensorsmith.func import grad, jvp, vmap

sys.path.append(str(Path(__file__).parent.parent / "ops"))
import harness  # noqa: E402

Tensors = tuple[ts.Tensor, ...]


def calls(name: str) -> list[tuple[Callable[..., Tensors], Tensors, Tensors]]:
    """For every sample of an operator: it as a function of its float64 operands, these, and tangents."""
    operator, found = operators()[name], []
    for sample in harness.samples(operator):
        random = np.random.default_rng(zlib.crc32(name.encode()))
        given = harness.arrays(sample, ts.float64, harness.BASIC, random)
        operands = [ts.tensor(x) if isinstance(x, np.ndarray) else x for x in given]
        places = [
            i for i, x in enumerate(operands) if isinstance(x, ts.Tensor) and x.dtype is ts.float64 and i not in sample.fixed
        ]

        def function(*moved: ts.Tensor, operands=operands, places=places, attrs=sample.attrs) -> Tensors:
            every = list(operands)
            for place, x in zip(places, moved):
                every[place] = x
            results = operator(*every, **attrs)
            results = results if isinstance(results, tuple | list) else (results,)
            return tuple([y for y in results if y.dtype is ts.float64])

        primals = tuple([operands[i] for i in places])
        tangents = tuple([ts.tensor(random.standard_normal(x.shape)) for x in primals])
        if primals and function(*primals):
            found.append((function, primals, tangents))
    return found


# Second derivatives of singular values do not exist yet: `test_what_is_missing_says_so`.
ONCE = {"ctc_loss", "nuclear_norm", "svdvals"}
NAMES = [name for name in harness.names() if calls(name)]


def same(found: Any, expected: Any, rtol: float = 1e-8, atol: float = 1e-9) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=rtol, atol=atol)


def square(function: Callable[..., Tensors]) -> Callable[..., ts.Tensor]:
    """A scalar that is not linear in the results."""
    return lambda *xs: sum((y * y).sum() for y in function(*xs))


def every(gradient: Callable[..., ts.Tensor]) -> Callable[..., Tensors]:
    return lambda *xs: grad(gradient, tuple(range(len(xs))))(*xs)


@pytest.mark.parametrize("name", NAMES)
def test_tangents(name):
    """Difference quotients, `jvp` and `forward_ad` agree."""
    for function, xs, ts_ in calls(name):
        value, moved = jvp(function, xs, ts_)
        same(value, function(*xs))
        step = 1e-6
        above = function(*[x + step * t for x, t in zip(xs, ts_)])
        below = function(*[x - step * t for x, t in zip(xs, ts_)])
        same(moved, [(a - b) / (2 * step) for a, b in zip(above, below)], 1e-4, 1e-5)
        with forward_ad.dual_level():
            parts = [forward_ad.unpack_dual(y) for y in function(*map(forward_ad.make_dual, xs, ts_))]
        same([ts.zeros_like(p) if t is None else t for p, t in parts], moved)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONCE])
def test_second_derivatives(name):
    """Forward over reverse, reverse over forward and forward over forward agree, as transforms and by `forward_ad`."""
    for function, xs, ts_ in calls(name)[:2]:
        scalar = square(function)
        expected = jvp(every(scalar), xs, ts_)[1]
        same(every(lambda *zs: jvp(scalar, zs, ts_)[1])(*xs), expected)
        twice = jvp(lambda *zs: jvp(scalar, zs, ts_)[1], xs, ts_)[1]
        same([twice], [sum((g * t).sum() for g, t in zip(expected, ts_))], 1e-7, 1e-8)
        leaves = tuple([x.clone().requires_grad_() for x in xs])
        with forward_ad.dual_level():
            y = scalar(*map(forward_ad.make_dual, leaves, ts_))
            if not y.requires_grad:
                continue
            gradients = ts.autograd.grad(y, leaves, retain_graph=True, allow_unused=True)
            over_reverse = [None if g is None else forward_ad.unpack_dual(g).tangent for g in gradients]
            moved = forward_ad.unpack_dual(y).tangent
        over_forward = [None] * len(xs)
        if moved is not None and moved.requires_grad:
            over_forward = ts.autograd.grad(moved, leaves, allow_unused=True)
        for found in (over_reverse, over_forward):
            same([ts.zeros_like(x) if g is None else g for g, x in zip(found, xs)], expected)


@pytest.mark.parametrize("name", NAMES)
def test_batches(name):
    """vmap of jvp and jvp of vmap are jvp of each example."""
    for function, xs, ts_ in calls(name)[:2]:
        many = tuple([ts.stack([x, x * 0.97]) for x in xs])
        tangents = tuple([ts.stack([t, -2 * t]) for t in ts_])
        single = [jvp(function, tuple(x[i] for x in many), tuple(t[i] for t in tangents))[1] for i in range(2)]
        expected = [ts.stack(each) for each in zip(*single)]
        same(vmap(lambda x, t: jvp(function, x, t)[1], randomness="same")(many, tangents), expected)
        same(jvp(vmap(function, randomness="same"), many, tangents)[1], expected)


@pytest.mark.parametrize("name", sorted(ONCE))
def test_what_is_missing_says_so(name):
    function, xs, ts_ = calls(name)[0]
    with pytest.raises(NotImplementedError, match="library routine .* has no gradient rule"):
        jvp(every(square(function)), xs, ts_)
        every(lambda *zs: jvp(square(function), zs, ts_)[1])(*xs)


def test_nearly_all_operators_take_part():
    assert len(NAMES) > 240

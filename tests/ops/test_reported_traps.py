"""Kinds of faults that other systems were reported for: NaN in vector tails, empty accumulators, trapping divisions, ..."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_one_nan_at_every_place_of_every_length(name: str, dtype: str) -> None:
    for length in (*range(1, 20), 31, 33, 64, 67):
        rows = np.full((length, length), 2.0)
        rows[np.diag_indices(length)] = NAN
        found = getattr(ts, name)(ts.tensor(rows.tolist(), dtype=getattr(ts, dtype)), 1)
        values = found if isinstance(found, ts.Tensor) else found[0]
        assert values.isnan().all(), length


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_the_extreme_among_equals_is_a_place(name: str, value: float) -> None:
    for length in (1, 3, 4, 8, 17, 100):
        x = [[value] * length, [0.0] * (length - 1) + [value]]
        ours, theirs = getattr(ts.tensor(x), name)(1), getattr(torch.tensor(x), name)(1)
        assert ours.tolist() == theirs.tolist(), length


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_the_smallest_integer_by_minus_one_does_not_trap(name: str, dtype: str) -> None:
    least = torch.iinfo(getattr(torch, dtype)).min
    x, y = ts.full((9,), least, dtype=getattr(ts, dtype)), ts.full((9,), -1, dtype=getattr(ts, dtype))
    assert getattr(ts, name)(x, y).tolist() == [0] * 9
    assert getattr(ts, name)(x, -1).tolist() == [0] * 9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_places_named_many_times_all_count(dtype: str) -> None:
    places = [0, 2, 0, 0, 2, 1] * 50
    results = []
    for L in (ts, torch):
        x = L.zeros(3, 2, dtype=getattr(L, dtype)).requires_grad_()
        where, source = L.tensor(places), L.ones(300, 2, dtype=x.dtype)
        (x[where] * source).sum().backward()
        written = L.zeros(3, 2, dtype=x.dtype)
        written.index_add_(0, where, source)
        put = L.zeros(3, 2, dtype=x.dtype).index_put((where,), source, accumulate=True)
        results.append([x.grad.tolist(), written.tolist(), put.tolist()])
    assert results[0] == results[1] and results[0][0] == [[150.0, 150.0], [50.0, 50.0], [100.0, 100.0]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (3, 0, 2)])
def test_sizes_of_nothing(shape: tuple[int, ...]) -> None:
    def shapes(L):
        e = L.empty(*shape)
        one = L.ones(1, *shape[1:])
        tensors = (e + one, e.sum(0), e.sum(-1), e.prod(), e.reshape(-1, *shape), L.cat([e, e]), e.mT)
        return [tuple(r.shape) for r in tensors] + [
            e.sum(0).tolist(), e.prod(-1).tolist(), e.logsumexp(-1).tolist(), bool(e.mean().isnan()),
        ]  # fmt: skip

    def outcome(L):
        try:
            return shapes(L)
        except RuntimeError:
            return "refused"

    assert outcome(ts) == outcome(torch)


@pytest.mark.parametrize("compiled", [False, True])
def test_arithmetic_that_looks_superfluous_is_done(compiled: bool) -> None:
    def program(x, y):
        return x * 0, x - x, x / x, x + 0, x * 1, y - y, 0 - x

    x, y = [INF, NAN, -3.0, 2.0, 0.0, -0.0], [INF, 1.0]
    ours = (ts.compile(program) if compiled else program)(ts.tensor(x), ts.tensor(y))
    for a, b in zip(ours, program(torch.tensor(x), torch.tensor(y))):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        numbers = ~np.isnan(b.numpy())
        np.testing.assert_array_equal(np.signbit(a.numpy())[numbers], np.signbit(b.numpy())[numbers])


@pytest.mark.parametrize("name", ["logsumexp", "logaddexp", "silu", "softplus", "norm", "prod", "dropout"])
def test_gradients_at_the_ends(name: str) -> None:
    functions = {
        "logsumexp": lambda L, x: L.logsumexp(x, -1),
        "logaddexp": lambda L, x: L.logaddexp(x[:, 0], x[:, 1]),
        "silu": lambda L, x: L.nn.functional.silu(x),
        "softplus": lambda L, x: L.nn.functional.softplus(x, beta=5.0),
        "norm": lambda L, x: x.norm(dim=-1),
        "prod": lambda L, x: x.prod(-1),
        "dropout": lambda L, x: L.nn.functional.dropout(x, 1.0, True),
    }
    rows = [[-INF, 2.0, -INF], [0.0, 0.0, 3.0], [200.0, -200.0, 50.0], [2.0, 0.0, 3.0], [0.0, 0.0, 0.0]]
    if name in ("silu", "softplus", "norm", "prod", "dropout"):
        rows = rows[1:]
    found = []
    for L in (ts, torch):
        x = L.tensor(rows, requires_grad=True)
        y = functions[name](L, x)
        y.sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy()))
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-30)

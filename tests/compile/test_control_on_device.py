"""`ts.cond` and `ts.while_loop` in compiled functions on a device: the host decides, everything else stays there."""

from __future__ import annotations

import numpy as np
import pytest

import tensorsmith as ts


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


X = [[0.9, 0.3], [-0.2, 0.7]]


def decided(x, w):
    """A captured value in one branch, an operand as it is in the other, and steps before and after."""
    y = (x @ w).tanh()
    a, b = ts.cond(y.sum() > 0, lambda x, y: (x @ w, y), lambda x, y: (y.exp() - x.sum(), x * y), (x, y))
    return (a.softmax(1) * b).cumsum(0)


def repeated(x, w):
    """How many rounds there are depends on the values."""
    y, total = ts.while_loop(
        lambda y, total: total.abs().max() < 4, lambda y, total: ((y @ w).tanh(), total + y.sum(0) + 1), (x, x[0] * 0)
    )
    return y, total


def transposed(x, w):
    """Operands that lie otherwise than row after row, of which one swaps places."""
    w = w.t().exp() / 4
    return ts.while_loop(lambda a, b, w: a.sum() > 0.1, lambda a, b, w: [b / 2, a * w], [(x * x).t(), x.abs()], [w])


def run(function, x, device):
    x = ts.tensor(x, device=device, requires_grad=True)
    w = ts.tensor([[0.5, -1.0], [2.0, 0.25]], device=device, requires_grad=True)
    out = function(x, w)
    out = out if isinstance(out, tuple) else (out,)
    sum((t.sin() * (k + 1)).sum() for k, t in enumerate(out)).backward()
    assert all(t.device.type == device for t in (*out, x.grad, w.grad))
    return [t.tolist() for t in (*out, x.grad, w.grad)]


@pytest.mark.parametrize("function", [decided, repeated, transposed])
def test_values_and_gradients_are_the_cpus(function):
    compiled = ts.compile(function)
    for sign in (1, -1, 1, -1):
        x = [[sign * value for value in row] for row in X]
        for found, wanted in zip(run(compiled, x, "cuda"), run(function, x, "cpu")):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_a_training_step_with_a_decision():
    def losses(device, compiled):
        ts.manual_seed(0)
        model = ts.nn.Sequential(ts.nn.Linear(2, 8), ts.nn.Tanh(), ts.nn.Linear(8, 1)).to(device)
        optimizer = ts.optim.Adam(model.parameters(), lr=0.1)
        x = ts.tensor(X, device=device)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss = ts.cond(loss > 0.05, lambda loss: loss.sqrt(), lambda loss: loss * 2, (loss,))
            loss.backward()
            optimizer.step()
            return loss

        step = ts.compile(step) if compiled else step
        return [step(x).item() for _ in range(8)]

    found = losses("cuda", True)
    np.testing.assert_allclose(found, losses("cpu", False), rtol=1e-4)
    assert len({loss > 0.05**0.5 for loss in found}) == 2, "both branches were to run"


def test_explain_says_that_the_host_decides():
    x, w = ts.tensor(X, device="cuda"), ts.ones(2, 2, device="cuda")
    assert "plans of their own; the host waits for what decides" in ts.explain(decided, x, w).kernel()
    assert "the host waits" not in ts.explain(decided, x.cpu(), w.cpu()).kernel()


def test_long_rows_of_launches_around_a_decision_are_graphs():
    def f(x, w):
        y = (((x @ w).cumsum(0) @ w).cumsum(1) @ w).cumsum(0)
        y = ts.cond(y.sum() > 0, lambda y: (((y @ w).cumsum(0) @ w).cumsum(1) @ w).cumsum(0), lambda y: y * 2, (y,))
        return (((y @ w).cumsum(0) @ w).cumsum(1) @ w).cumsum(0)

    w, kept = ts.tensor([[0.5, 0.25], [1.0, 0.25]], device="cuda"), []
    compiled = ts.compile(f)
    for factor in (1, 2, 3, -1, -2, 4):
        x = ts.tensor(X, device="cuda") * factor
        kept.append(x)  # so that the next one lies elsewhere
        np.testing.assert_allclose(compiled(x, w).tolist(), f(x, w).tolist(), rtol=1e-5)
    (plan,) = [each.plan for each in compiled.plans]
    assert plan.replays is None and len(plan.replays_of_parts) == 2
    assert all(each.graphs for each in plan.replays_of_parts.values())

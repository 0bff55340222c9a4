"""State that a compiled function changes on the way: leaves, hooks, rates, random states."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.utils.checkpoint import checkpoint


def test_arguments_become_leaves():
    def forces(x):
        x.requires_grad_()
        energy = (x**3).sum()
        (gradient,) = ts.autograd.grad(energy, x, create_graph=True)
        return energy, -gradient

    compiled = ts.compile(forces)
    for _ in range(3):
        found = []
        for call in (forces, compiled):
            x = ts.tensor([1.0, 2.0])
            energy, force = call(x)
            force.sum().backward()
            found.append((energy.item(), force.tolist(), x.requires_grad, x.grad.tolist()))
        assert found[0] == found[1]
    failing = ts.compile(lambda x, i: x.requires_grad_()[i] * 2)
    assert failing(ts.ones(2), ts.tensor([1])).requires_grad
    x = ts.ones(2)
    with pytest.raises(IndexError):
        failing(x, ts.tensor([5]))
    assert not x.requires_grad


def test_hooks_of_leaves_that_come_and_go():
    w = ts.ones(2, requires_grad=True)

    def step(x):
        w.grad = None
        (w * x).sum().backward()

    compiled, x = ts.compile(step), ts.full((2,), 3.0)
    for _ in range(3):
        compiled(x)
    assert w.grad.tolist() == [3.0, 3.0] and len(compiled.plans) == 1
    handle = w.register_hook(lambda g: g * 2)
    for _ in range(3):
        compiled(x)
        assert w.grad.tolist() == [6.0, 6.0]
    second = w.register_hook(lambda g: g + 1)
    compiled(x)
    assert w.grad.tolist() == [7.0, 7.0]
    handle.remove(), second.remove()
    compiled(x)
    assert w.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_with_dropout(reentrant):
    found = []
    for compiles in (lambda f: f, ts.compile):
        ts.manual_seed(0)
        model = ts.nn.Sequential(ts.nn.Linear(3, 16), ts.nn.Dropout(0.5), ts.nn.Linear(16, 2))
        optimizer = ts.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            checkpoint(model, x, use_reentrant=reentrant).pow(2).mean().backward()
            optimizer.step()

        compiled, x = compiles(step), ts.ones(2, 3, requires_grad=True)
        for _ in range(4):
            x.grad = None
            compiled(x)
        found.append([*(p.tolist() for p in model.parameters()), ts.rand(3).tolist()])
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_rate_that_the_function_sets():
    w = ts.ones(2, requires_grad=True)
    optimizer = ts.optim.SGD([w], lr=0.5)

    def step(x):
        (w * x).sum().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 0.1

    with pytest.raises(NotImplementedError, match="the function sets the rate of SGD; use a schedule"):
        ts.compile(step)(ts.ones(2))
    assert optimizer.param_groups[0]["lr"] == 0.5 and w.tolist() == [1.0, 1.0] and w.grad is None and w._version == 0


class Plain(ts.optim.Optimizer):
    """An optimiser of the user's, whose numbers are Python's."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "scale": 1.0})

    @ts.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * group["scale"])


def test_rates_of_optimisers_that_users_write():
    found = []
    for compiles in (lambda f: f, ts.compile):
        w = ts.ones(2, requires_grad=True)
        optimizer = Plain([w], 0.5)

        def step(x, w=w, optimizer=optimizer):
            optimizer.zero_grad()
            (w * x).pow(2).sum().backward()
            optimizer.step()

        compiled = compiles(step)
        for rate, scale in ((0.5, 1.0), (0.25, 1.0), (0.25, 2.0), (0.25, 2.0)):
            optimizer.param_groups[0].update(lr=rate, scale=scale)
            compiled(ts.full((2,), 0.3))
        found.append(w.tolist())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_an_optimiser_that_the_function_makes():
    found = []
    for compiles in (lambda f: f, ts.compile):
        ts.manual_seed(0)
        model = ts.nn.Linear(3, 2)

        def step(x, model=model):
            optimizer = ts.optim.SGD(model.parameters(), lr=0.1)
            model(x).sum().backward()
            optimizer.step()  # of a gradient that nobody keeps: the update is computed of a product's results
            optimizer.zero_grad()

        compiled = compiles(step)
        for k in range(3):
            compiled(ts.full((2, 3), 1.0 + k))
        found.append(model.weight.tolist())
    np.testing.assert_allclose(*found, rtol=1e-5)

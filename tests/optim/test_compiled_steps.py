"""A compiled training step does what the eager one does, with changing rates and a state that is loaded."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import tensorsmith as ts


def train(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
        ("Adam", {"lr": 0.01}),
        ("AdamW", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    ],
)
def test_compiled_equals_eager(name, options):
    ts.manual_seed(0)
    model = ts.nn.Sequential(ts.nn.Linear(4, 8), ts.nn.Tanh(), ts.nn.Linear(8, 1))
    other = copy.deepcopy(model)
    optimizer = getattr(ts.optim, name)(model.parameters(), **options)
    other_optimizer = getattr(ts.optim, name)(other.parameters(), **options)
    x = ts.rand(16, 4)
    y = x.sum(1, keepdim=True)
    step = ts.compile(lambda x, y: train(other, other_optimizer, x, y))
    saved = None
    for number in range(8):
        if number == 3:
            saved = copy.deepcopy(optimizer.state_dict())
        if number == 5:
            optimizer.load_state_dict(saved)
            other_optimizer.load_state_dict(saved)
        for each in (optimizer, other_optimizer):
            each.param_groups[0]["lr"] = 0.01 * (number + 1)
        expected = train(model, optimizer, x, y).item()
        assert step(x, y).item() == pytest.approx(expected, rel=1e-5)
    for p, q in zip(model.parameters(), other.parameters()):
        assert (p - q).abs().max().item() < 1e-5
    if name != "SGD":
        assert other_optimizer.state[other[0].weight]["step"].item() == optimizer.state[model[0].weight]["step"].item()


MAKERS = {
    "momentum": lambda ps: ts.optim.SGD(ps, lr=0.1, momentum=0.9, dampening=0.3),
    "nesterov": lambda ps: ts.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: ts.optim.Adam(ps, lr=0.1),
}


def classify(model, optimizer):
    def step(x, labels):
        optimizer.zero_grad()
        loss = ts.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def entries(optimizer):
    return [{name: value.tolist() for name, value in state.items()} for state in optimizer.state.values()]


@pytest.mark.parametrize("name", MAKERS)
def test_the_first_step_and_all_later_ones_are_one_plan(name):
    steps, optimizers = [], []
    for wrap in (lambda step: step, ts.compile):
        ts.manual_seed(0)
        model = ts.nn.Linear(4, 3)
        optimizers.append(MAKERS[name](model.parameters()))
        steps.append(wrap(classify(model, optimizers[-1])))
    x, labels = ts.rand(2, 4), ts.tensor([1, 2])
    with pytest.raises(IndexError):
        steps[1](x, ts.tensor([1, 7]))
    assert not optimizers[1].state  # a first step that raises has made no state
    for _ in range(3):
        expected, found = (step(x, labels).item() for step in steps)
        assert found == pytest.approx(expected, rel=1e-6)
        for a, b in zip(*map(entries, optimizers), strict=True):
            for key in a:
                np.testing.assert_allclose(b[key], a[key], rtol=1e-5, atol=1e-7)
    assert len(steps[1].plans) == 1


def test_two_steps_in_one_function_make_the_buffers_once():
    found = []
    for wrap in (lambda step: step, ts.compile):
        w, late = ts.ones(3, requires_grad=True), ts.ones(3, requires_grad=True)
        optimizer = ts.optim.SGD([w, late], lr=0.1, momentum=0.9, dampening=0.5)

        def twice(x, w=w, late=late, optimizer=optimizer):
            (w * x).sum().backward()
            optimizer.step()
            (w * x + late).sum().backward()  # the buffer of `late` is made by the second step
            optimizer.step()
            optimizer.zero_grad()

        run = wrap(twice)
        for number in range(3):
            run(ts.arange(3.0) + number)
        found.append([t.tolist() for t in (w, late, *(s["momentum_buffer"] for s in optimizer.state.values()))])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)

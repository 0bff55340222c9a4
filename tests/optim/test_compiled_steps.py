"""A compiled training step does what the eager one does, with changing rates and a state that is loaded."""

from __future__ import annotations

import copy

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

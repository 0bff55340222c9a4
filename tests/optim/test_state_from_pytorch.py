"""PyTorch's optimisers' state, as arrays, goes on in ours with the same numbers; what both refuse, with the same words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tensorsmith as ts

OPTIMISERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.1, "amsgrad": True}, "AdamW": {"lr": 0.1}, "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1}, "Adamax": {"lr": 0.1}, "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.5},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1}, "Adadelta": {}, "ASGD": {"lr": 0.1, "t0": 2}, "Rprop": {"lr": 0.1},
}  # fmt: skip


def converted(value):
    """The same structure with our tensors for PyTorch's."""
    if isinstance(value, torch.Tensor):
        return ts.tensor(value.numpy().copy())
    if isinstance(value, dict):
        return {key: converted(each) for key, each in value.items()}
    return value


def steps(lib, params, optimizer, first, count):
    for number in range(first, first + count):
        for i, p in enumerate(params):
            p.grad = lib.tensor(np.cos(np.arange(6.0) * (i + 1) + number).reshape(2, 3))
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_goes_on(name):
    values = [np.sin(np.arange(6.0) + i).reshape(2, 3) for i in range(2)]
    theirs = [torch.nn.Parameter(torch.tensor(v)) for v in values]
    their_optimizer = getattr(torch.optim, name)(theirs, **OPTIMISERS[name])
    steps(torch, theirs, their_optimizer, 0, 4)
    ours = [ts.nn.Parameter(ts.tensor(p.detach().numpy().copy())) for p in theirs]
    our_optimizer = getattr(ts.optim, name)(ours)  # options come with the state
    our_optimizer.load_state_dict(converted(their_optimizer.state_dict()))
    steps(torch, theirs, their_optimizer, 4, 4)
    steps(ts, ours, our_optimizer, 4, 4)
    for p, q in zip(ours, theirs):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-6, atol=1e-9)
    mine, other = our_optimizer.state_dict(), their_optimizer.state_dict()
    assert {k: set(v) for k, v in mine["state"].items()} == {k: set(v) for k, v in other["state"].items()}
    assert mine["param_groups"][0].keys() >= other["param_groups"][0].keys()


WRONG = [
    ("SGD", {"lr": -0.1}), ("SGD", {"momentum": -1.0}), ("SGD", {"nesterov": True}), ("SGD", {"weight_decay": -1}),
    ("Adam", {"lr": -1.0}), ("Adam", {"betas": (1.0, 0.9)}), ("Adam", {"betas": (0.9, -0.1)}), ("Adam", {"eps": -1e-3}),
    ("AdamW", {"weight_decay": -0.5}), ("NAdam", {"momentum_decay": -1.0}), ("Adamax", {"betas": (2.0, 0.9)}),
    ("RMSprop", {"alpha": -0.1}), ("Adagrad", {"lr_decay": -1.0}), ("Adagrad", {"initial_accumulator_value": -1.0}),
    ("Adadelta", {"rho": 1.5}), ("Rprop", {"etas": (1.5, 1.2)}), ("RAdam", {"lr": -2.0}), ("ASGD", {"weight_decay": -1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), WRONG)
def test_both_refuse(name, options):
    said = []
    for lib in (ts, torch):
        with pytest.raises(ValueError) as caught:
            getattr(lib.optim, name)([lib.nn.Parameter(lib.ones(2))], **options)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("lr", [math.nan, math.inf])
def test_rates_that_are_not_finite_are_refused(name, lr):
    with pytest.raises(ValueError, match=f"Invalid learning rate: {lr}"):
        getattr(ts.optim, name)([ts.nn.Parameter(ts.ones(2))], lr=lr)


def test_nothing_to_optimise():
    for lib in (ts, torch):
        with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
            lib.optim.SGD([], lr=0.1)

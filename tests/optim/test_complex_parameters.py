"""Optimisers of complex parameters: the two parts are updated as real parameters are, as in PyTorch."""

import numpy as np
import pytest
import torch

import tensorsmith as ts

Z = np.array([[1 + 2j, 3 - 1j], [-0.5j, 2 + 0j]])
OPTIMISERS = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.1},
    "Adam with amsgrad": {"lr": 0.1, "amsgrad": True, "weight_decay": 0.01},
    "AdamW": {"lr": 0.1, "weight_decay": 0.1},
    "NAdam": {"lr": 0.1, "weight_decay": 0.1},
    "RAdam": {"lr": 0.1},
    "Adamax": {"lr": 0.1, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.5},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.5},
    "Adadelta": {"weight_decay": 0.1},
    "ASGD": {"lr": 0.1},
    "Rprop": {"lr": 0.1},
}


def loss_of(p):
    return (p * p * (1 - 2j)).abs().sum() + (p.real**2).sum()


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_steps_agree_with_pytorch(name, dtype):
    found = []
    for library in (ts, torch):
        p = library.tensor(Z, dtype=getattr(library, dtype), requires_grad=True)
        optimiser = getattr(library.optim, name.split()[0])([p], **OPTIMISERS[name])
        for _ in range(5):
            optimiser.zero_grad()
            loss_of(p).backward()
            optimiser.step()
        found.append(p.detach().numpy())
    np.testing.assert_allclose(*found, rtol=2e-5 if dtype == "complex64" else 1e-12)
    assert found[0].dtype == dtype


def test_a_compiled_step_is_the_same():
    found = []
    for compiled in (False, True):
        p = ts.tensor(Z, dtype=ts.complex128, requires_grad=True)
        optimiser = ts.optim.Adam([p], lr=0.1)

        def step(p=p, optimiser=optimiser):
            optimiser.zero_grad()
            loss = loss_of(p)
            loss.backward()
            optimiser.step()
            return loss

        run = ts.compile(step) if compiled else step
        losses = [float(run()) for _ in range(4)]
        found.append((losses, p.detach().numpy().copy()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12)


def test_state_is_complex_and_comes_back():
    p = ts.tensor(Z, dtype=ts.complex64, requires_grad=True)
    optimiser = ts.optim.Adam([p], lr=0.1)
    loss_of(p).backward()
    optimiser.step()
    saved = optimiser.state_dict()
    assert saved["state"][0]["exp_avg"].dtype is ts.complex64
    other = ts.optim.Adam([p], lr=0.1)
    other.load_state_dict(saved)
    assert other.state[p]["exp_avg_sq"].tolist() == optimiser.state[p]["exp_avg_sq"].tolist()

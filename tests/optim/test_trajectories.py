"""Fifty steps on a curved loss with PyTorch's, exchange of states with it, compiled steps, LBFGS and Lion."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tensorsmith as ts

CONFIGURATIONS = [
    ("SGD", {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 1e-2, "amsgrad": True}),
    ("AdamW", {"lr": 1e-2}),
    ("NAdam", {"lr": 1e-2, "weight_decay": 0.1}),
    ("RAdam", {"lr": 1e-2}),
    ("Adamax", {"lr": 1e-2}),
    ("RMSprop", {"lr": 1e-3, "centered": True, "momentum": 0.5}),
    ("Adagrad", {"lr": 1e-1, "lr_decay": 0.01}),
    ("Adadelta", {}),
    ("Adafactor", {"lr": 1e-1, "weight_decay": 0.1}),
    ("Adafactor", {"eps": (1e-2, 1e-1), "d": 2.0, "beta2_decay": -0.5, "maximize": True}),
    ("ASGD", {"lr": 1e-2, "t0": 10}),
    ("Rprop", {"lr": 1e-2}),
    ("LBFGS", {"lr": 0.5, "max_iter": 3}),
    ("LBFGS", {"max_iter": 4, "history_size": 2, "line_search_fn": "strong_wolfe"}),
]


def start(lib):
    rng = np.random.default_rng(3)
    return [lib.nn.Parameter(lib.tensor(rng.standard_normal(shape))) for shape in ((4, 3), (3,))]


def loss_of(lib, params):
    x = lib.tensor(np.random.default_rng(4).standard_normal((8, 4)))
    return ((x @ params[0] + params[1]).tanh() ** 2).sum() + (params[0] ** 2).mean()


def run(lib, params, optimizer, count):
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(lib, params)
        loss.backward()
        return loss

    for _ in range(count):
        losses.append(optimizer.step(closure).item())
    return losses


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_fifty_steps(name, options):
    # Quasi-Newton steps of fixed length multiply rounding errors: after twelve, 1e-15 has grown to 1e-12.
    count = 12 if name == "LBFGS" and "line_search_fn" not in options else 50
    found = []
    for lib in (ts, torch):
        params = start(lib)
        losses = run(lib, params, getattr(lib.optim, name)(params, **options), count)
        found.append((losses, [p.detach().numpy() for p in params]))
    ours, theirs = found
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-10, atol=1e-12)
    for a, b in zip(ours[1], theirs[1]):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-8 if name == "LBFGS" else 1e-12)


def converted(value):
    if isinstance(value, torch.Tensor):
        return ts.tensor(value.numpy())
    if isinstance(value, dict):
        return {key: converted(each) for key, each in value.items()}
    return [converted(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_pytorchs_state_is_continued(name, options):
    theirs, ours = start(torch), start(ts)
    a, b = getattr(torch.optim, name)(theirs, **options), getattr(ts.optim, name)(ours, lr=123.0)
    run(torch, theirs, a, 5)
    b.load_state_dict(converted(a.state_dict()))
    with ts.no_grad():
        for p, q in zip(ours, theirs):
            p.copy_(ts.tensor(q.detach().numpy()))
    np.testing.assert_allclose(run(ts, ours, b, 5), run(torch, theirs, a, 5), rtol=1e-10)
    state, expected = b.state_dict(), a.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert [sorted(entries) for entries in state["state"].values()] == [sorted(e) for e in expected["state"].values()]


@pytest.mark.parametrize(("name", "options"), [c for c in CONFIGURATIONS if c[0] != "LBFGS"] + [("Lion", {"lr": 1e-2})])
def test_compiled_steps(name, options):
    found = []
    for compiled in (False, True):
        params = start(ts)
        optimizer = getattr(ts.optim, name)(params, **options)

        def step(params=params, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(ts, params)
            loss.backward()
            optimizer.step()
            return loss

        call = ts.compile(step) if compiled else step
        losses = []
        for number in range(12):
            if number == 6:
                optimizer.param_groups[0]["lr"] *= 0.5
            losses.append(float(call()))
        state = optimizer.state[params[0]]
        found.append((losses, {key: np.asarray(value.numpy()) for key, value in state.items()}))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    for key, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][key], value, rtol=1e-6)


def test_lion_by_its_formula():
    options = {"lr": 0.1, "betas": (0.8, 0.6), "weight_decay": 0.3}
    p = ts.nn.Parameter(ts.tensor([1.0, -2.0, 0.5], dtype=ts.float64))
    optimizer = ts.optim.Lion([p], **options)
    value, mean = p.detach().numpy().copy(), np.zeros(3)
    rng = np.random.default_rng(0)
    for _ in range(10):
        grad = rng.standard_normal(3)
        p.grad = ts.tensor(grad)
        optimizer.step()
        value = value * (1 - 0.1 * 0.3) - 0.1 * np.sign(0.8 * mean + 0.2 * grad)
        mean = 0.6 * mean + 0.4 * grad
    np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-12)
    np.testing.assert_allclose(optimizer.state[p]["exp_avg"].numpy(), mean, rtol=1e-12)


@pytest.mark.parametrize("line_search_fn", [None, "strong_wolfe"])
def test_lbfgs_on_rosenbrock_with_complex_parameters_too(line_search_fn):
    found = []
    for lib in (ts, torch):
        p = lib.tensor([-1.5, 2.0], dtype=lib.float64, requires_grad=True)
        z = lib.tensor([1.0 + 2.0j], dtype=lib.complex128, requires_grad=True)
        lr = 1 if line_search_fn else 1e-3
        optimizer = lib.optim.LBFGS([p, z], lr=lr, max_iter=5, line_search_fn=line_search_fn)
        losses = []

        def closure(lib=lib, p=p, z=z, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2 + (z - 3j).abs().pow(2).sum()
            loss.backward()
            return loss

        for _ in range(8):
            losses.append(optimizer.step(closure).item())
        found.append((losses, optimizer.state[p]["func_evals"], optimizer.state[p]["n_iter"]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-8, atol=1e-12)
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("name", [*sorted({name for name, _ in CONFIGURATIONS} - {"Adafactor"}), "Lion"])
@pytest.mark.parametrize("lr", [-1.0, math.nan, math.inf])
def test_rates_that_are_no_rates(name, lr):
    with pytest.raises(ValueError, match=f"Invalid learning rate: {lr}"):
        getattr(ts.optim, name)([ts.nn.Parameter(ts.ones(1))], lr=lr)


@pytest.mark.parametrize("name", [*sorted({name for name, _ in CONFIGURATIONS} - {"LBFGS", "Adafactor"}), "Lion"])
def test_differentiable_steps_are_refused(name):
    with pytest.raises(NotImplementedError, match=f"{name}: differentiable=True"):
        getattr(ts.optim, name)([ts.nn.Parameter(ts.ones(1))], differentiable=True)


def test_refusals():
    p = [ts.nn.Parameter(ts.ones(1))]
    with pytest.raises(NotImplementedError, match="SparseAdam"):
        ts.optim.SparseAdam(p)
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot"):
        ts.optim.Adam(p, fused=True, foreach=True)
    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        ts.optim.LBFGS(p, line_search_fn="armijo").step(lambda: 1.0)
    with pytest.raises(ValueError, match="parameter groups"):
        ts.optim.LBFGS([{"params": p}, {"params": [ts.nn.Parameter(ts.ones(1))]}])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RMSprop", {"alpha": -1}), ("RMSprop", {"momentum": -1}), ("Adadelta", {"rho": 2}), ("Adadelta", {"eps": -1}),
        ("Adagrad", {"lr_decay": -1}), ("Adagrad", {"initial_accumulator_value": -1}), ("NAdam", {"betas": (1.0, 0.5)}),
        ("NAdam", {"momentum_decay": -1}), ("RAdam", {"weight_decay": -1}), ("Adamax", {"betas": (0.5, 1.5)}),
        ("Rprop", {"etas": (1.5, 2.0)}), ("ASGD", {"weight_decay": -1}),
    ],
)  # fmt: skip
def test_refusals_are_pytorchs(name, options):
    said = []
    for lib in (torch, ts):
        with pytest.raises(ValueError) as caught:
            getattr(lib.optim, name)([lib.nn.Parameter(lib.ones(1))], **options)
        said.append(str(caught.value))
    assert said[0] == said[1]

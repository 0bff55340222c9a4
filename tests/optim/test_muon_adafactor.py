"""Muon and Adafactor: PyTorch's steps, states, dtypes and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts

SHAPES = [(6, 4), (4, 7), (5, 5)]


def start(lib, shapes, dtype="float32"):
    rng = np.random.default_rng(5)
    return [lib.nn.Parameter(lib.tensor(rng.standard_normal(s)).to(getattr(lib, dtype))) for s in shapes]


def converted(value):
    if isinstance(value, torch.Tensor):
        return ts.tensor(value.numpy().copy())
    return {key: converted(each) for key, each in value.items()} if isinstance(value, dict) else value


def gradient(shape, number, i):
    return np.random.default_rng([number, i]).standard_normal(shape)


def steps(lib, params, optimizer, first, count):
    for number in range(first, first + count):
        for i, p in enumerate(params):
            p.grad = lib.tensor(gradient(tuple(p.shape), number, i)).to(p.dtype)
        optimizer.step()


def values_of(params):
    return [p.detach().double().numpy().copy() for p in params]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"lr": 0.1, "nesterov": False, "weight_decay": 0.0, "momentum": 0.5, "adjust_lr_fn": "original"},
        {"lr": 0.1, "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "adjust_lr_fn": "match_rms_adamw"},
    ],
)
def test_muon_takes_pytorchs_steps(options, dtype):
    if dtype == "bfloat16" and not options.get("nesterov", True):
        options = {**options, "nesterov": True}  # without it PyTorch divides the momentum itself by its norm in this dtype
    found = []
    for lib in (ts, torch):
        params = start(lib, SHAPES, dtype)
        optimizer = lib.optim.Muon(params, **options)
        steps(lib, params, optimizer, 0, 4)
        found.append((values_of(params), [optimizer.state[p]["momentum_buffer"].double().numpy() for p in params]))
    # Both round to bfloat16 at the same places; sums in another order may fall to the other side of a rounding.
    for ours, theirs in zip(found[0][0], found[1][0]):
        rounded = dtype == "bfloat16"  # PyTorch rounds the parameter twice in a step
        np.testing.assert_allclose(ours, theirs, rtol=3 * 2**-7 if rounded else 0, atol=0.03 if rounded else 0.1 * 2**-6)
    for ours, theirs in zip(found[0][1], found[1][1]):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.02 if dtype == "bfloat16" else 1e-6)


def test_muon_continues_pytorchs_state_and_compiles():
    theirs = start(torch, SHAPES)
    their_optimizer = torch.optim.Muon(theirs, lr=0.1)
    steps(torch, theirs, their_optimizer, 0, 3)
    ours = [ts.nn.Parameter(ts.tensor(p.detach().numpy().copy())) for p in theirs]
    our_optimizer = ts.optim.Muon(ours, lr=3.0)
    our_optimizer.load_state_dict(converted(their_optimizer.state_dict()))
    compiled = [ts.nn.Parameter(p.detach().clone()) for p in ours]
    compiled_optimizer = ts.optim.Muon(compiled)
    compiled_optimizer.load_state_dict(our_optimizer.state_dict())
    steps(torch, theirs, their_optimizer, 3, 3)
    steps(ts, ours, our_optimizer, 3, 3)
    assert our_optimizer.state_dict()["param_groups"] == their_optimizer.state_dict()["param_groups"]
    for p, q in zip(values_of(ours), values_of(theirs)):
        np.testing.assert_allclose(p, q, atol=0.1 * 2**-6)

    @ts.compile
    def step(grads):
        for p, grad in zip(compiled, grads):
            p.grad = grad
        compiled_optimizer.step()

    for number in range(3, 6):
        step([ts.tensor(gradient(shape, number, i)).float() for i, shape in enumerate(SHAPES)])
    for p, q in zip(values_of(compiled), values_of(ours)):
        np.testing.assert_allclose(p, q, atol=0.1 * 2**-6)


def test_muon_makes_matrices_nearly_orthogonal():
    p = ts.nn.Parameter(ts.zeros(8, 5))
    p.grad = ts.tensor(np.random.default_rng(0).standard_normal((8, 5))).float()
    ts.optim.Muon([p], lr=1.0, weight_decay=0.0).step()
    values = np.linalg.svd(p.detach().numpy() / np.sqrt(8 / 5), compute_uv=False)
    assert values.min() > 0.5 and values.max() < 1.3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shapes", [[(6, 4), (2, 3, 5)], [(7,), ()]])
def test_adafactor_takes_pytorchs_steps(shapes, dtype):
    found = []
    for lib in (ts, torch):
        params = start(lib, shapes, dtype)
        optimizer = lib.optim.Adafactor(params, lr=0.3, weight_decay=0.1)
        steps(lib, params, optimizer, 0, 5)
        found.append((values_of(params), [{k: tuple(v.shape) for k, v in optimizer.state[p].items()} for p in params]))
        for p in params:
            for name, entry in optimizer.state[p].items():
                assert entry.dtype is (lib.float32 if name == "step" else p.dtype)
    assert found[0][1] == found[1][1]
    for ours, theirs in zip(found[0][0], found[1][0]):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 if dtype == "float32" else 0.05)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Muon", {"lr": -1.0}), ("Muon", {"momentum": -0.5}), ("Muon", {"weight_decay": -1}), ("Muon", {"adjust_lr_fn": "no"}),
        ("Adafactor", {"lr": -1.0}), ("Adafactor", {"beta2_decay": 0.5}), ("Adafactor", {"eps": (-1.0, 0.1)}),
        ("Adafactor", {"eps": (None, -0.1)}), ("Adafactor", {"d": 0.5}), ("Adafactor", {"weight_decay": -1}),
    ],
)  # fmt: skip
def test_both_refuse(name, options):
    said = []
    for lib in (ts, torch):
        with pytest.raises(ValueError) as caught:
            getattr(lib.optim, name)([lib.nn.Parameter(lib.ones(2, 2))], **options)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["Muon", "Adafactor"])
@pytest.mark.parametrize("lr", [float("nan"), float("inf")])
def test_rates_that_are_no_rates(name, lr):
    with pytest.raises(ValueError, match=f"Learning rate should be >= 0 but is: {lr}"):
        getattr(ts.optim, name)([ts.nn.Parameter(ts.ones(2, 2))], lr=lr)


def test_refused_parameters_and_states():
    for lib in (ts, torch):
        with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
            lib.optim.Muon([lib.nn.Parameter(lib.ones(2))])
        for name in ("Muon", "Adafactor"):
            p = lib.nn.Parameter(lib.ones(2, 2, dtype=lib.complex64))
            p.grad = lib.ones(2, 2, dtype=lib.complex64)
            with pytest.raises(RuntimeError, match=f"{name} does not support complex parameters"):
                getattr(lib.optim, name)([p]).step()
        optimizer = lib.optim.Muon([lib.nn.Parameter(lib.ones(2, 2))], ns_steps=100)
        optimizer.param_groups[0]["params"][0].grad = lib.ones(2, 2)
        with pytest.raises(ValueError, match="less than 100"):
            optimizer.step()
    p = ts.nn.Parameter(ts.ones(2, 3))
    optimizer = ts.optim.Adafactor([p])
    p.grad = ts.ones(2, 3)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"] = {0: {**state["state"][0], "row_var": ts.zeros(3, 1)}}
    with pytest.raises(ValueError, match="row_var has shape"):
        optimizer.load_state_dict(state)

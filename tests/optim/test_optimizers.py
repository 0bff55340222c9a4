"""Optimisers step by step with PyTorch's: same values, same state, same text."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import tensorsmith as ts

SHAPES = ((3, 4), (5,), (), (70, 33), (0, 2))

CONFIGURATIONS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.1, "maximize": True, "betas": (0.5, 0.7), "eps": 1e-3}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3}),
    ("AdamW", {"lr": 0.1, "amsgrad": True, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9)}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.1, "centered": True, "weight_decay": 0.1, "alpha": 0.8}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.9, "centered": True, "eps": 1e-3}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"lr": 0.1, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("ASGD", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 2, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {"lr": 0.1}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (1e-3, 0.15), "maximize": True}),
]


def parameters(lib, dtype, transposed=False):
    rng = np.random.default_rng(7)
    found = []
    for shape in SHAPES:
        array = np.asarray(rng.standard_normal(shape)).astype(dtype)
        tensor = lib.tensor(array)
        if transposed and len(shape) == 2:
            tensor = lib.tensor(np.ascontiguousarray(array.T)).t()
        found.append(lib.nn.Parameter(tensor))
    return found


def steps(lib, params, optimizer, count, seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    for number in range(count):
        for i, p in enumerate(params):
            grad = lib.tensor(np.asarray(rng.standard_normal(tuple(p.shape))).astype(dtype))
            p.grad = None if i == 1 and number == 2 else grad  # a parameter that has no gradient once
        optimizer.step()


def values(params):
    return [np.asarray(p.detach().double().numpy()) for p in params]


def compare(a, b, rtol):
    for x, y in zip(values(a), values(b)):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_values_state_and_text(name, options, dtype, transposed):
    runs = {}
    for lib in (ts, torch):
        params = parameters(lib, dtype, transposed)
        optimizer = getattr(lib.optim, name)(params, **options)
        steps(lib, params, optimizer, 5, 1, dtype)
        runs[lib] = params, optimizer
    compare(runs[ts][0], runs[torch][0], 2e-5 if dtype == "float32" else 1e-12)
    ours, theirs = (runs[lib][1].state_dict() for lib in (ts, torch))
    assert ours["state"].keys() == theirs["state"].keys()
    for key, entries in theirs["state"].items():
        assert ours["state"][key].keys() == entries.keys()
        for entry, value in entries.items():
            found = ours["state"][key][entry]
            assert tuple(found.shape) == tuple(value.shape) and str(found.dtype)[12:] == str(value.dtype)[6:]
            np.testing.assert_allclose(found.double().numpy(), value.double().numpy(), rtol=1e-4, atol=1e-6)
    assert ours["param_groups"] == theirs["param_groups"]
    assert repr(runs[ts][1]) == repr(runs[torch][1])


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_half_parameters_are_computed_in_float32(name):
    p = ts.nn.Parameter(ts.ones(8, dtype=ts.bfloat16))
    p.grad = ts.ones(8, dtype=ts.bfloat16)
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(ts.optim, name)([p], lr=0.25, **options)
    optimizer.step()
    assert p.dtype is ts.bfloat16 and p.tolist() == [0.75] * 8


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_one_kernel_a_parameter(name, options):
    from tensorsmith.runtime import profiler

    p = ts.nn.Parameter(ts.ones(3, 5))
    p.grad = ts.ones(3, 5)
    optimizer = getattr(ts.optim, name)([p], **options)
    optimizer.step()
    assert not profiler.active
    seen = []
    before, record = profiler.active, profiler.record
    try:
        profiler.active, profiler.record = True, lambda *args: seen.append(args)
        optimizer.step()
    finally:
        profiler.active, profiler.record = before, record
    assert len(seen) == 1


def test_new_numbers_make_no_new_kernel():
    from tensorsmith.optim.adam import _update

    p = ts.nn.Parameter(ts.ones(3))
    p.grad = ts.ones(3)
    optimizer = ts.optim.Adam([p])
    optimizer.step()
    update = _update(False, False, "none")
    prepared = len(update.launches)
    for number in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 * number
        optimizer.param_groups[0]["betas"] = (0.1 * number, 0.5)
        optimizer.step()
    assert len(update.launches) == prepared


def test_versions_count_and_the_graph_notices():
    p = ts.nn.Parameter(ts.ones(3))
    y = (p * p).sum()
    p.grad = ts.ones(3)
    before = p._version
    ts.optim.SGD([p], lr=0.1).step()
    assert p._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_learning_rate_as_tensor():
    p = ts.nn.Parameter(ts.ones(3))
    p.grad = ts.ones(3)
    optimizer = ts.optim.SGD([p], lr=ts.tensor(0.5))
    optimizer.step()
    assert p.tolist() == [0.5] * 3
    with pytest.raises(ValueError, match="1-element"):
        ts.optim.Adam([p], lr=ts.ones(2))


@pytest.mark.parametrize(("name", "options"), CONFIGURATIONS)
def test_state_dict_goes_to_another_optimiser_and_back(name, options):
    params = parameters(ts, "float32")
    optimizer = getattr(ts.optim, name)(params, **options)
    steps(ts, params, optimizer, 3, 1, "float32")
    others = copy.deepcopy(params)
    other = getattr(ts.optim, name)(others, lr=123.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    steps(ts, params, optimizer, 3, 2, "float32")
    steps(ts, others, other, 3, 2, "float32")
    compare(params, others, 0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_pytorchs_state_dict_is_taken_over(name):
    options = {"momentum": 0.9} if name == "SGD" else {"amsgrad": True}
    ours, theirs = parameters(ts, "float64"), parameters(torch, "float64")
    a, b = getattr(ts.optim, name)(ours, lr=0.1), getattr(torch.optim, name)(theirs, lr=0.2, **options)
    steps(torch, theirs, b, 3, 1)
    state = b.state_dict()
    state["state"] = {k: {n: ts.tensor(v.numpy()) for n, v in entries.items()} for k, entries in state["state"].items()}
    a.load_state_dict(state)
    with ts.no_grad():
        for p, q in zip(ours, theirs):
            p.copy_(ts.tensor(q.detach().numpy()))
    steps(torch, theirs, b, 3, 2)
    steps(ts, ours, a, 3, 2)
    compare(ours, theirs, 1e-12)


def test_loading_what_does_not_fit_changes_nothing():
    params = parameters(ts, "float32")
    optimizer = ts.optim.Adam(params)
    steps(ts, params, optimizer, 2, 1, "float32")
    before = repr(optimizer.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg"] = ts.zeros(7)
    with pytest.raises(ValueError, match="state of parameter 0, exp_avg has shape"):
        optimizer.load_state_dict(state)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    with pytest.raises(ValueError, match="param_groups"):
        optimizer.load_state_dict({"model": 1})
    assert repr(optimizer.state_dict()) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda lib, p: lib.optim.SGD([]),
        lambda lib, p: lib.optim.SGD(p),
        lambda lib, p: lib.optim.SGD([3]),
        lambda lib, p: lib.optim.SGD([p * 2]),
        lambda lib, p: lib.optim.SGD([{"params": {p}}]),
        lambda lib, p: lib.optim.SGD([{"params": [p]}, {"params": [p]}]),
        lambda lib, p: lib.optim.SGD([p], lr=-1),
        lambda lib, p: lib.optim.SGD([p], momentum=-1),
        lambda lib, p: lib.optim.SGD([p], nesterov=True),
        lambda lib, p: lib.optim.Adam([p], betas=(0.9, 1.0)),
        lambda lib, p: lib.optim.Adam([p], eps=-1.0),
        lambda lib, p: lib.optim.Adam([p], lr=-1.0),
        lambda lib, p: lib.optim.AdamW([p], weight_decay=-1.0),
        lambda lib, p: lib.optim.SGD([p]).add_param_group([p]),
    ],
)
def test_refusals_are_pytorchs(make):
    kinds = []
    for lib in (torch, ts):
        with pytest.raises((TypeError, ValueError)) as caught:
            make(lib, lib.nn.Parameter(lib.ones(2)))
        kinds.append(caught.type)
        text = str(caught.value)
        kinds.append(text[:20])
    assert kinds[:2] == kinds[2:]


def test_groups_names_and_zero_grad():
    a, b, c = (ts.nn.Parameter(ts.ones(1)) for _ in range(3))
    optimizer = ts.optim.SGD([{"params": [a], "lr": 1.0}, {"params": b}], lr=0.5)
    optimizer.add_param_group({"params": [c], "momentum": 0.9})
    for p in (a, b, c):
        p.grad = ts.ones(1)
    optimizer.step()
    assert [p.item() for p in (a, b, c)] == [0.0, 0.5, 0.5]
    optimizer.zero_grad(set_to_none=False)
    assert a.grad.tolist() == [0.0]
    optimizer.zero_grad()
    assert a.grad is None
    named = ts.optim.SGD([("x", a), ("y", b)])
    assert named.state_dict()["param_groups"][0]["param_names"] == ["x", "y"]
    with pytest.raises(ValueError, match="with/without names"):
        ts.optim.SGD([("x", a), b])


def test_closure_is_recorded_and_hooks_run():
    p = ts.nn.Parameter(ts.full((2,), 3.0))
    optimizer = ts.optim.SGD([p], lr=0.1)
    log = []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: log.append("pre"))
    handle = optimizer.register_step_post_hook(lambda opt, args, kwargs: log.append("post"))

    def closure():
        log.append(ts.is_grad_enabled())
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 18.0
    handle.remove()
    optimizer.step()
    assert log == ["pre", True, "post", "pre"]
    assert not p.grad.requires_grad and p.requires_grad


def test_copies_of_optimisers():
    p = ts.nn.Parameter(ts.ones(2))
    optimizer = ts.optim.Adam([p], lr=0.1)
    p.grad = ts.ones(2)
    optimizer.step()
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        q = other.param_groups[0]["params"][0]
        assert q is not p and other.state[q]["step"].item() == 1.0
        q.grad = ts.ones(2)
        other.step()
        assert other.state[q]["step"].item() == 2.0 and optimizer.state[p]["step"].item() == 1.0


def test_step_counter_may_be_replaced():
    p = ts.nn.Parameter(ts.ones(2))
    optimizer = ts.optim.Adam([p])
    p.grad = ts.ones(2)
    optimizer.step()
    optimizer.state[p]["step"] = ts.tensor(9.0)
    optimizer.step()
    assert optimizer.state[p]["step"].item() == 10.0
    optimizer.state[p]["step"] = 4
    optimizer.step()
    assert optimizer.state[p]["step"].item() == 5.0

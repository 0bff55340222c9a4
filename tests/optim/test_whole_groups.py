"""A group of parameters is updated by one native call, bit for bit as its parameters one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.ops.fused_updates import FusedUpdate
from tensorsmith.targets.cpu.recipe import MOST_WORDS

OPTIMISERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1}),
    ("AdamW", {"lr": 0.1, "amsgrad": True}),
    ("NAdam", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "t0": 1}),
    ("RMSprop", {"lr": 0.1, "centered": True, "momentum": 0.5}),
    ("Rprop", {"lr": 0.1}),
    ("Lion", {"lr": 0.1}),
]
KINDS = [
    ((3, 4), "float32"),
    ((), "float32"),
    ((70, 33), "float64"),
    ((0, 2), "float32"),
    ((5,), "complex64"),
    ((9,), "bfloat16"),
]


def parameters():
    rng = np.random.default_rng(1)
    made = []
    for shape, dtype in KINDS:
        p = ts.tensor(np.asarray(rng.standard_normal(shape))).to(getattr(ts, dtype))
        made.append(ts.nn.Parameter(p.t() if len(shape) == 2 else p))
    return made


def trained(name, options, monkeypatch, one_by_one):
    def in_turn(self, columns, numbers):
        for row in zip(*columns):
            self(row, numbers)

    if one_by_one:
        monkeypatch.setattr(FusedUpdate, "on_all", in_turn)
    params = parameters()
    rng = np.random.default_rng(2)
    optimizer = getattr(ts.optim, name)(params, **options)
    for number in range(6):
        for i, p in enumerate(params):
            grad = ts.tensor(np.asarray(rng.standard_normal(p.shape))).to(p.dtype)
            p.grad = None if (i, number) == (2, 1) else grad  # from then on it has counted one step less
        versions = [p._version for p in params]
        optimizer.step()
        written = [p._version - before for p, before in zip(params, versions)]
        assert written == [0 if p.grad is None else 1 for p in params]
    monkeypatch.undo()
    state = [s[key] for p in params for s in [optimizer.state[p]] for key in sorted(s)]
    return [ts.view_as_real(t.detach()) if t.is_complex() else t.detach() for t in [*params, *state]]


@pytest.mark.parametrize(("name", "options"), OPTIMISERS)
def test_bits_are_those_of_single_updates(name, options, monkeypatch):
    together = trained(name, options, monkeypatch, False)
    in_turn = trained(name, options, monkeypatch, True)
    assert len(together) == len(in_turn) >= len(KINDS)
    for a, b in zip(together, in_turn):
        assert a.double().numpy().tobytes() == b.double().numpy().tobytes()


def test_threads_do_not_change_bits():
    found = []
    before = ts.get_num_threads()
    for threads in (1, 2):
        ts.set_num_threads(threads)
        params = [ts.nn.Parameter(ts.linspace(-1, 1, n)) for n in (200_000, 3, 70_000)]
        optimizer = ts.optim.AdamW(params)
        for _ in range(3):
            for p in params:
                p.grad = p.detach() * 3 + 1
            optimizer.step()
        found.append(b"".join(p.detach().numpy().tobytes() for p in params))
    ts.set_num_threads(before)
    assert found[0] == found[1]


def test_more_parameters_than_one_call_takes():
    count = MOST_WORDS // 3
    params = [ts.nn.Parameter(ts.full((2,), float(i))) for i in range(count)]
    optimizer = ts.optim.Adam(params, lr=1.0)
    for _ in range(3):
        for p in params:
            p.grad = ts.full((2,), 2.0)
        optimizer.step()
    values = np.array([p.detach().numpy() for p in params])
    np.testing.assert_allclose(values, np.arange(count)[:, None] - 3.0 * np.ones(2), atol=1e-3)


def test_state_and_memory_may_be_replaced_between_steps():
    """What a step refers to is looked up at every step."""
    found = []
    for lib in (ts, torch):
        p, q = lib.nn.Parameter(lib.ones(3)), lib.nn.Parameter(lib.ones(2))
        optimizer = lib.optim.Adam([p, q], lr=0.1)
        for number in range(6):
            p.grad, q.grad = lib.full((3,), 0.5), lib.full((2,), number - 2.0)
            if number == 3:
                optimizer.state[p]["exp_avg"] = lib.full((3,), 2.0)
                optimizer.state[q]["step"] = lib.tensor(10.0)
                q.data = lib.zeros(2)
            if number == 4:
                optimizer.state[p]["step"].fill_(1.0)
            if number == 5:
                optimizer.state.clear()
            optimizer.step()
        found.append([*p.tolist(), *q.tolist(), optimizer.state[p]["step"].item()])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_parameter_that_is_there_twice_is_updated_twice():
    found = []
    for lib in (ts, torch):
        p = lib.nn.Parameter(lib.ones(3))
        with pytest.warns(UserWarning, match="duplicate"):
            optimizer = lib.optim.Adam([p, p], lr=0.1, foreach=False)
        for _ in range(3):
            p.grad = lib.full((3,), 0.5)
            optimizer.step()
        found.append([*p.tolist(), optimizer.state[p]["step"].item()])
    np.testing.assert_allclose(*found, rtol=1e-5)

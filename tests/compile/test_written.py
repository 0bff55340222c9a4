"""Calls that are written out: they are used, they notice whatever the general way notices, and they do the same."""

import numpy as np
import pytest

import tensorsmith as ts

SCALE = 2.0


def short(compiled):
    """How many kinds of calls are written out."""
    return len(compiled._written)


def test_a_second_call_is_written_out_and_gives_new_memory():
    compiled = ts.compile(lambda x, y: (x * 2 + y, x.sum()))
    x, y = ts.arange(3.0), ts.ones(3)
    first = [compiled(x, y) for _ in range(4)]
    assert short(compiled) == 1
    assert len({each[0].data_ptr() for each in first}) == 4
    for a, b in first:
        assert (a.tolist(), b.item()) == ([1.0, 3.0, 5.0], 3.0)
    assert compiled(x, x)[0].tolist() == [0.0, 3.0, 6.0]  # arguments that share memory
    assert compiled(x, y + 1)[0].tolist() == [2.0, 4.0, 6.0]
    assert compiled(y=y, x=x)[0].tolist() == [1.0, 3.0, 5.0]


@pytest.mark.filterwarnings("ignore::tensorsmith.compile.compiled.RecompileWarning")
def test_whatever_changes_is_noticed():
    model = ts.nn.Sequential(ts.nn.Linear(2, 2), ts.nn.Dropout(1.0))
    model.eval()
    lists, cell = [1.0], 3.0

    def function(x):
        return model(x) * SCALE + lists[0] + cell

    compiled, x = ts.compile(function), ts.ones(1, 2)

    def check():
        for _ in range(3):
            with ts.no_grad():
                np.testing.assert_allclose(compiled(x).numpy(), function(x).numpy(), rtol=1e-6)
        assert compiled(x).requires_grad is function(x).requires_grad

    check()
    assert short(compiled) == 1
    model.train()
    check()
    model.eval()
    with ts.no_grad():
        model[0].weight.add_(1)
    check()
    model[0].weight = ts.nn.Parameter(ts.ones(2, 2))
    check()
    model[0].requires_grad_(False)
    check()
    model[1] = ts.nn.ReLU()
    check()
    globals()["SCALE"] = -1.0
    check()
    lists[0] = 5.0
    check()
    cell = 7.0
    check()
    ts.set_default_dtype(ts.float64)
    try:
        assert compiled(x).dtype is function(x).dtype
    finally:
        ts.set_default_dtype(ts.float32)
    x = ts.ones(3, 2)
    check()


def test_training_steps_are_written_out():
    found = []
    for wrap in (lambda f: f, ts.compile):
        ts.manual_seed(0)
        model = ts.nn.Sequential(ts.nn.Linear(4, 8), ts.nn.BatchNorm1d(8), ts.nn.Dropout(0.5), ts.nn.Linear(8, 3))
        optimizer = ts.optim.AdamW(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = ts.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        call, losses = wrap(step), []
        x, y = ts.randn(6, 4), ts.tensor([0, 1, 2, 0, 1, 2])
        for k in range(6):
            if k == 4:
                optimizer.param_groups[0]["lr"] = 0.01
            losses.append(call(x, y).item())
        assert not isinstance(call, ts.compile.__globals__["Compiled"]) or short(call) == 1
        found.append([*losses, *(p.detach().numpy().ravel() for p in model.parameters()),
                      *(p.grad.numpy().ravel() for p in model.parameters())])  # fmt: skip
    for a, b in zip(*found):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=1e-6)


def test_a_call_that_raises_has_drawn_nothing_and_changed_nothing():
    state = ts.zeros(2)

    def function(x, index):
        state.add_(1)
        return ts.rand(2) + x[index]

    compiled, x = ts.compile(function), ts.arange(3.0)
    for _ in range(3):
        compiled(x, ts.tensor([0, 1]))
    assert short(compiled) == 1
    before = ts.get_rng_state()
    with pytest.raises(IndexError):
        compiled(x, ts.tensor([0, 9]))
    assert ts.equal(ts.get_rng_state(), before)
    assert state.tolist() == [3.0, 3.0]


def test_tracked_arguments_and_second_uses():
    compiled = ts.compile(lambda x: (x * x).sum())
    for k in range(4):
        x = ts.tensor([1.0, 2.0 + k], requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [2.0, 4.0 + 2 * k]
        (compiled(x * 1) * 2).backward()  # not a leaf
        assert x.grad.tolist() == [6.0, 12.0 + 6 * k]

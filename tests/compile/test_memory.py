"""Memory of compiled steps: gradients lie where those of the step before lay, and nothing is allocated once a step has run."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.targets.cpu import memory


def make_step(clear: bool = True) -> tuple[Any, ts.nn.Module]:
    ts.manual_seed(0)
    model = ts.nn.Sequential(ts.nn.Linear(6, 40), ts.nn.ReLU(), ts.nn.Linear(40, 3))
    optimizer = ts.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @ts.compile
    def step(x: ts.Tensor, labels: ts.Tensor) -> ts.Tensor:
        if clear:
            optimizer.zero_grad()
        loss = ts.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


X, LABELS = ts.arange(30.0).reshape(5, 6) / 10, ts.tensor([0, 1, 2, 0, 1])


def test_new_gradients_lie_where_the_old_ones_lay() -> None:
    step, model = make_step()
    step(X, LABELS)
    places = [p.grad.data_ptr() for p in model.parameters()]
    values = [p.grad.tolist() for p in model.parameters()]
    step(X, LABELS)
    assert [p.grad.data_ptr() for p in model.parameters()] == places
    assert [p.grad.tolist() for p in model.parameters()] != values
    assert all(p.grad._version == 0 for p in model.parameters())


@pytest.mark.parametrize("hold", [lambda g: g, lambda g: g.numpy(), lambda g: g.view(-1), np.asarray])
def test_gradients_that_somebody_holds_keep_their_values(hold: Any) -> None:
    step, model = make_step()
    step(X, LABELS)
    parameter = next(model.parameters())
    held = hold(parameter.grad)
    before = np.array(held)
    step(X, LABELS)
    assert (np.array(held) == before).all()
    assert not (parameter.grad.numpy().ravel() == before.ravel()).all()


def test_a_step_that_raises_leaves_the_gradients() -> None:
    step, model = make_step()
    step(X, LABELS)
    before = [(p.grad, p.grad.tolist()) for p in model.parameters()]
    held = [id(grad) for grad, _ in before]
    values = [value for _, value in before]
    del before
    with pytest.raises(IndexError):
        step(X, LABELS + 2)
    assert [id(p.grad) for p in model.parameters()] == held
    assert [p.grad.tolist() for p in model.parameters()] == values


def test_gradients_are_kept_where_a_later_step_may_raise() -> None:
    ts.manual_seed(0)
    layer = ts.nn.Linear(4, 4)

    @ts.compile
    def step(x: ts.Tensor, divisor: ts.Tensor) -> ts.Tensor:
        layer.zero_grad()
        layer(x).sum().backward()
        return ts.tensor([7, 8]) // divisor

    step(ts.ones(2, 4), ts.tensor([1, 2]))
    before = layer.weight.grad.tolist()
    with pytest.raises(RuntimeError, match="division"):
        step(ts.ones(2, 4) * 3, ts.tensor([1, 0]))
    assert layer.weight.grad.tolist() == before


def test_a_plan_keeps_no_gradients_of_the_time_it_was_traced() -> None:
    step, model = make_step()
    step(X, LABELS)
    old = weakref.ref(next(model.parameters()).grad.storage)
    step(X[:3], LABELS[:3])  # traced while there are gradients
    model.zero_grad()
    assert old() is None


def test_gradients_that_are_added_to_stay_where_they_are() -> None:
    step, model = make_step(clear=False)
    step(X, LABELS)
    step(X, LABELS)
    held = next(model.parameters()).grad
    before = held.tolist()
    step(X, LABELS)
    assert next(model.parameters()).grad.data_ptr() == held.data_ptr()
    assert held.tolist() != before


def test_nothing_is_allocated_once_a_step_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = make_step()
    for _ in range(3):
        step(X, LABELS)
    asked: list[int] = []
    carve, map_block = memory._carve, memory._map_block
    monkeypatch.setattr(memory, "_carve", lambda size, free: asked.append(size) or carve(size, free))
    monkeypatch.setattr(memory, "_map_block", lambda size, nbytes: asked.append(size) or map_block(size, nbytes))
    before = memory.memory_stats()["allocated"]
    for _ in range(5):
        step(X, LABELS)
    assert not asked
    assert memory.memory_stats()["allocated"] == before


def test_objects_of_python_do_not_add_up() -> None:
    step, _ = make_step()
    for _ in range(5):
        step(X, LABELS)
    tracemalloc.start()
    try:
        step(X, LABELS)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            step(X, LABELS)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 50 * 64  # an object a step would be more
    finally:
        tracemalloc.stop()


def test_the_block_of_temporaries_goes_back_when_a_run_ends() -> None:
    @ts.compile
    def f(x: ts.Tensor) -> ts.Tensor:
        return (x @ x.T).softmax(-1) @ x

    x = ts.ones(700, 512)
    f(x)
    assert f.plans[0].plan.workspace_bytes > 1 << 20
    before = memory.memory_stats()["allocated"]
    f(x)
    assert memory.memory_stats()["allocated"] == before
    assert memory.empty_cache() >= f.plans[0].plan.workspace_bytes


def test_steps_in_several_threads_have_their_own_gradients() -> None:
    made = [make_step() for _ in range(3)]
    alone, model = make_step()
    for _ in range(20):
        alone(X, LABELS)
    expected = [p.grad.tolist() for p in model.parameters()]

    def work(step: Any) -> None:
        for _ in range(20):
            step(X, LABELS)

    threads = [threading.Thread(target=work, args=(step,)) for step, _ in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, each in made:
        assert [p.grad.tolist() for p in each.parameters()] == expected

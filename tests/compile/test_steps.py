"""Training steps as one program: schedules, options, generators and failures, beside the same steps run eagerly."""

import warnings

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.compile.compiled import BreakWarning
from tensorsmith.compile.tracer import TraceError, ValueNeeded
from tensorsmith.targets.cpu.memory import memory_stats

optim, schedules = ts.optim, ts.optim.lr_scheduler


def training(make_optimizer, make_schedule, first=False, inside=True):
    """(step, state) of a small regression."""
    ts.manual_seed(0)
    model = ts.nn.Linear(3, 2)
    optimizer = make_optimizer(model.parameters())
    schedule = make_schedule(optimizer)

    def step(x):
        if first and inside:
            schedule.step()
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        if inside and not first:
            schedule.step()
        return loss.detach()

    def state():
        rates = [group["lr"] for group in optimizer.param_groups]
        return [p.tolist() for p in model.parameters()], [float(r) for r in rates], schedule

    return step, state


SCHEDULES = {
    "step": (lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9), lambda o: schedules.StepLR(o, 2, 0.5)),
    "one cycle": (
        lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True), lambda o: schedules.OneCycleLR(o, 0.05, total_steps=12)
    ),
    "cyclic": (
        lambda ps: optim.AdamW(ps, lr=0.05), lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=False)
    ),
    "one cycle of betas": (lambda ps: optim.Adam(ps, lr=0.05), lambda o: schedules.OneCycleLR(o, 0.05, total_steps=12)),
    "chained": (
        lambda ps: optim.RMSprop(ps, lr=0.05),
        lambda o: schedules.ChainedScheduler([schedules.ExponentialLR(o, 0.8), schedules.ConstantLR(o, 0.5, 2)]),
    ),
    "one after the other": (
        lambda ps: optim.SGD(ps, lr=0.05),
        lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.1), schedules.StepLR(o, 1, 0.7)], [3]),
    ),
    "of a tensor": (lambda ps: optim.Adam(ps, lr=ts.tensor(0.05)), lambda o: schedules.StepLR(o, 2, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_new_rate_takes_effect_without_a_new_plan(name, inside):
    step, state = training(*SCHEDULES[name], inside=inside)
    compiled_step, compiled_state = training(*SCHEDULES[name], inside=inside)
    compiled, x = ts.compile(compiled_step), ts.ones(4, 3) / 4
    for _ in range(6):
        losses = step(x).item(), compiled(x).item()
        if not inside:
            for each in (state, compiled_state):
                each()[-1].step()
        eager, ours = state(), compiled_state()
        np.testing.assert_allclose(*losses, rtol=1e-5)
        assert ours[1] == pytest.approx(eager[1], rel=1e-12)
        for a, b in zip(eager[0], ours[0]):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    assert len(compiled.plans) == 1  # state that the first step makes is there for all


def test_a_schedule_that_steps_first_and_a_measured_one():
    make = SCHEDULES["step"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's about the order
        step, state = training(*make, first=True)
        compiled_step, compiled_state = training(*make, first=True)
        compiled = ts.compile(compiled_step)
        for _ in range(5):
            np.testing.assert_allclose(step(ts.ones(1, 3)).item(), compiled(ts.ones(1, 3)).item(), rtol=1e-5)
    assert state()[1] == compiled_state()[1]
    measured = schedules.ReduceLROnPlateau(optim.SGD([ts.ones(2).requires_grad_()], lr=1.0))
    with pytest.raises(ValueNeeded, match=r"ReduceLROnPlateau.step\(\) needs the value of a tensor"):
        ts.compile(lambda x: measured.step(x.sum()))(ts.ones(2))


def test_other_options_are_another_plan_and_several_steps_count():
    def make():
        w = ts.ones(3, requires_grad=True)
        optimizer = optim.Adam([w], lr=0.1)

        def step(x):
            for _ in range(3):
                optimizer.zero_grad()
                (w * x).pow(2).sum().backward()
                optimizer.step()

        return w, optimizer, step

    (w, optimizer, step), (v, other, compiled_step) = make(), make()
    compiled = ts.compile(compiled_step)
    for decay in (0.0, 0.0, 0.1):
        optimizer.param_groups[0]["weight_decay"] = other.param_groups[0]["weight_decay"] = decay
        step(ts.ones(3)), compiled(ts.ones(3))
        np.testing.assert_allclose(w.tolist(), v.tolist(), rtol=1e-5)
    assert other.state[v]["step"].item() == 9.0


@pytest.mark.parametrize("make", [
    lambda ps: optim.NAdam(ps, lr=0.05), lambda ps: optim.ASGD(ps, lr=0.05, t0=1, lambd=0.1),
    lambda ps: optim.RAdam(ps, lr=0.05),
], ids=["NAdam", "ASGD", "RAdam"])  # fmt: skip
def test_several_steps_of_optimisers_whose_numbers_follow_from_the_step_before(make):
    found = []
    for compiles in (lambda f: f, ts.compile):
        w = ts.tensor([1.0, -2.0, 3.0], requires_grad=True)
        optimizer = make([w])
        schedule = schedules.ExponentialLR(optimizer, 0.8)

        def step(x, w=w, optimizer=optimizer, schedule=schedule):
            for _ in range(3):
                optimizer.zero_grad()
                (w * x).pow(2).sum().backward()
                optimizer.step()
                schedule.step()

        compiled = compiles(step)
        for k in range(4):
            compiled(ts.full((3,), 1.0 + k))
        found.append((w.tolist(), {name: t.tolist() for name, t in optimizer.state[w].items()}))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(value, found[1][1][name], rtol=1e-6)


# --- failures -----------------------------------------------------------------------------------------------------------


class Training:
    """Embedding, batch norm, dropout, momentum and a schedule: everything that a failing step might leave changed."""

    def __init__(self):
        ts.manual_seed(0)
        nn = ts.nn
        self.table, self.norm, self.drop, self.out = nn.Embedding(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)
        self.parameters = [*self.table.parameters(), *self.norm.parameters(), *self.out.parameters()]
        self.optimizer = optim.SGD(self.parameters, lr=0.1, momentum=0.9)
        self.schedule = schedules.ExponentialLR(self.optimizer, 0.9)
        self.calls, self.seen = ts.zeros(()), ts.zeros(4)

    def step(self, words, labels):
        self.calls.add_(1)
        self.optimizer.zero_grad()
        hidden = self.drop(self.norm(self.table(words)))
        self.seen += hidden.detach().sum(0)
        loss = ts.nn.functional.cross_entropy(self.out(hidden), labels)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def state(self):
        tensors = [*self.parameters, *self.norm.buffers(), self.calls, self.seen]
        tensors += [p.grad for p in self.parameters if p.grad is not None]
        tensors += [s["momentum_buffer"] for s in self.optimizer.state.values()]
        rest = [self.optimizer.param_groups[0]["lr"], self.schedule.last_epoch, ts.default_generator.offset]
        return [t.tolist() for t in tensors], [t._version for t in tensors], rest


GOOD = (ts.tensor([0, 3, 4]), ts.tensor([0, 2, 1]))
BAD = {"label": (GOOD[0], ts.tensor([0, 3, 1])), "word": (ts.tensor([0, 5, 1]), GOOD[1])}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at_first", [True, False], ids=["first run", "later"])
def test_a_step_that_raises_has_changed_nothing(bad, at_first):
    training = Training()
    compiled = ts.compile(training.step)
    if not at_first:
        for _ in range(3):
            compiled(*GOOD)
    before = training.state()
    for _ in range(2):
        with pytest.raises(IndexError, match="index [35] at position .* is out of bounds for dimension with size [35]"):
            compiled(*BAD[bad])
        assert str(training.state()) == str(before)
    other = Training()
    for _ in range(0 if at_first else 3):
        other.step(*GOOD)
    ts.default_generator.offset = before[2][2]
    compiled(*GOOD)
    offset = ts.default_generator.offset
    ts.default_generator.offset = before[2][2]
    other.step(*GOOD)
    assert offset == ts.default_generator.offset
    for a, b in zip(training.state()[0], other.state()[0]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_checks_that_come_after_a_write_in_the_function():
    total, count = ts.zeros(3), ts.ones(3, dtype=ts.int64)
    d = ts.ones(3, dtype=ts.int64)

    def function(x, i):
        total.add_(x)
        picked = total[i]  # of what was just written
        count.floor_divide_(d)
        return picked * 2

    compiled = ts.compile(function)
    assert compiled(ts.ones(3), ts.tensor([2])).tolist() == [2.0]
    with pytest.raises(IndexError):
        compiled(ts.ones(3), ts.tensor([3]))
    d[1] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(ts.ones(3), ts.tensor([0]))
    assert total.tolist() == [1.0] * 3 and count.tolist() == [1] * 3
    d[1] = 1
    assert compiled(ts.ones(3), ts.tensor([0])).tolist() == [4.0]


def test_the_steady_state_asks_the_system_for_nothing():
    training = Training()
    compiled, reserved = ts.compile(training.step), []
    for _ in range(6):
        compiled(*GOOD)
        reserved.append(memory_stats()["reserved"])
    assert len(set(reserved[2:])) == 1
    memory = compiled.plans[0].plan.memory
    assert memory.bound <= memory.temporaries <= memory.without_reuse and memory.in_place >= len(training.parameters) * 2


# --- values that Python needs ------------------------------------------------------------------------------------------


def decide(x):
    y = x.sum()
    if y > 0:  # the line
        return x * 2
    return x - 1


def test_a_decision_on_values_names_the_line_and_the_ways_out():
    with pytest.raises(TraceError) as caught:
        ts.compile(decide)(ts.ones(2))
    for part in ("test_steps.py", "if y > 0:  # the line", "ts.where(", "ts.cond(", "ts.while_loop(", "allow_breaks=True"):
        assert part in str(caught.value)


def test_breaks_that_are_allowed_are_announced_once_and_run_eagerly():
    compiled = ts.compile(decide, allow_breaks=True)
    with pytest.warns(BreakWarning, match=r"decide runs eagerly: the value of a tensor is needed at .*if y > 0:  # the line"):
        assert compiled(ts.ones(2)).tolist() == [2.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(-ts.ones(2)).tolist() == [-2.0, -2.0]
        assert compiled(ts.ones(3)).tolist() == [2.0] * 3
    assert not compiled.plans


def test_a_schedule_that_steps_under_a_transform_leaves_the_transform_on():
    weight = ts.nn.Parameter(ts.ones(2))
    optimizer = ts.optim.SGD([weight], lr=1.0)
    scheduler = ts.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    weight.grad = ts.zeros(2)
    optimizer.step()

    def loss(y):
        scheduler.step()
        return (y * y).sum()

    gradient = ts.compile(ts.func.grad(loss))
    assert gradient(ts.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert gradient(ts.tensor([3.0, 4.0])).tolist() == [6.0, 8.0]
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_an_update_that_waits_for_the_end_keeps_its_memory_until_then():
    def step(x, w):
        x.copy_(x @ w)
        z = (x + 1) @ w  # the last reader of the new value, of the same shape
        return z[z[:2, 0].long() % 4]  # may fail, so the update waits

    w = ts.eye(4) * 2
    found, expected = ts.ones(4, 4), ts.ones(4, 4)
    assert ts.compile(step)(found, w).tolist() == step(expected, w).tolist()
    assert found.tolist() == expected.tolist() == (ts.ones(4, 4) * 2).tolist()


@pytest.mark.parametrize("steps", [True, False])
def test_a_parameter_that_is_also_an_argument_is_the_one_that_is_stepped(steps):
    def trained(compiled):
        parameters = [ts.nn.Parameter(ts.tensor([1.0, 2.0])) for _ in range(2)]
        optimizers = [optim.Adam([each], lr=0.1) for each in parameters]

        def step(x, optimizer):
            optimizer.zero_grad()
            (x * x).sum().backward()
            if steps:
                optimizer.step()

        run = ts.compile(step) if compiled else step
        for _ in range(3):
            for x, optimizer in zip(parameters, optimizers):
                run(x, optimizer)
        return [(x.tolist(), x.grad.tolist()) for x in parameters]

    assert trained(True) == trained(False)

"""What a compiled function makes of its weights once follows every write of them, by whatever door it comes."""

import ctypes
from threading import Thread

import numpy as np
import pytest

import tensorsmith as ts

F = ts.nn.functional


class Model(ts.nn.Module):
    """A folded scale, a packed product, a cast, a Winograd convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = ts.nn.Conv2d(16, 16, 3, padding=1)
        self.linear = ts.nn.Linear(64, 48)
        self.gain = ts.nn.Parameter(ts.rand(48, 1))
        self.register_buffer("offset", ts.randn(48, dtype=ts.float64))

    def forward(self, x):
        y = self.conv(x.reshape(1, 16, 32, 32)).relu().reshape(256, 64)
        return F.linear(y, self.linear.weight * self.gain, self.linear.bias) + self.offset.float().exp()


def compiled(model):
    ts.manual_seed(0)
    x = ts.randn(256, 64)
    run = ts.compile(model)

    def check() -> None:
        with ts.no_grad():
            for _ in range(2):
                np.testing.assert_allclose(run(x).numpy(), model(x).numpy(), rtol=2e-4, atol=2e-4)

    check()
    return run, check


def plan_of(run):
    return run.plans[0].plan


def test_weights_are_prepared_once_and_reported():
    run, check = compiled(Model())
    steps = [step.name for step in plan_of(run).steps]
    assert not {"packed_right", "winograd_weight"} & set(steps) and any(step.startswith("matmul") for step in steps)
    kept = plan_of(run).memory.kept
    assert kept >= 48 * 64 * 4 and kept == plan_of(run).prepared.nbytes
    made = []
    for maker in plan_of(run).prepared.makers:
        maker.plan.run = lambda words, run=maker.plan.run: (made.append(1), run(words))
    check()
    assert not made


def test_only_what_is_made_of_a_written_weight_is_made_again():
    model = Model()
    run, check = compiled(model)
    made = []
    for number, maker in enumerate(plan_of(run).prepared.makers):
        maker.plan.run = lambda words, run=maker.plan.run, number=number: (made.append(number), run(words))
    model.offset.add_(1)
    check()
    assert len(made) == 1


def writes(model):
    weight = model.linear.weight

    def step() -> None:
        model(ts.randn(256, 64)).square().sum().backward()
        ts.optim.SGD(model.parameters(), lr=1e-7).step()

    def fused_step() -> None:
        model(ts.randn(256, 64)).square().sum().backward()
        ts.optim.Adam(model.parameters(), lr=1e-3).step()

    def compiled_update() -> None:
        with ts.no_grad():
            ts.compile(lambda: weight.mul_(1.25))()

    def by_numpy() -> None:
        weight.detach().numpy()[3, 4] += 2

    def by_address() -> None:
        ctypes.c_float.from_address(weight.data_ptr()).value = 3.0

    def loaded() -> None:
        model.load_state_dict({name: value + 0.5 for name, value in model.state_dict().items()})

    def assigned() -> None:
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()}, assign=True)

    def data() -> None:
        weight.data.mul_(0.5)

    def replaced() -> None:
        weight.data = ts.randn(48, 64)

    def parameter() -> None:
        model.gain = ts.nn.Parameter(ts.rand(48, 1))

    def view() -> None:
        with ts.no_grad():
            weight.view(-1)[5:9].fill_(2.0)

    def several() -> None:
        with ts.no_grad():
            model.gain.mul_(3), model.conv.weight.add_(0.01), model.offset.zero_()

    return [
        step, fused_step, compiled_update, by_numpy, loaded, data, replaced, view, several, assigned, parameter, by_address,
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(12))
def test_every_write_is_seen(number: int):
    model = Model()
    _, check = compiled(model)
    writes(model)[number]()
    check()
    writes(model)[number]()
    check()


def test_writes_through_what_was_lent_before_are_seen():
    model = Model()
    array, alias = model.linear.weight.detach().numpy(), model.gain.data
    run, check = compiled(model)
    for _ in range(3):
        array[1, 2] += 1
        check()
        alias.mul_(2)
        check()
    del array, alias


def test_writes_through_what_is_lent_later_are_seen():
    model = Model()
    run, check = compiled(model)
    array = model.conv.weight.detach().numpy()
    for _ in range(3):
        array[1, 2] += 1
        check()


def test_memory_of_numpy_is_compared_or_not_kept():
    array = np.ones((64, 64), np.float32)
    weight = ts.from_numpy(array)
    run = ts.compile(lambda x: x @ weight)
    x = ts.ones(32, 64)
    for value in (1, 2, 3):
        array[...] = value
        assert run(x).numpy()[0, 0] == 64 * value
    assert run.plans[0].plan.prepared is None


def test_results_are_new_memory_at_every_run():
    weight = ts.ones(64, 64)
    run = ts.compile(lambda x: (x @ (weight * 2), weight * 2, (weight * 2).T))
    x = ts.ones(32, 64)
    for _ in range(2):
        product, double, turned = run(x)
        assert (product == 128).all() and (double == 2).all() and (turned == 2).all()
        double.zero_(), turned.zero_()


def test_what_is_much_larger_than_what_it_is_made_of_is_not_kept():
    a, b = ts.rand(2000), ts.rand(2000)
    run = ts.compile(lambda x: ((a[:, None] * b).exp() * x).sum(1))
    x = ts.rand(2000)
    np.testing.assert_allclose(run(x).numpy(), ((a[:, None] * b).exp() * x).sum(1).numpy(), rtol=1e-5)
    assert run.plans[0].plan.memory.kept < 1 << 20


def test_with_gradients_nothing_is_kept():
    linear = ts.nn.Linear(64, 64)
    run = ts.compile(linear)
    run(ts.rand(32, 64)).sum().backward()
    assert run.plans[0].plan.prepared is None and run.plans[0].plan.memory.kept == 0


def test_of_a_training_step_only_frozen_weights_are_kept():
    frozen, trained = ts.nn.Linear(64, 64).requires_grad_(False), ts.nn.Linear(64, 64)

    def backward(x):
        loss = trained(frozen(x)).square().mean()
        loss.backward()
        return loss.detach()

    run, x = ts.compile(backward), ts.rand(32, 64)
    for factor in (1.0, 2.0):
        with ts.no_grad():
            trained.weight.mul_(factor), frozen.weight.mul_(factor)
        trained.zero_grad()
        found = run(x), trained.weight.grad.clone()
        trained.zero_grad()
        for ours, eager in zip(found, (backward(x), trained.weight.grad)):
            np.testing.assert_allclose(ours.numpy(), eager.numpy(), rtol=1e-4, atol=1e-6)
    assert len(run.plans[0].plan.prepared.inputs) == 1


def test_an_error_while_values_are_made_leaves_them_unmade():
    table, index = ts.rand(20, 64), ts.tensor([1, 30])
    run = ts.compile(lambda x: x @ table[index].T)
    x = ts.rand(32, 64)
    for _ in range(2):
        with pytest.raises(IndexError, match="out of bounds"):
            run(x)
    index[1] = 3
    np.testing.assert_allclose(run(x).numpy(), (x @ table[index].T).numpy(), rtol=1e-5)


def test_several_threads_share_what_is_kept():
    model = Model()
    run, check = compiled(model)
    x = ts.randn(256, 64)
    for _ in range(3):
        with ts.no_grad():
            model.gain.mul_(1.1)
            wanted = model(x).numpy()
        found: list[np.ndarray] = []

        def work(found=found) -> None:
            with ts.no_grad():
                found.extend(run(x).numpy() for _ in range(5))

        threads = [Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 15
        for each in found:
            np.testing.assert_allclose(each, wanted, rtol=2e-4, atol=2e-4)
            assert np.array_equal(each, found[0])


def test_kept_memory_goes_back_with_the_plan():
    import gc
    import weakref

    linear = ts.nn.Linear(64, 64)
    run = ts.compile(linear)
    with ts.no_grad():
        run(ts.rand(32, 64))
    prepared = plan_of(run).prepared
    free = ts.targets.cpu.memory.free_list(prepared.nbytes)
    address, gone = prepared._address, weakref.ref(prepared)
    assert address and address not in free
    del run, prepared
    gc.collect()
    assert gone() is None and address in free

"""Compiled functions and training steps on a device, beside the same on the CPU; on the emulated device."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.runtime.plan import Plan

F = ts.nn.functional


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


RNG = np.random.default_rng(0)
X = RNG.standard_normal((9, 12)).astype(np.float32)
Y = np.arange(9) % 4


def replays():
    """Graphs of plans that are alive."""
    plans = [each for each in gc.get_objects() if isinstance(each, Plan) and each.replays is not None]
    return [graph for plan in plans for graph in plan.replays.graphs.values()]


def losses(device, optimiser, compiled, changing=False, steps=6):
    """A perceptron with dropout, trained some steps."""
    ts.manual_seed(0)
    model = ts.nn.Sequential(ts.nn.Linear(12, 16), ts.nn.ReLU(), ts.nn.Dropout(0.25), ts.nn.Linear(16, 4)).to(device)
    optimizer = optimiser(model.parameters())
    x, y = ts.tensor(X, device=device), ts.tensor(Y, device=device)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = ts.compile(step) if compiled else step
    found, kept = [], []
    for number in range(steps):
        if changing:
            kept.append(x)  # so that the next one lies elsewhere
            x = x * (1 + 0.01 * number)
        found.append(run(x, y).item())
    if compiled and device != "cpu":
        assert replays(), "the step did not run as a graph"
    state = [value.tolist() for each in optimizer.state.values() for name, value in each.items() if name == "step"]
    return found, state


OPTIMISERS = {
    "sgd": lambda parameters: ts.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: ts.optim.Adam(parameters, 1e-2),
    "nadam": lambda parameters: ts.optim.NAdam(parameters, 1e-2),
}


@pytest.mark.parametrize("changing", [False, True], ids=["same", "changing"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_steps(name, compiled, changing):
    expected = losses("cpu", OPTIMISERS[name], False, changing)
    gc.collect()
    found = losses("cuda", OPTIMISERS[name], compiled, changing)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    assert found[1] == expected[1]


def test_a_replay_reads_what_lies_elsewhere_and_other_numbers():
    w = ts.tensor(X.T, device="cuda")
    f = ts.compile(lambda x, scale: (((x @ w).tanh() * scale).softmax(1) @ x).sum(0).relu().cumsum(0))
    cpu = lambda x, scale: (((x @ w.cpu()).tanh() * scale).softmax(1) @ x).sum(0).relu().cumsum(0)  # noqa: E731
    kept = []
    for number in range(6):
        x = ts.tensor(X + number, device="cuda")
        kept.append(x)
        np.testing.assert_allclose(f(x, 0.5 + number).cpu().numpy(), cpu(x.cpu(), 0.5 + number).numpy(), rtol=1e-4, atol=1e-5)


def test_results_of_a_replay_are_tensors_of_their_own():
    f = ts.compile(lambda x: ((x @ x.t()).exp().sum(0) / 7).log().cumsum(0))
    x = ts.tensor(X, device="cuda")
    results = [f(x * k) for k in (0.1, 0.2, 0.3, 0.4)]
    expected = [((x * k).cpu() @ (x * k).cpu().t()).exp().sum(0).div(7).log().cumsum(0) for k in (0.1, 0.2, 0.3, 0.4)]
    for found, wanted in zip(results, expected):
        np.testing.assert_allclose(found.cpu().numpy(), wanted.numpy(), rtol=1e-5)


def test_streams_have_graphs_of_their_own():
    f = ts.compile(lambda x: ((x @ x.t()).exp().sum(0) / 7).log().cumsum(0))
    x = ts.tensor(X, device="cuda")
    expected = f(x).tolist()
    for stream in (ts.cuda.Stream(), ts.cuda.Stream(), ts.cuda.default_stream()):
        for _ in range(3):
            with ts.cuda.stream(stream):
                assert f(x).tolist() == expected


def test_a_function_of_two_devices_is_refused():
    w = ts.ones(12)
    f = ts.compile(lambda x: x * w)
    with pytest.raises(RuntimeError, match="same device, but found at least two devices"):
        f(ts.tensor(X, device="cuda"))
    g = ts.compile(lambda x: (x + 1).to("cuda"))
    with pytest.raises(NotImplementedError, match="move the tensor before the call"):
        g(ts.tensor(X))


def test_a_program_traced_for_one_device_is_traced_anew_for_another():
    f = ts.compile(lambda x: x.exp().sum())
    assert f(ts.ones(3)).device == "cpu"
    assert f(ts.ones(3, device="cuda")).device == "cuda:0"
    assert f(ts.ones(3, device="cuda:1")).device == "cuda:1"
    assert f(ts.ones(3)).device == "cpu"


def test_an_index_out_of_range_is_told_where_the_host_waits():
    f = ts.compile(lambda x, i: (x[i].exp().sum(0) / 3).cumsum(0))
    x = ts.tensor(X, device="cuda")
    f(x, ts.tensor([0, 8], device="cuda"))
    result = f(x, ts.tensor([0, 9], device="cuda"))
    with pytest.raises(IndexError, match="out of bounds for dimension with size 9"):
        result.cpu()
    f(x, ts.tensor([0, 8], device="cuda")).cpu()


def test_explain_shows_the_launches_of_the_device():
    x = ts.tensor(X, device="cuda")
    found = ts.explain(lambda x: (x @ x.t()).softmax(1), x)
    assert "threads" in found.kernel() and "__global__" in found.cuda()
    assert "Emulated device (cuda:0)" in found.time()


def test_images_of_halves():
    """Convolutions, normalisation, a residual: values lie with their channels last in between."""

    def train(device):
        ts.manual_seed(0)
        layers = ts.nn.Conv2d(8, 8, 3, 1, 1, bias=False), ts.nn.BatchNorm2d(8)
        model = ts.nn.Sequential(*layers).to(ts.bfloat16).to(device)
        optimizer = ts.optim.SGD(model.parameters(), 0.1)
        x = ts.tensor(RNG_IMAGES, dtype=ts.bfloat16, device=device)

        @ts.compile
        def step(x):
            optimizer.zero_grad()
            loss = ((model(x) + x).relu().float() ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        found = [step(x).item() for _ in range(3)]
        return found, [parameter.grad.stride() for parameter in model.parameters()]

    found, strides = train("cuda")
    expected, their_strides = train("cpu")
    np.testing.assert_allclose(found, expected, rtol=2e-2)
    assert strides == their_strides


RNG_IMAGES = RNG.standard_normal((2, 8, 6, 6)).astype(np.float32)


def test_a_plan_is_verified_where_its_tensors_are():
    def f(x, y):
        return F.softmax(x @ y, -1).sum(0), x.t() * 2

    x, y = ts.tensor(X, device="cuda"), ts.tensor(X.T.copy(), device="cuda")
    for got, wanted in zip(ts.compile(f, verify=True)(x, y), f(x, y)):
        assert got.device.type == "cuda"
        np.testing.assert_allclose(got.cpu().numpy(), wanted.cpu().numpy(), rtol=1e-5)


def test_a_captured_value_that_is_read_is_compared_at_every_call():
    scale, x = ts.tensor(2.0, device="cuda"), ts.ones(3, device="cuda")
    f = ts.compile(lambda x: x * scale.item())
    assert f(x).tolist() == [2.0] * 3
    scale.fill_(3)
    assert f(x).tolist() == [3.0] * 3 and f(x).tolist() == [3.0] * 3

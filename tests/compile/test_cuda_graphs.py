"""CUDA graphs by hand, on the emulated device: what is captured, what replays write, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tensorsmith as ts


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def on_device(*shape, seed=0, **options):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return ts.tensor(values, device="cuda", **options)


def test_replays_over_the_same_memory():
    x = on_device(4, 5)
    f = lambda: (x * 2).sum(1) + 1  # noqa: E731
    f()
    g = ts.cuda.CUDAGraph()
    with ts.cuda.graph(g):
        assert ts.cuda.is_current_stream_capturing()
        y = f()
    assert not ts.cuda.is_current_stream_capturing()
    for seed in range(3):
        x.copy_(on_device(4, 5, seed=seed))
        g.replay()
        np.testing.assert_allclose(y.cpu().numpy(), x.cpu().numpy().sum(1) * 2 + 1, rtol=1e-5)


def test_memory_of_a_graph_serves_nothing_else():
    x = on_device(1000)
    x * 2 + 1  # noqa: B018
    g = ts.cuda.CUDAGraph()
    with ts.cuda.graph(g):
        y = x * 2 + 1
    others = [on_device(1000, seed=k) * 3 for k in range(8)]
    g.replay()
    assert len({t.ptr for t in (y, *others)}) == 9
    np.testing.assert_allclose(y.cpu().numpy(), x.cpu().numpy() * 2 + 1, rtol=1e-6)


def test_a_whole_training_step():
    ts.manual_seed(0)
    model = ts.nn.Sequential(ts.nn.Linear(6, 8), ts.nn.ReLU(), ts.nn.Linear(8, 3)).to("cuda")
    twin = ts.nn.Sequential(ts.nn.Linear(6, 8), ts.nn.ReLU(), ts.nn.Linear(8, 3)).to("cuda")
    twin.load_state_dict(model.state_dict())
    x, y = on_device(5, 6), ts.tensor([0, 2, 1, 1, 0], device="cuda")

    def step(net, optimizer):
        optimizer.zero_grad(set_to_none=False)
        loss = ts.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    first, second = ts.optim.SGD(model.parameters(), lr=0.1), ts.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        step(model, first), step(twin, second)
    g = ts.cuda.CUDAGraph()
    with ts.cuda.graph(g):
        step(model, first)
    for _ in range(3):
        g.replay()
        step(twin, second)
    for a, b in zip(model.parameters(), twin.parameters()):
        np.testing.assert_allclose(a.detach().cpu().numpy(), b.detach().cpu().numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_refused():
    g = ts.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        g.replay()
    with pytest.raises(RuntimeError, match="non-default stream"):
        g.capture_begin()
    with pytest.raises(RuntimeError, match="capture_end"):
        g.capture_end()
    x = on_device(3)
    x * 2  # noqa: B018
    with pytest.raises(RuntimeError, match="random numbers"), ts.cuda.graph(g):
        ts.rand(3, device="cuda")
    with pytest.raises(ValueError, match="capture_error_mode"), ts.cuda.graph(g, capture_error_mode="all"):
        pass
    assert not ts.cuda.is_current_stream_capturing()
    with ts.cuda.graph(g):
        y = x * 2
    with pytest.raises(RuntimeError, match=r"reset\(\) it first"), ts.cuda.graph(g):
        pass
    g.replay()
    np.testing.assert_allclose(y.cpu().numpy(), x.cpu().numpy() * 2)
    g.reset()
    with pytest.raises(RuntimeError, match="without a preceding"):
        g.replay()


def test_graphs_that_share_memory():
    x = on_device(64)
    x + 1, x * 3  # noqa: B018
    first, second = ts.cuda.CUDAGraph(), ts.cuda.CUDAGraph()
    with ts.cuda.graph(first):
        y = x + 1
    with ts.cuda.graph(second, pool=first.pool()):
        z = y * 3
    first.replay()
    second.replay()
    np.testing.assert_allclose(z.cpu().numpy(), (x.cpu().numpy() + 1) * 3, rtol=1e-6)


@pytest.mark.parametrize("kind", ["module", "function"])
def test_graphed_callables(kind):
    ts.manual_seed(1)
    layer = ts.nn.Linear(4, 3).to("cuda")
    twin = ts.nn.Linear(4, 3).to("cuda")
    twin.load_state_dict(layer.state_dict())
    scale = lambda x: {"scaled": (x * x).sin()}  # noqa: E731
    sample = on_device(5, 4, requires_grad=True)
    if kind == "module":
        graphed, plain = ts.cuda.make_graphed_callables(layer, (sample,)), twin
        assert graphed is layer
    else:
        graphed = ts.cuda.make_graphed_callables(scale, (sample,))
        graphed, plain = (lambda x, f=graphed: f(x)["scaled"]), (lambda x: scale(x)["scaled"])
    for seed in range(3):
        a, b = on_device(5, 4, seed=seed, requires_grad=True), on_device(5, 4, seed=seed, requires_grad=True)
        y, z = graphed(a), plain(b)
        np.testing.assert_allclose(y.detach().cpu().numpy(), z.detach().cpu().numpy(), rtol=1e-5, atol=1e-6)
        (y * y).sum().backward()
        (z * z).sum().backward()
        np.testing.assert_allclose(a.grad.cpu().numpy(), b.grad.cpu().numpy(), rtol=1e-5, atol=1e-6)
    if kind == "module":
        np.testing.assert_allclose(layer.weight.grad.cpu().numpy(), twin.weight.grad.cpu().numpy(), rtol=1e-5, atol=1e-5)
        layer.eval()
        assert graphed(on_device(2, 4)).shape == (2, 3)  # another mode: not the graph


def test_graphed_callables_refuse():
    layer = ts.nn.Linear(4, 3).to("cuda")
    layer.register_forward_hook(lambda *a: None)
    with pytest.raises(RuntimeError, match="hooks"):
        ts.cuda.make_graphed_callables(layer, (on_device(2, 4),))
    with pytest.raises(RuntimeError, match="only Tensors"):
        ts.cuda.make_graphed_callables(lambda x: x, (3,))


def test_compiled_functions_and_side_streams_are_captured():
    x, w = on_device(6, 6), on_device(6, 6, seed=1)
    compiled = ts.compile(lambda x: ((x * 2).softmax(-1) @ w).exp().sum(0))
    side = ts.cuda.Stream()

    def both():
        here = ts.cuda.current_stream()
        side.wait_stream(here)
        with ts.cuda.stream(side):
            other = (x + 1).sum()
        first = compiled(x)
        here.wait_stream(side)
        return first * other

    for _ in range(3):
        both()
    g = ts.cuda.CUDAGraph()
    with ts.cuda.graph(g):
        y = both()
    for seed in range(2):
        x.copy_(on_device(6, 6, seed=seed))
        g.replay()
        np.testing.assert_allclose(y.cpu().numpy(), both().cpu().numpy(), rtol=1e-5)

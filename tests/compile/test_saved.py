"""What a compiled forward run saves for its backward: enough, nothing that is cheap, and old values of what it writes over."""

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.ir.graph import Primitive


def gradient_graph(compiled):
    """The graph by which the plan that ran last computes gradients."""
    (plan,) = compiled.plans
    needs, outputs, _ = plan.recording
    return plan.lean.backward(needs, outputs).backward.graph


def count(graph, op):
    return sum(node.op is op for node in graph.live_nodes())


def perceptron():
    ts.manual_seed(0)
    return ts.nn.Sequential(ts.nn.Linear(6, 8), ts.nn.ReLU(), ts.nn.Linear(8, 5), ts.nn.GELU(), ts.nn.Linear(5, 3))


def convolutions():
    ts.manual_seed(0)
    nn = ts.nn
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def test_products_are_not_computed_again():
    model = perceptron()
    compiled = ts.compile(model)
    compiled(ts.randn(4, 6)).sum().backward()
    graph = gradient_graph(compiled)
    assert count(graph, Primitive.MATMUL) == 5  # three of weights, two of values between the layers
    assert len(graph.inputs) < 14  # weights, x, what the activations read, the gradient


def test_attention_and_normalisation_are_not_computed_again():
    ts.manual_seed(0)
    layer = ts.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    compiled = ts.compile(layer)
    compiled(ts.randn(2, 5, 16)).sum().backward()
    graph = gradient_graph(compiled)
    assert count(graph, Primitive.ATTENTION) == 0
    assert count(graph, Primitive.MATMUL) == 8  # two for each of four layers


@pytest.mark.parametrize("build, shape", [(perceptron, (4, 6)), (convolutions, (3, 2, 9, 9))])
def test_training_is_eager_training(build, shape):
    found = []
    x = ts.from_numpy(np.random.default_rng(0).standard_normal((4, *shape), dtype=np.float32))
    for wrap in (lambda model: model, ts.compile):
        model = build()
        call = wrap(model)
        with ts.no_grad():
            model(x[0])  # lazy layers
        ts.manual_seed(1)
        optimizer = ts.optim.SGD(model.parameters(), lr=0.1)
        for k in range(2):
            optimizer.zero_grad()
            first, second = call(x[2 * k]), call(x[2 * k + 1])  # two runs before the first backward
            (second.square().mean() + first.sum()).backward()
            optimizer.step()
        found.append({name: value.numpy() for name, value in model.state_dict().items()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_the_old_value_of_what_is_written_over():
    scale = ts.tensor([2.0, 3.0])

    def function(x):
        before = scale.clone()
        scale.add_(1)
        return (x * before).sum()

    compiled = ts.compile(function)
    for k in range(3):
        x = ts.ones(2, requires_grad=True)
        y = compiled(x)
        y.backward()
        assert x.grad.tolist() == [2.0 + k, 3.0 + k]
    x = ts.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="second derivative of function, which writes over an input"):
        ts.autograd.grad(compiled(x), x, create_graph=True)


def test_second_derivatives_start_from_the_inputs():
    w = ts.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)

    def function(x):
        return ((x @ w).tanh() @ w).exp().sum()

    found = []
    for call in (function, ts.compile(function)):
        x = ts.tensor([[0.3, -0.2]], requires_grad=True)
        w.grad = None
        (g,) = ts.autograd.grad(call(x), x, create_graph=True)
        g.square().sum().backward()
        found.append([g.detach().numpy(), x.grad.numpy(), w.grad.numpy()])
    for a, b in zip(*found):
        np.testing.assert_allclose(b, a, rtol=1e-5)


def test_saved_values_are_freed_and_pass_the_hooks():
    compiled = ts.compile(lambda x: (x @ x).exp().sum())
    x = ts.eye(3).requires_grad_()
    y = compiled(x)
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    assert ts.equal(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    packed = []
    with ts.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        y = compiled(x)
    assert packed
    x.grad = None
    y.backward()
    assert ts.equal(x.grad, once)


def test_a_saved_input_that_changes_before_the_backward_is_refused():
    w = ts.ones(3, requires_grad=True)
    compiled = ts.compile(lambda x: (x * w).sum())
    x = ts.ones(3)
    y = compiled(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()

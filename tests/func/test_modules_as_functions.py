"""`functional_call`, `stack_module_state`, and what they are for: gradients per example, ensembles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.func import functional_call, grad, jacrev, stack_module_state, vmap


def mlp() -> ts.nn.Sequential:
    return ts.nn.Sequential(ts.nn.Linear(4, 8), ts.nn.Tanh(), ts.nn.Linear(8, 3))


def data(count: int = 5) -> tuple[ts.Tensor, ts.Tensor]:
    random = np.random.default_rng(0)
    return ts.tensor(random.normal(size=(count, 4)).astype(np.float32)), ts.tensor(random.integers(0, 3, count))


def test_gradients_per_example_of_an_mlp():
    model, (x, y) = mlp(), data()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x, y):
        scores = functional_call(model, parameters, (x[None],))
        return ts.nn.functional.cross_entropy(scores, y[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    for i in range(5):
        model.zero_grad()
        ts.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        for name, p in model.named_parameters():
            np.testing.assert_allclose(found[name][i].numpy(), p.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_an_ensemble_is_its_models_one_by_one():
    models = [mlp() for _ in range(3)]
    x, _ = data()
    parameters, buffers = stack_module_state(models)
    assert buffers == {} and parameters["0.weight"].shape == (3, 8, 4) and parameters["0.weight"].requires_grad
    base = mlp()
    call = lambda p, b, x: functional_call(base, (p, b), (x,))
    together = vmap(call, in_dims=(0, 0, None))(parameters, buffers, x) if buffers else vmap(
        lambda p, x: call(p, {}, x), in_dims=(0, None)
    )(parameters, x)  # fmt: skip
    for i, model in enumerate(models):
        np.testing.assert_allclose(together[i].detach().numpy(), model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    together.sum().backward()
    models[1](x).sum().backward()
    np.testing.assert_allclose(
        parameters["2.weight"].grad[1].numpy(), models[1][2].weight.grad.numpy(), rtol=1e-5, atol=1e-6
    )


def test_the_module_is_as_before():
    model = ts.nn.Linear(2, 2)
    before = dict(model.named_parameters())
    with pytest.raises(RuntimeError):
        functional_call(model, {"weight": ts.ones(3, 3)}, (ts.ones(1, 2),))
    assert all(p is before[name] for name, p in model.named_parameters())
    with pytest.raises(AttributeError, match="'wight'"):
        functional_call(model, {"wight": ts.ones(2, 2)}, (ts.ones(1, 2),))
    with pytest.raises(RuntimeError, match=r"Missing key\(s\): \['bias'\]"):
        functional_call(model, {"weight": ts.ones(2, 2)}, (ts.ones(1, 2),), strict=True)
    with pytest.raises(ValueError, match="appears in multiple dictionaries"):
        functional_call(model, ({"bias": ts.ones(2)}, {"bias": ts.ones(2)}), (ts.ones(1, 2),))


def test_tied_weights():
    model = ts.nn.Module()
    model.a = ts.nn.Linear(2, 2, bias=False)
    model.b = ts.nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight
    model.forward = lambda x: model.b(model.a(x))
    x, two = ts.ones(1, 2), ts.eye(2) * 2
    assert functional_call(model, {"a.weight": two}, x).tolist() == [[4, 4]]
    assert functional_call(model, {"a.weight": two}, x, tie_weights=False).tolist() != [[4, 4]]
    with pytest.raises(ValueError, match="multiple values"):
        functional_call(model, {"a.weight": two, "b.weight": two * 1}, x)


def test_statistics_go_into_the_buffers_given():
    model = ts.nn.Module()
    model.register_buffer("mean", ts.zeros(3))
    model.forward = lambda x: x - model.mean.lerp_(x.mean(0), 0.5)
    buffers = {"mean": ts.zeros(3)}
    functional_call(model, buffers, ts.ones(6, 3) * 4)
    assert buffers["mean"].tolist() == [2, 2, 2] and model.mean.tolist() == [0, 0, 0]


@pytest.mark.parametrize("models", [[], "modes", "classes", "gradients"])
def test_what_cannot_be_stacked(models):
    if models == "modes":
        models = [ts.nn.Linear(2, 2), ts.nn.Linear(2, 2).eval()]
    elif models == "classes":
        models = [ts.nn.Linear(2, 2), ts.nn.ReLU()]
    elif models == "gradients":
        models = [ts.nn.Linear(2, 2), ts.nn.Linear(2, 2).requires_grad_(False)]
    with pytest.raises(RuntimeError, match="Expected"):
        stack_module_state(models)


def test_jacrev_is_the_jacobian_of_autograd():
    model, (x, _) = mlp(), data(2)
    function = lambda x: model(x).softmax(1)
    found, expected = jacrev(function)(x), ts.autograd.functional.jacobian(function, x)
    assert found.shape == (2, 3, 2, 4)
    np.testing.assert_allclose(found.detach().numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    theirs.load_state_dict({name: torch.tensor(p.detach().numpy()) for name, p in model.named_parameters()})
    right = torch.func.jacrev(lambda x: theirs(x).softmax(1))(torch.tensor(x.numpy()))
    np.testing.assert_allclose(found.detach().numpy(), right.detach().numpy(), rtol=1e-5, atol=1e-6)

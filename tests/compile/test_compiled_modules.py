"""Compiled models: dropout, train and eval, replaced and frozen parameters, and what users ask of the compiled object."""

import copy

import numpy as np
import pytest

import tensorsmith as ts


def model_and_input():
    ts.manual_seed(0)
    return ts.nn.Sequential(ts.nn.Linear(3, 64), ts.nn.Dropout(0.5)), ts.ones(4, 3)


def gradient(model, function, x):
    ts.manual_seed(1)
    model[0].weight.grad = None
    function(x).pow(2).sum().backward()
    return model[0].weight.grad.tolist()


def test_dropout_draws_the_same_numbers_as_eagerly_in_both_passes():
    model, x = model_and_input()
    compiled = ts.compile(model)
    expected = gradient(model, model, x)
    for _ in range(3):  # the trace draws nothing: the first call gives the numbers of a later one
        np.testing.assert_allclose(gradient(model, compiled, x), expected, rtol=1e-5)
    step = ts.compile(lambda x: ts.autograd.grad(model(x).pow(2).sum(), model[0].weight)[0])
    for _ in range(2):
        ts.manual_seed(1)
        assert ts.allclose(step(x), ts.tensor(expected), rtol=1e-5, atol=1e-5)


def test_a_failed_trace_draws_nothing():
    before = ts.get_rng_state()

    def function(x):
        raise KeyError(ts.rand(3) + ts.nn.functional.dropout(x, 0.5))

    with pytest.raises(KeyError):
        ts.compile(function)(ts.ones(3))
    assert ts.equal(ts.get_rng_state(), before)


def test_train_and_eval():
    model, x = model_and_input()
    compiled = ts.compile(model)
    step = ts.compile(lambda x: model(x).sum())
    for training in (True, False, True):
        compiled.train(training)
        zeros = (compiled(x) == 0).float().mean().item()
        assert (0.3 < zeros < 0.7) is training
        assert (step(x).item() == pytest.approx(model(x).sum().item())) is not training


def test_replaced_and_frozen_parameters():
    layer = ts.nn.Linear(2, 2, bias=False)
    compiled = ts.compile(layer)
    x = ts.ones(1, 2)
    assert compiled(x).requires_grad
    layer.weight = ts.nn.Parameter(ts.full((2, 2), 5.0))
    assert compiled(x).tolist() == [[10.0, 10.0]]
    layer.weight.requires_grad_(False)
    assert not compiled(x).requires_grad
    layer.weight.requires_grad_(True)
    assert compiled(x).requires_grad


def test_replaced_submodules():
    model = ts.nn.Sequential(ts.nn.Identity(), ts.nn.ReLU())
    compiled = ts.compile(model)
    x = ts.tensor([-1.0])
    assert compiled(x).tolist() == [0.0]
    model[1] = ts.nn.Identity()
    assert compiled(x).tolist() == [-1.0]


def test_a_compiled_model_is_asked_as_the_model():
    model, _ = model_and_input()
    compiled = ts.compile(model, mode="reduce-overhead", fullgraph=True)
    assert list(compiled.parameters())[0] is model[0].weight and list(compiled.state_dict()) == list(model.state_dict())
    assert "Linear" in repr(compiled)
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'weigth'"):
        compiled.weigth  # noqa: B018
    twin = copy.deepcopy(compiled.eval())
    with ts.no_grad():
        next(iter(twin.parameters())).zero_()
    assert twin(ts.ones(1, 3)).tolist() != compiled(ts.ones(1, 3)).tolist()


def test_as_a_decorator_of_methods_and_with_hints():
    class Scaled:
        factor = 2.0

        @ts.compile(dynamic=False)
        def apply(self, x):
            return x * self.factor

    assert Scaled().apply(ts.ones(2)).tolist() == [2.0, 2.0]
    assert ts.compile(len, disable=True) is len


def test_lazy_modules_take_their_sizes_eagerly():
    found = []
    for wrap in (lambda model: model, ts.compile):
        ts.manual_seed(3)
        model = ts.nn.Sequential(ts.nn.Dropout(0.5), ts.nn.LazyLinear(3), ts.nn.LazyBatchNorm1d(), ts.nn.LazyLinear(2))
        call = wrap(model)
        found.append([call(ts.ones(4, 5)).tolist() for _ in range(3)] + [p.tolist() for p in model.parameters()])
    assert found[0] == found[1]
    model = ts.nn.LazyLinear(2)
    step = ts.compile(lambda x: model(x).sum().backward())
    step(ts.ones(3, 4))
    assert model.weight.grad.tolist() == [[3.0] * 4] * 2
    step(ts.ones(3, 4))
    assert model.weight.grad.tolist() == [[6.0] * 4] * 2
    assert len(step.plans) == 1

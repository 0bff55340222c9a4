"""`ts.compile` with PyTorch's arguments, compiled modules where modules are expected, and `ts.compiler`."""

import copy
import pickle
import threading

import pytest

import tensorsmith as ts
from tensorsmith.compile.compiled import BreakWarning
from tensorsmith.compile.tracer import ValueNeeded


def net():
    ts.manual_seed(0)
    return ts.nn.Sequential(ts.nn.Linear(3, 4), ts.nn.ReLU(), ts.nn.Linear(4, 2))


X = ts.arange(6.0).reshape(2, 3) / 5


# --- arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [
    {"fullgraph": True}, {"dynamic": True}, {"dynamic": None}, {"mode": "default"}, {"mode": "max-autotune"}, {"options": {}},
    {"backend": "inductor"}, {"backend": "tensorsmith"},
], ids=str)  # fmt: skip
def test_hints(given):
    assert ts.compile(lambda x: x * 2, **given)(ts.ones(2)).tolist() == [2.0, 2.0]
    assert ts.compile(**given)(lambda x: x * 2)(ts.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("given, problem", [
    ({"mode": "fastest"}, "unrecognized mode=fastest"), ({"backend": "eager"}, "backend 'eager' is not one of .* disable=True"),
    ({"options": {"max_autotune": True}}, r"options \['max_autotune'\] are those of .* Inductor; passes are left out by"),
    ({"disable": "no such pass"}, "no such pass"),
], ids=str)  # fmt: skip
def test_arguments_that_nothing_here_does(given, problem):
    with pytest.raises(ValueError, match=problem):
        ts.compile(lambda x: x, **given)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="expected a function or a module, but got int"):
        ts.compile(3)
    twice = ts.compile(ts.compile(lambda x: x * 2))
    assert twice(ts.ones(1)).tolist() == [2.0] and len(twice.plans) == 1


def test_fullgraph_false_is_pytorchs_name_for_breaks():
    compiled = ts.compile(lambda x: x * 2 if x.sum() > 0 else x, fullgraph=False)
    with pytest.warns(BreakWarning, match="runs eagerly"):
        assert compiled(ts.ones(2)).tolist() == [2.0, 2.0]


# --- modules --------------------------------------------------------------------------------------------------------------


def test_a_compiled_module_is_a_module():
    model = net()
    compiled = ts.compile(model)
    assert isinstance(compiled, ts.nn.Sequential) and type(compiled).__name__ == "Sequential" and compiled._orig_mod is model
    assert len(compiled) == 3 and compiled[0] is model[0] and [*compiled][1] is model[1]
    assert compiled.eval() is compiled and not model.training and not model[0].training
    compiled.train()
    compiled.extra = 3
    assert model.extra == 3 and compiled(X).tolist() == model(X).tolist() and len(compiled.plans) == 1
    compiled[0] = ts.nn.Linear(3, 4)
    assert model[0] is compiled[0]
    with pytest.warns(UserWarning, match="module structure"):
        assert compiled(X).tolist() == model(X).tolist()
    assert compiled.to(ts.float64)(X.double()).dtype is ts.float64
    assert list(compiled.state_dict()) == list(net().state_dict())


def test_a_compiled_module_among_modules():
    expected = net()(X).tolist()
    inner = ts.compile(net())
    outer = ts.nn.Sequential(inner, ts.nn.Identity())
    assert outer(X).tolist() == expected and len(list(outer.parameters())) == 4
    assert list(outer.state_dict())[0] == "0.0.weight" and len(inner.plans) == 1
    assert ts.compile(outer)(X).tolist() == expected
    model = net()
    model[0] = ts.compile(model[0])
    assert model(X).tolist() == expected and list(model.state_dict()) == list(net().state_dict())


def test_what_a_class_overrides_stays():
    class Model(ts.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = net(), []

        def forward(self, x):
            return self.inner(x)

        def train(self, mode=True):
            self.seen = [*self.seen, mode]
            return super().train(mode)

        @property
        def width(self):
            return self.inner[0].out_features

    compiled = ts.compile(Model())
    compiled.eval()
    assert compiled.seen == [False] and compiled.width == 4 and "inner" in repr(compiled)


def test_copies_and_pickles_are_compiled_too_and_apart():
    compiled = ts.compile(net())
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert other(X).tolist() == compiled(X).tolist() and len(other.plans) == 1
        with ts.no_grad():
            other[2].weight.zero_()
        assert other(X).tolist() != compiled(X).tolist()


def test_gradients_of_a_compiled_module():
    found = []
    for model in (net(), ts.compile(net())):
        model(X).pow(2).sum().backward()
        found.append([p.grad.tolist() for p in model.parameters()])
    assert len(found[0]) == len(found[1]) == 4
    for a, b in zip(*found):
        assert ts.allclose(ts.tensor(a), ts.tensor(b), rtol=1e-5, atol=1e-6)


def test_modules_compile_in_place():
    model, plain = net(), net()
    model.compile(mode="default")
    assert model(X).tolist() == plain(X).tolist() and list(model.state_dict()) == list(plain.state_dict())
    assert len(model._hooks.compiled.plans) == 1 and type(model) is ts.nn.Sequential
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    plain[0].register_forward_hook(lambda module, args, output: output * 2)
    model.register_forward_hook(lambda module, args, output: output + 1)
    plain.register_forward_hook(lambda module, args, output: output + 1)
    assert ts.allclose(model(X), plain(X))
    step = ts.compile(lambda x: model(x).sum())
    assert step(X).item() == pytest.approx(plain(X).sum().item())
    twin = copy.deepcopy(model)
    assert twin._hooks.compiled is None and ts.allclose(twin(X), plain(X))


# --- ts.compiler ----------------------------------------------------------------------------------------------------------


def test_whether_something_is_compiled():
    seen = []

    def function(x):
        seen.append(ts.compiler.is_compiling())
        return ts.vmap(lambda row: row * 2 if ts.compiler.is_compiling() else row)(x)

    with pytest.warns(UserWarning, match="traced at every call"):
        assert ts.compile(function)(ts.ones(2, 2)).tolist() == [[2.0, 2.0]] * 2
        compiled = ts.compile(function)
        compiled(ts.ones(2, 2)), compiled(ts.ones(2, 2))
    assert function(ts.ones(2, 2)).tolist() == [[1.0, 1.0]] * 2
    assert seen[0] is True and seen[-1] is False and not ts.compiler.is_compiling()
    other = []
    thread = threading.Thread(target=lambda: other.append(ts.compiler.is_compiling()))
    ts.compile(lambda x: (thread.start(), thread.join(), x)[2])(ts.ones(1))
    assert other == [False]


def test_functions_that_are_left_out():
    @ts.compiler.disable(reason="it reads a file")
    def outside(x):
        return x * float(x.sum())

    assert outside(ts.ones(2)).tolist() == [2.0, 2.0] and outside.__name__ == "outside"
    with pytest.raises(
        ValueNeeded, match=r"outside, which ts.compiler.disable leaves out \(it reads a file\), needs"
    ):
        ts.compile(lambda x: outside(x))(ts.ones(2))
    compiled = ts.compile(lambda x: outside(x) + 1, allow_breaks=True)
    with pytest.warns(BreakWarning):
        assert compiled(ts.ones(2)).tolist() == [3.0, 3.0]


def test_reset_forgets_all_plans():
    compiled, model = ts.compile(lambda x: x * 2), ts.compile(net())
    for _ in range(3):
        compiled(ts.ones(2)), model(X)
    assert compiled.plans and model.plans
    ts.compiler.reset()
    assert not compiled.plans and not model.plans and compiled(ts.ones(2)).tolist() == [2.0, 2.0]
    assert ts.compiler.list_backends() == ["tensorsmith"] and ts.compiler.compile is ts.compile

"""Parametrizations, and weight and spectral norm in both forms, against PyTorch's."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from tensorsmith.nn.utils import parametrize

import tensorsmith as ts

RANDOM = np.random.default_rng(4)


def symmetric(lib):
    class Symmetric(lib.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, a):
            return a.triu()

    return Symmetric()


def scaled(lib):
    class Scaled(lib.nn.Module):
        def forward(self, x):
            return 2 * x

        def right_inverse(self, y):
            return y / 2

    return Scaled()


def in_two_parts(lib):
    class Product(lib.nn.Module):
        def forward(self, x, y):
            return x * y

        def right_inverse(self, z):
            return z / 2, lib.full_like(z, 2)

    return Product()


def twins(make):
    theirs, ours = make(torch), make(ts)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    return ours, theirs


def steps(ours, theirs, shape, count=3):
    for step in range(count):
        if step == count - 1:
            ours.eval(), theirs.eval()
        x = RANDOM.standard_normal(shape).astype(np.float32)
        found, wanted = ours(ts.tensor(x)), theirs(torch.tensor(x))
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
        ours.zero_grad(), theirs.zero_grad()
        (found**2).sum().backward()
        (wanted**2).sum().backward()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-4)
        for key, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[key].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("functions", [(symmetric,), (scaled,), (symmetric, scaled), (in_two_parts,), (in_two_parts, scaled)])
def test_of_ones_own(functions):
    def make(lib):
        layer = lib.nn.Linear(3, 3)
        for function in functions:
            lib.nn.utils.parametrize.register_parametrization(layer, "weight", function(lib))
        return layer

    ours, theirs = twins(make)
    steps(ours, theirs, (2, 3))
    assert parametrize.is_parametrized(ours) and parametrize.is_parametrized(ours, "weight")
    assert not parametrize.is_parametrized(ours, "bias") and parametrize.type_before_parametrizations(ours) is ts.nn.Linear
    value = RANDOM.standard_normal((3, 3)).astype(np.float32)
    value = value + value.T
    ours.weight, theirs.weight = ts.tensor(value), torch.tensor(value)
    np.testing.assert_allclose(ours.weight.detach().numpy(), value, rtol=1e-6)
    for key, each in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[key].numpy(), each.numpy(), rtol=1e-6)
    parametrize.remove_parametrizations(ours, "weight")
    assert type(ours) is ts.nn.Linear and isinstance(ours.weight, ts.nn.Parameter)
    assert sorted(ours.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(ours.weight.detach().numpy(), value, rtol=1e-6)


def test_the_optimiser_keeps_the_parameter():
    layer = ts.nn.Linear(3, 3)
    own = layer.weight
    parametrize.register_parametrization(layer, "weight", symmetric(ts))
    assert layer.parametrizations.weight.original is own
    parametrize.remove_parametrizations(layer, "weight")
    assert layer.weight is own
    parametrize.register_parametrization(layer, "weight", symmetric(ts))
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert layer.weight is own and not own.detach().tril(-1).any()


def test_copies_and_transfers():
    layer = parametrize.register_parametrization(ts.nn.Linear(3, 3), "weight", symmetric(ts))
    other = copy.deepcopy(layer)
    parametrize.remove_parametrizations(other, "weight")
    np.testing.assert_array_equal(other.weight.detach().numpy(), layer.weight.detach().numpy())
    assert parametrize.is_parametrized(layer)
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(layer)
    third = parametrize.transfer_parametrizations_and_params(layer, ts.nn.Linear(3, 3))
    assert third.parametrizations.weight.original is layer.parametrizations.weight.original


def test_cached():
    calls = []

    class Counted(ts.nn.Module):
        def forward(self, x):
            calls.append(1)
            return x + 1

    layer = parametrize.register_parametrization(ts.nn.Linear(2, 2), "weight", Counted())
    calls.clear()
    with parametrize.cached():
        first = layer.weight
        assert layer.weight is first and len(calls) == 1
    assert layer.weight is not first and len(calls) == 2


def test_buffers():
    layer = ts.nn.BatchNorm1d(3)
    parametrize.register_parametrization(layer, "running_var", scaled(ts))
    assert layer.running_var.tolist() == [1, 1, 1] and list(layer.parametrizations.running_var._buffers) == ["original"]


def test_refusals():
    class Wider(ts.nn.Module):
        def forward(self, x):
            return x.double()

    class Larger(ts.nn.Module):
        def forward(self, x):
            return x[:1]

    for function, what in ((Wider(), "dtype"), (Larger(), "shape")):
        with pytest.raises(ValueError, match=f"may not change the {what}"):
            parametrize.register_parametrization(ts.nn.Linear(2, 2), "weight", function)
    with pytest.raises(ValueError, match="does not have a parameter"):
        parametrize.register_parametrization(ts.nn.Linear(2, 2), "nothing", scaled(ts))
    with pytest.raises(ValueError, match="does not have a parametrization"):
        parametrize.remove_parametrizations(ts.nn.Linear(2, 2), "weight")
    layer = parametrize.register_parametrization(ts.nn.Linear(2, 2), "weight", in_two_parts(ts))
    with pytest.raises(ValueError, match="Cannot leave unparametrized"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    unsafe = parametrize.register_parametrization(ts.nn.Linear(2, 2), "weight", Wider(), unsafe=True)
    with pytest.raises(RuntimeError, match="Wider does not implement right_inverse"):
        unsafe.weight = ts.ones(2, 2)


# --- weight and spectral norm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [("weight_norm", {}), ("weight_norm", {"dim": None}), ("weight_norm", {"dim": 1}), ("spectral_norm", {}),
     ("spectral_norm", {"dim": 1, "n_power_iterations": 3})],
)  # fmt: skip
@pytest.mark.parametrize("layer", ["Linear", "Conv2d", "ConvTranspose2d"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_norms(name, options, layer):
    args, shape = ((3, 4), (2, 3)) if layer == "Linear" else ((3, 4, 2), (2, 3, 4, 4))
    for older in (False, True):
        def make(lib, older=older):
            where = lib.nn.utils if older else lib.nn.utils.parametrizations
            return getattr(where, name)(getattr(lib.nn, layer)(*args), **options)

        ours, theirs = twins(make)
        steps(ours, theirs, shape)
        before = ours.weight.detach().numpy()
        if older:
            getattr(ts.nn.utils, f"remove_{name}")(ours)
        else:
            parametrize.remove_parametrizations(ours, "weight")
        assert type(ours) is getattr(ts.nn, layer) and sorted(ours.state_dict()) == ["bias", "weight"]
        np.testing.assert_allclose(ours.weight.detach().numpy(), before, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_states_of_the_older_weight_norm_are_read():
    older = ts.nn.utils.weight_norm(ts.nn.Linear(3, 2))
    newer = ts.nn.utils.parametrizations.weight_norm(ts.nn.Linear(3, 2))
    newer.load_state_dict(older.state_dict())
    np.testing.assert_allclose(newer.weight.detach().numpy(), older.weight.detach().numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_refusals_of_norms():
    for name in ("weight_norm", "spectral_norm"):
        layer = getattr(ts.nn.utils, name)(ts.nn.Linear(3, 2))
        with pytest.raises(RuntimeError, match=f"Cannot register two {name} hooks"):
            getattr(ts.nn.utils, name)(layer)
        with pytest.raises(ValueError, match=f"{name} of 'weight' not found"):
            getattr(ts.nn.utils, f"remove_{name}")(ts.nn.Linear(3, 2))
        with pytest.raises(ValueError, match="uninitialized"):
            getattr(ts.nn.utils, name)(ts.nn.LazyLinear(2))
    with pytest.raises(ValueError, match="n_power_iterations=0"):
        ts.nn.utils.parametrizations.spectral_norm(ts.nn.Linear(3, 2), n_power_iterations=0)
    with pytest.raises(IndexError, match=r"\[-2, 1\] but got 2"):
        ts.nn.utils.parametrizations.spectral_norm(ts.nn.Linear(3, 2), dim=2)
    with pytest.raises(ValueError, match="no parameter or buffer with name 'x'"):
        ts.nn.utils.parametrizations.weight_norm(ts.nn.Linear(3, 2), "x")

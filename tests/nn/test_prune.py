"""Pruning against PyTorch's: the same masks, states, text and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.utils.prune as theirs_prune
from tensorsmith.nn.utils import prune

import tensorsmith as ts

RANDOM = np.random.default_rng(6)


def twins(layer="Linear", args=(6, 5)):
    theirs, ours = getattr(torch.nn, layer)(*args), getattr(ts.nn, layer)(*args)
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    return ours, theirs


def same_state(ours, theirs):
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[key].numpy(), value.numpy(), err_msg=key)


CALLS = {
    "l1": [("l1_unstructured", {"amount": 0.3})],
    "count": [("l1_unstructured", {"amount": 4})],
    "none": [("l1_unstructured", {"amount": 0}), ("ln_structured", {"amount": 0, "n": 2, "dim": 0})],
    "rows": [("ln_structured", {"amount": 2, "n": 2, "dim": 0})],
    "columns": [("ln_structured", {"amount": 0.5, "n": 1, "dim": -1})],
    "again": [("l1_unstructured", {"amount": 0.2}), ("l1_unstructured", {"amount": 0.2})],
    "rows of what is left": [
        ("ln_structured", {"amount": 2, "n": 2, "dim": 0}), ("ln_structured", {"amount": 1, "n": 2, "dim": 0}),
        ("ln_structured", {"amount": 1, "n": float("inf"), "dim": 1}),
    ],
    "identity": [("identity", {})],
}


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("layer", "args", "shape"), [("Linear", (6, 5), (3, 6)), ("Conv2d", (3, 4, 2), (2, 3, 4, 4))])
def test_the_same_elements(calls, layer, args, shape):
    ours, theirs = twins(layer, args)
    for name, options in calls:
        getattr(prune, name)(ours, "weight", **options)
        getattr(theirs_prune, name)(theirs, "weight", **options)
    same_state(ours, theirs)
    assert prune.is_pruned(ts.nn.Sequential(ours)) and repr(ours) == repr(theirs)
    x = RANDOM.standard_normal(shape).astype(np.float32)
    found, wanted = ours(ts.tensor(x)), theirs(torch.tensor(x))
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    found.sum().backward()
    wanted.sum().backward()
    np.testing.assert_allclose(ours.weight_orig.grad.numpy(), theirs.weight_orig.grad.numpy(), rtol=1e-4, atol=1e-5)
    prune.remove(ours, "weight")
    theirs_prune.remove(theirs, "weight")
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict()) and not prune.is_pruned(ours)
    np.testing.assert_array_equal(ours.weight.detach().numpy(), theirs.weight.detach().numpy())
    assert isinstance(ours.weight, ts.nn.Parameter)


def test_scores_and_masks():
    ours, theirs = twins()
    scores = RANDOM.random((5, 6)).astype(np.float32)
    mask = (RANDOM.random((5, 6)) < 0.5).astype(np.float32)
    prune.l1_unstructured(ours, "weight", 7, importance_scores=ts.tensor(scores))
    theirs_prune.l1_unstructured(theirs, "weight", 7, importance_scores=torch.tensor(scores))
    prune.custom_from_mask(ours, "weight", ts.tensor(mask))
    theirs_prune.custom_from_mask(theirs, "weight", torch.tensor(mask))
    same_state(ours, theirs)
    x = RANDOM.standard_normal((5, 6))
    found = prune.L1Unstructured(4).prune(ts.tensor(x)).numpy()
    np.testing.assert_array_equal(found, theirs_prune.L1Unstructured(4).prune(torch.tensor(x)).numpy())


@pytest.mark.parametrize("times", [1, 2])
def test_several_parameters_at_once(times):
    (a, b), (c, d) = twins(), twins("Linear", (5, 3))
    for _ in range(times):
        prune.global_unstructured([(a, "weight"), (c, "weight")], prune.L1Unstructured, amount=0.3)
        theirs_prune.global_unstructured([(b, "weight"), (d, "weight")], theirs_prune.L1Unstructured, amount=0.3)
    same_state(a, b)
    same_state(c, d)


def test_at_random():
    for name, options, left in (
        ("random_unstructured", {"amount": 7}, 23), ("random_unstructured", {"amount": 0.5}, 15),
        ("random_structured", {"amount": 2, "dim": 1}, 20), ("random_structured", {"amount": 1, "dim": -2}, 24),
    ):  # fmt: skip
        layer = ts.nn.Linear(6, 5)
        getattr(prune, name)(layer, "weight", **options)
        assert layer.weight_mask.sum().item() == left, name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("l1_unstructured", {"amount": -1}), ("l1_unstructured", {"amount": 1.5}), ("l1_unstructured", {"amount": 31}),
        ("l1_unstructured", {"amount": "a"}), ("ln_structured", {"amount": 1, "n": 2, "dim": 2}),
        ("random_structured", {"amount": 7, "dim": 1}),
    ],
)  # fmt: skip
def test_refusals_are_pytorchs_and_change_nothing(name, options):
    ours, theirs = twins()
    with pytest.raises(Exception) as wanted:
        getattr(theirs_prune, name)(theirs, "weight", **options)
    with pytest.raises(type(wanted.value)):
        getattr(prune, name)(ours, "weight", **options)
    assert list(ours.state_dict()) == ["weight", "bias"]
    assert not prune.is_pruned(ours)


def test_more_refusals():
    layer = ts.nn.Linear(6, 5)
    with pytest.raises(ValueError, match="has to be pruned before"):
        prune.remove(layer, "weight")
    with pytest.raises(ValueError, match="multidimensional"):
        prune.ln_structured(layer, "bias", 1, n=2, dim=0)
    with pytest.raises(TypeError, match='Only "unstructured"'):
        prune.global_unstructured([(layer, "weight")], prune.LnStructured, amount=1, n=2)
    with pytest.raises(AssertionError, match="same shape"):
        prune.l1_unstructured(layer, "weight", 1, importance_scores=ts.ones(2))
    container = prune.PruningContainer()
    container._tensor_name = "weight"
    with pytest.raises(TypeError, match="BasePruningMethod"):
        container.add_pruning_method(3)
    with pytest.raises(ValueError, match="acting on the parameter named 'weight'"):
        container.add_pruning_method(prune.L1Unstructured(1))

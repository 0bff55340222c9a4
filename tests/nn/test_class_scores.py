"""Losses that hold a last layer, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts

RANDOM = np.random.default_rng(9)


def twins(name, *args, **options):
    theirs, ours = getattr(torch.nn, name)(*args, **options), getattr(ts.nn, name)(*args, **options)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({key: ts.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize("options", [{}, {"head_bias": True, "div_value": 2.0}])
def test_adaptive_log_softmax(options):
    ours, theirs = twins("AdaptiveLogSoftmaxWithLoss", 16, 20, [4, 9], **options)
    x, y = RANDOM.standard_normal((30, 16)).astype(np.float32), RANDOM.integers(0, 20, 30)
    for labels in (y, np.zeros(30, np.int64), np.full(30, 19)):  # all clusters, the head alone, the last cluster
        a, b = ts.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        found, wanted = ours(a, ts.tensor(labels)), theirs(b, torch.tensor(labels))
        np.testing.assert_allclose(found.output.detach().numpy(), wanted.output.detach().numpy(), rtol=1e-5, atol=1e-6)
        assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-5)
        found.loss.backward()
        wanted.loss.backward()
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-6)
    a, b = ts.tensor(x * 4), torch.tensor(x * 4)
    np.testing.assert_allclose(ours.log_prob(a).detach().numpy(), theirs.log_prob(b).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ours.predict(a).numpy(), theirs.predict(b).numpy())
    one, expected = ours(a[0], ts.tensor(11)), theirs(b[0], torch.tensor(11))
    assert one.output.shape == () and one.output.item() == pytest.approx(expected.output.item(), rel=1e-4)


@pytest.mark.parametrize("cutoffs", [[], [3, 3], [5, 2], [0, 4], [20], [2.5]])
def test_cutoffs(cutoffs):
    for lib in (torch, ts):
        with pytest.raises(ValueError, match="cutoffs"):
            lib.nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs)


@pytest.mark.parametrize(("x", "target"), [((3, 8), (2,)), ((3, 8), ()), ((8,), (8,)), ((3, 8), (3, 1))])
def test_shapes_that_do_not_fit(x, target):
    for lib in (torch, ts):
        with pytest.raises(RuntimeError):
            lib.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4])(lib.ones(x), lib.zeros(target, dtype=lib.int64))


def test_a_target_out_of_range():
    with pytest.raises(RuntimeError, match=r"\[0, 19\], but values in range \[1, 20\]"):
        ts.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4])(ts.ones(2, 8), ts.tensor([1, 20]))


@pytest.mark.parametrize("options", [{}, {"out_features": (2, 3), "bias": True}, {"label_smoothing": 0.1, "ignore_index": 1}])
def test_linear_cross_entropy(options):
    ours, theirs = twins("LinearCrossEntropyLoss", 4, 5, **options)
    x = RANDOM.standard_normal((6, 4)).astype(np.float32)
    y = RANDOM.integers(0, 5, (6, *options.get("out_features", ())))
    found, wanted = ours(ts.tensor(x), ts.tensor(y)), theirs(torch.tensor(x), torch.tensor(y))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    found.backward()
    wanted.backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"weight": ts.ones(4)}, {"label_smoothing": 1.5}])
def test_linear_cross_entropy_checks_its_arguments(wrong):
    with pytest.raises(RuntimeError, match="expected"):
        ts.nn.LinearCrossEntropyLoss(4, 5, **wrong)

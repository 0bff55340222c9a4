"""Initialisation: the distributions are PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tensorsmith as ts

SHAPE = (64, 32, 3, 3)
KEYWORDS = [
    ("uniform_", {"a": -2.0, "b": 3.0}),
    ("normal_", {"mean": 1.0, "std": 2.0}),
    ("trunc_normal_", {"mean": 0.5, "std": 1.5, "a": -1.0, "b": 1.0}),
    ("xavier_uniform_", {"gain": 2.0}),
    ("xavier_normal_", {}),
    ("kaiming_uniform_", {}),
    ("kaiming_uniform_", {"a": math.sqrt(5)}),
    ("kaiming_uniform_", {"mode": "fan_out", "nonlinearity": "relu"}),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "tanh"}),
]


@pytest.mark.parametrize(("name", "options"), KEYWORDS)
def test_distribution(name, options):
    ts.manual_seed(1)
    torch.manual_seed(1)
    a = ts.empty(*SHAPE)
    assert getattr(ts.nn.init, name)(a, **options) is a
    b = getattr(torch.nn.init, name)(torch.empty(*SHAPE), **options)
    x, y = np.sort(a.numpy().ravel()), np.sort(b.numpy().ravel())
    scale = float(y.std())
    assert np.abs(x - y)[200:-200].max() < 0.1 * scale, "the quantiles agree"
    if "uniform" in name or "trunc" in name:
        for end in (0, -1):
            assert x[end] == pytest.approx(float(y[end]), abs=0.01 * scale)


@pytest.mark.parametrize(
    ("layer", "args"),
    [("Linear", (50, 200)), ("Bilinear", (20, 30, 40)), ("Embedding", (300, 40)), ("LayerNorm", (7,))],
)
def test_layers_begin_as_pytorchs(layer, args):
    ts.manual_seed(0)
    torch.manual_seed(0)
    ours, theirs = getattr(ts.nn, layer)(*args), getattr(torch.nn, layer)(*args)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        x, y = p.detach().numpy(), q.detach().numpy()
        assert x.std() == pytest.approx(y.std(), rel=0.15, abs=1e-6)
        assert abs(x.mean() - y.mean()) < 0.15 * y.std() + 1e-6
        if layer != "Embedding":
            assert np.abs(x).max() == pytest.approx(np.abs(y).max(), rel=0.05)


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (16, 2, 4)])
def test_orthogonal(shape):
    w = ts.nn.init.orthogonal_(ts.empty(*shape), gain=2.0).numpy().reshape(shape[0], -1)
    product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_simple_ones():
    x = ts.empty(3, 4, requires_grad=True)
    init = ts.nn.init
    assert init.ones_(x).tolist() == [[1.0] * 4] * 3
    assert init.zeros_(x).tolist() == [[0.0] * 4] * 3
    assert init.constant_(x, 2.5).tolist() == [[2.5] * 4] * 3
    assert init.eye_(x).tolist() == np.eye(3, 4).tolist()
    assert x.is_leaf and x.requires_grad


def test_gains_and_refusals():
    for name in ("linear", "sigmoid", "tanh", "relu", "selu", "conv2d", "leaky_relu"):
        assert ts.nn.init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    for slope in (0.3, 0, None):
        expected = torch.nn.init.calculate_gain("leaky_relu", slope)
        assert ts.nn.init.calculate_gain("leaky_relu", slope) == pytest.approx(expected)
    with pytest.raises(ValueError, match="Unsupported nonlinearity"):
        ts.nn.init.calculate_gain("step")
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        ts.nn.init.xavier_uniform_(ts.empty(3))
    with pytest.raises(ValueError, match="not supported"):
        ts.nn.init.kaiming_normal_(ts.empty(3, 3), mode="fan_up")
    with pytest.raises(ValueError, match="2 dimensions"):
        ts.nn.init.eye_(ts.empty(3))
    with pytest.warns(UserWarning, match="zero-element"):
        ts.nn.init.kaiming_uniform_(ts.empty(0, 3))

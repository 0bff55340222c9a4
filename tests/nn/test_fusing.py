"""Batch normalisation in the layer before it, modules without initialisation, and the older names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts


def trained(layer):
    for _ in range(3):
        layer(ts.randn(6, 4, *[3] * (layer.ranks[-1] - 2)) * 2 + 1)
    return layer.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layer", ["Conv2d", "ConvTranspose2d", "Linear"])
def test_the_results_are_the_same(layer, bias, affine):
    if layer == "Linear":
        first, norm, x = ts.nn.Linear(3, 4, bias=bias).eval(), trained(ts.nn.BatchNorm1d(4, affine=affine)), ts.randn(5, 3)
        fused = ts.nn.utils.fuse_linear_bn_eval(first, norm)
    else:
        first, norm = getattr(ts.nn, layer)(3, 4, 2, bias=bias).eval(), trained(ts.nn.BatchNorm2d(4, affine=affine))
        x = ts.randn(2, 3, 5, 5)
        fused = ts.nn.utils.fuse_conv_bn_eval(first, norm, transpose=layer != "Conv2d")
    wanted = norm(first(x))
    np.testing.assert_allclose(fused(x).detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert type(fused) is type(first) and fused is not first and fused.weight.requires_grad


def test_only_in_evaluation():
    for training in (0, 1):
        pair = ts.nn.Conv2d(3, 4, 2), ts.nn.BatchNorm2d(4)
        pair[training].eval()
        with pytest.raises(AssertionError, match="only for eval"):
            ts.nn.utils.fuse_conv_bn_eval(*pair)
    with pytest.raises(AssertionError, match="out_features=4 and bn.num_features=5"):
        ts.nn.utils.fuse_linear_bn_eval(ts.nn.Linear(3, 4).eval(), ts.nn.BatchNorm1d(5).eval())
    with pytest.raises(AssertionError, match="must not be None"):
        ts.nn.utils.fuse_linear_bn_eval(ts.nn.Linear(3, 4).eval(), ts.nn.BatchNorm1d(4, track_running_stats=False).eval())


def test_modules_without_initialisation():
    ts.manual_seed(3)
    layer = ts.nn.utils.skip_init(ts.nn.Linear, 5, 4, bias=False)
    after = ts.rand(3).tolist()
    ts.manual_seed(3)
    assert after == ts.rand(3).tolist(), "nothing was drawn"
    assert layer.weight.shape == (4, 5) and layer.bias is None
    assert ts.nn.Linear(5, 4).weight.abs().max().item() > 0, "the next is initialised"
    with pytest.raises(RuntimeError, match="Expected a Module"):
        ts.nn.utils.skip_init(dict)
    with pytest.raises(RuntimeError, match="'device' arg"):
        ts.nn.utils.skip_init(ts.nn.ReLU)


@pytest.mark.parametrize(("shape", "groups"), [((4, 2, 3), 1), ((6, 4, 3, 3), 3), ((4, 4, 2, 3, 4), 2), ((2, 5, 1), 1)])
def test_dirac(shape, groups):
    found = ts.nn.init.dirac_(ts.empty(*shape), groups)
    np.testing.assert_array_equal(found.numpy(), torch.nn.init.dirac_(torch.empty(shape), groups).numpy())


def test_sparse():
    found = ts.nn.init.sparse_(ts.empty(200, 30), 0.333, std=2.0).numpy()
    assert ((found == 0).sum(0) == 67).all() and len({tuple(c) for c in (found == 0).T}) == 30
    assert found[found != 0].std() == pytest.approx(2.0, rel=0.05)
    for wrong in (lambda: ts.nn.init.sparse_(ts.empty(3), 0.1), lambda: ts.nn.init.dirac_(ts.empty(3, 3)),
                  lambda: ts.nn.init.dirac_(ts.empty(3, 3, 3), 2)):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("name", [
    "uniform", "normal", "constant", "eye", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal",
    "orthogonal",
])  # fmt: skip
def test_older_names_warn(name):
    args = (2.0,) if name == "constant" else ()
    with pytest.warns(FutureWarning, match=f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`"):
        assert getattr(ts.nn.init, name)(ts.zeros(4, 4), *args).any()

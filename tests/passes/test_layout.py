"""Which images are computed with their channels last, and that results stay what they are."""

import numpy as np
import pytest

import tensorsmith as ts

nn, F = ts.nn, ts.nn.functional


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, channels, out, stride):
        super().__init__()
        inner = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.residual = stride == 1 and channels == out

    def forward(self, x):
        return x + self.layers(x) if self.residual else self.layers(x)


def network(pooled=True):
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1)]
    model = nn.Sequential(*layers, *([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)] if pooled else []))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def steps(compiled):
    return [step.name for step in compiled.plans[0].plan.steps]


def fired(compiled):
    return compiled.plans[0].report.fired["layout"]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("pooled", [True, False])
def test_a_network_of_inverted_residuals(batch, pooled):
    model, x = network(pooled), ts.randn(batch, 3, 20, 22)
    compiled, apart = ts.compile(model), ts.compile(model, disable="layout")
    with ts.no_grad():
        found, other, expected = compiled(x), apart(x), model(x)
    assert fired(compiled)["convolution of single channels with channels last"] == 3
    assert fired(compiled)["1x1 convolution as a product with channels last"] == 6
    assert fired(compiled)["copy on the way into a region"] == 1
    assert "layout" not in apart.plans[0].report.fired
    # Normalisation, activation and residual are parts of the steps; scales are kernels of a channel's size.
    large = [name for name in steps(compiled) if name.startswith(("matmul", "conv_depthwise"))]
    assert len(large) == 9 + pooled and large.count("conv_depthwise_where") == 3 and large.count("matmul_add") == 3
    for y in (found, other):
        np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=0, atol=1e-4 * float(expected.abs().max()))
    assert found.is_contiguous()


def test_verified_and_in_float64():
    model, x = network().double(), ts.randn(2, 3, 12, 12, dtype=ts.float64)
    with ts.no_grad():
        found = ts.compile(model, verify=True)(x)
        np.testing.assert_allclose(found.numpy(), model(x).numpy(), rtol=0, atol=1e-12)


def test_images_that_lie_so_already_are_not_copied():
    block = Inverted(16, 16, 1).eval()
    x = ts.randn(2, 16, 9, 9)
    last = x.contiguous(memory_format=ts.channels_last)
    with ts.no_grad():
        compiled = ts.compile(block)
        found = compiled(last)
        assert not fired(compiled)["copy on the way into a region"]
        copied = [step for step in compiled.plans[0].plan.steps if step.name == "cast" and step.bytes_moved >= 8 * x.numel()]
        assert len(copied) <= 1  # the result, which is row-major
        np.testing.assert_allclose(found.numpy(), block(x).numpy(), rtol=0, atol=1e-5)


def test_single_channels_read_row_major_inputs():
    w, x = ts.randn(16, 1, 3, 3), ts.randn(2, 16, 9, 9)

    def function(x, w):
        for _ in range(4):
            x = F.conv2d(x, w, padding=1, groups=16).relu()
        return x.sum((2, 3))

    compiled = ts.compile(function)
    np.testing.assert_allclose(compiled(x, w).numpy(), function(x, w).numpy(), rtol=1e-4, atol=1e-3)
    assert fired(compiled)["convolution of single channels with channels last"] == 4


def test_regions_that_do_not_pay_are_left():
    one, x = ts.randn(8, 8, 1, 1), ts.randn(1, 8, 16, 16)
    wide = ts.randn(8, 8, 3, 3)
    compiled = ts.compile(lambda x: F.conv2d(F.conv2d(F.conv2d(x, wide), one).relu(), wide))
    compiled(x)
    assert fired(compiled) == {"convolution left row-major, where conversions cost more": 1}


def test_training_steps_stay_row_major():
    model = network()
    x = ts.randn(2, 3, 20, 22)
    compiled = ts.compile(lambda x: ts.autograd.grad(model(x).sum(), tuple(model.parameters())))
    for found, expected in zip(compiled(x), ts.autograd.grad(model(x).sum(), tuple(model.parameters()))):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)
    assert not fired(compiled)


@pytest.mark.parametrize("batch", [2, 5])
def test_large_batches_are_computed_some_images_at_a_time(batch, monkeypatch):
    from tensorsmith.passes import layout

    monkeypatch.setattr(layout, "_CACHED", 2 * 64 * 10 * 11 * 4)  # two images of the widest values
    model, x = network(), ts.randn(batch, 3, 20, 22)
    compiled = ts.compile(model)
    with ts.no_grad():
        found, expected = compiled(x), model(x)
    parts = -(-batch // 2)
    assert fired(compiled)["part of a batch that caches hold"] == (parts if batch > 2 else 0)
    assert fired(compiled)["convolution of single channels with channels last"] == 3
    assert steps(compiled).count("conv_depthwise_where") == 3 * (parts if batch > 2 else 1)
    assert steps(compiled).count("conv_bias_relu") == (parts if batch > 2 else 1)  # what leads into the region too
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-4 * float(expected.abs().max()))

"""Convolutional layers: PyTorch's text, state, initialisation, results and gradients; a small network that learns digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorsmith as ts

torch = pytest.importorskip("torch")

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Conv1d", (4, 6, 3), {}),
    ("Conv1d", (4, 6, 3), {"padding": "same", "padding_mode": "circular", "dilation": 2}),
    ("Conv2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ("Conv2d", (4, 6, (3, 2)), {"padding": (1, 2), "padding_mode": "reflect", "bias": False}),
    ("Conv2d", (4, 6, 3), {"padding": (2, 1), "padding_mode": "replicate", "dilation": (1, 2)}),
    ("Conv2d", (4, 4, 4), {"padding": "same", "groups": 4}),
    ("Conv2d", (4, 4, 3), {"padding": "valid"}),
    ("Conv3d", (4, 2, (1, 3, 2)), {"padding": (0, 1, 0)}),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 3, "output_padding": 1}),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2, "bias": False}),
    ("ConvTranspose3d", (4, 2, 2), {"stride": (1, 2, 1), "dilation": 2, "output_padding": (1, 1, 0)}),
]


@pytest.mark.parametrize(("name", "args", "keywords"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_layers(name: str, args: tuple[Any, ...], keywords: dict[str, Any]):
    ours, theirs = getattr(ts.nn, name)(*args, **keywords), getattr(torch.nn, name)(*args, **keywords)
    assert repr(ours) == repr(theirs)
    states = [[(key, tuple(value.shape)) for key, value in layer.state_dict().items()] for layer in (ours, theirs)]
    assert states[0] == states[1]
    ours.load_state_dict({k: ts.from_numpy(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    for lead in ((2, 4), (4,)):
        x = np.random.default_rng(0).standard_normal((*lead, *(5,) * int(name[-2]))).astype("float32")
        mine, right = ts.from_numpy(x).requires_grad_(), torch.from_numpy(x.copy()).requires_grad_()
        y, z = ours(mine), theirs(right)
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), atol=2e-5)
        (y * y).sum().backward()
        (z * z).sum().backward()
        np.testing.assert_allclose(mine.grad.numpy(), right.grad.numpy(), atol=5e-4)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=2e-3)


def test_initialisation_is_uniform_by_fan_in():
    layer = ts.nn.Conv2d(8, 64, 5, groups=2)
    bound = 1 / (4 * 25) ** 0.5
    for values in (layer.weight.detach().numpy(), layer.bias.detach().numpy()):
        assert np.abs(values).max() <= bound and np.abs(values).max() > 0.8 * bound and abs(values.mean()) < 0.3 * bound


def test_output_size():
    ours, theirs = ts.nn.ConvTranspose2d(4, 4, 3, stride=2), torch.nn.ConvTranspose2d(4, 4, 3, stride=2)
    for size in ((11, 12), (1, 4, 12, 11)):
        expected = theirs(torch.ones(1, 4, 5, 5), output_size=size)
        assert ours(ts.ones(1, 4, 5, 5), output_size=size).shape == tuple(expected.shape)
    for size in ((30, 30), (11, 11, 11)):
        with pytest.raises(ValueError) as right:
            theirs(torch.ones(1, 4, 5, 5), output_size=size)
        with pytest.raises(ValueError) as found:
            ours(ts.ones(1, 4, 5, 5), output_size=size)
        assert str(found.value).split(" (for")[0] == str(right.value).split(" (for")[0]


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((3, 4, 3), {"groups": 2}), ((4, 3, 3), {"groups": 2}), ((4, 4, 3), {"groups": 0}), ((4, 4, 3), {"padding": "x"}),
        ((4, 4, 3), {"padding": "same", "stride": 2}), ((4, 4, 3), {"padding_mode": "x"}),
    ],
)  # fmt: skip
def test_wrong_arguments(args: tuple[int, ...], keywords: dict[str, Any]):
    with pytest.raises(ValueError) as right:
        torch.nn.Conv2d(*args, **keywords)
    with pytest.raises(ValueError) as found:
        ts.nn.Conv2d(*args, **keywords)
    assert str(found.value)[:25] == str(right.value)[:25]
    with pytest.raises(ValueError, match='Only "zeros" padding mode'):
        ts.nn.ConvTranspose2d(4, 4, 3, padding_mode="reflect")


def test_a_compiled_layer_is_the_layer():
    layer = ts.nn.Sequential(ts.nn.Conv2d(3, 5, 3, padding=1), ts.nn.ReLU(), ts.nn.Conv2d(5, 2, 1))
    x = ts.rand(2, 3, 7, 7)
    np.testing.assert_allclose(ts.compile(layer)(x).detach().numpy(), layer(x).detach().numpy(), atol=1e-6)


def test_a_convolutional_network_learns():
    ts.manual_seed(0)
    net = ts.nn.Sequential(
        ts.nn.Conv2d(1, 6, 5, padding=2), ts.nn.ReLU(), ts.nn.Conv2d(6, 16, 5, stride=2), ts.nn.ReLU(), ts.nn.Flatten(),
        ts.nn.Linear(64, 4),
    )  # fmt: skip
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 256)
    images = 0.3 * random.standard_normal((256, 1, 8, 8))
    for image, label in zip(images, labels):  # a bright square in one of four corners
        image[0, 4 * (label // 2) + 1 :, 4 * (label % 2) + 1 :][:2, :2] += 1.5
    x, y = ts.tensor(images.astype("float32")), ts.tensor(labels)
    optimiser = ts.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(25):
        optimiser.zero_grad()
        loss = ts.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
    assert (net(x).argmax(1) == y).to(ts.float32).mean().item() > 0.97

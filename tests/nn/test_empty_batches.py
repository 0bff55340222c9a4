"""Layers take an empty batch as PyTorch's do: shapes, gradients of zeros, statistics as they were."""

from __future__ import annotations

import pytest
import torch

import tensorsmith as ts

LAYERS = {
    "BatchNorm1d": (lambda l: l.nn.BatchNorm1d(3), (0, 3)),
    "BatchNorm2d": (lambda l: l.nn.BatchNorm2d(3), (0, 3, 4, 4)),
    "BatchNorm2d, no positions": (lambda l: l.nn.BatchNorm2d(3, affine=False), (2, 3, 0, 4)),
    "GroupNorm": (lambda l: l.nn.GroupNorm(2, 4), (0, 4, 3)),
    "LayerNorm": (lambda l: l.nn.LayerNorm(4), (0, 4)),
    "LSTM": (lambda l: l.nn.LSTM(3, 4), (5, 0, 3)),
    "GRU both ways": (lambda l: l.nn.GRU(3, 4, 2, bidirectional=True), (5, 0, 3)),
    "RNN": (lambda l: l.nn.RNN(3, 4, batch_first=True), (0, 5, 3)),
    "Linear": (lambda l: l.nn.Linear(4, 2), (0, 4)),
    "Conv1d": (lambda l: l.nn.Conv1d(3, 2, 3), (0, 3, 7)),
    "Conv2d": (lambda l: l.nn.Conv2d(4, 6, 3, padding=1, groups=2), (0, 4, 5, 5)),
    "ConvTranspose2d": (lambda l: l.nn.ConvTranspose2d(3, 2, 3, stride=2), (0, 3, 4, 4)),
    "MaxPool2d": (lambda l: l.nn.MaxPool2d(2), (0, 3, 4, 4)),
    "AvgPool2d": (lambda l: l.nn.AvgPool2d(2), (0, 3, 4, 4)),
    "AdaptiveAvgPool2d": (lambda l: l.nn.AdaptiveAvgPool2d(2), (0, 3, 4, 4)),
    "TransformerEncoderLayer": (lambda l: l.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), (0, 3, 4)),
}


def outcome(lib, make, shape):
    """Shapes of result and gradient, sums of the parameters' gradients, buffers."""
    layer, x = make(lib), lib.zeros(*shape, requires_grad=True)
    result = layer(x)
    result = result[0] if isinstance(result, tuple) else result
    result.sum().backward()
    sums = [None if p.grad is None else (tuple(p.grad.shape), float(p.grad.abs().sum())) for p in layer.parameters()]
    buffers = {name: value.detach().numpy().tolist() for name, value in layer.named_buffers()}
    return tuple(result.shape), tuple(x.grad.shape), sums, buffers


@pytest.mark.parametrize("name", LAYERS)
def test_an_empty_batch(name):
    make, shape = LAYERS[name]
    assert outcome(ts, make, shape) == outcome(torch, make, shape)

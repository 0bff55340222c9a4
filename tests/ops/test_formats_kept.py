"""Operators on images keep channels_last: strides of results are PyTorch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorsmith as ts

torch = pytest.importorskip("torch")
Call = Callable[[Any, Any, Any], Any]  # library, its functional, tensors


def convolution(name: str, **attrs: Any) -> Call:
    return lambda lib, f, xs: getattr(f, name)(xs[0], xs[1], **attrs)


CONVOLUTIONS: dict[str, tuple[Call, tuple[tuple[int, ...], ...]]] = {
    name: (convolution(name.split()[0], **attrs), (x, weight))
    for name, x, weight, attrs in (
        ("conv2d", (2, 4, 6, 5), (8, 4, 3, 3), {"padding": 1}),
        ("conv2d 1x1", (2, 4, 6, 5), (8, 4, 1, 1), {}),
        ("conv2d depthwise", (2, 4, 6, 5), (4, 1, 3, 3), {"groups": 4}),
        ("conv2d one channel", (2, 1, 6, 5), (8, 1, 3, 3), {}),
        ("conv2d one result", (2, 4, 6, 5), (1, 4, 3, 3), {"stride": 2}),
        ("conv2d large", (2, 24, 21, 22), (24, 24, 3, 3), {"padding": 1}),
        ("conv_transpose2d", (2, 4, 6, 5), (4, 8, 3, 3), {"stride": 2}),
        ("conv3d", (2, 4, 6, 5, 4), (8, 4, 3, 3, 3), {"padding": 1}),
        ("conv_transpose3d", (2, 4, 3, 5, 4), (4, 2, 3, 3, 3), {}),
        ("conv2d unbatched", (4, 6, 5), (8, 4, 3, 3), {}),
    )
}
IMAGE = (2, 4, 6, 5)
OTHERS: dict[str, tuple[Call, tuple[tuple[int, ...], ...]]] = {
    "relu": (lambda lib, f, xs: f.relu(xs[0]), (IMAGE,)),
    "add": (lambda lib, f, xs: xs[0] + xs[1], (IMAGE, IMAGE)),
    "add a bias": (lambda lib, f, xs: xs[0] + lib.ones(4, 1, 1), (IMAGE,)),
    "batch_norm": (lambda lib, f, xs: f.batch_norm(xs[0], None, None, training=True), (IMAGE,)),
    "batch_norm evaluated": (lambda lib, f, xs: f.batch_norm(xs[0], lib.zeros(4), lib.ones(4)), (IMAGE,)),
    "batch_norm 3d": (lambda lib, f, xs: f.batch_norm(xs[0], None, None, training=True), ((2, 4, 3, 5, 4),)),
    "group_norm": (lambda lib, f, xs: f.group_norm(xs[0], 2), (IMAGE,)),
    "instance_norm": (lambda lib, f, xs: f.instance_norm(xs[0]), (IMAGE,)),
    "max_pool2d": (lambda lib, f, xs: f.max_pool2d(xs[0], 2), (IMAGE,)),
    "places of max_pool2d": (lambda lib, f, xs: f.max_pool2d(xs[0], 2, return_indices=True)[1], (IMAGE,)),
    "max_pool3d": (lambda lib, f, xs: f.max_pool3d(xs[0], 2), ((2, 4, 6, 5, 4),)),
    "avg_pool2d": (lambda lib, f, xs: f.avg_pool2d(xs[0], 2), (IMAGE,)),
    "avg_pool3d": (lambda lib, f, xs: f.avg_pool3d(xs[0], 2), ((2, 4, 6, 5, 4),)),
    "adaptive_avg_pool2d": (lambda lib, f, xs: f.adaptive_avg_pool2d(xs[0], 2), (IMAGE,)),
    "adaptive_avg_pool2d to one": (lambda lib, f, xs: f.adaptive_avg_pool2d(xs[0], 1), (IMAGE,)),
    "adaptive_max_pool2d": (lambda lib, f, xs: f.adaptive_max_pool2d(xs[0], 2), (IMAGE,)),
    "interpolate": (lambda lib, f, xs: f.interpolate(xs[0], scale_factor=2), (IMAGE,)),
    "interpolate bilinear": (lambda lib, f, xs: f.interpolate(xs[0], scale_factor=2, mode="bilinear"), (IMAGE,)),
    "cat": (lambda lib, f, xs: lib.cat(xs, 1), (IMAGE, IMAGE)),
    "pad": (lambda lib, f, xs: f.pad(xs[0], (1, 1, 0, 1)), (IMAGE,)),
    "pad reflect": (lambda lib, f, xs: f.pad(xs[0], (1, 1, 0, 1), mode="reflect"), (IMAGE,)),
    "pixel_shuffle": (lambda lib, f, xs: f.pixel_shuffle(xs[0], 2), (IMAGE,)),
}
CASES = CONVOLUTIONS | OTHERS


def made(lib: Any, shape: tuple[int, ...], last: bool) -> Any:
    x = lib.from_numpy(np.random.default_rng(shape).standard_normal(shape, dtype=np.float32))
    return x.to(memory_format=lib.channels_last if len(shape) == 4 else lib.channels_last_3d) if last else x


@pytest.mark.parametrize("name", CASES)
def test_strides_are_pytorchs(name: str):
    function, shapes = CASES[name]
    choices = [(False, True) if len(shape) in (4, 5) else (False,) for shape in shapes]
    for lasts in itertools.product(*choices):
        operands = [[made(lib, *each) for each in zip(shapes, lasts)] for lib in (torch, ts)]
        expected = function(torch, torch.nn.functional, operands[0])
        found = function(ts, ts.nn.functional, operands[1])
        assert found.stride() == expected.stride(), lasts
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)

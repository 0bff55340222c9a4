"""conv_tbc and native_channel_shuffle against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("pad", [0, 2])
def test_conv_tbc(pad):
    arrays = [RANDOM.standard_normal(shape) for shape in ((6, 2, 3), (3, 3, 4), (4,))]
    found = []
    for lib in (ts, torch):
        operands = [lib.from_numpy(a).requires_grad_() for a in arrays]
        y = lib.nn.functional.conv_tbc(*operands, pad)
        assert lib.conv_tbc(*operands, pad=pad).shape == y.shape and y.is_contiguous()
        (y * y.detach().cos()).sum().backward()
        found.append([y.detach().numpy(), *(x.grad.numpy() for x in operands)])
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shapes", [
    ((6, 3), (3, 3, 4), (4,)), ((6, 2, 3), (3, 4), (4,)), ((6, 2, 3), (3, 3, 4), (4, 1)), ((6, 2, 2), (3, 3, 4), (4,)),
    ((6, 2, 3), (3, 3, 4), (3,)), ((1, 2, 3), (3, 3, 4), (4,)),
])  # fmt: skip
def test_conv_tbc_of_sizes_that_do_not_fit(shapes):
    for lib in (ts, torch):
        with pytest.raises(RuntimeError):
            lib.conv_tbc(*(lib.ones(*shape) for shape in shapes))


def test_native_channel_shuffle():
    x = np.arange(24.0).reshape(1, 6, 2, 2)
    for place in (lambda lib: lib, lambda lib: lib.nn.functional):
        found = [place(lib).native_channel_shuffle(lib.from_numpy(x), 3).numpy() for lib in (ts, torch)]
        np.testing.assert_array_equal(*found)

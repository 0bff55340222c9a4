"""Dropout: statistics, the same elements forward and backward, errors as PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from network_oracle import same_error, torch

import tensorsmith as ts
from tensorsmith.autograd.backward import grad
from tensorsmith.eager.entries import plan_for
from tensorsmith.nn import functional as F  # noqa: N812 - as users import it
from tensorsmith.ops.dropout import DROPOUT
from tensorsmith.ops.random import manual_seed
from tensorsmith.targets.reference.random import random_bits

TF = torch.nn.functional
NAMES = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [ts.float32, ts.float64, ts.float16, ts.bfloat16])
def test_share_and_scale(p: float, dtype):
    x = ts.ones(200, 300, dtype=dtype)
    y = np.asarray(F.dropout(x, p).to(ts.float64).numpy())
    dropped = (y == 0).mean()
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / y.size)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - p), rtol=1e-2 if dtype.itemsize < 4 else 1e-6)
    assert len(np.unique((y == 0).sum(0))) > 5 and len(np.unique((y == 0).sum(1))) > 5  # no pattern by row or column


def test_the_bits_are_philox_of_key_and_offset():
    x, key, offset = ts.ones(6, 7), 123456789, 48
    kept = DROPOUT(x, key, offset, p=0.3, channels=False).numpy() != 0
    bits = random_bits(np.full(42, key), np.arange(offset, offset + 42)).reshape(6, 7)
    np.testing.assert_array_equal(kept, bits >= round(0.3 * 2**32))


def test_calls_differ_and_a_seed_repeats_them():
    x = ts.ones(1000)
    manual_seed(5)
    first, second = F.dropout(x).numpy(), F.dropout(x).numpy()
    assert (first != second).any()
    manual_seed(5)
    np.testing.assert_array_equal(F.dropout(x).numpy(), first)


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_backward_drops_the_same_elements(layout: str):
    array = np.random.default_rng(1).standard_normal((30, 40))
    x = ts.from_numpy(array if layout == "contiguous" else array.T).requires_grad_(True)
    y = F.dropout(x, 0.4)
    assert tuple(y.stride()) == tuple(x.stride())
    (found,) = grad([y], [x], [ts.ones(*x.shape, dtype=ts.float64)])
    np.testing.assert_allclose(found.numpy(), np.where(y.detach().numpy() == 0, 0, 1 / 0.6), rtol=1e-12)


def test_backward_of_alpha_dropout():
    x = ts.ones(30, 40, requires_grad=True)
    y = F.alpha_dropout(x, 0.4, training=True)
    (found,) = grad([y], [x], [ts.ones(30, 40)])
    values = np.unique(y.detach().numpy())
    assert len(values) == 2
    assert set(np.unique(found.numpy())) == {0.0, found.numpy().max()}
    np.testing.assert_array_equal(found.numpy() == 0, y.detach().numpy() == values[0])


def test_alpha_dropout_keeps_mean_and_variance():
    x = np.random.default_rng(2).standard_normal(200_000).astype(np.float32)
    y = F.alpha_dropout(ts.tensor(x), 0.3, training=True).numpy()
    assert abs(y.mean()) < 0.02 and abs(y.std() - 1) < 0.02


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("dropout1d", (20, 30, 4)),
        ("dropout2d", (20, 30, 2, 3)),
        ("dropout3d", (20, 30, 2, 2, 2)),
        ("feature_alpha_dropout", (20, 30, 2, 3)),
    ],
)
def test_whole_channels(name: str, shape: tuple[int, ...]):
    y = getattr(F, name)(ts.ones(*shape), 0.5, training=True).numpy().reshape(20, 30, -1)
    assert (y == y[:, :, :1]).all()
    low = y[:, :, 0] == y.min()
    assert 0.4 < low.mean() < 0.6
    assert 0 < low.sum(0).min() and low.sum(0).max() < 20


def test_channels_without_a_batch_axis():
    y = F.dropout1d(ts.ones(40, 5), 0.5).numpy()
    assert y.shape == (40, 5) and (y == y[:, :1]).all() and 5 < (y[:, 0] == 0).sum() < 35
    y = F.dropout3d(ts.ones(40, 2, 2, 2), 0.5).numpy().reshape(40, -1)
    assert (y == y[:, :1]).all() and 5 < (y[:, 0] == 0).sum() < 35
    with pytest.warns(UserWarning, match="3D input to dropout2d"):
        F.dropout2d(ts.ones(4, 5, 3), 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_not_training_and_the_ends_of_p(name: str):
    x = ts.ones(2, 3, 4) if name != "dropout3d" else ts.ones(2, 3, 4, 4, 4)
    with pytest.warns(UserWarning) if name == "dropout2d" else _nothing():
        assert getattr(F, name)(x, 0.5, training=False) is x
        assert getattr(F, name)(x, 0.0, training=True) is x
        assert not getattr(F, name)(x, 1.0, training=True).numpy().any()


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_empty_and_zero_dim():
    assert F.dropout(ts.ones(0, 3)).shape == (0, 3)
    assert F.dropout(ts.tensor(1.0)).item() in (0.0, 2.0)


def test_in_place():
    x = ts.ones(1000)
    assert F.dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) == {0.0, 2.0}
    leaf = ts.ones(100, requires_grad=True)
    y = leaf * 1.0
    F.dropout(y, 0.5, inplace=True)
    (found,) = grad([y], [leaf], [ts.ones(100)])
    np.testing.assert_array_equal(found.numpy(), y.detach().numpy())


def test_one_kernel_each_way_and_no_mask():
    kinds = [ts.zeros(64, 32).layout, int, int]
    program = DROPOUT.program(kinds, {"p": 0.5, "channels": False})
    plan = plan_for(DROPOUT, program, kinds)
    assert len(plan.steps) == 1 and plan.workspace_bytes == 0
    backward = program.backward((True, False, False), (True,))
    assert [(w.kind, w.number) for w in backward.saved] == [("input", 1), ("input", 2)]
    given = [int, int, kinds[0]]
    assert len(plan_for(backward, backward.program(given, {}), given).steps) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_p_outside_its_range(name: str, p: float):
    same_error(lambda: getattr(F, name)(ts.ones(2, 3, 4), p), lambda: getattr(TF, name)(torch.ones(2, 3, 4), p))


def test_refused_as_pytorch_does():
    same_error(lambda: F.dropout(ts.ones(3, dtype=ts.int64)), lambda: TF.dropout(torch.ones(3, dtype=torch.int64)))
    same_error(lambda: F.dropout1d(ts.ones(3)), lambda: TF.dropout1d(torch.ones(3)))
    same_error(
        lambda: F.feature_alpha_dropout(ts.ones(3), 0.5, True),
        lambda: TF.feature_alpha_dropout(torch.ones(3), 0.5, True),
    )
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        F.dropout([1.0])


def test_names_outside_nn_functional():
    x = ts.ones(100)
    assert ts.dropout(x, 0.5, False) is x
    assert set(ts.dropout(x, 0.5, True).tolist()) == {0.0, 2.0}

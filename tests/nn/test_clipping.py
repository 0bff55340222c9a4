"""nn.utils: gradient clipping and parameters as a vector."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tensorsmith.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector, vector_to_parameters

import tensorsmith as ts


def parameters(lib, scale=1.0, shapes=((3, 4), (), (7,), (0, 2))):
    rng = np.random.default_rng(5)
    found = []
    for shape in shapes:
        p = lib.nn.Parameter(lib.zeros(shape))
        p.grad = lib.tensor(np.asarray(rng.standard_normal(shape) * scale).astype("float32"))
        found.append(p)
    return [*found, lib.nn.Parameter(lib.zeros(2))]  # one without a gradient


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf"), 0.5])
@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
def test_norm(norm_type, max_norm):
    results = []
    for lib in (torch, ts):
        # PyTorch has no maximum of an empty gradient; ours leaves it out.
        params = parameters(lib, shapes=((3, 4), (), (7,)) if norm_type == float("inf") else ((3, 4), (7,), (0, 2)))
        norm = lib.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
        results.append([norm.item(), *(p.grad.tolist() for p in params if p.grad is not None)])
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    for a, b in zip(results[1][1:], results[0][1:]):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-4)


def test_value_and_one_parameter():
    results = []
    for lib in (torch, ts):
        params = parameters(lib, 10.0)
        lib.nn.utils.clip_grad_value_(params, 0.75)
        lib.nn.utils.clip_grad_norm_(params[0], 1.0)
        results.append([p.grad.tolist() for p in params if p.grad is not None])
    for a, b in zip(*results):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5)


def test_no_gradients_and_not_finite():
    p = ts.nn.Parameter(ts.ones(2))
    assert clip_grad_norm_([p], 1.0).item() == 0.0
    p.grad = ts.tensor([1.0, float("nan")])
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    clip_grad_value_(p, 0.5)
    assert p.grad.tolist()[0] == 0.5


def test_vector_and_back():
    params = parameters(ts)
    vector = parameters_to_vector(params)
    assert vector.shape == (22,) and vector.requires_grad
    vector_to_parameters(ts.arange(22, dtype=ts.float32), params)
    assert params[0].shape == (3, 4) and params[0][2, 3].item() == 11.0 and params[1].item() == 12.0
    assert params[0].requires_grad and params[0].is_leaf
    assert parameters_to_vector(params).tolist() == list(range(22))
    parameters_to_vector(params).sum().backward()
    with pytest.raises(ValueError, match="need more than"):
        vector_to_parameters(ts.ones(3), params)
    with pytest.raises(TypeError, match="expected a Tensor"):
        vector_to_parameters([1.0], params)


@pytest.mark.parametrize("norm_type", [0, -math.inf, math.inf, "inf", "-inf", 0.5, 1, 3, -1])
def test_total_norms_of_every_order_and_of_mixed_dtypes(norm_type):
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal(5), np.zeros(3, np.float32)]
    arrays[0][0, 0] = 0 if norm_type == 0 else 1e-3
    for chosen in (arrays[:1], arrays[:2], arrays if norm_type != -1 else arrays[1:2], [arrays[2]]):
        found, expected = (lib.nn.utils.get_total_norm([lib.tensor(a) for a in chosen], norm_type) for lib in (ts, torch))
        assert str(found.dtype).split(".")[1] == str(expected.dtype).split(".")[1]
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5)


@pytest.mark.parametrize("norm_type", [0, -math.inf])
def test_gradients_are_clipped_by_every_norm(norm_type):
    found = []
    for lib in (ts, torch):
        p = lib.nn.Parameter(lib.ones(3))
        p.grad = lib.tensor([0.5, -2.0, 3.0])
        norm = lib.nn.utils.clip_grad_norm_([p], 0.25, norm_type=norm_type)
        found.append([norm.item(), *p.grad.tolist()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)

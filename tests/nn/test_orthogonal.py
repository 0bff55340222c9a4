"""parametrizations.orthogonal: the weight and its gradient as PyTorch's, at the start, after steps and when assigned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts

MAPS = ("matrix_exp", "cayley", "householder")
SHAPES = ((4, 4), (5, 3), (3, 5), (2, 4, 3))


def layer(lib, array):
    module = lib.nn.Module()
    module.weight = lib.nn.Parameter(lib.from_numpy(array.copy()))
    return module


def is_orthogonal(weight):
    rows, columns = weight.shape[-2:]
    tall = weight if rows >= columns else weight.swapaxes(-1, -2)
    product = tall.conj().swapaxes(-1, -2) @ tall
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(product.shape[-1]), product.shape), atol=1e-6)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("complex_", [False, True])
def test_weight_and_gradient(name, shape, complex_):
    """From the same original and base."""
    complex_ = complex_ and name != "householder"  # which is of real numbers
    rng = np.random.default_rng(0)

    def drawn(*size):
        return rng.standard_normal(size) + 1j * rng.standard_normal(size) if complex_ else rng.standard_normal(size)

    array, original, factor, base, found = drawn(*shape), drawn(*shape), drawn(*shape), None, []
    if name == "householder":  # the diagonal says which columns are turned round
        place = range(min(shape[-2:]))
        original[..., place, place] = np.sign(original[..., place, place])
    for lib in (torch, ts):
        module = lib.nn.utils.parametrizations.orthogonal(layer(lib, array), orthogonal_map=name)
        made = module.parametrizations.weight[0]
        is_orthogonal(module.weight.detach().numpy())
        # In a weight that is not square the columns beside its own are drawn.
        found.append([module.weight.detach().numpy()] if shape[-1] == shape[-2] else [])
        with lib.no_grad():
            base = made.base.numpy().copy() if base is None else base
            made.base.copy_(lib.from_numpy(base))
            module.parametrizations.weight.original.copy_(lib.from_numpy(original))
        weight = module.weight
        is_orthogonal(weight.detach().numpy())
        loss = (weight * lib.from_numpy(factor)).sum()
        (loss.real if complex_ else loss).backward()
        found[-1] += [weight.detach().numpy(), module.parametrizations.weight.original.grad.numpy()]
    for theirs, ours in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_assigned_weight_by_reflections(shape):
    q = np.linalg.qr(np.random.default_rng(1).standard_normal((*shape[:-2], max(shape[-2:]), min(shape[-2:]))))[0]
    q = q if shape[-2] >= shape[-1] else q.swapaxes(-1, -2)
    originals = []
    for lib in (ts, torch):
        module = lib.nn.utils.parametrizations.orthogonal(
            layer(lib, np.zeros(shape) + 1), orthogonal_map="householder", use_trivialization=False
        )
        module.weight = lib.from_numpy(q.copy())
        np.testing.assert_allclose(module.weight.detach().numpy(), q, atol=1e-12)
        originals.append(module.parametrizations.weight.original.detach().numpy())
    np.testing.assert_allclose(*originals, atol=1e-12)
    with pytest.raises(ValueError, match="Got a tensor of shape"):
        module = ts.nn.utils.parametrizations.orthogonal(layer(ts, np.ones(shape)))
        module.weight = ts.ones(7, 7)


def test_a_layer_stays_orthogonal_while_it_learns_and_its_state_loads():
    ts.manual_seed(0)
    net = ts.nn.utils.parametrizations.orthogonal(ts.nn.Linear(6, 4))
    assert net.parametrizations.weight[0].orthogonal_map == "householder"
    optimizer = ts.optim.SGD(net.parameters(), 0.1)
    x = ts.randn(8, 6)
    for _ in range(3):
        optimizer.zero_grad()
        (net(x) - 1).square().mean().backward()
        optimizer.step()
        is_orthogonal(net.weight.detach().numpy())
    again = ts.nn.utils.parametrizations.orthogonal(ts.nn.Linear(6, 4))
    again.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(again(x).detach().numpy(), net(x).detach().numpy())


def test_refusals():
    for lib in (ts, torch):
        orthogonal = lib.nn.utils.parametrizations.orthogonal
        with pytest.raises(ValueError, match="no parameter or buffer with name 'x'"):
            orthogonal(lib.nn.Linear(2, 2), "x")
        with pytest.raises(ValueError, match="Got a tensor of 1 dimensions"):
            orthogonal(lib.nn.Linear(2, 2), "bias")
        with pytest.raises(ValueError, match='one of "matrix_exp", "cayley", "householder"'):
            orthogonal(lib.nn.Linear(2, 2), orthogonal_map="qr")
        with pytest.raises(ValueError, match="does not support complex"):
            orthogonal(layer(lib, np.ones((2, 2), complex)), orthogonal_map="householder")
        module = orthogonal(lib.nn.Linear(2, 2), orthogonal_map="cayley", use_trivialization=False)
        with pytest.raises(NotImplementedError, match="use_trivialization=False"):
            module.weight = lib.eye(2)

"""Gradients of complex tensors against PyTorch: the engine, hooks, mixtures with real tensors, writes, second derivatives."""

import copy
import pickle

import numpy as np
import pytest
import torch

import tensorsmith as ts
from tensorsmith.autograd import gradcheck, gradgradcheck

LIBRARIES = (ts, torch)
Z = np.array([[1 + 2j, 3 - 1j], [-0.5j, 2 + 0.25j]])
R = np.array([[0.5, -1.5], [2.0, 1.0]])


def leaf(L, array):
    return L.tensor(array, requires_grad=True)


def same(function, rtol=1e-10):
    """The list of tensors a function gives, in both libraries."""
    ours, theirs = (function(L) for L in LIBRARIES)
    for a, b in zip(ours, theirs, strict=True):
        assert str(a.dtype).split(".")[-1] == str(b.dtype).split(".")[-1]
        np.testing.assert_allclose(a.detach().numpy(), b.detach().resolve_conj().numpy(), rtol=rtol, atol=1e-12)


MIXTURES = {
    "real times complex": lambda L, r, z: (r * z).abs().sum(),
    "complex plus real": lambda L, r, z: ((z + r) * (1 - 2j)).angle().sum(),
    "complex of a real": lambda L, r, z: L.complex(r, r * 2).mul(z).imag.sum(),
    "polar": lambda L, r, z: (L.polar(r.abs(), r) * z).real.sum(),
    "power": lambda L, r, z: (z**r).abs().sum() + (r.abs() ** z).real.sum(),
    "matmul": lambda L, r, z: (z @ r.to(z.dtype) @ z.mH).abs().sum(),
    "where": lambda L, r, z: L.where(r > 0, z, r.to(z.dtype)).abs().sum(),
    "cat": lambda L, r, z: (L.cat([z, r]) * 1j).sgn().real.sum(),
    "indexing": lambda L, r, z: z[L.tensor([1, 1, 0])].prod().abs() + r[0].sum(),
    "moments": lambda L, r, z: (z * r).var() + (z * r).std(1).sum() + L.linalg.vector_norm(z - r),
    "to real": lambda L, r, z: (z * r).to(r.dtype).pow(2).sum(),
    "logsumexp": lambda L, r, z: (z * r).logsumexp(1).abs().sum() + z.cumprod(0).imag.sum(),
    "in place": lambda L, r, z: (z * 2).mul_(r).add_(1j).abs().sum(),
}


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("name", MIXTURES)
def test_gradients_of_mixtures(name):
    def gradients(L):
        r, z = leaf(L, R), leaf(L, Z)
        MIXTURES[name](L, r, z).backward()
        return [r.grad if r.grad is not None else L.zeros(2, 2), z.grad]

    same(gradients)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("name", sorted(set(MIXTURES) - {"cat", "in place"}))
def test_second_derivatives_of_mixtures(name):
    r, z = leaf(ts, R), leaf(ts, Z)
    assert gradcheck(lambda r, z: MIXTURES[name](ts, r, z), (r, z))
    assert gradgradcheck(lambda r, z: MIXTURES[name](ts, r, z), (r, z))


def test_gradients_accumulate_and_hooks_see_them():
    def run(L):
        z, seen = leaf(L, Z), []
        w = z * (2 - 1j)
        w.retain_grad()
        w.register_hook(lambda g: g * 1j)
        z.register_hook(seen.append)
        for _ in range(2):
            (w * w).real.sum().backward(retain_graph=True)
        return [z.grad, w.grad, *seen]

    same(run)


def test_gradients_given_for_complex_outputs():
    def run(L):
        z, r = leaf(L, Z), leaf(L, R)
        given = L.tensor(Z * 1j - 2)
        return L.autograd.grad([z * r, r * 2], [z, r], [given, L.ones_like(r)])

    same(run)


def test_a_gradient_of_a_gradient():
    def run(L):
        z = leaf(L, Z)
        (first,) = L.autograd.grad((z**3).abs().sum(), z, create_graph=True)
        first.abs().pow(2).sum().backward()
        return [first, z.grad]

    same(run)


def test_a_complex_scalar_has_no_implicit_gradient():
    for library in LIBRARIES:
        with pytest.raises(RuntimeError, match="only for real scalar outputs but got .*complex128"):
            leaf(library, Z).sum().backward()


def test_integers_and_complex_numbers_may_require_gradients_or_not():
    for library in LIBRARIES:
        assert library.tensor(Z).requires_grad_().requires_grad
        with pytest.raises(RuntimeError):
            library.tensor([1]).requires_grad_()


def test_gradcheck_finds_a_gradient_that_is_not_conjugated():
    class Square(ts.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, grad):
            (z,) = ctx.saved_tensors
            return grad * 2 * (z.conj() if right else z)

    z = leaf(ts, Z)
    right = True
    assert gradcheck(Square.apply, (z,))
    right = False
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(Square.apply, (z,))


def test_layers_of_complex_numbers():
    layer = ts.nn.Linear(2, 3, dtype=ts.complex128)
    assert layer.weight.is_complex() and bool((layer.weight.imag != 0).any())
    twin = torch.nn.Linear(2, 3, dtype=torch.complex128)
    with torch.no_grad():
        twin.weight.copy_(torch.from_numpy(layer.weight.detach().numpy()))
        twin.bias.copy_(torch.from_numpy(layer.bias.detach().numpy()))
    layer(ts.tensor(Z)).abs().sum().backward()
    twin(torch.tensor(Z)).abs().sum().backward()
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12)


def test_a_gradient_of_parts_that_do_not_lie_side_by_side():
    def run(L):
        z = leaf(L, Z)
        given = L.tensor(np.stack([R, 2 * R])).permute(1, 2, 0)
        return L.autograd.grad(L.view_as_real(z), z, given)

    same(run)


def test_copies():
    z = leaf(ts, Z)
    for made in (copy.deepcopy(z), pickle.loads(pickle.dumps(z))):
        assert made.dtype is ts.complex128 and made.requires_grad and made.tolist() == z.tolist()

"""Matrix products and contractions against PyTorch: every pair of ranks, gradients, dtypes, errors."""

from __future__ import annotations

import numpy as np
import pytest
from both_libraries import agree, normal, refuse

import tensorsmith as ts

RANKS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)), ((2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)),
    ((2, 0), (0, 3)), ((0, 3), (3, 4)), ((33, 65), (65, 70)), ((4, 33, 65), (65, 17)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", RANKS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_pair_of_ranks(shapes: tuple, dtype: str) -> None:
    agree(lambda L, a, b: a @ b, normal(*shapes[0]), normal(*shapes[1], seed=1), dtype=dtype)


def test_transposed_and_permuted_operands() -> None:
    agree(lambda L, a, b: a.t() @ b, normal(3, 2), normal(3, 4))
    agree(lambda L, a, b: a @ b.mT, normal(5, 3, 2), normal(5, 4, 2))
    agree(lambda L, a, b: a.permute(1, 2, 0) @ b, normal(5, 3, 2), normal(3, 5, 2))
    agree(lambda L, a, b: a[:, ::2] @ b[::2], normal(3, 6), normal(8, 4)[:6])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype: str) -> None:
    agree(lambda L, a, b: a @ b, normal(5, 33), normal(33, 7), dtype=dtype, gradient=False)


def test_integers() -> None:
    agree(lambda L, a, b: a @ b, np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4))


PRODUCTS = {
    "mm": (lambda L, a, b: L.mm(a, b), (2, 3), (3, 4)),
    "bmm": (lambda L, a, b: L.bmm(a, b), (5, 2, 3), (5, 3, 4)),
    "mv": (lambda L, a, b: L.mv(a, b), (2, 3), (3,)),
    "dot": (lambda L, a, b: L.dot(a, b), (3,), (3,)),
    "outer": (lambda L, a, b: L.outer(a, b), (3,), (4,)),
    "inner": (lambda L, a, b: L.inner(a, b), (2, 3), (4, 5, 3)),
    "kron": (lambda L, a, b: L.kron(a, b), (2, 3), (4, 5)),
    "cross": (lambda L, a, b: L.cross(a, b), (2, 3), (2, 3)),
    "tensordot": (lambda L, a, b: L.tensordot(a, b, ([0, 2], [1, 0])), (2, 3, 4), (4, 2, 5)),
    "tensordot of 1": (lambda L, a, b: L.tensordot(a, b, 1), (2, 3), (3, 4)),
    "addmm": (lambda L, c, a, b: L.addmm(c, a, b), (4,), (3, 2), (2, 4)),
    "addmm scaled": (lambda L, c, a, b: L.addmm(c, a, b, beta=2, alpha=0.5), (3, 1), (3, 2), (2, 4)),
    "addmm without bias": (lambda L, c, a, b: L.addmm(c, a, b, beta=0), (4,), (3, 2), (2, 4)),
    "addmv": (lambda L, c, a, b: L.addmv(c, a, b), (3,), (3, 2), (2,)),
    "addr": (lambda L, c, a, b: L.addr(c, a, b), (3, 4), (3,), (4,)),
    "baddbmm": (lambda L, c, a, b: L.baddbmm(c, a, b), (5, 3, 4), (5, 3, 2), (5, 2, 4)),
    "addbmm": (lambda L, c, a, b: L.addbmm(c, a, b), (3, 4), (5, 3, 2), (5, 2, 4)),
    "multi_dot": (lambda L, a, b, c: L.linalg.multi_dot([a, b, c]), (2, 30), (30, 4), (4, 5)),
    "trace": (lambda L, a: L.trace(a), (3, 4)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    function, *shapes = PRODUCTS[name]
    agree(function, *(normal(*s, seed=i) for i, s in enumerate(shapes)))


def test_beta_zero_ignores_nan() -> None:
    agree(lambda L, c, a, b: L.addmm(c, a, b, beta=0), np.full(4, np.nan), normal(3, 2), normal(2, 4), gradient=False)


def test_addmm_in_place() -> None:
    agree(lambda L, c, a, b: c.detach().clone().addmm_(a, b, beta=0.5), normal(3, 4), normal(3, 2), normal(2, 4))


EQUATIONS = {
    "ij,jk->ik": ((2, 3), (3, 4)), "bij,bjk->bik": ((5, 2, 3), (5, 3, 4)), "ii->i": ((3, 3),), "ii": ((3, 3),),
    "ij->ji": ((2, 3),), "i,j->ij": ((2,), (3,)), "...ij,...jk": ((5, 2, 3), (3, 4)), "ij,jk,kl->il": ((2, 3), (3, 4), (4, 5)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)), "i,i": ((3,), (3,)), "ij,i->j": ((2, 3), (2,)),
    "ij,ij->ij": ((2, 3), (2, 3)), "ij,kj->": ((2, 3), (4, 3)), "i...->...": ((2, 3, 4),),
    "bn,anm,bm->ba": ((2, 5), (3, 5, 4), (2, 4)),
    "ij,jk->ki": ((2, 3), (3, 4)), "...a->a...": ((2, 3, 4),), "ab,cb->": ((2, 1), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    arrays = [normal(*s, seed=i) for i, s in enumerate(EQUATIONS[equation])]
    agree(lambda L, *x: L.einsum(equation, *x), *arrays, strides=False)


def test_einsum_by_lists() -> None:
    agree(lambda L, a, b: L.einsum(a, [0, 1], b, [1, 2], [0, 2]), normal(2, 3), normal(3, 4), strides=False)


REFUSED = {
    "sizes": lambda L: L.ones(2, 3) @ L.ones(2, 3),
    "dtypes": lambda L: L.ones(2, 3) @ L.ones(3, 4).double(),
    "a number": lambda L: L.ones(2, 3) @ 2,
    "zero dims": lambda L: L.ones(2, 3) @ L.ones(()),
    "mm of a vector": lambda L: L.mm(L.ones(2, 3), L.ones(3)),
    "bmm of matrices": lambda L: L.bmm(L.ones(2, 3), L.ones(3, 2)),
    "batches": lambda L: L.bmm(L.ones(2, 3, 4), L.ones(3, 4, 5)),
    "dot of sizes": lambda L: L.dot(L.ones(2), L.ones(3)),
    "einsum without operands": lambda L: L.einsum("ij,jk", L.ones(2, 3)),
    "einsum of sizes": lambda L: L.einsum("ij,jk", L.ones(2, 3), L.ones(2, 3)),
    "einsum of ranks": lambda L: L.einsum("ij", L.ones(2)),
    "bias that does not fit": lambda L: L.addmm(L.ones(5), L.ones(3, 2), L.ones(2, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_pytorchs_class(name: str) -> None:
    refuse(REFUSED[name])


def test_the_error_names_both_shapes() -> None:
    with pytest.raises(RuntimeError, match=r"\(2x3 and 2x3\)"):
        ts.ones(2, 3) @ ts.ones(2, 3)

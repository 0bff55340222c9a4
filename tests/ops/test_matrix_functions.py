"""linalg.solve, matrix_exp and householder_product against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorsmith as ts

RANDOM = np.random.default_rng(2)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_values(dtype):
    def both(call, *arrays):
        found = [call(lib, *(lib.from_numpy(a).to(getattr(lib, dtype)) for a in arrays)) for lib in (ts, torch)]
        assert str(found[0].dtype).endswith(dtype) and tuple(found[0].shape) == tuple(found[1].shape)
        tolerance = 1e-4 if dtype in ("float32", "complex64") else 1e-10
        np.testing.assert_allclose(*(x.resolve_conj().numpy() for x in found), rtol=tolerance, atol=tolerance)

    square, one = RANDOM.standard_normal((2, 4, 4)), RANDOM.standard_normal((4, 4))
    for b in (RANDOM.standard_normal((4, 3)), RANDOM.standard_normal((5, 2, 4, 3)), RANDOM.standard_normal((2, 4)), np.ones(4)):
        both(lambda lib, a, b: lib.linalg.solve(a, b), square, b)
    both(lambda lib, a, b: lib.linalg.solve(a, b, left=False), one, RANDOM.standard_normal((2, 3, 4)))
    both(lambda lib, a, b: lib.linalg.solve(a, b), np.ones((0, 0)), np.ones((0, 2)))
    for scale in (0.0, 1e-3, 1.0, 10.0):
        both(lambda lib, a: lib.linalg.matrix_exp(a), square * scale)
    both(lambda lib, a: a.matrix_exp(), np.diag([0.0, 1e2, -1e3]) / 10)
    both(lambda lib, a: lib.matrix_exp(a), np.ones((2, 0, 0)))
    for k in (0, 2, 3):
        matrices, factors = RANDOM.standard_normal((2, 5, 3)), RANDOM.standard_normal((2, k))
        both(lambda lib, a, t: lib.linalg.householder_product(a, t), matrices, factors)


def test_matrix_exp_of_what_is_not_finite():
    assert ts.matrix_exp(ts.tensor([[float("inf"), 0.0], [0.0, 1.0]])).isnan().all()


WRONG = {
    "singular": lambda L: L.linalg.solve(L.ones(2, 2), L.ones(2)),
    "a singular one of several": lambda L: L.linalg.solve(L.stack([L.eye(2), L.ones(2, 2)]), L.ones(2, 2)),
    "not square": lambda L: L.linalg.solve(L.ones(2, 3), L.ones(2)),
    "not square either": lambda L: L.linalg.matrix_exp(L.ones(2, 3)),
    "a vector": lambda L: L.linalg.matrix_exp(L.ones(2)),
    "sizes": lambda L: L.linalg.solve(L.eye(2), L.ones(3, 1)),
    "sizes on the right": lambda L: L.linalg.solve(L.eye(2), L.ones(2, 3), left=False),
    "dtypes": lambda L: L.linalg.solve(L.eye(2), L.ones(2, dtype=L.float64)),
    "integers": lambda L: L.linalg.solve(L.eye(2, dtype=L.int64), L.ones(2, dtype=L.int64)),
    "wide reflections": lambda L: L.linalg.householder_product(L.ones(2, 3), L.ones(2)),
    "too many reflections": lambda L: L.linalg.householder_product(L.ones(3, 2), L.ones(3)),
    "batches of reflections": lambda L: L.linalg.householder_product(L.ones(2, 3, 2), L.ones(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refused_as_pytorch_does(name):
    for lib in (ts, torch):
        with pytest.raises(RuntimeError, match="singular" if name.endswith(("singular", "several")) else "."):
            WRONG[name](lib)
